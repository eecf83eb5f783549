"""The indexer's process: sweeps when woken and from time to time, JSON lines in and out, at the lowest priority.

`python -m semantic --root DIR --index URI` reads commands on stdin and ends when stdin does; see `semantic.process`.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal, Protocol, TextIO

from pydantic import ValidationError

from semantic.embedder import Embedder
from semantic.embedders import load_embedder
from semantic.errors import IndexBusyError, SemanticError
from semantic.indexer import Indexer, Progress, open_indexer
from semantic.process import COMMANDS, Flush, Flushed, StatusEvent
from semantic.types import IndexStatus
from semantic.watcher import watch

_THREADS: Final = 2
_NICENESS: Final = 19
_SLICE_S: Final = 5.0  # a long sweep is done in slices, so that what is written meanwhile comes first in the next one
_AGAIN_S: Final = 0.05
_BUSY_S: Final = 0.25
_VERIFIED_PER_SWEEP: Final = 256
_WATCH_AGAIN_S: Final = 60.0

Outcome = Literal["complete", "partial", "busy", "failed"]

logger = logging.getLogger("semantic")


class Sweep(Protocol):
    """A way to sweep: `update_once`, or with some verifying."""

    def __call__(self, *, progress: Progress, pause: Callable[[], bool]) -> object: ...


class _Service:
    """Owns the sweeping loop and the watcher of one indexer."""

    def __init__(self, root: Path, indexer: Indexer, emit: Callable[[StatusEvent | Flushed], None], *, sweep_s: float) -> None:
        self._root = root
        self._indexer = indexer
        self._emit = emit
        self._sweep_s = sweep_s
        self._wake = asyncio.Event()
        self._stopped = threading.Event()
        self._flushes: list[Flush] = []
        self._crash = ""
        self._watched: frozenset[str] = frozenset()
        self._watch_again = 0.0
        self._watcher: asyncio.Task[None] | None = None

    def stop(self) -> None:
        self._stopped.set()
        self._wake.set()

    async def obey(self, commands: asyncio.StreamReader) -> None:
        """Take commands until stdin closes, which it does when the parent ends in whatever way."""
        async for line in commands:
            try:
                command = COMMANDS.validate_json(line)
            except ValidationError:
                logger.warning("not a command: %r", line[:200])
                continue
            if isinstance(command, Flush):
                self._flushes.append(command)
            self._wake.set()
        self.stop()

    async def sweep_until_stopped(self) -> None:
        woken = True
        while not self._stopped.is_set():
            self._wake.clear()
            flushes, self._flushes = self._flushes, []
            outcome = await self._sweep(self._indexer.update_once if woken else self._verify_some)
            if outcome == "complete":
                await self._answer(flushes)
                await self._guarded(self._indexer.maintain_if_due)
            else:
                self._flushes = [*flushes, *self._flushes]
            self._watch_folders()
            woken = await self._woken_within({"partial": _AGAIN_S, "busy": _BUSY_S}.get(outcome, self._sweep_s))
        if self._watcher is not None:
            self._watcher.cancel()

    async def _answer(self, flushes: list[Flush]) -> None:
        """Answer what a complete sweep answers; a purge that failed is tried again after the next one."""
        purged = any(flush.purge for flush in flushes) and await self._guarded(self._indexer.purge) == "complete"
        for flush in flushes:
            if purged or not flush.purge:
                self._emit(Flushed(id=flush.id))
            else:
                self._flushes.append(flush)

    async def _woken_within(self, delay_s: float) -> bool:
        try:
            await asyncio.wait_for(self._wake.wait(), delay_s)
        except TimeoutError:
            return False
        return True

    async def _sweep(self, sweep: Sweep) -> Outcome:
        loop = asyncio.get_running_loop()
        until = time.monotonic() + _SLICE_S
        outcome = await self._guarded(
            lambda: sweep(
                progress=lambda status: loop.call_soon_threadsafe(self._report, status),
                pause=lambda: self._stopped.is_set() or time.monotonic() > until,
            )
        )
        self._report(self._indexer.status)
        return "partial" if outcome == "complete" and self._indexer.status.pending else outcome

    def _verify_some(self, *, progress: Progress, pause: Callable[[], bool]) -> IndexStatus:
        return self._indexer.verify_once(limit=_VERIFIED_PER_SWEEP, progress=progress, pause=pause)

    async def _guarded(self, work: Callable[[], object]) -> Outcome:
        """Do blocking work in a thread. Whatever goes wrong with it, the loop goes on and tries again."""
        try:
            await asyncio.to_thread(work)
        except IndexBusyError:
            return "busy"
        except SemanticError as err:
            logger.warning("%s", err)
            return "failed"
        except Exception:
            logger.exception("the sweep failed")
            self._crash = "the sweep failed for an unforeseen reason: see the log"
            return "failed"
        self._crash = ""
        return "complete"

    def _report(self, status: IndexStatus) -> None:
        if self._crash:
            status = replace(status, state="failed", detail=self._crash)
        elif self._watcher is not None and self._watcher.done() and not status.detail:
            status = replace(status, detail=f"files can't be watched: changes are found by the sweep every {self._sweep_s:g} s")
        self._emit(StatusEvent(status=status))

    def _watch_folders(self) -> None:
        """Watch the folders that the last sweep listed; try again after a while when the system refused."""
        folders = self._indexer.folders
        is_over = self._watcher is None or (self._watcher.done() and time.monotonic() > self._watch_again)
        if not folders or (folders == self._watched and not is_over):
            return
        if self._watcher is not None:
            self._watcher.cancel()
        asyncio.get_running_loop().call_later(_AGAIN_S, self._wake.set)  # for what changed before the watch began
        self._watched = folders
        self._watch_again = time.monotonic() + _WATCH_AGAIN_S
        self._watcher = asyncio.create_task(watch(self._root, folders, self._wake.set), name="watcher")


async def _serve(arguments: argparse.Namespace, out: TextIO) -> None:
    def emit(event: StatusEvent | Flushed) -> None:
        out.write(event.model_dump_json() + "\n")
        out.flush()

    loop = asyncio.get_running_loop()
    embedder = load_embedder(arguments.embedder, threads=_THREADS)
    indexer = open_indexer(arguments.root, arguments.index, embedder, shared=arguments.shared)
    service = _Service(arguments.root, indexer, emit, sweep_s=arguments.sweep_s)
    loop.add_signal_handler(signal.SIGTERM, service.stop)
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    obeying = asyncio.create_task(service.obey(commands))
    warming = asyncio.create_task(asyncio.to_thread(_warm, embedder))
    await service.sweep_until_stopped()
    obeying.cancel()
    await asyncio.gather(obeying, warming, return_exceptions=True)


def _warm(embedder: Embedder) -> None:
    """Load the model now: the first edit should not wait for it."""
    try:
        embedder.embed_query("warm")
    except SemanticError as err:
        logger.warning("%s", err)


def _own_stdout() -> TextIO:
    """The real stdout for events alone; what a library prints goes to stderr."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return out


def main() -> None:
    """Run the process; ends with code 0 when stdin closes or on SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m semantic", description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--index", required=True)
    parser.add_argument("--embedder", default="bundled")
    parser.add_argument("--sweep-s", type=float, default=5.0)
    parser.add_argument("--shared", action="store_true", help="index the topics that are shared with other tools too")
    arguments = parser.parse_args()
    os.nice(_NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes stdin
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    asyncio.run(_serve(arguments, _own_stdout()))


if __name__ == "__main__":
    main()
