"""The handle on the indexer in its own process: start, wake, flush, status. The process itself is `semantic.__main__`."""

import asyncio
import contextlib
import itertools
import logging
import sys
import time
from asyncio.subprocess import PIPE, Process
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from semantic.types import IndexStatus

_STOP_TIMEOUT_S: Final = 10.0
_FIRST_RESTART_S: Final = 0.5
_LAST_RESTART_S: Final = 30.0
_STEADY_S: Final = 60.0
_MAX_LINE_BYTES: Final = 64 * 1024 * 1024

logger = logging.getLogger(__name__)


class Wake(BaseModel):
    """A hint that something changed: sweep soon."""

    op: Literal["wake"] = "wake"


class Flush(BaseModel):
    """Asks for a `Flushed` after a complete sweep that starts after this command; with `purge` after a purge of the index too."""

    op: Literal["flush"] = "flush"
    id: int
    purge: bool = False


class StatusEvent(BaseModel):
    """The indexer's status, at each sweep and while a long one goes on."""

    event: Literal["status"] = "status"
    status: IndexStatus


class Flushed(BaseModel):
    """The answer to a `Flush`."""

    event: Literal["flushed"] = "flushed"
    id: int


COMMANDS: Final[TypeAdapter[Wake | Flush]] = TypeAdapter(Annotated[Wake | Flush, Field(discriminator="op")])
EVENTS: Final[TypeAdapter[StatusEvent | Flushed]] = TypeAdapter(Annotated[StatusEvent | Flushed, Field(discriminator="event")])


class IndexerProcess:
    """Owns the indexer's process: restarts it when it ends, and ends it when this process stops or dies (its stdin closes)."""

    def __init__(
        self, root: Path, index_uri: str, *, embedder: str = "bundled", sweep_s: float = 5.0, shared: bool = False
    ) -> None:
        self._root = root.absolute()
        self._index_uri = index_uri if "://" in index_uri else str(Path(index_uri).absolute())
        self._embedder = embedder
        self._sweep_s = sweep_s
        self._shared = shared
        self._status = IndexStatus()
        self._ids = itertools.count(1)
        self._flushes: dict[int, asyncio.Future[None]] = {}
        self._asked: dict[int, Flush] = {}
        self._process: Process | None = None
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def status(self) -> IndexStatus:
        """As last reported; `failed`, with the reason in `detail`, while the process is down."""
        return self._status

    @property
    def pid(self) -> int | None:
        """The running process, for diagnosis."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process; returns before it is ready (`status.state` tells)."""
        if self._supervisor is None:
            self._supervisor = asyncio.create_task(self._supervise(), name="indexer process")

    async def stop(self) -> None:
        """End the process: let it finish the group of documents that it is at, kill it when that takes too long."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is None:
            return
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _STOP_TIMEOUT_S)
        supervisor.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await supervisor

    def wake(self) -> None:
        """Hint that something changed. Many hints at once are one."""
        stdin = None if self._process is None else self._process.stdin
        if stdin is not None and stdin.transport.get_write_buffer_size() == 0:  # else a command that it hasn't read is on its way
            self._send(Wake())

    async def flush(self, timeout_s: float) -> bool:
        """Wait until a sweep that started after this call is complete; False when that is not within `timeout_s`."""
        return await self._ask(Flush(id=next(self._ids)), timeout_s)

    async def purge(self, timeout_s: float) -> bool:
        """As `flush`, and then take what was removed from the index off the disk; False when that is not within `timeout_s`."""
        return await self._ask(Flush(id=next(self._ids), purge=True), timeout_s)

    async def _ask(self, command: Flush, timeout_s: float) -> bool:
        if self._supervisor is None:
            return False
        done = self._flushes[command.id] = asyncio.get_running_loop().create_future()
        self._asked[command.id] = command
        self._send(command)
        try:
            await asyncio.wait_for(done, timeout_s)
        except TimeoutError:
            return False
        finally:
            del self._flushes[command.id], self._asked[command.id]
        return True

    def _send(self, command: Wake | Flush) -> None:
        stdin = None if self._process is None else self._process.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(command.model_dump_json().encode() + b"\n")

    async def _supervise(self) -> None:
        delay_s = _FIRST_RESTART_S
        while True:
            started = time.monotonic()
            code = await self._run()
            if self._supervisor is None:  # `stop` ended it
                return
            if time.monotonic() - started > _STEADY_S:
                delay_s = _FIRST_RESTART_S
            detail = f"the indexer's process ended (code {code}); it starts again in {delay_s:g} s"
            logger.error(detail)
            self._status = replace(self._status, state="failed", detail=detail)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _LAST_RESTART_S)

    async def _run(self) -> int:
        """Run the process until it ends; kill it when this task is cancelled."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "semantic", "--root", self._root, "--index", self._index_uri),
            *("--embedder", self._embedder, "--sweep-s", str(self._sweep_s)),
            *(["--shared"] if self._shared else []),
            cwd=Path(__file__).parent.parent,  # the same code as here, whatever the current folder holds
            stdin=PIPE,
            stdout=PIPE,
            limit=_MAX_LINE_BYTES,
        )
        self._process = process
        try:
            for command in self._asked.values():  # of before a restart: the first sweep starts after them
                self._send(command)
            await self._listen(process)
            return await process.wait()
        finally:
            self._process = None
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None  # noqa: S101 - it is a pipe, for the type checker
        async for line in process.stdout:
            try:
                event = EVENTS.validate_json(line)
            except ValidationError:
                logger.warning("the indexer's process said what it can't mean: %r", line[:200])
                continue
            if isinstance(event, StatusEvent):
                self._status = event.status
            elif event.id in self._flushes and not self._flushes[event.id].done():
                self._flushes[event.id].set_result(None)
