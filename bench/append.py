"""Appending to a log: by its length, and by how many write at once (commits in groups)."""

import tempfile
import threading
from pathlib import Path

from bench.made_up import write_log
from bench.measure import Samples, interleave, once, row, title
from persistence.log import ChannelLog, NewMessage
from persistence.workspace import ChannelId, Workspace, open_workspace

SIZES = (100, 1_000_000)
POSTERS, MESSAGES, ROUNDS = 32, 640, 5


def _open(workspace: Workspace, lines: int) -> ChannelLog:
    channel = ChannelId(f"lines-{lines}")
    write_log(workspace.root / workspace.log(channel), lines)
    return ChannelLog(workspace, channel)


def _append(log: ChannelLog) -> None:
    log.append(NewMessage(text="one more message", user="amy"))


def _post(log: ChannelLog, posters: int) -> None:
    """MESSAGES appends by this many threads."""

    def work() -> None:
        for _ in range(MESSAGES // posters):
            _append(log)

    threads = [threading.Thread(target=work) for _ in range(posters)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run() -> None:
    """Print both comparisons, each side in turn."""
    with tempfile.TemporaryDirectory() as folder:
        workspace = open_workspace(Path(folder))
        _compare_lengths(workspace)
        _compare_posters(workspace)


def _compare_lengths(workspace: Workspace) -> None:
    title("Appending one message durably, by the length of the log")
    small, large = (_open(workspace, lines) for lines in SIZES)
    first = once(lambda: _append(large))
    short, long = interleave((lambda: _append(small), lambda: _append(large)), 100)
    row("100 lines", short)
    row("1,000,000 lines", long)
    row("1,000,000 / 100 lines (promise: the same)", f"{long.p50 / short.p50:.2f}")
    row("first append after the log was never seen before", f"{first / 1000:.1f} s")
    channel = ChannelId(f"lines-{SIZES[1]}")
    row("first append of the next process (saved positions)", f"{once(lambda: _append(ChannelLog(workspace, channel))):.0f} ms")


def _compare_posters(workspace: Workspace) -> None:
    title(f"{MESSAGES} durable appends to one log by one and by {POSTERS} posters")
    log = _open(workspace, 10)
    one, many = interleave((lambda: _post(log, 1), lambda: _post(log, POSTERS)), ROUNDS, warm_up=1)
    before = log.batches
    _post(log, POSTERS)
    _row("one poster", one)
    _row(f"{POSTERS} posters", many)
    row(f"{POSTERS} posters / one", f"{one.p50 / many.p50:.1f}")
    row("messages in a commit, 32 posters", f"{MESSAGES / (log.batches - before):.1f}")


def _row(name: str, samples: Samples) -> None:
    row(name, f"{MESSAGES / samples.p50 * 1000:8.0f} messages/s")
