"""Versions, undo, diffs and the audit: what a write keeps, for how long, and what is left after a crash."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistence.audit import AuditLine, Author, append_audit, read_audit
from persistence.diff import MAX_DIFF_BYTES, diff_texts
from persistence.errors import (
    BodyInvalidError,
    NotFoundError,
    NotUtf8Error,
    PreconditionFailedError,
    SecretDetectedError,
    StoreBusyError,
    UnsafeObjectError,
)
from persistence.files import Held, etag_of, locked
from persistence.memory import append_note
from persistence.settings import SettingsStore
from persistence.versions import (
    MAX_VERSION_AGE,
    MAX_VERSIONS,
    diff_versions,
    edit_text,
    list_versions,
    read_version,
    remove_with_version,
    replace_with_version,
    restore_version,
    undo,
)
from persistence.workspace import AUDIT, Workspace, open_workspace

AMY = Author("user:amy", "because", turn="turn-1")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace(tmp_path)


def write(workspace: Workspace, name: str, data: bytes, author: Author = AMY) -> str | None:
    with locked(workspace.root, name, workspace.lock_of(name)) as held:
        return replace_with_version(workspace, name, data, held, author=author)


def test_a_replaced_file_s_bytes_are_kept_with_who_when_why_and_turn(workspace: Workspace) -> None:
    assert write(workspace, "memory/ä.md", b"one\xff") is None
    version_id = write(workspace, "memory/ä.md", b"two")
    version, data = read_version(workspace, "memory/ä.md", version_id or "")
    assert data == b"one\xff"
    assert (version.name, version.by, version.reason, version.turn) == ("memory/ä.md", "user:amy", "because", "turn-1")
    assert (version.size_bytes, version.etag) == (4, etag_of(b"one\xff"))
    assert abs(datetime.fromisoformat(version.created) - datetime.now(UTC)) < timedelta(minutes=1)
    assert list_versions(workspace, "memory/ä.md") == [version]


def test_the_same_bytes_again_are_no_change(workspace: Workspace) -> None:
    write(workspace, "MEMORY.md", b"one")
    before = (workspace.root / "MEMORY.md").stat().st_mtime_ns
    assert write(workspace, "MEMORY.md", b"one") is None
    assert (workspace.root / "MEMORY.md").stat().st_mtime_ns == before
    assert len(read_audit(workspace).items) == 1


def test_versions_are_listed_newest_first_and_read_by_their_id_alone(workspace: Workspace) -> None:
    for number in range(5):
        write(workspace, "MEMORY.md", str(number).encode())
    ids = [version.id for version in list_versions(workspace, "MEMORY.md")]
    assert [read_version(workspace, "MEMORY.md", each)[1] for each in ids] == [b"3", b"2", b"1", b"0"]
    for wrong in ("", "../../audit.jsonl", ids[0] + ".json", "20260101T000000.000000Z-000000000000"):
        with pytest.raises(NotFoundError):
            read_version(workspace, "MEMORY.md", wrong)


def test_only_so_many_versions_are_kept_and_the_newest_always(workspace: Workspace) -> None:
    for number in range(MAX_VERSIONS + 10):
        write(workspace, "MEMORY.md", str(number).encode())
    kept = list_versions(workspace, "MEMORY.md")
    assert len(kept) == MAX_VERSIONS
    assert read_version(workspace, "MEMORY.md", kept[0].id)[1] == str(MAX_VERSIONS + 8).encode()
    folder = workspace.root / workspace.version("MEMORY.md", "")
    assert len(list(folder.iterdir())) == 2 * MAX_VERSIONS


def test_an_old_version_goes_at_the_next_write(workspace: Workspace) -> None:
    folder = workspace.root / workspace.version("MEMORY.md", "")
    folder.mkdir(parents=True)
    stamp = (datetime.now(UTC) - MAX_VERSION_AGE - timedelta(days=1)).strftime("%Y%m%dT%H%M%S.%fZ")
    (folder / f"{stamp}-{etag_of(b'ancient')[:12]}").write_bytes(b"ancient")
    write(workspace, "MEMORY.md", b"one")
    assert [version.size_bytes for version in list_versions(workspace, "MEMORY.md")] == [7]
    write(workspace, "MEMORY.md", b"two")
    assert [read_version(workspace, "MEMORY.md", version.id)[1] for version in list_versions(workspace, "MEMORY.md")] == [b"one"]


def test_a_clock_that_was_set_back_does_not_change_the_order(workspace: Workspace) -> None:
    folder = workspace.root / workspace.version("MEMORY.md", "")
    folder.mkdir(parents=True)
    ahead = (datetime.now(UTC) + timedelta(days=3)).strftime("%Y%m%dT%H%M%S.%fZ")
    (folder / f"{ahead}-{etag_of(b'zero')[:12]}").write_bytes(b"zero")
    write(workspace, "MEMORY.md", b"one")
    write(workspace, "MEMORY.md", b"two")
    contents = [read_version(workspace, "MEMORY.md", version.id)[1] for version in list_versions(workspace, "MEMORY.md")]
    assert contents == [b"one", b"zero"]


def test_bytes_that_a_crash_cut_short_are_no_version_and_lost_metadata_is_made_up_from_the_rest(workspace: Workspace) -> None:
    write(workspace, "MEMORY.md", b"the first text")
    torn = write(workspace, "MEMORY.md", b"the second text") or ""
    whole = write(workspace, "MEMORY.md", b"the third text") or ""
    folder = workspace.root / workspace.version("MEMORY.md", "")
    (folder / torn).write_bytes(b"the fi")
    (folder / f"{whole}.json").write_bytes(b"")
    assert [(version.id, version.by, version.size_bytes) for version in list_versions(workspace, "MEMORY.md")] == [
        (whole, "", 15)
    ]
    with pytest.raises(NotFoundError):
        read_version(workspace, "MEMORY.md", torn)


def test_long_and_odd_names_have_versions_of_their_own(workspace: Workspace) -> None:
    names = ["memory/" + "ü" * 90 + f"/{'b' * 180}{number}.md" for number in range(2)] + ["memory/a%2Fb.md", "memory/a/b.md"]
    for name in names:
        write(workspace, name, name.encode())
        write(workspace, name, b"new")
    for name in names:
        assert [read_version(workspace, name, v.id)[1] for v in list_versions(workspace, name)] == [name.encode()]


def test_removing_keeps_the_bytes_and_undo_brings_the_file_back(workspace: Workspace) -> None:
    write(workspace, "memory/a.md", b"one")
    with locked(workspace.root, "memory/a.md", workspace.lock_of("memory/a.md")) as held:
        assert remove_with_version(workspace, "memory/a.md", held, author=AMY) is not None
        assert remove_with_version(workspace, "memory/a.md", held, author=AMY) is None
    assert not (workspace.root / "memory/a.md").exists()
    assert undo(workspace, "memory/a.md", author=AMY) == etag_of(b"one")
    assert (workspace.root / "memory/a.md").read_bytes() == b"one"


def test_undo_twice_brings_the_change_back(workspace: Workspace) -> None:
    for data in (b"one", b"two", b"three"):
        write(workspace, "MEMORY.md", data)
    undo(workspace, "MEMORY.md", author=AMY)
    assert (workspace.root / "MEMORY.md").read_bytes() == b"two"
    undo(workspace, "MEMORY.md", author=AMY)
    assert (workspace.root / "MEMORY.md").read_bytes() == b"three"
    with pytest.raises(NotFoundError):
        undo(workspace, "memory/never.md", author=AMY)


def test_any_version_can_be_restored_and_the_current_text_is_kept_first(workspace: Workspace) -> None:
    for data in (b"one", b"two", b"three"):
        write(workspace, "MEMORY.md", data)
    first = list_versions(workspace, "MEMORY.md")[-1]
    restore_version(workspace, "MEMORY.md", first.id, author=Author("cli", "restore"))
    assert (workspace.root / "MEMORY.md").read_bytes() == b"one"
    assert read_version(workspace, "MEMORY.md", list_versions(workspace, "MEMORY.md")[0].id)[1] == b"three"
    assert read_audit(workspace).items[0].action == "restore"


def test_a_version_that_holds_a_secret_is_not_restored(workspace: Workspace) -> None:
    key = "AKIA" + "Q7" * 8
    write(workspace, "MEMORY.md", f"key {key}".encode())
    write(workspace, "MEMORY.md", b"key taken out")
    with pytest.raises(SecretDetectedError):
        undo(workspace, "MEMORY.md", author=AMY)
    assert (workspace.root / "MEMORY.md").read_bytes() == b"key taken out"


def test_edit_text_checks_the_etag_under_the_lock_and_gives_a_diff(workspace: Workspace) -> None:
    edit_text(workspace, "MEMORY.md", lambda old: old + "a\nb\n", author=AMY)
    with pytest.raises(PreconditionFailedError) as caught:
        edit_text(workspace, "MEMORY.md", lambda old: old.replace("b", "c"), author=AMY, expected_etag="0" * 64)
    assert caught.value.etag == etag_of(b"a\nb\n")
    assert "-b\n+c\n" in caught.value.diff
    new = edit_text(workspace, "MEMORY.md", lambda old: old.replace("b", "c"), author=AMY, expected_etag=caught.value.etag)
    assert (new.text, new.etag) == ("a\nc\n", etag_of(b"a\nc\n"))


def test_edit_text_leaves_alone_what_it_can_t_read_and_what_it_does_not_change(workspace: Workspace) -> None:
    (workspace.root / "MEMORY.md").write_bytes(b"caf\xe9")
    with pytest.raises(NotUtf8Error):
        edit_text(workspace, "MEMORY.md", lambda old: old + "x", author=AMY)
    (workspace.root / "MEMORY.md").write_bytes(b"\xef\xbb\xbfone\r\n")
    edit_text(workspace, "MEMORY.md", lambda old: old, author=AMY)
    assert (workspace.root / "MEMORY.md").read_bytes() == b"\xef\xbb\xbfone\r\n"
    assert read_audit(workspace).items == []


def test_a_refused_change_leaves_no_version_and_no_audit(workspace: Workspace) -> None:
    write(workspace, "MEMORY.md", b"one")
    with pytest.raises(SecretDetectedError):
        edit_text(workspace, "MEMORY.md", lambda old: old + "\nghp_" + "aB3dE6" * 6, author=AMY)
    (workspace.root / "memory").mkdir()
    (workspace.root / "memory/x.md").symlink_to(workspace.root / "MEMORY.md")
    with pytest.raises(UnsafeObjectError):
        write(workspace, "memory/x.md", b"two")
    assert (workspace.root / "MEMORY.md").read_bytes() == b"one"
    assert len(read_audit(workspace).items) == 1
    assert list_versions(workspace, "MEMORY.md") == []


def test_notes_and_settings_have_versions_too(workspace: Workspace) -> None:
    append_note(workspace, None, "first", author=AMY)
    append_note(workspace, None, "second", author=AMY)
    store = SettingsStore(workspace)
    store.patch({"timezone": "Europe/Berlin"}, author=AMY)
    store.patch({"timezone": "UTC"}, author=AMY)
    store.reset(author=AMY)
    assert [read_version(workspace, "MEMORY.md", v.id)[1] for v in list_versions(workspace, "MEMORY.md")] == [b"- first\n"]
    assert len(list_versions(workspace, "settings.json")) == 2
    assert [(line.name, line.by) for line in read_audit(workspace, name="settings.json").items] == [
        ("settings.json", "user:amy")
    ] * 3
    with pytest.raises(SecretDetectedError):
        store.update(lambda values: values | {"mine": "ghp_" + "aB3dE6" * 6}, author=AMY)


def test_the_audit_has_a_line_for_each_change_and_no_content(workspace: Workspace) -> None:
    write(workspace, "memory/a.md", b"very private words")
    version = write(workspace, "memory/a.md", b"other private words")
    with locked(workspace.root, "memory/a.md", workspace.lock_of("memory/a.md")) as held:
        remove_with_version(workspace, "memory/a.md", held, author=AMY)
    removed, replaced, created = read_audit(workspace).items
    assert [line.action for line in (created, replaced, removed)] == ["create", "replace", "remove"]
    assert (replaced.by, replaced.turn, replaced.reason, replaced.version) == ("user:amy", "turn-1", "because", version)
    assert (created.old_etag, created.new_etag) == (None, etag_of(b"very private words"))
    assert (replaced.old_etag, replaced.new_etag) == (created.new_etag, etag_of(b"other private words"))
    assert (removed.old_etag, removed.new_etag) == (replaced.new_etag, None)
    assert b"private" not in (workspace.root / AUDIT).read_bytes()


class LostLock(Held):
    """A lock that was lost to a partition: the proof fails just before the rename."""

    def assert_held(self) -> None:
        raise StoreBusyError("lost")


def test_a_change_that_fails_is_marked_as_such(workspace: Workspace) -> None:
    write(workspace, "MEMORY.md", b"one")
    with locked(workspace.root, "MEMORY.md", workspace.lock_of("MEMORY.md")):
        fd = os.open(workspace.root / "MEMORY.md", os.O_RDONLY)
        with pytest.raises(StoreBusyError):
            replace_with_version(workspace, "MEMORY.md", b"two", LostLock(fd, "MEMORY.md"), author=AMY)
        os.close(fd)
    assert (workspace.root / "MEMORY.md").read_bytes() == b"one"
    assert [line.action for line in read_audit(workspace).items] == ["failed", "replace", "create"]


@given(count=st.integers(0, 60), limit=st.integers(1, 25), width=st.integers(0, 4000))
@settings(max_examples=15, deadline=None)
def test_paging_the_audit_gives_every_line_once_newest_first(
    count: int, limit: int, width: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    workspace = open_workspace(tmp_path_factory.mktemp("w"))
    lines = [AuditLine(str(n), "cli" if n % 3 else "bot", "create", f"{n}" + "x" * width) for n in range(count)]
    path = workspace.root / AUDIT
    path.write_text("".join(json.dumps({k: getattr(line, k) for k in ("time", "by", "action", "name")}) + "\n" for line in lines))
    seen, before = [], None
    while True:
        page = read_audit(workspace, before=before, limit=limit)
        assert len(page.items) <= limit
        seen += page.items
        before = page.before
        if before is None:
            break
    assert seen == lines[::-1]
    assert read_audit(workspace, by="bot", limit=1000).items == [line for line in lines[::-1] if line.by == "bot"]


def test_bad_and_torn_lines_of_the_audit_hide_no_other(workspace: Workspace) -> None:
    append_audit(workspace, AuditLine("1", "cli", "create", "a"))
    with (workspace.root / AUDIT).open("ab") as file:
        file.write(b'not json\n{"time":"x"}\n\n{"torn')
    assert [line.name for line in read_audit(workspace).items] == ["a"]
    append_audit(workspace, AuditLine("2", "cli", "create", "b"))
    assert [line.name for line in read_audit(workspace).items] == ["b", "a"]
    for position in (-1, 10**9):
        with pytest.raises(BodyInvalidError):
            read_audit(workspace, before=position)


WRITER = """
import sys
from pathlib import Path
from persistence.versions import Author, edit_text
from persistence.workspace import Workspace
workspace = Workspace(Path(sys.argv[1]))
number = int(sys.argv[2])
while True:
    number += 1
    edit_text(workspace, "MEMORY.md", lambda old: old + f"{number}\\n", author=Author("cli"))
    print(number, flush=True)
"""


def test_a_killed_writer_leaves_a_whole_file_and_every_acknowledged_line(workspace: Workspace) -> None:
    last = 0
    for round_ in range(6):
        command = [sys.executable, "-c", WRITER, str(workspace.root), str(last)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
            assert process.stdout is not None
            acknowledged = [int(process.stdout.readline())]
            time.sleep(0.05 + 0.037 * round_)
            process.send_signal(signal.SIGKILL)
            acknowledged += [int(line) for line in process.stdout.read().split()]
        text = (workspace.root / "MEMORY.md").read_text()
        numbers = [int(line) for line in text.splitlines()]
        assert text.endswith("\n")
        assert set(acknowledged) <= set(numbers)
        assert len(numbers) == len(set(numbers))
        newest = list_versions(workspace, "MEMORY.md")[0]
        assert text.encode().startswith(read_version(workspace, "MEMORY.md", newest.id)[1])
        last = numbers[-1]


def _edit_many(root: Path, who: int) -> None:
    workspace = Workspace(root)
    for number in range(10):
        edit_text(workspace, "memory/shared.md", lambda old, n=number: old + f"{who}.{n}\n", author=Author(f"key:{who}"))


def test_writers_of_several_processes_lose_no_edit_no_version_and_no_audit_line(workspace: Workspace) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_edit_many, args=(workspace.root, who)) for who in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    assert len((workspace.root / "memory/shared.md").read_text().splitlines()) == 30
    versions_kept = list_versions(workspace, "memory/shared.md")
    sizes = [read_version(workspace, "memory/shared.md", version.id)[1].count(b"\n") for version in versions_kept]
    assert sizes == list(range(29, 0, -1))
    lines = read_audit(workspace, limit=100).items
    assert len(lines) == 30
    assert [line.new_etag for line in lines[1:]] == [line.old_etag for line in lines[:-1]]


@given(old=st.text("ab\n", max_size=60), new=st.text("ab\n", max_size=60))
@settings(deadline=None)
def test_a_diff_applied_to_the_old_text_gives_the_new_one(old: str, new: str) -> None:
    diff = diff_texts(old, new, old_label="a", new_label="b")
    assert (diff == "") == (old == new)
    if diff:
        assert diff.startswith("--- a\n+++ b\n@@ -")
        assert _patched(old, diff) == new


def _patched(old: str, diff: str) -> str:
    """What `patch` makes of it."""
    changes = re.findall(r"[^\n]*\n|[^\n]+", re.sub(r"\n\\ No newline at end of file\n", "\0\n", diff))[2:]
    source, out, at = re.findall(r"[^\n]*\n|[^\n]+", old), [], 0
    for line in changes:
        text = line[1:].replace("\0\n", "")
        if line.startswith("@@"):
            start, length = (int(part) for part in line.split(" ")[1][1:].split(","))
            upto = start - 1 if length else start
            out += source[at:upto]
            at = upto
        elif line[0] == "+":
            out.append(text)
        else:
            assert source[at] == text
            out += [text] if line[0] == " " else []
            at += 1
    return "".join([*out, *source[at:]])


def test_a_diff_between_versions_and_the_current_text(workspace: Workspace) -> None:
    for data in (b"a\nb\n", b"a\nc\n", b"a\nd\n"):
        write(workspace, "MEMORY.md", data)
    second, first = (version.id for version in list_versions(workspace, "MEMORY.md"))
    assert "-b\n+c\n" in diff_versions(workspace, "MEMORY.md", old=first, new=second)
    assert "-b\n+d\n" in diff_versions(workspace, "MEMORY.md", old=first, new=None)
    assert diff_versions(workspace, "MEMORY.md", old=None, new=None) == ""
    with pytest.raises(NotFoundError):
        diff_versions(workspace, "MEMORY.md", old="no", new=None)


def test_a_diff_of_large_texts_is_bounded_in_time_and_size() -> None:
    old = "".join(f"{number % 7}\n" for number in range(200_000))
    new = "".join(f"{number % 5}\n" for number in range(200_000))
    started = time.process_time()
    diff = diff_texts(old, new, old_label="a", new_label="b")
    assert time.process_time() - started < 5
    assert len(diff.encode()) <= MAX_DIFF_BYTES + 100
    assert "Diff cut here" in diff
    small = diff_texts(old, old.replace("3\n", "x\n", 1), old_label="a", new_label="b")
    assert small.count("\n") == 11
