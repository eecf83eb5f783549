"""Single files: opened safely, replaced whole or not at all, and changed by one writer at a time with nobody left to starve."""

import errno
import fcntl
import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from persistence.errors import (
    StorageFullError,
    StoreBusyError,
    StoreFaultError,
    TooLargeError,
    UnsafeObjectError,
)
from persistence.files import (
    Held,
    etag_of,
    locked,
    open_regular,
    opened_folder,
    read_bytes,
    read_text,
    replace_bytes,
    translate,
)

LOCK = ".recalld/locks/note.md.lock"


def put(root: Path, data: bytes, name: str = "note.md") -> None:
    with locked(root, name, LOCK) as held:
        replace_bytes(root, name, data, held)


def add(root: Path, line: str, **options) -> None:
    with locked(root, "note.md", LOCK, **options) as held:
        old = read_bytes(root, "note.md") or b""
        replace_bytes(root, "note.md", old + line.encode() + b"\n", held)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".recalld")


# -- opening and reading


def make(kind: str, place: Path, outside: Path) -> None:
    match kind:
        case "link":
            place.symlink_to(outside)
        case "dangling":
            place.symlink_to(outside.parent / "nowhere")
        case "fifo":
            os.mkfifo(place)
        case "folder":
            place.mkdir()
        case _:
            os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(1, 3))


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "folder", "device"])
def test_what_is_no_regular_file_is_neither_read_nor_replaced_and_nothing_blocks(tmp_path: Path, kind: str):
    root = tmp_path / "w"
    root.mkdir()
    (tmp_path / "outside").write_text("outside")
    make(kind, root / "note.md", tmp_path / "outside")
    started = time.monotonic()
    for call in (
        lambda: read_bytes(root, "note.md"),
        lambda: read_text(root, "note.md"),
        lambda: open_regular(root, "note.md", os.O_RDWR | os.O_CREAT),
        lambda: put(root, b"new"),
        lambda: add(root, "new"),
    ):
        with pytest.raises(UnsafeObjectError):
            call()
    assert time.monotonic() - started < 2
    assert (tmp_path / "outside").read_text() == "outside"
    assert names_in(root) == ["note.md"]
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("depth", ["a", "a/b", "a/b/c"])
def test_no_part_of_the_way_may_be_a_link_or_a_file(tmp_path: Path, depth: str):
    root = tmp_path / "w"
    (tmp_path / "elsewhere/b/c").mkdir(parents=True)
    (root / depth).parent.mkdir(parents=True)
    for stand_in in (lambda place: place.symlink_to(tmp_path / "elsewhere"), lambda place: place.write_text("file")):
        stand_in(root / depth)
        with pytest.raises(UnsafeObjectError):
            put(root, b"x", f"{depth}/note.md")
        with pytest.raises(UnsafeObjectError):
            read_bytes(root, f"{depth}/note.md")
        (root / depth).unlink()
    assert list((tmp_path / "elsewhere").rglob("*.md")) == []


def test_a_way_up_never_leaves_the_root_by_a_link_but_absence_is_a_value(tmp_path: Path):
    assert read_bytes(tmp_path, "none.md") is None
    assert read_text(tmp_path, "no/folder/none.md") is None
    with pytest.raises(FileNotFoundError), opened_folder(tmp_path, "none"):
        pass
    assert names_in(tmp_path) == []


def test_a_bom_is_dropped_and_bad_bytes_are_replaced_and_told(tmp_path: Path):
    (tmp_path / "bom.md").write_bytes(b"\xef\xbb\xbfhi\r\n")
    (tmp_path / "latin.md").write_bytes(b"gr\xfc\xdf")
    bom, latin = read_text(tmp_path, "bom.md"), read_text(tmp_path, "latin.md")
    assert (bom.text, bom.utf8, bom.etag) == ("hi\r\n", True, etag_of(b"\xef\xbb\xbfhi\r\n"))
    assert (latin.text, latin.utf8) == ("gr\ufffd\ufffd", False)


def test_a_file_over_the_limit_is_refused_before_it_is_read_whole(tmp_path: Path):
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(TooLargeError):
        read_bytes(tmp_path, "huge")
    (tmp_path / "fits").write_bytes(b"x" * 10)
    assert read_bytes(tmp_path, "fits", limit=10) == b"x" * 10
    with pytest.raises(TooLargeError):
        read_bytes(tmp_path, "fits", limit=9)


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ENOSPC, StorageFullError),
        (errno.EDQUOT, StorageFullError),
        (errno.ELOOP, UnsafeObjectError),
        (errno.ENOTDIR, UnsafeObjectError),
        (errno.EIO, StoreFaultError),
        (errno.ESTALE, StoreFaultError),
        (errno.EACCES, StoreFaultError),
    ],
)
def test_a_fault_is_told_by_what_the_caller_can_do(number: int, error: type):
    assert type(translate(OSError(number, os.strerror(number)), "note.md")) is error


# -- replacing


def test_a_file_is_replaced_whole_and_keeps_its_mode(tmp_path: Path):
    put(tmp_path, b"one", "a/b/note.md")
    (tmp_path / "a/b/note.md").chmod(0o640)
    inode = (tmp_path / "a/b/note.md").stat().st_ino
    put(tmp_path, b"two", "a/b/note.md")
    found = (tmp_path / "a/b/note.md").stat()
    assert (tmp_path / "a/b/note.md").read_bytes() == b"two"
    assert (stat.S_IMODE(found.st_mode), found.st_ino != inode) == (0o640, True)
    assert names_in(tmp_path / "a/b") == ["note.md"]


def test_the_owner_of_a_file_is_kept(tmp_path: Path):
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    put(tmp_path, b"one")
    os.chown(tmp_path / "note.md", 12345, 23456)
    put(tmp_path, b"two")
    found = (tmp_path / "note.md").stat()
    assert (found.st_uid, found.st_gid) == (12345, 23456)


def test_a_writer_that_lost_its_lock_publishes_nothing(tmp_path: Path):
    """A closed descriptor stands for one that the file server cut off: writing through it fails."""
    put(tmp_path, b"one")
    fd = os.open(tmp_path / LOCK, os.O_RDONLY)  # not writable: the proof fails as it does with EIO
    try:
        with pytest.raises(StoreBusyError):
            replace_bytes(tmp_path, "note.md", b"two", Held(fd, "note.md"))
    finally:
        os.close(fd)
    assert (tmp_path / "note.md").read_bytes() == b"one"
    assert names_in(tmp_path) == ["note.md"]


def test_a_writer_needs_every_lock_it_counts_on(tmp_path: Path):
    put(tmp_path, b"one")

    def lost() -> None:
        raise StoreBusyError("the other lock was lost")

    with locked(tmp_path, "note.md", LOCK) as held, pytest.raises(StoreBusyError, match="other lock"):
        replace_bytes(tmp_path, "note.md", b"two", held.also(lost))
    assert (tmp_path / "note.md").read_bytes() == b"one"


def test_a_full_disk_leaves_the_old_file_and_no_rest(tmp_path: Path):
    put(tmp_path, b"one")
    code = """
import resource, signal, sys
from pathlib import Path
from persistence.errors import PersistenceError
from persistence.files import locked, replace_bytes
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    with locked(Path(sys.argv[1]), "note.md", sys.argv[2]) as held:
        replace_bytes(Path(sys.argv[1]), "note.md", b"x" * 5000, held)
except PersistenceError as err:
    print(err.code)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path, LOCK], cwd=Path(__file__).parents[2], capture_output=True, check=True
    )
    assert done.stdout.strip() in {b"store_error", b"storage_full"}
    assert (tmp_path / "note.md").read_bytes() == b"one"
    assert names_in(tmp_path) == ["note.md"]


_REPLACER = """
import sys
from pathlib import Path
from persistence.files import locked, replace_bytes
root = Path(sys.argv[1])
for number in range(1_000_000):
    with locked(root, "note.md", sys.argv[2]) as held:
        replace_bytes(root, "note.md", str(number % 10).encode() * 50_000, held)
    print(number, flush=True)
"""


def test_a_reader_never_sees_a_torn_file_also_when_the_writer_is_killed(tmp_path: Path):
    put(tmp_path, b"0" * 50_000)
    for round_ in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", _REPLACER, tmp_path, LOCK], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE
        )
        writer.stdout.readline()
        until = time.monotonic() + 0.1 + round_ / 20
        while time.monotonic() < until:
            data = (tmp_path / "note.md").read_bytes()
            assert (len(data), len(set(data))) == (50_000, 1)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        data = (tmp_path / "note.md").read_bytes()
        assert (len(data), len(set(data))) == (50_000, 1)
    put(tmp_path, b"after")  # no lock is left behind


# -- locks


def test_a_held_lock_is_waited_for_until_the_deadline_and_no_longer(tmp_path: Path):
    with locked(tmp_path, "note.md", LOCK):
        started = time.monotonic()
        with pytest.raises(StoreBusyError, match=r"note\.md"), locked(tmp_path, "note.md", LOCK, timeout_s=0.3):
            pass
        assert 0.3 <= time.monotonic() - started < 2
    with locked(tmp_path, "note.md", LOCK, timeout_s=0):
        pass


def test_a_waiter_that_gave_up_stands_in_nobodys_way(tmp_path: Path):
    with locked(tmp_path, "note.md", LOCK):
        for _ in range(3):
            with pytest.raises(StoreBusyError), locked(tmp_path, "note.md", LOCK, timeout_s=0.05):
                pass
    with locked(tmp_path, "note.md", LOCK, timeout_s=0):
        pass


def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path: Path):
    code = """
import sys, time
from pathlib import Path
from persistence.files import locked
with locked(Path(sys.argv[1]), "note.md", sys.argv[2]):
    print("held", flush=True)
    time.sleep(60)
"""
    holder = subprocess.Popen([sys.executable, "-c", code, tmp_path, LOCK], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(StoreBusyError), locked(tmp_path, "note.md", LOCK, timeout_s=0.1):
        pass
    holder.kill()
    holder.communicate()
    with locked(tmp_path, "note.md", LOCK, timeout_s=1):
        assert (tmp_path / LOCK).exists()


def test_a_link_in_place_of_a_lock_is_not_followed(tmp_path: Path):
    root = tmp_path / "w"
    (root / LOCK).parent.mkdir(parents=True)
    (tmp_path / "outside").write_text("outside")
    (root / LOCK).symlink_to(tmp_path / "outside")
    with pytest.raises(UnsafeObjectError):
        add(root, "x")
    assert (tmp_path / "outside").read_text() == "outside"


def test_a_writer_in_a_loop_does_not_starve_another(tmp_path: Path):
    """The one that lets go of a lock is the first that could take it again: it must stand behind one that waits."""
    stop, rounds = threading.Event(), [0]

    def loop() -> None:
        while not stop.is_set():
            with locked(tmp_path, "note.md", LOCK):
                time.sleep(0.02)
            rounds[0] += 1

    greedy = threading.Thread(target=loop)
    greedy.start()
    try:
        for _ in range(5):
            before = rounds[0]
            with locked(tmp_path, "note.md", LOCK):
                assert rounds[0] - before <= 4
    finally:
        stop.set()
        greedy.join()


def _append_lines(root: Path, writer: int, count: int) -> None:
    for number in range(count):
        add(root, json.dumps([writer, number]), timeout_s=30)


def test_processes_that_change_one_file_lose_nothing(tmp_path: Path):
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_append_lines, args=(tmp_path, writer, 40)) for writer in range(4)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    assert [process.exitcode for process in writers] == [0] * 4
    lines = [json.loads(line) for line in (tmp_path / "note.md").read_text().splitlines()]
    assert sorted(lines) == [[writer, number] for writer in range(4) for number in range(40)]
    for writer in range(4):
        assert [number for who, number in lines if who == writer] == list(range(40))


def test_the_lock_is_a_real_one_of_the_kernel(tmp_path: Path):
    with locked(tmp_path, "note.md", LOCK), (tmp_path / LOCK).open("r+b") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with (tmp_path / LOCK).open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
