"""File events as hints: they come for documents alone, and never for the index's own writes."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from semantic.scanner import scan
from semantic.watcher import watch

FOLDERS = ("memory/sub", "skills/x", "C1/memory", "C1/scratch", ".recalld/index", "attachments")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / ".recalld" / "VERSION").write_text("1\n")
    (tmp_path / "memory" / "old.md").write_text("old")
    return tmp_path


@asynccontextmanager
async def watching(root: Path) -> AsyncIterator[asyncio.Event]:
    woken = asyncio.Event()
    task = asyncio.create_task(watch(root, scan(root).folders, woken.set))
    await asyncio.sleep(0.3)
    woken.clear()
    try:
        yield woken
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def is_set(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(
    "name", ["MEMORY.md", "memory/old.md", "memory/sub/new.MD", "skills/x/SKILL.md", "C1/MEMORY.md", "C1/memory/a.md"]
)
async def test_a_written_document_wakes_soon(root, name):
    async with watching(root) as woken:
        started = time.monotonic()
        (root / name).write_text("new")
        assert await is_set(woken, 5)
        assert time.monotonic() - started < 1


async def test_a_deleted_a_renamed_and_an_atomically_replaced_document_wake(root):
    async with watching(root) as woken:
        (root / "memory" / "old.md").rename(root / "memory" / "sub" / "moved.md")
        assert await is_set(woken, 5)
        await asyncio.sleep(0.3)
        woken.clear()
        (root / "memory" / "sub" / "moved.md").unlink()
        assert await is_set(woken, 5)
        await asyncio.sleep(0.3)
        woken.clear()
        (root / "memory" / ".temp").write_text("new")
        (root / "memory" / ".temp").rename(root / "memory" / "replaced.md")
        assert await is_set(woken, 5)


async def test_a_new_folder_that_can_hold_documents_wakes(root):
    async with watching(root) as woken:
        (root / "C2").mkdir()
        assert await is_set(woken, 5)


async def test_what_is_no_document_never_wakes(root):
    async with watching(root) as woken:
        for name in (
            ".recalld/index/a.md",
            "C1/log.jsonl",
            "C1/scratch/a.md",
            "attachments/a.md",
            "README.md",
            "memory/.hidden.md",
            "memory/a.txt",
        ):
            (root / name).write_text("x")
        (root / ".recalld" / "index" / "memory").mkdir()
        assert not await is_set(woken, 1)


async def test_a_link_is_not_watched_through(root, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (root / "memory" / "link").symlink_to(outside)
    async with watching(root) as woken:
        (outside / "a.md").write_text("x")
        assert not await is_set(woken, 1)


async def test_a_folder_that_just_went_away_ends_the_watch_with_a_reason(root, caplog):
    await asyncio.wait_for(watch(root, ["memory", "gone"], lambda: None), 5)
    assert "found by the sweep" in caplog.text


WITHOUT_DESCRIPTORS = """
import asyncio, os, pathlib, resource, sys
from semantic.watcher import watch
async def main():
    await asyncio.to_thread(str)
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))
    await asyncio.wait_for(watch(pathlib.Path(sys.argv[1]), ["memory"], lambda: None), 5)
asyncio.run(main())
"""


def test_when_the_system_refuses_to_watch_it_says_so_and_returns(root):
    command = [sys.executable, "-c", WITHOUT_DESCRIPTORS, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0, done.stderr
    assert "found by the sweep" in done.stderr


async def test_the_watch_ends_soon_when_cancelled(root):
    started = time.monotonic()
    async with watching(root):
        pass
    assert time.monotonic() - started < 2
