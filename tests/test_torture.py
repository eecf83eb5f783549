"""Kills, power losses and failing disks in short (`make torture` runs the long forms), and controls that must fail."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import time
from collections import Counter

import pytest

from persistence.lines import append_lines
from persistence.log import ChannelLog, NewMessage
from persistence.workspace import Workspace, open_workspace, parse_channel_id
from tests.torture.faults import run_faults
from tests.torture.kill import run_kills
from tests.torture.power import run_power_losses
from tests.torture.volume import CrashVolume, why_no_crash_fs


@pytest.fixture
def needs_crash_fs():
    """CI has what it needs; elsewhere the reason is said."""
    if why := why_no_crash_fs():
        assert not os.environ.get("CI"), why
        pytest.skip(why)


@pytest.fixture
def volume(needs_crash_fs, tmp_path):
    with CrashVolume(tmp_path) as mounted:
        yield mounted


def test_no_kill_loses_or_tears_what_was_acknowledged():
    figures = run_kills(rounds=20, seed=20261130)
    print(figures)
    assert figures.problems == []
    assert figures.kills >= 200
    assert set(figures.acknowledged) >= {
        "log",
        "context",
        "topics",
        "settings",
        "handoff",
        "versions",
        "notes",
        "compaction",
        "team",
    }


@pytest.mark.parametrize(("mode", "how"), [("posix", "prefix"), ("posix", "torn"), ("strict", "drop"), ("efs", "torn")])
def test_no_power_loss_loses_what_was_acknowledged(needs_crash_fs, mode, how):
    figures = run_power_losses(rounds=6, seed=7, mode=mode, how=how)
    print(figures)
    assert figures.problems == []
    assert figures.power_losses == 6
    assert figures.acknowledged.total() > 50


def test_each_failing_operation_is_a_clear_error_and_loses_nothing(needs_crash_fs):
    figures = run_faults(seed=11, share=0.02)
    print(figures)
    assert figures.problems == []
    assert figures.injected > 50
    assert figures.power_losses > 50  # after the acknowledgement, of each kind for each kind of deed
    assert set(figures.refused) >= {"storage_full", "store_error"}


# Controls: what the product does is needed, since without it the same torture finds a loss.


@pytest.mark.parametrize("control", ["without-sync", "without-seal"])
def test_a_writer_that_leaves_something_out_is_found_by_the_same_power_losses(needs_crash_fs, control):
    sound = run_power_losses(rounds=6, seed=3, paths=("sound",))
    assert (sound.problems, sound.acknowledged["sound"] > 100) == ([], True)
    figures = run_power_losses(rounds=60, seed=3, paths=(control,), ops="write")
    assert any("was acknowledged and is there 0 times" in problem for problem in figures.problems)


def test_a_writer_without_a_lock_is_found_by_the_same_kills():
    assert run_kills(rounds=3, seed=3, paths=("sound",)).problems == []
    figures = run_kills(rounds=12, seed=3, paths=("without-lock",))
    assert any("was given 2 times" in problem for problem in figures.problems)


def test_control_without_fsync_a_power_loss_loses_what_was_acknowledged(volume):
    path = volume.root / "log.jsonl"
    with path.open("ab") as log:
        for number in range(50):
            log.write(json.dumps({"ts": f"{number}.0"}).encode() + b"\n")
            log.flush()  # told to the system, and "acknowledged"
    volume.power_loss("drop", seed=1)
    volume.power_on()
    assert not path.exists() or path.read_bytes().count(b"\n") < 50


def test_with_fsync_the_same_power_loss_loses_nothing(volume):
    log = ChannelLog(open_workspace(volume.root), parse_channel_id("general"))
    acknowledged = [log.append(NewMessage(text=f"{number}", user="amy")).record.ts for number in range(50)]
    volume.power_loss("drop", seed=1)
    volume.power_on()
    again = ChannelLog(open_workspace(volume.root), parse_channel_id("general"))
    assert [record.ts for record in again.page(limit=100)] == acknowledged


_UNLOCKED = """
import json, os, sys, time
path = sys.argv[1]
while not os.path.exists(path + ".go"):
    time.sleep(0.001)
for _ in range(200):
    with open(path, "rb") as log:
        lines = log.read().splitlines()
    number = json.loads(lines[-1])["n"] + 1 if lines else 1
    with open(path, "ab") as log:
        log.write(json.dumps({"n": number}).encode() + b"\\n")
        os.fsync(log.fileno())
"""


def test_control_without_the_lock_two_writers_give_the_same_number_twice(tmp_path):
    path = tmp_path / "log.jsonl"
    path.touch()
    writers = [subprocess.Popen([sys.executable, "-c", _UNLOCKED, str(path)]) for _ in range(2)]
    time.sleep(0.3)
    (tmp_path / "log.jsonl.go").touch()
    assert [writer.wait(60) for writer in writers] == [0, 0]
    numbers = Counter(json.loads(line)["n"] for line in path.read_text("utf-8").splitlines())
    assert max(numbers.values()) > 1


def test_control_without_sealing_a_torn_tail_swallows_the_next_line(tmp_path):
    open_workspace(tmp_path)
    name = Workspace.log(parse_channel_id("general"))
    (tmp_path / "general").mkdir()
    for sealed in (False, True):
        (tmp_path / name).write_bytes(b'{"ts": "1.0", "text": "half')
        if sealed:
            append_lines(tmp_path, name, lambda _: [b'{"ts": "2.0", "text": "whole"}\n'])
        else:
            with (tmp_path / name).open("ab") as log:
                log.write(b'{"ts": "2.0", "text": "whole"}\n')
        found = [record.ts for record in ChannelLog(open_workspace(tmp_path), parse_channel_id("general")).page()]
        assert found == (["2.0"] if sealed else [])


# The file system of the torture: what it takes for durable, and how it fails.


@pytest.fixture(params=["posix", "strict", "efs"])
def each_mode(needs_crash_fs, tmp_path, request):
    with CrashVolume(tmp_path, request.param) as mounted:
        yield mounted, request.param


def write(path, data, *, sync=True, flags=os.O_WRONLY | os.O_CREAT | os.O_APPEND):
    fd = os.open(path, flags)
    try:
        os.write(fd, data)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def after_power_loss(volume, how="drop", seed=0):
    volume.power_loss(how, seed=seed)
    with pytest.raises(OSError, match="Input/output"):
        list(volume.root.iterdir())
    volume.power_on()
    return {path.name: path.read_bytes() for path in volume.root.iterdir()}


def test_a_power_loss_takes_what_was_not_made_durable(each_mode):
    volume, mode = each_mode
    write(volume.root / "a", b"kept")
    sync_folder(volume.root)
    write(volume.root / "a", b" and not", sync=False)
    write(volume.root / "b", b"under a name that is not durable")
    found = after_power_loss(volume)
    on_a_network_disk = {"a": b"kept and not", "b": b"under a name that is not durable"}  # names at once, bytes on closing
    assert found == (on_a_network_disk if mode == "efs" else {"a": b"kept"})


def test_a_rename_survives_whole_or_not_at_all(each_mode):
    volume, mode = each_mode
    for data in (b"old", b"new"):
        write(volume.root / ".temp", data)
        (volume.root / ".temp").rename(volume.root / "f")
        if data == b"old":
            sync_folder(volume.root)
    assert (volume.root / "f").read_bytes() == b"new"
    assert after_power_loss(volume) == {"f": b"new" if mode == "efs" else b"old"}


def test_the_last_write_before_a_power_loss_is_torn_in_many_ways(volume):
    shapes = set()
    for seed in range(16):
        volume.restore("empty")
        write(volume.root / "log", b"1" * 700)
        sync_folder(volume.root)
        write(volume.root / "log", b"2" * 700, sync=False)
        data = after_power_loss(volume, "torn", seed)["log"]
        assert data.startswith(b"1" * 700)
        shapes.add((data.count(b"2"), data.count(b"\0")))
    assert len(shapes) > 5
    assert any(twos and nuls for twos, nuls in shapes)


def test_operations_go_wrong_by_rule(volume):
    file = volume.root / "f"
    write(file, b"x")
    for op, code, call in (
        ("read", errno.EIO, file.read_bytes),
        ("write", errno.ENOSPC, lambda: write(file, b"y")),
        ("rename", errno.EIO, lambda: file.rename(volume.root / "g")),
        ("fsync", errno.EIO, lambda: write(file, b"z")),
        ("create", errno.ENOSPC, lambda: write(volume.root / "h", b"")),
        ("fsyncdir", errno.EIO, lambda: sync_folder(volume.root)),
    ):
        volume.rule(op=op, errno=code)
        with pytest.raises(OSError, match=os.strerror(code)):
            call()
        assert volume.hits == 1
        volume.clear()
    volume.rule(op="write", half=True, nth=2)
    write(file, b"!", flags=os.O_WRONLY | os.O_TRUNC)
    write(file, b"0123456789")
    assert file.read_bytes() == b"!01234"


def test_a_failed_fsync_forgets_what_it_should_have_kept_and_the_next_one_says_all_is_well(volume):
    write(volume.root / "f", b"")
    sync_folder(volume.root)
    volume.rule(op="fsync", half=True, errno=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        write(volume.root / "f", b"precious")
    write(volume.root / "f", b"")
    assert (volume.root / "f").read_bytes() == b"precious"
    assert after_power_loss(volume) == {"f": b""}


def test_a_full_disk_takes_what_fits_and_then_no_more(volume):
    volume.capacity(4096)
    fd = os.open(volume.root / "f", os.O_WRONLY | os.O_CREAT)
    assert 0 < os.write(fd, b"x" * 10_000) < 4096
    with pytest.raises(OSError, match="No space"):
        os.write(fd, b"x")
    volume.capacity()
    assert os.write(fd, b"x") == 1
    os.close(fd)


def test_files_locks_and_links_are_as_on_a_local_disk(volume):
    file = volume.root / "f"
    write(file, b"old")
    first, second = (os.open(file, os.O_RDWR) for _ in range(2))
    fcntl.flock(first, fcntl.LOCK_EX)
    with pytest.raises(BlockingIOError):
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.link(file, volume.root / "g")
    write(volume.root / "new", b"new")
    (volume.root / "new").rename(file)
    assert (os.pread(first, 9, 0), file.read_bytes(), (volume.root / "g").read_bytes()) == (b"old", b"new", b"old")
    (volume.root / "s").symlink_to("f")
    with pytest.raises(OSError, match="symbolic"):
        os.open(volume.root / "s", os.O_RDONLY | os.O_NOFOLLOW)
    with pytest.raises(FileExistsError):
        os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    (volume.root / "g").unlink()
    assert {path.name for path in volume.root.iterdir()} == {"f", "s"}
    assert os.pread(second, 9, 0) == b"old"
    os.close(first)
    os.close(second)
