"""Several threads and processes append to one log: each acknowledged message is there, once, whole and in order."""

import json
import multiprocessing
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import pytest

from persistence.errors import MessageConflictError, NotFoundError, PersistenceError, StoreBusyError
from persistence.lines import Cursor, append_lines
from persistence.log import ChannelLog, NewMessage
from persistence.workspace import Workspace, open_workspace, parse_channel_id

OPS = parse_channel_id("ops")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace(tmp_path)


@pytest.fixture
def log(workspace: Workspace) -> ChannelLog:
    return ChannelLog(workspace, OPS)


def path_of(workspace: Workspace) -> Path:
    return workspace.root / "ops/log.jsonl"


def raw_lines(workspace: Workspace) -> list[bytes]:
    return path_of(workspace).read_bytes().split(b"\n")[:-1]


def texts(log: ChannelLog) -> list[str]:
    return [record.text for record in log.page()]


def test_threads_share_their_fsyncs_and_each_gets_its_own_result(workspace: Workspace):
    log = ChannelLog(workspace, OPS)

    def post(number: int) -> list[tuple[str, str]]:
        return [(record.text, record.ts) for i in range(30) if (record := log.append(NewMessage(f"{number}:{i}", "U1")).record)]

    with ThreadPoolExecutor(32) as pool:
        posted = list(pool.map(post, range(32)))
    assert log.batches < 32 * 30 / 3
    in_log = [(record.text, record.ts) for _, record in log.lines_from(Cursor()).records]
    assert sorted(in_log) == sorted(result for results in posted for result in results)
    assert [ts for _, ts in in_log] == sorted({ts for _, ts in in_log}, key=Decimal)
    for number, results in enumerate(posted):
        assert [text for text, _ in results] == [f"{number}:{i}" for i in range(30)]
        assert [ts for _, ts in results] == sorted((ts for _, ts in results), key=Decimal)


def while_the_log_is_locked(workspace: Workspace, calls: list) -> list:
    """Run the calls in threads that all wait for the log's lock, so that they become one batch behind the first of them."""
    results: list = [None] * len(calls)

    def run(place: int) -> None:
        try:
            results[place] = calls[place]()
        except PersistenceError as err:
            results[place] = err

    def hold(_tail) -> list[bytes]:
        for place in range(len(calls)):
            threads.append(threading.Thread(target=run, args=(place,)))
            threads[-1].start()
            time.sleep(0.02)
        return []

    threads: list[threading.Thread] = []
    append_lines(workspace.root, "ops/log.jsonl", hold)
    for thread in threads:
        thread.join()
    return results


def test_an_error_of_one_message_does_not_touch_the_others_of_its_batch(workspace: Workspace, log: ChannelLog):
    log.append(NewMessage("there", "U1", ts="100.0"))
    log.append(NewMessage("going", "U1", ts="101.0"))
    before = log.batches
    results = while_the_log_is_locked(
        workspace,
        [
            lambda: log.append(NewMessage("first", "U1")),
            lambda: log.append(NewMessage("other", "U1", ts="100.0")),
            lambda: log.append(NewMessage("a", "U1", id="k")),
            lambda: log.append(NewMessage("a", "U1", id="k")),
            lambda: log.append(NewMessage("b", "U1", id="k")),
            lambda: log.append(NewMessage("same", "U1", ts="50.0")),
            lambda: log.append(NewMessage("same", "U1", ts="50.0")),
            lambda: log.append(NewMessage("not the same", "U1", ts="50.0")),
            lambda: log.edit("100.0", "edited"),
            lambda: log.delete("101.0"),
            lambda: log.edit("101.0", "too late"),
            lambda: log.append(NewMessage("last", "U1")),
        ],
    )
    assert log.batches == before + 2
    outcomes = [type(r) if isinstance(r, PersistenceError) else getattr(r, "replayed", r) for r in results[:8]]
    assert outcomes == [False, MessageConflictError, False, True, MessageConflictError, False, True, MessageConflictError]
    assert (results[8].text, results[9].deleted, type(results[10])) == ("edited", True, NotFoundError)
    assert texts(log) == ["same", "edited", "first", "a", "last"]


def test_a_batch_is_bounded(workspace: Workspace, log: ChannelLog):
    log.append(NewMessage("warm", "U1"))
    before = log.batches
    results = while_the_log_is_locked(workspace, [lambda: log.append(NewMessage("x" * 100_000, "U1")) for _ in range(7)])
    assert [type(result).__name__ for result in results] == ["Appended"] * 7
    assert log.batches == before + 1 + 3  # two at most fit beside each other


_HOLDER = """
import fcntl, sys, time
with open(sys.argv[1], "r+b") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_log_held_by_another_is_busy_and_nothing_is_written(workspace: Workspace, log: ChannelLog):
    log.append(NewMessage("there", "U1"))
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER, path_of(workspace)], stdout=subprocess.PIPE)
    try:
        holder.stdout.readline()
        with pytest.raises(StoreBusyError):
            log.append(NewMessage("x", "U1"))
        assert texts(log) == ["there"]  # reading needs no lock
    finally:
        holder.kill()
        holder.communicate()
    assert not log.append(NewMessage("free again", "U1")).replayed


def _post_many(root: Path, writer: int, count: int) -> None:
    log = ChannelLog(open_workspace(root), OPS)
    with ThreadPoolExecutor(4) as pool:
        appended = list(
            pool.map(lambda i: log.append(NewMessage(f"{writer}:{i}", f"W{writer}", id=f"{writer}:{i}")), range(count))
        )
    (root / f"acked-{writer}").write_text(json.dumps([[a.record.text, a.record.ts, a.replayed] for a in appended]))


def test_processes_that_append_to_one_log_never_lose_tear_or_repeat_a_line(workspace: Workspace):
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_post_many, args=(workspace.root, writer, 150)) for writer in range(4)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    assert [process.exitcode for process in writers] == [0] * 4
    acked = [entry for writer in range(4) for entry in json.loads((workspace.root / f"acked-{writer}").read_text())]
    lines = [json.loads(line) for line in raw_lines(workspace)]
    assert sorted((text, ts) for text, ts, _ in acked) == sorted((line["text"], line["ts"]) for line in lines)
    assert not any(replayed for _, _, replayed in acked)
    stamps = [Decimal(line["ts"]) for line in lines]
    assert stamps == sorted(set(stamps))


def _retry_all(root: Path, writer: int) -> None:
    log = ChannelLog(open_workspace(root), OPS)
    replays = sum(log.append(NewMessage(f"delivery {i}", "U1", id=f"event-{i}")).replayed for i in range(100))
    (root / f"replays-{writer}").write_text(str(replays))


def test_an_event_delivered_to_several_processes_at_once_is_logged_once(workspace: Workspace):
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_retry_all, args=(workspace.root, writer)) for writer in range(3)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    assert len(raw_lines(workspace)) == 100
    assert sum(int((workspace.root / f"replays-{writer}").read_text()) for writer in range(3)) == 200


_VICTIM = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from persistence.log import ChannelLog, NewMessage
from persistence.workspace import open_workspace, parse_channel_id
log = ChannelLog(open_workspace(Path(sys.argv[1])), parse_channel_id("ops"))
def post(i):
    sys.stdout.write(log.append(NewMessage(f"{sys.argv[2]}:{i} " + "x" * 2000, "U1")).record.text.split(" ")[0] + "\\n")
    sys.stdout.flush()
with ThreadPoolExecutor(8) as pool:
    list(pool.map(post, range(1_000_000)))
"""


def test_every_acknowledged_message_survives_kill_9(workspace: Workspace):
    acked: list[str] = []
    for round_ in range(6):
        victim = subprocess.Popen(
            [sys.executable, "-c", _VICTIM, str(workspace.root), str(round_)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        first = victim.stdout.readline()
        time.sleep(0.05 + round_ * 0.03)
        victim.send_signal(signal.SIGKILL)
        out, _ = victim.communicate()
        acked += [line for line in (first + out).decode().split("\n")[:-1] if line]
    log = ChannelLog(workspace, OPS)
    log.append(NewMessage("after", "U1"))
    in_log = [record.text.split(" ")[0] for _, record in log.lines_from(Cursor()).records]
    assert len(acked) > 50
    assert set(acked) <= set(in_log)
    assert len(in_log) == len(set(in_log))
