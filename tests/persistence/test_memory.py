"""Memory layers: what is loaded, and that notes appended by several writers are all there, once, on the lines that are told."""

import multiprocessing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.errors import BodyInvalidError, NotFoundError, NotUtf8Error, TooLargeError, UnsafeObjectError
from persistence.files import MAX_TEXT_BYTES
from persistence.memory import _place, append_note, load_memory_layers, remove_note
from persistence.versions import list_versions, read_version
from persistence.workspace import Workspace, open_workspace, parse_channel_id

OPS = parse_channel_id("ops")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace(tmp_path)


def lines_of(workspace: Workspace, path: str) -> list[str]:
    return (workspace.root / path).read_text("utf-8").split("\n")


def test_the_global_layer_comes_before_the_channels(workspace: Workspace):
    (workspace.root / "MEMORY.md").write_text("for all\n")
    (workspace.root / "ops").mkdir()
    (workspace.root / "ops/MEMORY.md").write_text("for ops\n")
    layers = load_memory_layers(workspace, OPS)
    assert [(layer.scope, layer.path, layer.text) for layer in layers] == [
        ("global", "MEMORY.md", "for all\n"),
        ("channel", "ops/MEMORY.md", "for ops\n"),
    ]
    assert [layer.scope for layer in load_memory_layers(workspace, None)] == ["global"]


def test_another_channels_layer_is_never_loaded(workspace: Workspace):
    append_note(workspace, OPS, "only for ops")
    assert load_memory_layers(workspace, parse_channel_id("general")) == []


def test_absent_and_blank_layers_are_left_out(workspace: Workspace):
    (workspace.root / "MEMORY.md").write_text(" \n\n\t\n")
    assert load_memory_layers(workspace, OPS) == []
    assert not (workspace.root / "ops").exists(), "reading makes no folder"


def test_a_byte_order_mark_and_crlf_are_accepted_on_read(workspace: Workspace):
    (workspace.root / "MEMORY.md").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    [layer] = load_memory_layers(workspace, None)
    assert (layer.text, layer.utf8) == ("one\ntwo\n", True)


def test_a_layer_with_bad_bytes_is_read_with_replacements_and_says_so(workspace: Workspace):
    (workspace.root / "MEMORY.md").write_bytes(b"caf\xe9\n")
    [layer] = load_memory_layers(workspace, None)
    assert (layer.text, layer.utf8) == ("caf�\n", False)


def test_a_linked_layer_is_refused_not_followed(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory):
    outside = tmp_path_factory.mktemp("outside") / "secret.md"
    outside.write_text("secret\n")
    (workspace.root / "MEMORY.md").symlink_to(outside)
    with pytest.raises(UnsafeObjectError):
        load_memory_layers(workspace, None)
    with pytest.raises(UnsafeObjectError):
        append_note(workspace, None, "a note")
    assert outside.read_text() == "secret\n"


def test_a_plain_line_becomes_a_bullet_in_a_new_file(workspace: Workspace):
    note = append_note(workspace, OPS, "  the printer is on the second floor ")
    assert (note.path, note.start_line, note.end_line) == ("ops/MEMORY.md", 1, 1)
    assert (workspace.root / "ops/MEMORY.md").read_bytes() == b"- the printer is on the second floor\n"
    [layer] = load_memory_layers(workspace, OPS)
    assert layer.etag == note.etag


@pytest.mark.parametrize(
    ("old", "expected"),
    [
        ("- one", "- one\n- two\n"),
        ("- one\n", "- one\n- two\n"),
        ("# Notes\n", "# Notes\n\n- two\n"),
        ("prose without an end", "prose without an end\n\n- two\n"),
        ("prose\n\n", "prose\n\n- two\n"),
        ("\n", "\n- two\n"),
    ],
)
def test_a_note_starts_on_a_line_of_its_own_whatever_stands_before(workspace: Workspace, old: str, expected: str):
    (workspace.root / "MEMORY.md").write_text(old)
    note = append_note(workspace, None, "two")
    assert (workspace.root / "MEMORY.md").read_text() == expected
    assert lines_of(workspace, "MEMORY.md")[note.start_line - 1] == "- two"


def test_a_heading_becomes_a_line_before_the_text_and_the_lines_are_those_of_the_text(workspace: Workspace):
    append_note(workspace, None, "first")
    note = append_note(workspace, None, "para one\n\npara two", heading="  On\ncall ")
    lines = lines_of(workspace, "MEMORY.md")
    assert lines == ["- first", "", "## On call", "", "para one", "", "para two", ""]
    assert (note.start_line, note.end_line) == (5, 7)


def test_a_heading_after_a_list_ends_the_list(workspace: Workspace):
    append_note(workspace, None, "first")
    append_note(workspace, None, "second", heading="Later")
    assert lines_of(workspace, "MEMORY.md") == ["- first", "", "## Later", "", "- second", ""]


@pytest.mark.parametrize("text", ["- a bullet", "* a star", "1. a number", "# a heading", "> a quote", "| a | table |", "```"])
def test_a_line_that_is_markdown_already_is_written_as_it_is(workspace: Workspace, text: str):
    append_note(workspace, None, text)
    assert lines_of(workspace, "MEMORY.md")[0] == text


def test_a_bullet_that_is_there_already_is_not_written_twice(workspace: Workspace):
    path = workspace.root / "MEMORY.md"
    path.write_bytes(b"# Notes\r\n\r\n- tea at four\r\n- else\r\n")
    before = path.stat()
    note = append_note(workspace, None, "tea at four", heading="Other")
    assert (note.start_line, note.end_line) == (3, 3)
    assert path.read_bytes() == b"# Notes\r\n\r\n- tea at four\r\n- else\r\n"
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    [layer] = load_memory_layers(workspace, None)
    assert layer.etag == note.etag


def test_a_note_that_only_begins_like_another_is_written(workspace: Workspace):
    append_note(workspace, None, "tea at four thirty")
    assert append_note(workspace, None, "tea at four").start_line == 2


@pytest.mark.parametrize("text", ["", "  ", "\n\r\n\t"])
def test_a_blank_note_is_refused_and_makes_no_file(workspace: Workspace, text: str):
    with pytest.raises(BodyInvalidError):
        append_note(workspace, OPS, text)
    assert not (workspace.root / "ops").exists()


def test_a_file_that_is_not_utf8_is_never_rewritten(workspace: Workspace):
    (workspace.root / "MEMORY.md").write_bytes(b"caf\xe9\n")
    with pytest.raises(NotUtf8Error):
        append_note(workspace, None, "a note")
    assert (workspace.root / "MEMORY.md").read_bytes() == b"caf\xe9\n"


def test_a_note_that_would_make_the_file_too_large_is_refused_whole(workspace: Workspace):
    (workspace.root / "MEMORY.md").write_text("x" * (MAX_TEXT_BYTES - 10))
    with pytest.raises(TooLargeError):
        append_note(workspace, None, "more than ten bytes")
    assert (workspace.root / "MEMORY.md").stat().st_size == MAX_TEXT_BYTES - 10


def test_carriage_returns_and_lone_surrogates_do_not_reach_the_file(workspace: Workspace):
    append_note(workspace, None, "a\rb\r\nc \ud800")
    assert (workspace.root / "MEMORY.md").read_bytes() == "a\nb\nc �\n".encode()


def _remember(root: Path, writer: int, count: int) -> None:
    workspace = Workspace(root)
    for number in range(count):
        note = append_note(workspace, OPS, f"fact {number} of writer {writer}")
        # A later writer only appends, so the lines that were told stay true.
        assert lines_of(workspace, note.path)[note.start_line - 1] == f"- fact {number} of writer {writer}"


def test_notes_of_several_processes_are_all_there_once(workspace: Workspace):
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_remember, args=(workspace.root, writer, 25)) for writer in range(4)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    assert [process.exitcode for process in writers] == [0, 0, 0, 0]
    expected = {f"- fact {number} of writer {writer}" for writer in range(4) for number in range(25)}
    lines = lines_of(workspace, "ops/MEMORY.md")
    assert lines.pop() == ""
    assert len(lines) == 100
    assert set(lines) == expected


@given(
    old=st.text(alphabet="ab \n-#", max_size=40),
    body=st.sampled_from(["- a", "- b", "x", "x\n\ny"]),
    title=st.sampled_from(["", "T"]),
)
def test_the_old_text_stays_a_prefix_and_the_told_lines_hold_the_note(old: str, body: str, title: str):
    new, start = _place(old, body, title)
    assert new.startswith(old)
    lines = [line.rstrip() for line in new.split("\n")]
    assert "\n".join(lines[start - 1 : start + body.count("\n")]) == body


def test_a_note_is_removed_where_it_was_read_and_its_bytes_are_kept(tmp_path):
    workspace = open_workspace(tmp_path)
    (tmp_path / "MEMORY.md").write_text("- one\n- two\n- two\n", "utf-8")
    note = remove_note(workspace, None, "- two", start_line=3)
    assert (tmp_path / "MEMORY.md").read_text("utf-8") == "- one\n- two\n"
    assert (note.start_line, note.end_line) == (3, 3)
    version = list_versions(workspace, "MEMORY.md")[0]
    assert read_version(workspace, "MEMORY.md", version.id)[1] == b"- one\n- two\n- two\n"


def test_a_note_that_moved_is_removed_where_it_stands_now(tmp_path):
    workspace = open_workspace(tmp_path)
    (tmp_path / "MEMORY.md").write_text("new line\n- one\n- two\n", "utf-8")
    assert remove_note(workspace, None, "- one", start_line=1).start_line == 2
    assert (tmp_path / "MEMORY.md").read_text("utf-8") == "new line\n- two\n"


@pytest.mark.parametrize("text", ["- a", "- gone"])
def test_a_note_that_is_gone_or_stands_twice_is_not_removed(tmp_path, text):
    workspace = open_workspace(tmp_path)
    (tmp_path / "MEMORY.md").write_text("x\n- a\ny\n- a\n", "utf-8")
    with pytest.raises(NotFoundError):
        remove_note(workspace, None, text, start_line=1)
    assert (tmp_path / "MEMORY.md").read_text("utf-8") == "x\n- a\ny\n- a\n"
