"""The retroactive sweep: secrets that are on the volume already are found everywhere, and taken out where that is allowed."""

import json
from pathlib import Path

import pytest

from persistence.context import Context
from persistence.errors import NotFoundError
from persistence.log import ChannelLog, NewMessage
from persistence.records import UserMessage
from persistence.secret_sweep import sweep_secrets, take_secrets_out
from persistence.versions import Author, edit_text, list_versions, read_version
from persistence.workspace import ChannelId, Lane, Workspace, open_workspace
from tests.persistence.digby import make_digby_volume

AMY = Author("user:amy")
OPS = ChannelId("ops")
KEY = "ghp_" + "aB3dE6" * 6


def as_it_is(text: str) -> str:
    return text


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace(tmp_path)


def put(workspace: Workspace, name: str, text: str) -> None:
    path = workspace.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def places_of_key(workspace: Workspace) -> list[str]:
    found = [path for path in workspace.root.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    return sorted(str(path.relative_to(workspace.root)) for path in found)


def leave_secrets(workspace: Workspace) -> None:
    """A volume from before there was a scanner."""
    log, context = ChannelLog(workspace, OPS, redact=as_it_is), Context(workspace, Lane(OPS), redact=as_it_is)
    log.append(NewMessage("hello", "amy", ts="100.000000"))
    log.append(NewMessage(f"use {KEY}", "amy", ts="101.000000", extra={"metadata": {"note": KEY}}))
    context.append([UserMessage(content="hello", timestamp=1), UserMessage(content=f"use {KEY}\nplease", timestamp=2)])
    context.archive()
    context.append([UserMessage(content=f"again {KEY}", timestamp=3)])
    put(workspace, "MEMORY.md", f"one\ntwo\nthe key: {KEY}\n")
    edit_text(workspace, "MEMORY.md", lambda old: old.replace(KEY, "taken out"), author=AMY)
    put(workspace, "memory/deploy.md", f"one\n\nkey {KEY}\n")
    put(workspace, "skills/x/SKILL.md", f"---\nname: x\ndescription: y\n---\n{KEY}\n")
    put(workspace, "ops/last_prompt.json", json.dumps({"system": f"x {KEY}"}))
    put(workspace, ".recalld/flushes/ops/channel.jsonl", json.dumps({"summary": KEY}) + "\n")
    put(workspace, ".recalld/quarantine/ops%2Flog.jsonl.12.abc", f'{{"ts":"1","text":"{KEY}')


def test_every_place_is_found_with_its_line_and_kind_and_never_the_value(workspace: Workspace) -> None:
    leave_secrets(workspace)
    found = sweep_secrets(workspace)
    assert {each.path for each in found} == set(places_of_key(workspace))
    assert all("github_token" in each.detail and KEY not in each.detail for each in found)
    lines = {each.path: each.line for each in found}
    assert lines["memory/deploy.md"] == 3
    assert lines["ops/log.jsonl"] == 2
    assert [each.path for each in found].count("ops/log.jsonl") == 2
    assert {each.path for each in found if not each.fixable} == {"memory/deploy.md", "skills/x/SKILL.md"}


def test_logs_contexts_and_what_recalld_kept_are_redacted_and_memory_is_left_to_people(workspace: Workspace) -> None:
    leave_secrets(workspace)
    memory = (workspace.root / "memory/deploy.md").read_bytes()
    repaired = take_secrets_out(workspace, sweep_secrets(workspace), author=AMY)
    assert [each for each in repaired if not each.done] == []
    assert places_of_key(workspace) == ["memory/deploy.md", "skills/x/SKILL.md"]
    assert (workspace.root / "memory/deploy.md").read_bytes() == memory
    assert [each for each in sweep_secrets(workspace) if each.fixable] == []


def test_a_redacted_log_is_the_same_log_but_for_the_secret(workspace: Workspace) -> None:
    leave_secrets(workspace)
    log = ChannelLog(workspace, OPS)
    assert [record.text for record in log.page()] == ["hello", f"use {KEY}"]  # an index of the old file is in memory
    first_line = (workspace.root / "ops/log.jsonl").read_bytes().split(b"\n")[0]
    take_secrets_out(workspace, sweep_secrets(workspace))
    assert [record.text for record in log.page()] == ["hello", "use [redacted:github_token]"]
    assert (workspace.root / "ops/log.jsonl").read_bytes().split(b"\n")[0] == first_line
    log.append(NewMessage("after", "amy"))
    assert [record.text for record in ChannelLog(workspace, OPS).page()][-1] == "after"


def test_a_context_that_is_open_goes_on_after_it_was_redacted(workspace: Workspace) -> None:
    context = Context(workspace, Lane(OPS), redact=as_it_is)
    context.append([UserMessage(content=f"use {KEY}", timestamp=1)])
    take_secrets_out(workspace, sweep_secrets(workspace))
    context.append([UserMessage(content="next", timestamp=2)])
    entries = context.entries(after=None, limit=9)
    assert [entry.field("message")["content"] for entry in entries] == ["use [redacted:github_token]", "next"]
    assert entries[1].parent_id == entries[0].id


def test_versions_stay_versions_without_the_secret(workspace: Workspace) -> None:
    leave_secrets(workspace)
    before = list_versions(workspace, "MEMORY.md")[0]
    take_secrets_out(workspace, sweep_secrets(workspace))
    after = list_versions(workspace, "MEMORY.md")
    assert [(version.created, version.by) for version in after] == [(before.created, "user:amy")]
    assert read_version(workspace, "MEMORY.md", after[0].id)[1] == b"one\ntwo\nthe key: [redacted:github_token]\n"
    with pytest.raises(NotFoundError):
        read_version(workspace, "MEMORY.md", before.id)
    archived = list_versions(workspace, "ops/context.jsonl")
    assert len(archived) == 1
    lines = read_version(workspace, "ops/context.jsonl", archived[0].id)[1].splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines)


def test_bad_and_torn_lines_are_redacted_as_text_and_stay(workspace: Workspace) -> None:
    torn = f'{{"ts":"1.0","text":"x {KEY}'
    put(workspace, "ops/log.jsonl", f'{{"ts": "1.000000",  "text": "kept as it is"}}\nby hand {KEY}\n\n{torn}')
    assert [each.line for each in sweep_secrets(workspace)] == [2, 4]
    take_secrets_out(workspace, sweep_secrets(workspace))
    assert (workspace.root / "ops/log.jsonl").read_text() == (
        '{"ts": "1.000000",  "text": "kept as it is"}\nby hand [redacted:github_token]\n\n'
        '{"ts":"1.0","text":"x [redacted:github_token]'
    )


def test_volumes_without_secrets_have_no_finding(tmp_path: Path) -> None:
    make_digby_volume(tmp_path)
    assert sweep_secrets(open_workspace(tmp_path)) == []
