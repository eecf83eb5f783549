"""The doctor: each inconsistency that is made on purpose is found with file and line, and put right without loss."""

import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from persistence.audit import read_audit
from persistence.checks.lines import reattached
from persistence.context import Context
from persistence.doctor import examine, repair
from persistence.files import locked
from persistence.log import ChannelLog, NewMessage
from persistence.records import UserMessage
from persistence.topic_store import TopicStore
from persistence.versions import Author, edit_text, list_versions, read_version
from persistence.workspace import ChannelId, Lane, Workspace, open_workspace
from tests.persistence.digby import make_digby_volume

AMY = Author("user:amy", "because")
OPS = ChannelId("ops")
ENTRY = {"type": "message", "timestamp": "2026-01-01T00:00:00.000Z"}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A small volume with something of everything, in good order."""
    workspace = open_workspace(tmp_path)
    log, context = ChannelLog(workspace, OPS), Context(workspace, Lane(OPS))
    for text in ("one", "two"):
        log.append(NewMessage(text, "amy"))
        context.append([UserMessage(content=text, timestamp=1)])
        edit_text(workspace, "MEMORY.md", lambda old, t=text: old + f"{t}\n", author=AMY)
        TopicStore(workspace, None).write(f"Topic {text}", f"about {text}", "a summary", author=AMY)
        TopicStore(workspace, OPS).write(f"Topic {text}", f"about {text}", "a summary", author=AMY)
    assert examine(workspace) == []
    return workspace


def put(workspace: Workspace, name: str, data: bytes) -> Path:
    path = workspace.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def add(workspace: Workspace, name: str, data: bytes) -> None:
    with (workspace.root / name).open("ab") as file:
        file.write(data)


def replace_in(workspace: Workspace, name: str, old: str, new: str) -> None:
    path = workspace.root / name
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def link(workspace: Workspace, name: str) -> None:
    (workspace.root / name).symlink_to(workspace.root / "MEMORY.md")


def break_version(workspace: Workspace, how: str) -> str:
    version = list_versions(workspace, "MEMORY.md")[0]
    path = workspace.root / workspace.version("MEMORY.md", version.id)
    if how == "torn":
        path.write_bytes(path.read_bytes()[:-1])
        return str(path.relative_to(workspace.root))
    gone = path if how == "bytes" else path.with_name(path.name + ".json")
    gone.unlink()
    return str((path.with_name(path.name + ".json") if how == "bytes" else path).relative_to(workspace.root))


def dangling(workspace: Workspace, **fields: object) -> None:
    add(workspace, "ops/context.jsonl", json.dumps(ENTRY | {"id": "aaaa0001", "parentId": "feedbeef", **fields}).encode() + b"\n")


INDEX = "ops/memory/MEMORY.md"
FIXABLE: dict[str, tuple[Callable[[Workspace], object], str, int | None]] = {
    "torn_tail": (lambda w: add(w, "ops/log.jsonl", b'{"ts":"1.0","te'), "ops/log.jsonl", 3),
    "torn_tail in a context": (lambda w: add(w, "ops/context.jsonl", b'{"type":"mess'), "ops/context.jsonl", 4),
    "torn_tail in the audit": (lambda w: add(w, ".recalld/audit.jsonl", b'{"time'), ".recalld/audit.jsonl", 11),
    "torn_tail in a ledger": (
        lambda w: put(w, ".recalld/flushes/ops/channel.jsonl", b'{"a":1}\n{"b'),
        ".recalld/flushes/ops/channel.jsonl",
        2,
    ),
    "context_dangling_parent": (dangling, "ops/context.jsonl", 4),
    "leftover_temp": (lambda w: put(w, "ops/.MEMORY.md.tmp-123-0a1b2c", b"half"), "ops/.MEMORY.md.tmp-123-0a1b2c", None),
    "leftover_temp alone in a channel": (lambda w: put(w, "new/.MEMORY.md.tmp-1-ff", b"x"), "new/.MEMORY.md.tmp-1-ff", None),
    "leftover_temp of a topic": (lambda w: put(w, "memory/.topic-one.md.tmp-1-ff", b"x"), "memory/.topic-one.md.tmp-1-ff", None),
    "leftover_temp of an index": (lambda w: put(w, "memory/.MEMORY.md.tmp-1-ff", b"x"), "memory/.MEMORY.md.tmp-1-ff", None),
    "leftover_temp of state": (
        lambda w: put(w, ".recalld/.last-rules.json.tmp-1-ff", b"x"),
        ".recalld/.last-rules.json.tmp-1-ff",
        None,
    ),
    "empty_log": (lambda w: put(w, "new/log.jsonl", b""), "new/log.jsonl", None),
    "empty_channel": (lambda w: (w.root / "newer/threads/1.0").mkdir(parents=True), "newer", None),
    "topic_orphan": (lambda w: (w.root / "ops/memory/topic-one.md").unlink(), INDEX, 3),
    "topic_unindexed": (lambda w: replace_in(w, INDEX, "- [Topic one]", "[Topic one]"), "ops/memory/topic-one.md", None),
    "topic_unindexed after the index was lost": (lambda w: (w.root / INDEX).unlink(), "ops/memory/topic-one.md", None),
    "topic_duplicate_line": (lambda w: add(w, INDEX, b"- [Topic one](topic-one.md) 2020-01-01 -- again\n"), INDEX, 5),
    "topic_damaged_lines": (lambda w: add(w, INDEX, b"\x00\xff\xfe\n"), INDEX, None),
    "topic_removed_and_listed": (lambda w: put(w, "ops/memory/.ocl-removed", b"topic-one.md\n"), "ops/memory/.ocl-removed", None),
    "version_torn": (lambda w: break_version(w, "torn"), "", None),
    "version_without_bytes": (lambda w: break_version(w, "bytes"), "", None),
    "version_without_metadata": (lambda w: break_version(w, "metadata"), "", None),
}


def snapshot(workspace: Workspace) -> dict[str, bytes]:
    return {
        str(path.relative_to(workspace.root)): path.read_bytes()
        for path in workspace.root.rglob("*")
        if path.is_file() and not path.is_symlink() and "locks" not in path.parts and path.name != "last-rules.json"
    }


@pytest.mark.parametrize("case", FIXABLE)
def test_what_can_be_put_right_is_found_with_its_place_and_is_gone_after_the_repair(case: str, workspace: Workspace) -> None:
    make, path, line = FIXABLE[case]
    made = make(workspace)
    path = path or str(made)
    before = snapshot(workspace)
    found = [each for each in examine(workspace) if each.fixable]
    assert snapshot(workspace) == before  # looking changes nothing
    assert (case.partition(" ")[0], path, line) in [(each.code, each.path, each.line) for each in found]
    repaired = repair(workspace, found, author=AMY)
    assert [each for each in repaired if not each.done] == []
    assert [each.finding for each in repaired] == found
    assert [each for each in examine(workspace) if each.fixable] == []


def unsafe_fifo(workspace: Workspace) -> None:
    os.mkfifo(workspace.root / "ops/pipe")


REPORTED: dict[str, tuple[Callable[[Workspace], object], str, int | None]] = {
    "log_bad_line": (lambda w: add(w, "ops/log.jsonl", b"by hand\n"), "ops/log.jsonl", 3),
    "log_bad_line without a ts": (lambda w: add(w, "ops/log.jsonl", b'\n\n{"text":"x"}\n'), "ops/log.jsonl", 5),
    "context_bad_line": (lambda w: add(w, "ops/context.jsonl", b"[1]\n"), "ops/context.jsonl", 4),
    "audit_bad_line": (lambda w: add(w, ".recalld/audit.jsonl", b"{}\n"), ".recalld/audit.jsonl", 11),
    "context_newer_version": (
        lambda w: put(w, "ops/threads/1.000000/context.jsonl", b'{"type":"session","version":9,"id":"x"}\n{"type":"new"}\n'),
        "ops/threads/1.000000/context.jsonl",
        1,
    ),
    "context_duplicate_id": (
        lambda w: [dangling(w, parentId=None), dangling(w, parentId="aaaa0001")],
        "ops/context.jsonl",
        5,
    ),
    "context_dangling_kept": (
        lambda w: dangling(w, type="compaction", parentId=None, summary="s", firstKeptEntryId="feedbeef"),
        "ops/context.jsonl",
        4,
    ),
    "settings_broken": (lambda w: put(w, "settings.json", b'{\n  "model": \n}'), "settings.json", 3),
    "settings_value": (lambda w: put(w, "settings.json", b'{\n  "shell_tool": "yes"\n}'), "settings.json", 2),
    "rules_broken": (lambda w: put(w, "memory.jsonc", b'{\n  "max_lines": \n'), "memory.jsonc", 3),
    "rules_value": (lambda w: put(w, "memory.jsonc", b'{\n  "max_lines": true\n}'), "memory.jsonc", 2),
    "topic_unsafe_line": (lambda w: add(w, INDEX, b"- [Evil](../../x.md) -- up\n"), INDEX, 5),
    "topic_ambiguous": (
        lambda w: (put(w, "ops/memory/other.md", b"x\n"), add(w, INDEX, b"- [topic ONE](other.md) -- same name\n")),
        INDEX,
        None,
    ),
    "topic_clock_skew": (
        lambda w: (put(w, "ops/memory/later.md", b"x\n"), add(w, INDEX, b"- [Later](later.md) 2090-01-01T00:00:00+00:00 -- x\n")),
        INDEX,
        5,
    ),
    "skill_broken": (lambda w: put(w, "skills/deploy/SKILL.md", b"---\nname: [x\n---\n"), "skills/deploy/SKILL.md", None),
    "skill_broken in a channel": (lambda w: put(w, "ops/skills/a/SKILL.md", b"no front matter"), "ops/skills/a/SKILL.md", None),
    "not_utf8": (lambda w: put(w, "ops/MEMORY.md", b"one\ntwo caf\xe9\n"), "ops/MEMORY.md", 2),
    "not_utf8 in a topic": (lambda w: put(w, "memory/deep/x.md", b"\xff"), "memory/deep/x.md", 1),
    "unsafe_object": (lambda w: link(w, "memory/linked.md"), "memory/linked.md", None),
    "unsafe_object in a channel": (unsafe_fifo, "ops/pipe", None),
    "version_unknown": (
        lambda w: put(w, ".recalld/versions/MEMORY.md/notes.txt", b"x"),
        ".recalld/versions/MEMORY.md/notes.txt",
        None,
    ),
    "event_bad": (lambda w: put(w, "events/x.json", b'{\n"type":\n'), "events/x.json", 3),
    "event_bad without a type": (lambda w: put(w, "events/x.json", b"[]"), "events/x.json", 1),
    "team_bad_date": (
        lambda w: put(w, "ops/.team/memory/log/dev.md", b"# Log: dev\n\n- 2026-02-30 | a | b | - | -\n"),
        "ops/.team/memory/log/dev.md",
        3,
    ),
    "team_index_full": (lambda w: put(w, ".team/memory/INDEX.md", b"- x\n" * 61), ".team/memory/INDEX.md", 61),
    "run_corrupt": (
        lambda w: put(w, "ops/.team/runs/20260101T000000Z-ABCDEF.jsonl", b'{"v":1}\n{"v":1}\n'),
        "ops/.team/runs/20260101T000000Z-ABCDEF.jsonl",
        1,
    ),
}


@pytest.mark.parametrize("case", REPORTED)
def test_what_a_person_must_decide_is_reported_with_its_place_and_left_alone(case: str, workspace: Workspace) -> None:
    make, path, line = REPORTED[case]
    make(workspace)
    before = snapshot(workspace)
    found = examine(workspace)
    assert (case.partition(" ")[0], path, line) in [(each.code, each.path, each.line) for each in found]
    assert [each.code for each in found if each.path == path and each.code == case.partition(" ")[0] and each.fixable] == []
    repair(workspace, [each for each in found if each.path == path], author=AMY)
    assert snapshot(workspace)[path] == before[path] if path in before else True


def test_the_sample_workspace_is_in_good_order(tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parents[2] / "examples/workspace", tmp_path / "w")
    assert examine(open_workspace(tmp_path / "w")) == []


def test_a_pi_digby_volume_shows_what_is_wrong_with_it_and_no_more(tmp_path: Path) -> None:
    make_digby_volume(tmp_path)
    workspace = open_workspace(tmp_path)
    found = examine(workspace)
    assert [(each.code, each.path, each.line) for each in found] == [
        ("context_bad_line", "C0TEAM/context.jsonl", 10),
        ("torn_tail", "C0TEAM/context.jsonl", 13),
        ("log_bad_line", "C0TEAM/log.jsonl", 5),
        ("log_bad_line", "C0TEAM/log.jsonl", 7),
        ("torn_tail", "C0TEAM/log.jsonl", 11),
        ("skill_broken", "skills/broken/SKILL.md", None),
    ]
    before = snapshot(workspace)
    repair(workspace, found, author=AMY)
    after = snapshot(workspace)
    assert {name for name in before if after[name] != before[name]} == {"C0TEAM/log.jsonl", "C0TEAM/context.jsonl"}
    assert all(after[name].startswith(before[name]) for name in before)


def test_a_torn_line_is_kept_in_place_and_in_quarantine(workspace: Workspace) -> None:
    add(workspace, "ops/log.jsonl", b'{"ts":"1.0","te')
    repair(workspace, examine(workspace))
    assert (workspace.root / "ops/log.jsonl").read_bytes().endswith(b'{"ts":"1.0","te\n')
    assert b'{"ts":"1.0","te' in [path.read_bytes() for path in (workspace.root / ".recalld/quarantine").iterdir()]
    ChannelLog(workspace, OPS).append(NewMessage("three", "amy"))
    assert [record.text for record in ChannelLog(workspace, OPS).page()] == ["one", "two", "three"]


def test_a_whole_last_line_without_its_newline_is_a_record_and_no_finding(workspace: Workspace) -> None:
    add(workspace, "ops/log.jsonl", b'{"ts":"1.000000","text":"early"}')
    assert examine(workspace) == []


def test_a_context_is_read_the_same_before_and_after_its_parents_are_put_right(workspace: Workspace) -> None:
    dangling(workspace, message={"role": "user", "content": "three", "timestamp": 1})
    old = (workspace.root / "ops/context.jsonl").read_bytes()
    before = [entry.id for entry in Context(workspace, Lane(OPS)).entries(after=None, limit=99)]
    texts = [m.content for m in Context(workspace, Lane(OPS)).build_messages(budget_tokens=9999, lookup=lambda _: None).messages]
    repair(workspace, examine(workspace), author=AMY)
    context = Context(workspace, Lane(OPS))
    assert [entry.id for entry in context.entries(after=None, limit=99)] == before
    assert context.entries(after=None, limit=99)[-1].parent_id == before[-2]
    assert [m.content for m in context.build_messages(budget_tokens=9999, lookup=lambda _: None).messages] == texts
    kept = list_versions(workspace, "ops/context.jsonl")[0]
    assert read_version(workspace, "ops/context.jsonl", kept.id)[1] == old
    assert read_audit(workspace).items[0].action == "repair"


def test_lines_that_need_nothing_keep_their_bytes_when_a_context_is_put_right() -> None:
    data = b'{"type":"session", "version":3}\n\nbad\n{"type":"x", "id":"a", "parentId":null}\n'
    data += b'{"type":"y","id":"b","parentId":"?"}\ntorn'
    new, count = reattached(data)
    assert count == 1
    assert new.split(b"\n")[:4] == data.split(b"\n")[:4]
    assert new.endswith(b"\ntorn")
    assert reattached(new) == (new, 0)


def test_a_lost_index_comes_back_with_its_topics_and_pins(workspace: Workspace) -> None:
    TopicStore(workspace, OPS).pin("Topic two", pinned=True, author=AMY)
    names = [(entry.name, entry.pinned) for entry in TopicStore(workspace, OPS).list()]
    (workspace.root / INDEX).unlink()
    repair(workspace, examine(workspace), author=AMY)
    assert sorted((entry.name, entry.pinned) for entry in TopicStore(workspace, OPS).list()) == sorted(names)


def test_a_shared_directory_is_examined_and_repaired_as_well(workspace: Workspace) -> None:
    shared = workspace.root / ".agents/memory"
    store = TopicStore(workspace, None, shared=shared)
    for text in ("first", "second"):
        store.write("Shared", text, "of two tools", author=AMY)
    assert examine(workspace) == []
    (shared / "MEMORY.md").unlink()
    version = next(path for path in (shared / ".recalld/versions").rglob("*") if path.is_file() and path.suffix != ".json")
    version.with_name(f"{version.name}.json").unlink()
    found = examine(workspace)
    assert [(each.code, each.path) for each in found] == [
        ("version_without_metadata", str(version.relative_to(workspace.root))),
        ("topic_unindexed", ".agents/memory/shared.md"),
    ]
    assert all(each.done for each in repair(workspace, found, author=AMY))
    assert [entry.name for entry in store.list()] == ["Shared"]
    assert examine(workspace) == []


def test_a_torn_version_goes_to_quarantine_and_lost_metadata_is_made_up(workspace: Workspace) -> None:
    edit_text(workspace, "MEMORY.md", lambda old: old + "three\n", author=AMY)
    torn = workspace.root / break_version(workspace, "torn")
    bytes_left = torn.read_bytes()
    other = list_versions(workspace, "MEMORY.md")[-1]
    meta = workspace.root / (workspace.version("MEMORY.md", other.id) + ".json")
    meta.unlink()
    repair(workspace, examine(workspace), author=AMY)
    assert bytes_left in [path.read_bytes() for path in (workspace.root / ".recalld/quarantine").iterdir()]
    assert json.loads(meta.read_text())["name"] == "MEMORY.md"
    assert [version.id for version in list_versions(workspace, "MEMORY.md")] == [other.id]


def test_a_temporary_file_of_a_living_writer_stays(workspace: Workspace) -> None:
    temp = put(workspace, "ops/.MEMORY.md.tmp-123-0a1b2c", b"half")
    found = examine(workspace)
    with locked(workspace.root, "ops/MEMORY.md", workspace.lock_of("ops/MEMORY.md")):
        assert [each.done for each in repair(workspace, found)] == [False]
        assert temp.exists()
    assert [each.done for each in repair(workspace, found)] == [True]
    assert not temp.exists()


def test_a_temporary_file_whose_target_is_unknown_must_be_old(workspace: Workspace) -> None:
    temp = put(workspace, f"memory/.{'x' * 100}.tmp-123-0a1b2c", b"half")
    found = examine(workspace)
    assert [each.done for each in repair(workspace, found)] == [False]
    later = datetime.fromtimestamp(temp.stat().st_mtime + 3601, UTC)
    assert [each.done for each in repair(workspace, found, now=later)] == [True]


def test_an_empty_log_that_got_a_message_stays(workspace: Workspace) -> None:
    put(workspace, "new/log.jsonl", b"")
    found = examine(workspace)
    ChannelLog(workspace, ChannelId("new")).append(NewMessage("hello", "amy"))
    repair(workspace, found)
    assert [record.text for record in ChannelLog(workspace, ChannelId("new")).page()] == ["hello"]


def test_one_file_that_can_t_be_read_hides_no_other(workspace: Workspace) -> None:
    add(workspace, "ops/log.jsonl", b"bad\n")
    big = put(workspace, "memory/MEMORY.md", b"x" * (5 * 1024 * 1024))
    codes = {each.code for each in examine(workspace)}
    assert {"log_bad_line", "topic_unreadable"} <= codes
    assert big.exists()


def test_links_of_the_operator_and_in_scratch_are_no_finding(workspace: Workspace) -> None:
    for folder in (".pi", "ops/scratch/node_modules/.bin", "ops/attachments"):
        (workspace.root / folder).mkdir(parents=True)
        link(workspace, f"{folder}/x")
    (workspace.root / "real.json").write_text("{}")
    (workspace.root / "settings.json").symlink_to(workspace.root / "real.json")
    assert examine(workspace) == []


def test_findings_are_in_the_order_of_paths_and_lines(workspace: Workspace) -> None:
    add(workspace, "ops/log.jsonl", b"bad\nworse\n")
    add(workspace, "ops/context.jsonl", b"bad\n")
    found = examine(workspace)
    assert [(each.path, each.line) for each in found] == [("ops/context.jsonl", 4), ("ops/log.jsonl", 3), ("ops/log.jsonl", 4)]
