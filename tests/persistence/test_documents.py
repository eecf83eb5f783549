"""Documents by path: which paths are open, conditions on writes, appending among writers, deleting, listing."""

import hashlib
import multiprocessing
import os
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.document_path import document_channel, parse_document_path, parse_writable_path
from persistence.documents import (
    append_document,
    delete_document,
    list_documents,
    read_document,
    write_document,
)
from persistence.errors import (
    BodyInvalidError,
    ForbiddenError,
    NotFoundError,
    NotUtf8Error,
    PersistenceError,
    PreconditionFailedError,
    PreconditionRequiredError,
    SecretDetectedError,
    TooLargeError,
    UnsafeObjectError,
)
from persistence.files import MAX_TEXT_BYTES
from persistence.path_glob import matches_glob
from persistence.versions import Author, list_versions, read_version
from persistence.workspace import Workspace, open_workspace

AMY = Author("user:amy", "tidying", turn="t1")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace(tmp_path)


def put(workspace: Workspace, path: str, data: bytes = b"hello\n") -> Path:
    target = workspace.root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    return target


def tag(data: bytes) -> str:
    return f'"{hashlib.sha256(data).hexdigest()}"'


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/etc/passwd",
        "memory//x.md",
        "memory/",
        "memory/../MEMORY.md",
        "./MEMORY.md",
        "a\\b.md",
        "a\0b.md",
        "a\nb.md",
        "..",
        "\ud800.md",
    ],
)
def test_a_malformed_path_is_refused(path: str) -> None:
    with pytest.raises(BodyInvalidError):
        parse_document_path(path)


@pytest.mark.parametrize(
    "path", [".recalld/audit.jsonl", ".env", "memory/.hidden.md", "ops/.team/.secret", "a/b/.team/x.md", ".gitconfig"]
)
def test_a_hidden_part_is_forbidden_except_the_team_folder(path: str) -> None:
    with pytest.raises(ForbiddenError):
        parse_document_path(path)


@pytest.mark.parametrize("path", [".team/memory/INDEX.md", "ops/.team/memory/log/dev.md", "ops/log.jsonl", "settings.json"])
def test_other_files_can_be_read_and_not_written(path: str, workspace: Workspace) -> None:
    put(workspace, path)
    assert read_document(workspace, path).text == "hello\n"
    with pytest.raises(ForbiddenError):
        write_document(workspace, path, "x", author=AMY, if_match="*")
    with pytest.raises(ForbiddenError):
        append_document(workspace, path, "x", author=AMY)
    with pytest.raises(ForbiddenError):
        delete_document(workspace, path, author=AMY, if_match="*")
    assert (workspace.root / path).read_bytes() == b"hello\n"


@pytest.mark.parametrize(
    "path",
    [
        "MEMORY.md",
        "SYSTEM.md",
        "memory/a.md",
        "memory/deep/er/a.md",
        "skills/deploy/SKILL.md",
        "skills/deploy/go.sh",
        "ops/MEMORY.md",
        "ops/memory/a.md",
        "ops/skills/x/SKILL.md",
        "ops/scratch/data/x.csv",
        "linear:4f-1/scratch/x",
    ],
)
def test_memory_skills_and_scratch_are_writable(path: str, workspace: Workspace) -> None:
    assert write_document(workspace, path, "one\n", author=AMY, if_none_match="*").created
    assert read_document(workspace, path).text == "one\n"


@pytest.mark.parametrize(
    "path",
    [
        "README.md",
        "memory/a.txt",
        "scratch/x",
        "events/x.json",
        "ops/log.jsonl",
        "ops/context.jsonl",
        "ops/HANDOFF.md",
        "memory.jsonc",
        "threads/x.md",
    ],
)
def test_anything_else_is_not_writable(path: str) -> None:
    with pytest.raises(ForbiddenError):
        parse_writable_path(path)


@given(st.text(max_size=80))
def test_a_path_is_refused_or_stays_inside_and_is_stable(text: str) -> None:
    try:
        path = parse_document_path(text)
    except PersistenceError:
        return
    assert parse_document_path(path) == path
    assert not path.startswith("/")
    assert os.path.normpath(path) == path
    assert ".." not in path.split("/")


def test_a_document_belongs_to_the_channel_of_its_first_part() -> None:
    assert document_channel("ops/MEMORY.md") == "ops"
    assert [document_channel(p) for p in ("MEMORY.md", "memory/a.md", "skills/x/SKILL.md", ".team/x.md", "Memory/a.md")] == [
        None
    ] * 5


def test_a_name_in_nfd_on_disk_is_found_listed_and_replaced_in_place(workspace: Workspace) -> None:
    on_disk = unicodedata.normalize("NFD", "memory/Grüße/Menü.md")
    put(workspace, on_disk, b"old\n")
    path = unicodedata.normalize("NFC", on_disk)
    assert [item.path for item in list_documents(workspace, prefix="memory/").items] == [path]
    assert read_document(workspace, path).text == "old\n"
    written = write_document(workspace, on_disk, "new\n", author=AMY, if_match=tag(b"old\n"))
    assert written.path == path
    assert (workspace.root / on_disk).read_bytes() == b"new\n"
    assert len(list((workspace.root / "memory").rglob("*.md"))) == 1
    assert list_versions(workspace, path) == list_versions(workspace, on_disk) != []


def test_reading_gives_etag_time_and_lines(workspace: Workspace) -> None:
    data = b"\xef\xbb\xbfone\r\ntwo\r\nthree"
    put(workspace, "MEMORY.md", data)
    document = read_document(workspace, "MEMORY.md")
    assert (document.text, document.total_lines) == ("one\ntwo\nthree", 3)
    assert document.etag == hashlib.sha256(data).hexdigest()
    assert abs(document.last_modified_s - time.time()) < 60
    assert read_document(workspace, "MEMORY.md", start_line=2, end_line=2).text == "two\n"
    assert read_document(workspace, "MEMORY.md", start_line=2).text == "two\nthree\n"
    assert read_document(workspace, "MEMORY.md", start_line=9).text == ""


@pytest.mark.parametrize(("start", "end"), [(0, None), (-1, 3), (3, 2)])
def test_lines_that_are_no_range_are_refused(start: int, end: int | None, workspace: Workspace) -> None:
    put(workspace, "MEMORY.md")
    with pytest.raises(BodyInvalidError):
        read_document(workspace, "MEMORY.md", start_line=start, end_line=end)


def test_an_absent_document_is_not_found(workspace: Workspace) -> None:
    with pytest.raises(NotFoundError):
        read_document(workspace, "memory/nothing.md")
    with pytest.raises(NotFoundError):
        delete_document(workspace, "memory/nothing.md", author=AMY, if_match="*")


def test_a_write_without_a_condition_is_asked_for_one(workspace: Workspace) -> None:
    with pytest.raises(PreconditionRequiredError):
        write_document(workspace, "MEMORY.md", "x", author=AMY)
    with pytest.raises(PreconditionRequiredError):
        delete_document(workspace, "MEMORY.md", author=AMY, if_match=None)


def test_a_conflict_carries_the_etag_and_the_diff_and_changes_nothing(workspace: Workspace) -> None:
    put(workspace, "MEMORY.md", b"a\nb\nc\n")
    with pytest.raises(PreconditionFailedError) as caught:
        write_document(workspace, "MEMORY.md", "a\nB\nc\n", author=AMY, if_match=tag(b"something older"))
    assert caught.value.etag == hashlib.sha256(b"a\nb\nc\n").hexdigest()
    assert "\n-b\n+B\n" in caught.value.diff
    assert (workspace.root / "MEMORY.md").read_bytes() == b"a\nb\nc\n"
    assert list_versions(workspace, "MEMORY.md") == []


@pytest.mark.parametrize(
    ("header", "holds"),
    [
        ("{tag}", True),
        ('"other", {tag}', True),
        ("*", True),
        ("W/{tag}", False),
        ("{bare}", False),
        ("", False),
        ('"other"', False),
    ],
)
def test_if_match_takes_tags_lists_and_the_star(header: str, *, holds: bool, workspace: Workspace) -> None:
    put(workspace, "MEMORY.md")
    current = tag(b"hello\n")
    condition = header.format(tag=current, bare=current.strip('"'))
    if holds:
        assert not write_document(workspace, "MEMORY.md", "x\n", author=AMY, if_match=condition).created
        return
    with pytest.raises(PreconditionFailedError):
        write_document(workspace, "MEMORY.md", "x\n", author=AMY, if_match=condition)


def test_if_match_on_an_absent_file_and_if_none_match_on_a_present_one_fail(workspace: Workspace) -> None:
    with pytest.raises(PreconditionFailedError) as absent:
        write_document(workspace, "MEMORY.md", "x\n", author=AMY, if_match="*")
    assert absent.value.etag is None
    put(workspace, "MEMORY.md")
    with pytest.raises(PreconditionFailedError):
        write_document(workspace, "MEMORY.md", "x\n", author=AMY, if_none_match="*")


def test_a_write_is_lf_and_keeps_the_replaced_bytes(workspace: Workspace) -> None:
    old = b"\xef\xbb\xbfone\r\n"
    put(workspace, "ops/MEMORY.md", old)
    written = write_document(workspace, "ops/MEMORY.md", "two\r\nthree\r\n", author=AMY, if_match=tag(old))
    assert (workspace.root / "ops/MEMORY.md").read_bytes() == b"two\nthree\n"
    assert written.version is not None
    version, data = read_version(workspace, "ops/MEMORY.md", written.version)
    assert (data, version.by, version.reason, version.turn) == (old, "user:amy", "tidying", "t1")


def test_a_file_that_is_not_utf8_is_read_and_never_rewritten(workspace: Workspace) -> None:
    path = put(workspace, "memory/old.md", b"caf\xe9\n")
    assert read_document(workspace, "memory/old.md").text == "caf\ufffd\n"
    with pytest.raises(NotUtf8Error):
        write_document(workspace, "memory/old.md", "x", author=AMY, if_match="*")
    with pytest.raises(NotUtf8Error):
        append_document(workspace, "memory/old.md", "x", author=AMY)
    assert path.read_bytes() == b"caf\xe9\n"


def test_a_text_over_the_limit_is_refused(workspace: Workspace) -> None:
    with pytest.raises(TooLargeError):
        write_document(workspace, "MEMORY.md", "x" * (MAX_TEXT_BYTES + 1), author=AMY, if_none_match="*")
    assert not (workspace.root / "MEMORY.md").exists()


def test_a_secret_is_refused_and_one_that_a_person_wrote_blocks_no_other_edit(workspace: Workspace) -> None:
    key = "AKIA" + "Q7" * 8
    with pytest.raises(SecretDetectedError) as caught:
        write_document(workspace, "memory/k.md", f"the key is {key}\n", author=AMY, if_none_match="*")
    assert key not in str(caught.value)
    old = f"key {key}\n".encode()
    put(workspace, "memory/k.md", old)
    write_document(workspace, "memory/k.md", f"key {key}\nmore\n", author=AMY, if_match=tag(old))
    with pytest.raises(SecretDetectedError):
        append_document(workspace, "memory/k.md", "another: AKIA" + "R8" * 8, author=AMY)


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_links_fifos_and_folders_are_refused_without_blocking(kind: str, workspace: Workspace) -> None:
    target = workspace.root / "memory/x.md"
    target.parent.mkdir()
    outside = put(workspace, "settings.json")
    {"link": lambda: target.symlink_to(outside), "fifo": lambda: os.mkfifo(target), "folder": target.mkdir}[kind]()
    for attempt in (
        lambda: read_document(workspace, "memory/x.md"),
        lambda: write_document(workspace, "memory/x.md", "x", author=AMY, if_match="*"),
        lambda: append_document(workspace, "memory/x.md", "x", author=AMY),
        lambda: delete_document(workspace, "memory/x.md", author=AMY, if_match="*"),
    ):
        with pytest.raises(UnsafeObjectError):
            attempt()
    assert outside.read_bytes() == b"hello\n"
    assert list_documents(workspace, prefix="memory/").items == []


def test_nothing_is_written_through_a_linked_folder(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (workspace.root / "memory").symlink_to(elsewhere)
    with pytest.raises(UnsafeObjectError):
        write_document(workspace, "memory/x.md", "x", author=AMY, if_none_match="*")
    assert list(elsewhere.iterdir()) == []


def test_appended_text_starts_on_a_line_of_its_own(workspace: Workspace) -> None:
    put(workspace, "MEMORY.md", b"no newline")
    first = append_document(workspace, "MEMORY.md", "one\ntwo\n", author=AMY)
    assert (first.start_line, first.end_line) == (2, 3)
    second = append_document(workspace, "MEMORY.md", "three", heading="Later\n# not a heading", author=AMY)
    assert (workspace.root / "MEMORY.md").read_text() == "no newline\none\ntwo\n\n## Later # not a heading\n\nthree\n"
    assert (second.start_line, second.end_line) == (7, 7)
    assert read_document(workspace, "MEMORY.md", start_line=7, end_line=7).text == "three\n"


def test_append_creates_and_refuses_a_blank_text(workspace: Workspace) -> None:
    assert append_document(workspace, "ops/scratch/new.txt", "x", author=AMY).start_line == 1
    with pytest.raises(BodyInvalidError):
        append_document(workspace, "ops/scratch/new.txt", " \n\n", author=AMY)


def _append_many(root: Path, who: int) -> None:
    workspace = Workspace(root)
    for number in range(15):
        append_document(workspace, "MEMORY.md", f"{who}.{number}", author=Author(f"user:{who}"))


def test_appends_of_several_processes_are_all_there_once(workspace: Workspace) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_append_many, args=(workspace.root, who)) for who in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    lines = (workspace.root / "MEMORY.md").read_text().splitlines()
    assert sorted(lines) == sorted(f"{who}.{number}" for who in range(3) for number in range(15))


def test_a_deleted_document_can_be_had_back(workspace: Workspace) -> None:
    put(workspace, "memory/a.md", b"one\n")
    with pytest.raises(PreconditionFailedError):
        delete_document(workspace, "memory/a.md", author=AMY, if_match='"other"')
    version = delete_document(workspace, "memory/a.md", author=AMY, if_match=tag(b"one\n"))
    assert not (workspace.root / "memory/a.md").exists()
    assert read_version(workspace, "memory/a.md", version)[1] == b"one\n"


def test_listing_shows_open_files_in_order_and_pages(workspace: Workspace) -> None:
    for path in (
        "MEMORY.md",
        "memory/b.md",
        "memory/a/x.md",
        "ops/log.jsonl",
        ".team/memory/INDEX.md",
        ".env",
        "ops/.team/runs/r.jsonl",
    ):
        put(workspace, path)
    put(workspace, "ops/.team/.hidden")
    everything = [item.path for item in list_documents(workspace).items]
    assert everything == sorted(everything)
    assert set(everything) == {
        "MEMORY.md", "memory/b.md", "memory/a/x.md", "ops/log.jsonl", ".team/memory/INDEX.md", "ops/.team/runs/r.jsonl",
    }  # fmt: skip
    paged, after = [], None
    while True:
        page = list_documents(workspace, after=after, limit=2)
        paged += [item.path for item in page.items]
        after = page.next_after
        if after is None:
            break
    assert paged == everything
    item = list_documents(workspace, prefix="memory/b").items[0]
    assert (item.path, item.size_bytes, item.etag) == ("memory/b.md", 6, hashlib.sha256(b"hello\n").hexdigest())
    assert [each.path for each in list_documents(workspace, glob="memory/**/*.md").items] == ["memory/a/x.md", "memory/b.md"]


@pytest.mark.parametrize(
    ("path", "pattern", "fits"),
    [
        ("memory/a.md", "*.md", True),
        ("memory/a.md", "memory/*.md", True),
        ("memory/a/b.md", "memory/*.md", False),
        ("memory/a/b.md", "memory/**/*.md", True),
        ("memory/b.md", "memory/**/*.md", True),
        ("ops/memory/b.md", "**/b.md", True),
        ("ops/memory/b.md", "**", True),
        ("ops/memory/b.md", "ops/**", True),
        ("a.md", "?.md", True),
        ("ab.md", "?.md", False),
        ("a[1].md", "a[1].md", True),
    ],
)
def test_globs(path: str, pattern: str, *, fits: bool) -> None:
    assert matches_glob(path, pattern) is fits


def test_a_hostile_glob_costs_no_time() -> None:
    started = time.monotonic()
    assert not matches_glob("/".join(["a" * 100] * 10), "/".join(["*a" * 10 + "b"] * 8))
    assert not matches_glob("/".join(["a"] * 400), "/".join(["**", "a"] * 40 + ["b"]))
    assert time.monotonic() - started < 2
