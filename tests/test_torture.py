"""Kills, power losses and failing disks in short (`make torture` runs the long forms), and controls that must fail."""

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


@pytest.mark.parametrize(("mode", "how"), [("posix", "drop"), ("posix", "prefix"), ("posix", "torn"), ("efs", "torn")])
def test_no_power_loss_loses_what_was_acknowledged(needs_crash_fs, mode, how):
    figures = run_power_losses(rounds=6, seed=7, mode=mode, how=how)
    print(figures)
    assert figures.problems == []
    assert figures.power_losses == 6
    assert figures.acknowledged.total() > 50


@pytest.mark.parametrize("path", ["log", "settings", "notes"])
def test_each_failing_operation_is_a_clear_error_and_loses_nothing(needs_crash_fs, path):
    figures = run_faults(seed=11, paths=(path,), share=0.25)
    print(figures)
    assert figures.problems == []
    assert figures.injected > 10


# Controls: what the product does is needed, since without it the same torture finds a loss.


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
