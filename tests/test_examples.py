"""The sample workspace is legal by the project's own parsers, and says nothing that the walk-through is to teach."""

import re
from pathlib import Path

import pytest
import yaml

from persistence.memory import load_memory_layers
from persistence.records import LogRecord, decode_line, parse_log_record
from persistence.skills import load_skills, read_skill
from persistence.topic_store import read_topic_index
from persistence.topics.index import parse_topic_index, render_entry
from persistence.workspace import ChannelId, Workspace, ts_key

EXAMPLE = Workspace(Path(__file__).parents[1] / "examples/workspace")
CHANNELS = list(EXAMPLE.channels())
TEXTS = [path for path in EXAMPLE.root.rglob("*") if path.is_file()]


def records(channel: ChannelId) -> list[LogRecord]:
    data = (EXAMPLE.root / Workspace.log(channel)).read_bytes()
    assert data.endswith(b"\n")
    found = [parse_log_record(line) for line in data.removesuffix(b"\n").split(b"\n")]
    return [record for record in found if record is not None]


def test_it_has_two_channels_with_a_layer_of_their_own():
    assert CHANNELS == ["general", "ops"]
    for channel in CHANNELS:
        assert [layer.scope for layer in load_memory_layers(EXAMPLE, channel)] == ["global", "channel"]


@pytest.mark.parametrize("channel", CHANNELS)
def test_every_log_line_is_a_whole_record_in_order(channel: ChannelId):
    found = records(channel)
    lines = (EXAMPLE.root / Workspace.log(channel)).read_bytes().count(b"\n")
    assert lines == len(found) >= 15
    keys = [ts_key(record.ts) for record in found]
    assert keys == sorted(set(keys))
    assert {record.root_ts for record in found} - {None} <= {record.ts for record in found}
    assert any(record.root_ts for record in found)
    for record in found:
        again = decode_line(record.model_dump_json(by_alias=True, exclude_none=True).encode())
        assert LogRecord.model_validate(again) == record
        assert record.model_extra == {}


@pytest.mark.parametrize("channel", [None, ChannelId("ops")])
def test_every_topic_index_is_canonical_and_agrees_with_its_files(channel: ChannelId | None):
    index = read_topic_index(EXAMPLE, channel)
    assert index is not None
    assert index.quarantined == ()
    folder = EXAMPLE.root / Workspace.topics(channel)
    assert {entry.file for entry in index.entries} == {path.name for path in folder.iterdir()} - {"MEMORY.md"}
    for entry in index.entries:
        assert render_entry(entry) == index.lines[entry.line - 1]
        front = yaml.safe_load((folder / entry.file).read_text("utf-8").split("---\n")[1])
        assert (front["name"], front["description"]) == (entry.name, entry.summary)
        assert front["last_updated"].isoformat() == entry.stamp


def test_one_topic_is_pinned_and_one_is_stale():
    index = parse_topic_index((EXAMPLE.root / "memory/MEMORY.md").read_text("utf-8"))
    assert [entry.file for entry in index.entries if entry.pinned] == ["on-call-rota.md"]
    assert [entry.file for entry in index.entries if entry.stale] == ["legacy-importer.md"]


def test_its_skills_have_no_problems():
    loaded = load_skills(EXAMPLE, ChannelId("ops"))
    assert loaded.problems == ()
    assert [skill.name for skill in loaded.items] == ["incident-report", "weekly-summary"]
    assert "skills/incident-report/template.md" in read_skill(EXAMPLE, loaded.items[0])


def test_every_file_is_clean_text():
    assert len(TEXTS) >= 15
    for path in TEXTS:
        data = path.read_bytes()
        assert data.decode("utf-8").endswith("\n")
        assert b"\r" not in data


def test_what_the_walk_through_teaches_is_not_known_yet():
    for path in TEXTS:
        assert not re.search(r"deploy window|roll(ed|ing)? ?back", path.read_text("utf-8"), re.IGNORECASE), path
