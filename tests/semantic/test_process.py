"""The indexer's process with the real model: read-your-writes, restarts, and no orphan."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from semantic.embedders import load_embedder
from semantic.index import Index
from semantic.indexer import fingerprint_of
from semantic.lease import lease_of
from semantic.process import IndexerProcess
from semantic.types import CollectionStatus, Scope

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / ".recalld").mkdir()
    (tmp_path / ".recalld" / "VERSION").write_text("1\n")
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "a.md").write_text("# Rota\nAnna has the walrus shift.\n")
    return tmp_path


def uri_of(root: Path) -> str:
    return str(root / ".recalld" / "index")


@asynccontextmanager
async def started(root: Path, *, sweep_s: float = 60) -> AsyncIterator[IndexerProcess]:
    process = IndexerProcess(root, uri_of(root), sweep_s=sweep_s)
    await process.start()
    try:
        yield process
    finally:
        await process.stop()


def found(root: Path, words: str) -> list[str]:
    embedder = load_embedder("bundled", threads=1)
    index = Index(uri_of(root), dimension=embedder.dimension, fingerprint=fingerprint_of(embedder.name))
    return sorted({hit.path for hit in index.search_text(words, scope=Scope(everything=True), collections=(), limit=50)})


async def until(condition: Callable[[], bool], timeout_s: float = 20) -> bool:
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.02)
    return True


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_flush_brings_the_index_up_to_the_writes_before_it(root):
    async with started(root) as process:
        assert process.status.state == "starting"
        assert await process.flush(60)
        assert found(root, "walrus") == ["memory/a.md"]
        assert process.status.collections["memory"] == CollectionStatus(1, 1)
        for number in range(5):
            (root / "memory" / "a.md").write_text(f"# Rota\nNumber{number} has the shift.\n")
            assert await process.flush(30)
            assert found(root, f"number{number}") == ["memory/a.md"]
        assert process.status.pending == 0
        assert process.status.indexed_through_s == pytest.approx(time.time(), abs=60)


async def test_an_edit_is_found_without_any_hint(root):
    async with started(root) as process:
        assert await process.flush(60)
        (root / "memory" / "new.md").write_text("A badger.\n")
        assert await until(lambda: found(root, "badger") == ["memory/new.md"])
        (root / "C7" / "memory").mkdir(parents=True)
        await asyncio.sleep(1)
        (root / "C7" / "memory" / "later.md").write_text("A ferret.\n")
        assert await until(lambda: found(root, "ferret") == ["C7/memory/later.md"])


async def test_a_woken_process_with_a_warm_model_is_quick(root):
    async with started(root) as process:
        assert await process.flush(60)
        await asyncio.sleep(2)  # the model is loaded in the background
        took = []
        for number in range(7):
            begin = time.monotonic()
            (root / "memory" / "a.md").write_text(f"# Rota\nAnna has shift {number} of the walrus.\n")
            process.wake()
            assert await process.flush(30)
            took.append(time.monotonic() - begin)
        assert sorted(took)[len(took) // 2] < 0.3


async def test_the_index_s_own_writes_wake_nobody(root):
    async with started(root, sweep_s=1000) as process:
        assert await process.flush(60)
        (root / "memory" / "a.md").write_text("A badger.\n")
        assert await process.flush(30)
        await asyncio.sleep(1.5)
        through = process.status.indexed_through_s
        await asyncio.sleep(3)
        assert process.status.indexed_through_s == through


async def test_a_killed_process_comes_back_and_a_waiting_flush_is_answered_then(root):
    async with started(root) as process:
        assert await process.flush(60)
        first = process.pid
        (root / "memory" / "new.md").write_text("A badger.\n")
        os.kill(first, signal.SIGKILL)
        assert await until(lambda: process.status.state == "failed")
        assert "starts again" in process.status.detail
        assert not await process.flush(0.05)
        assert await process.flush(60)
        assert found(root, "badger") == ["memory/new.md"]
        assert process.pid != first
        assert process.status.state == "idle"


async def test_a_process_that_can_t_index_says_why_and_recovers(root):
    mark = root / ".recalld" / "VERSION"
    mark.unlink()
    async with started(root, sweep_s=0.5) as process:
        assert await until(lambda: process.status.state == "failed", 60)
        assert "VERSION" in process.status.detail
        assert not await process.flush(1)
        mark.write_text("1\n")
        assert await process.flush(60)
        assert process.status.state == "idle"


async def test_while_another_indexer_works_a_flush_times_out_and_comes_true_later(root):
    async with started(root) as process:
        assert await process.flush(60)
        (root / "memory" / "a.md").write_text("A badger.\n")
        with lease_of(root, uri_of(root)).held(timeout_s=20):
            assert not await process.flush(0.5)
        assert await process.flush(30)
        assert found(root, "badger") == ["memory/a.md"]


async def test_stopping_ends_the_process_and_a_flush_is_then_refused(root):
    async with started(root) as process:
        assert await process.flush(60)
        pid = process.pid
        begin = time.monotonic()
        await process.stop()
        assert time.monotonic() - begin < 5
        assert not is_running(pid)
        assert not await process.flush(5)
        await process.stop()


async def test_many_wakes_are_few_sweeps(root):
    async with started(root) as process:
        assert await process.flush(60)
        seen = set()
        for _ in range(2000):
            process.wake()
        end = time.monotonic() + 1
        while time.monotonic() < end:
            seen.add(process.status.indexed_through_s)
            await asyncio.sleep(0.005)
        assert len(seen) < 30


PARENT = """
import asyncio, pathlib, sys
from semantic.process import IndexerProcess
async def main():
    process = IndexerProcess(pathlib.Path(sys.argv[1]), sys.argv[2])
    await process.start()
    await process.flush(60)
    print(process.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def test_when_the_parent_is_killed_the_process_ends_too(root):
    command = [sys.executable, "-c", PARENT, str(root), uri_of(root)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PROJECT)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_running(child)
    assert os.getpriority(os.PRIO_PROCESS, child) == 19
    parent.kill()
    parent.communicate()
    end = time.monotonic() + 10
    while is_running(child) and time.monotonic() < end:
        time.sleep(0.05)
    assert not is_running(child)


def test_the_process_speaks_json_lines_and_survives_nonsense(root):
    command = [sys.executable, "-m", "semantic", "--root", str(root), "--index", uri_of(root)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=PROJECT
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write('nonsense\n{"op":"unknown"}\n{"op":"flush","id":"x"}\n[]\n{"op":"wake"}\n{"op":"flush","id":7}\n')
    process.stdin.flush()
    events = []
    for line in process.stdout:
        events.append(json.loads(line))
        if events[-1]["event"] == "flushed":
            break
    assert events[-1] == {"event": "flushed", "id": 7}
    assert {event["event"] for event in events[:-1]} == {"status"}
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert errors.count("not a command") == 4
    assert "Traceback" not in errors
