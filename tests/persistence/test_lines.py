"""Files of lines: appending is durable, sealed and locked; reading by cursor sees each line once and notices another file."""

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistence.errors import StorageFullError, StoreBusyError, StoreFaultError, UnsafeObjectError
from persistence.lines import (
    TAIL_BYTES,
    Cursor,
    Tail,
    append_lines,
    read_lines,
    read_open_lines,
    read_spans,
)

NAME = "ops/log.jsonl"
A, B, C = b'{"a":1}\n', b'{"b":2}\n', b'{"c":3}\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "ops").mkdir()
    return tmp_path / NAME


def append(root: Path, *lines: bytes) -> int:
    return append_lines(root, NAME, lambda _: list(lines))


def quarantined(root: Path) -> dict[str, bytes]:
    folder = root / ".recalld/quarantine"
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


# -- appending


def test_lines_go_to_the_end_and_the_offset_of_the_first_is_told(tmp_path: Path):
    assert append(tmp_path, A, B) == 0
    assert append(tmp_path, C) == len(A + B)
    assert (tmp_path / NAME).read_bytes() == A + B + C


def test_the_tail_shows_whole_lines_and_the_size(file: Path, tmp_path: Path):
    file.write_bytes(A + b"\n  \n" + B + b"torn")
    seen: list[Tail] = []
    append_lines(tmp_path, NAME, lambda tail: seen.append(tail) or [C])
    assert (seen[0].lines, seen[0].size_bytes, seen[0].whole_file) == ([A[:-1], B[:-1]], len(A + B) + 8, True)


def test_the_tail_of_a_long_file_begins_with_a_whole_line(file: Path, tmp_path: Path):
    lines = [b'{"n":%d}' % number for number in range(20_000)]
    file.write_bytes(b"\n".join(lines) + b"\n")
    seen: list[Tail] = []
    append_lines(tmp_path, NAME, lambda tail: seen.append(tail) or [C])
    tail = seen[0]
    assert not tail.whole_file
    assert tail.lines == lines[-len(tail.lines) :]
    assert TAIL_BYTES - 20 < sum(len(line) + 1 for line in tail.lines) <= TAIL_BYTES


def test_the_tail_can_be_read_by_cursor_while_it_is_locked(file: Path, tmp_path: Path):
    file.write_bytes(A)
    cursor = read_lines(tmp_path, NAME, Cursor()).cursor
    file.write_bytes(A + B)
    seen: list[list[tuple[int, bytes]]] = []
    append_lines(tmp_path, NAME, lambda tail: seen.append(read_open_lines(tail.fd, cursor).lines) or [])
    assert seen == [[(len(A), B[:-1])]]


def test_a_torn_tail_is_sealed_and_its_bytes_kept_aside_with_offset_and_hash(file: Path, tmp_path: Path):
    torn = b'{"b":"to'
    file.write_bytes(A + torn)
    assert append(tmp_path, C) == len(A + torn) + 1
    assert file.read_bytes() == A + torn + b"\n" + C
    assert quarantined(tmp_path) == {f"ops%2Flog.jsonl.{len(A)}.{hashlib.sha256(torn).hexdigest()[:16]}": torn}


def test_a_torn_tail_longer_than_the_window_is_kept_aside_whole(file: Path, tmp_path: Path):
    torn = b'{"b":"' + b"x" * (3 * TAIL_BYTES)
    file.write_bytes(A + torn)
    append(tmp_path, C)
    assert list(quarantined(tmp_path).values()) == [torn]
    assert file.read_bytes() == A + torn + b"\n" + C


def test_nul_bytes_at_the_end_are_a_torn_tail(file: Path, tmp_path: Path):
    file.write_bytes(A + b"\x00" * 18)
    append(tmp_path, C)
    assert list(quarantined(tmp_path).values()) == [b"\x00" * 18]
    assert [line for _, line in read_lines(tmp_path, NAME, Cursor()).lines][-1] == C[:-1]


def test_a_whole_object_without_lf_is_no_torn_tail(file: Path, tmp_path: Path):
    file.write_bytes(A + B[:-1])
    append(tmp_path, C)
    assert file.read_bytes() == A + B + C
    assert quarantined(tmp_path) == {}


def test_nothing_to_append_changes_nothing_not_even_a_torn_tail(file: Path, tmp_path: Path):
    file.write_bytes(A + b"torn")
    append(tmp_path)
    append(tmp_path)
    assert file.read_bytes() == A + b"torn"
    assert list(quarantined(tmp_path).values()) == [b"torn"]


def test_an_error_of_the_builder_leaves_the_file_and_the_lock_free(file: Path, tmp_path: Path):
    file.write_bytes(A)

    def fail(_tail: Tail) -> list[bytes]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        append_lines(tmp_path, NAME, fail)
    append(tmp_path, B)
    assert file.read_bytes() == A + B


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "folder", "linked folder", "file for folder"])
def test_only_regular_files_in_real_folders_are_opened_and_nothing_blocks(tmp_path: Path, kind: str):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "log.jsonl").write_bytes(A)
    if kind == "linked folder":
        (tmp_path / "ops").symlink_to(outside)
    elif kind == "file for folder":
        (tmp_path / "ops").write_bytes(A)
    else:
        (tmp_path / "ops").mkdir()
        place = tmp_path / NAME
        if kind == "fifo":
            os.mkfifo(place)
        elif kind == "folder":
            place.mkdir()
        else:
            place.symlink_to(outside / ("log.jsonl" if kind == "link" else "none.jsonl"))
    started = time.monotonic()
    with pytest.raises(UnsafeObjectError):
        append(tmp_path, B)
    with pytest.raises(UnsafeObjectError):
        read_lines(tmp_path, NAME, Cursor())
    assert time.monotonic() - started < 2
    assert (outside / "log.jsonl").read_bytes() == A
    assert not (outside / "none.jsonl").exists()


def test_a_held_lock_is_waited_for_until_the_deadline(file: Path, tmp_path: Path):
    file.write_bytes(A)
    with file.open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StoreBusyError):
            append_lines(tmp_path, NAME, lambda _: [B], timeout_s=0.2)
        threading.Timer(0.2, lambda: fcntl.flock(other, fcntl.LOCK_UN)).start()
        append_lines(tmp_path, NAME, lambda _: [C], timeout_s=5)
    assert file.read_bytes() == A + C


def test_a_file_replaced_while_its_lock_was_awaited_is_not_written_to(file: Path, tmp_path: Path):
    file.write_bytes(A)
    old = file.open("r+b")
    fcntl.flock(old, fcntl.LOCK_EX)
    writer = threading.Thread(target=append, args=(tmp_path, C))
    writer.start()
    time.sleep(0.1)
    (tmp_path / "new").write_bytes(B)
    (tmp_path / "new").rename(file)
    fcntl.flock(old, fcntl.LOCK_UN)
    writer.join()
    assert file.read_bytes() == B + C
    old.seek(0)
    assert old.read() == A
    old.close()


def test_a_lock_dies_with_its_process(file: Path, tmp_path: Path):
    file.write_bytes(A)
    code = "import fcntl,sys,time; f=open(sys.argv[1],'r+b'); fcntl.flock(f,fcntl.LOCK_EX); print(1,flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", code, file], stdout=subprocess.PIPE)
    holder.stdout.readline()
    threading.Timer(0.2, holder.kill).start()
    append(tmp_path, B)
    holder.communicate()
    assert file.read_bytes() == A + B


def test_a_full_disk_acknowledges_nothing_and_leaves_the_file_as_it_was(tmp_path: Path):
    """A file size limit makes the kernel write short and then refuse, as a full disk does."""
    (tmp_path / "ops").mkdir()
    (tmp_path / NAME).write_bytes(A)
    code = """
import resource, signal, sys
from pathlib import Path
from persistence.errors import PersistenceError
from persistence.lines import append_lines
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    append_lines(Path(sys.argv[1]), "ops/log.jsonl", lambda _: [b'{"x":"' + b"y" * 5000 + b'"}' + bytes([10])])
except PersistenceError as err:
    print(type(err).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path], cwd=Path(__file__).parents[2], capture_output=True, check=True)
    assert done.stdout.decode().strip() in {StoreFaultError.__name__, StorageFullError.__name__}
    assert (tmp_path / NAME).read_bytes() == A


def test_the_missing_root_is_a_fault_and_is_not_made(tmp_path: Path):
    with pytest.raises(StoreFaultError):
        append(tmp_path / "none", A)
    assert not (tmp_path / "none").exists()


# -- reading


def test_an_absent_file_has_no_lines(tmp_path: Path):
    assert read_lines(tmp_path, NAME, Cursor()).lines == []
    assert not read_lines(tmp_path, NAME, Cursor()).restarted
    assert read_lines(tmp_path, NAME, Cursor(5, "x")).restarted
    assert read_spans(tmp_path, NAME, [(0, 5), (7, 2)]) == [b"", b""]


def test_lines_are_split_at_lf_alone(file: Path, tmp_path: Path):
    line = '{"t":"\u2028\u2029\x85\x0b\x0c\x1c"}'.encode()
    file.write_bytes(line + b"\r\n" + b"\n" + line + b"\n")
    found = read_lines(tmp_path, NAME, Cursor())
    assert found.lines == [(0, line + b"\r"), (len(line) + 3, line)]


def test_spans_are_read_from_one_opening(file: Path, tmp_path: Path):
    file.write_bytes(A + B)
    assert read_spans(tmp_path, NAME, [(len(A), len(B)), (0, 3), (999, 5)]) == [B, A[:3], b""]


@pytest.mark.parametrize(
    "changed", [A + B[:-5], b"x" + (A + B)[1:], (A + B)[:-3] + b"!" + B[-2:], B], ids=["cut", "head", "end", "gone"]
)
def test_a_file_that_changed_before_the_cursor_is_read_from_the_start(file: Path, tmp_path: Path, changed: bytes):
    file.write_bytes(A + B)
    cursor = read_lines(tmp_path, NAME, Cursor()).cursor
    file.write_bytes(changed + b"\n" + C)
    found = read_lines(tmp_path, NAME, cursor)
    assert found.restarted
    assert found.lines[0][0] == 0
    assert found.lines[-1][1] == C[:-1]


PIECE = st.one_of(
    st.sampled_from([b"\n", b"\r\n", b"{", b'{"t":"half', b"\x00", b"  ", b"\xff", A[:-1], A, B, C]),
    st.binary(max_size=20),
)


def lines_of(data: bytes) -> list[tuple[int, bytes]]:
    """What reading must give: split by hand."""
    lines, start = [], 0
    for part in data.split(b"\n")[:-1]:
        if part.strip():
            lines.append((start, part))
        start += len(part) + 1
    return lines


def read_in_slices(root: Path, name: str, limit: int) -> tuple[list[tuple[int, bytes]], int]:
    """(all lines, number of slices), going on while a slice says that there may be more."""
    cursor, lines, slices = Cursor(), [], 0
    while True:
        found = read_lines(root, name, cursor, limit_bytes=limit)
        assert not found.restarted
        lines += found.lines
        slices += 1
        consumed, cursor = found.cursor.offset - cursor.offset, found.cursor
        if consumed < limit:
            return lines, slices


@settings(deadline=None)
@given(st.lists(PIECE, max_size=12), st.integers(1, 40))
def test_reading_in_slices_equals_reading_at_once(pieces, limit):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "f").write_bytes(b"".join(pieces) + b"\n")
        lines, _ = read_in_slices(Path(folder), "f", limit)
        assert lines == read_lines(Path(folder), "f", Cursor()).lines == lines_of(b"".join(pieces) + b"\n")


@pytest.mark.parametrize("limit", [1 << 19, 1 << 20, 3 << 19])
def test_a_long_file_is_read_to_its_end_in_slices_that_end_with_a_line(tmp_path: Path, limit: int):
    data = b"".join(b"%d %s\n" % (number, b"x" * 90) for number in range(50_000)) + b"y" * 5_000_000 + b"\n" + A
    (tmp_path / "f").write_bytes(data)
    lines, slices = read_in_slices(tmp_path, "f", limit)
    assert lines == lines_of(data)
    assert slices > 3


@settings(deadline=None)
@given(st.lists(PIECE, max_size=10))
def test_a_follower_of_a_growing_file_sees_every_line_once(pieces):
    with tempfile.TemporaryDirectory() as folder:
        path, cursor, lines = Path(folder) / "f", Cursor(), []
        path.write_bytes(b"")
        for piece in [*pieces, b"\n"]:
            with path.open("ab") as file:
                file.write(piece)
            found = read_lines(Path(folder), "f", cursor)
            assert not found.restarted
            lines += found.lines
            cursor = found.cursor
        whole = path.read_bytes()
        assert all(whole[offset : offset + len(line)] == line for offset, line in lines)
        assert [offset for offset, _ in lines] == sorted({offset for offset, _ in lines})
        assert b"".join(b"".join(line for _, line in lines).split()) == b"".join(whole.split())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.tuples(st.just("append"), st.sampled_from([A, B, C])), st.tuples(st.just("tear"), PIECE)), max_size=10)
)
def test_what_is_appended_stays_a_line_of_its_own_whatever_lies_before_it(operations):
    with tempfile.TemporaryDirectory() as folder:
        root, path, appended = Path(folder), Path(folder) / "f", []
        path.write_bytes(b"")
        for kind, data in operations:
            before = path.read_bytes()
            if kind == "append":
                appended.append((append_lines(root, "f", lambda _, data=data: [data]), data[:-1]))
            else:
                path.write_bytes(before + data)
            assert path.read_bytes().startswith(before)
        lines = read_lines(root, "f", Cursor()).lines
        assert [entry for entry in appended if entry not in lines and (entry[0], entry[1] + data) not in lines] == []
