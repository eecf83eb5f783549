"""Lanes: work of one channel or thread is serial and in order, lanes run side by side. Owns the tasks that run turns.

A message is logged before anything else happens; messages that arrive while their lane is busy are answered together.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from bot.commands import parse_command
from bot.errors import BotError, LaneFullError, ModelFailedError
from bot.message import Accepted, Answered, IncomingMessage, Replied, TurnEvent
from bot.reply import log_stop, reply_of
from bot.stores import Stores
from persistence.errors import PersistenceError
from persistence.log import Appended, NewMessage
from persistence.records import LogRecord
from persistence.workspace import Lane, ts_key

logger = structlog.get_logger()

Listener = Callable[[TurnEvent], None]
T = TypeVar("T")
RunTurn = Callable[[Lane, Sequence[LogRecord], Listener], Awaitable[Replied]]


@dataclass(slots=True)
class _Waiting:
    """A logged message that waits for its answer, and those who listen to its turn."""

    record: LogRecord
    answer: "asyncio.Future[Replied]"
    listeners: list[Listener] = field(default_factory=list)


@dataclass(slots=True)
class _Queue:
    """One busy lane: what waits, what is being answered, and the task that does it. Gone when the lane is idle."""

    waiting: list[_Waiting] = field(default_factory=list)
    running: list[_Waiting] = field(default_factory=list)
    arriving: int = 0
    task: "asyncio.Task[None] | None" = None
    turn: "asyncio.Task[Replied] | None" = None
    alone: asyncio.Lock = field(default_factory=asyncio.Lock)

    def find(self, ts: str) -> _Waiting | None:
        return next((waiting for waiting in (*self.running, *self.waiting) if waiting.record.ts == ts), None)


class Lanes:
    """Owns the queue and the task of every busy lane. Used from one event loop."""

    def __init__(self, stores: Stores, run: RunTurn, *, limit: int) -> None:
        """Answer messages with `run`; refuse new ones when `limit` wait in their lane."""
        self._stores = stores
        self._run = run
        self._limit = limit
        self._queues: dict[Lane, _Queue] = {}
        self._closing = False

    async def log_only(self, message: IncomingMessage) -> Appended:
        """Append a message that wants no answer; returns after the fsync."""
        return await self._append(message)

    async def submit(self, message: IncomingMessage, listener: Listener | None = None) -> Answered:
        """Append the message (durable, idempotent), then wait for the turn that answers it.

        `listener` hears the turn's events. A caller that is cancelled doesn't stop the turn. Raises LaneFullError before
        anything is written, the archive's errors when nothing was acknowledged, and the turn's own error otherwise.
        """
        queue = self._admit(message.lane)
        try:
            appended = await self._append(message)
            if listener is not None:
                listener(Accepted(appended.record))
            if appended.replayed and (reply := await self._find_reply(message, appended.record)) is not None:
                return reply
            if (command := parse_command(message.text)) is not None and command.name == "stop":
                await self.stop(message.lane)
            waiting = self._enqueue(message.lane, queue, appended.record, listener)
        finally:
            queue.arriving -= 1
            self._drop_if_idle(message.lane, queue)
        replied = await asyncio.shield(waiting.answer)
        return Answered(appended.record, replied.reply, replied.turn, replayed=appended.replayed)

    async def stop(self, lane: Lane) -> bool:
        """Stop the lane's running turn; True when there was one. Messages that wait are answered by the next turn."""
        queue = self._queues.get(lane)
        if queue is None or queue.turn is None:
            return False
        return queue.turn.cancel()

    async def run_alone(self, lane: Lane, work: Callable[[], Awaitable[T]]) -> T:
        """Do something with the lane's context while no turn of the lane runs."""
        queue = self._admit(lane)
        try:
            async with queue.alone:
                return await work()
        finally:
            queue.arriving -= 1
            self._drop_if_idle(lane, queue)

    async def close(self, timeout_s: float) -> None:
        """Let running turns end within `timeout_s`, then stop them. Waiting messages stay logged and get no answer here."""
        self._closing = True
        tasks = [queue.task for queue in self._queues.values() if queue.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def busy(self) -> int:
        """How many lanes have work."""
        return len(self._queues)

    def _admit(self, lane: Lane) -> _Queue:
        queue = self._queues.setdefault(lane, _Queue())
        if len(queue.waiting) + queue.arriving >= self._limit:
            raise LaneFullError(f"{self._limit} messages wait for an answer in this lane already: send it again in a moment")
        queue.arriving += 1
        return queue

    def _drop_if_idle(self, lane: Lane, queue: _Queue) -> None:
        if queue.task is None and not queue.arriving and not queue.waiting:
            self._queues.pop(lane, None)

    async def _append(self, message: IncomingMessage) -> Appended:
        line = NewMessage(
            text=message.text,
            user=message.user,
            user_name=message.user_name,
            display_name=message.display_name,
            thread_ts=message.thread_ts,
            attachments=message.attachments,
            ts=message.ts,
            id=message.key,
            extra={"metadata": dict(message.metadata)} if message.metadata else {},
        )
        return await asyncio.to_thread(self._stores.log(message.channel).append, line)

    async def _find_reply(self, message: IncomingMessage, record: LogRecord) -> Answered | None:
        """The answer that a retried message has got already; None when its turn still runs or never came to an end."""
        queue = self._queues.get(message.lane)
        if queue is not None and queue.find(record.ts) is not None:
            return None
        line = await asyncio.to_thread(self._stores.log(message.channel).reply_to, record.ts)
        return None if line is None else Answered(record, reply_of(line), None, replayed=True)

    def _enqueue(self, lane: Lane, queue: _Queue, record: LogRecord, listener: Listener | None) -> _Waiting:
        waiting = queue.find(record.ts)
        if waiting is None:
            waiting = _Waiting(record, asyncio.get_running_loop().create_future())
            waiting.answer.add_done_callback(_retrieve)
            queue.waiting.append(waiting)
        if listener is not None:
            waiting.listeners.append(listener)
        if queue.task is None:
            queue.task = asyncio.create_task(self._work(lane, queue), name=f"lane {lane.channel} {lane.thread_ts or ''}")
        return waiting

    async def _work(self, lane: Lane, queue: _Queue) -> None:
        """Turn after turn until nothing waits."""
        try:
            while queue.waiting and not self._closing:
                queue.running = sorted(queue.waiting, key=lambda waiting: ts_key(waiting.record.ts))
                queue.waiting = []
                async with queue.alone:
                    await self._answer(lane, queue)
                queue.running = []
        finally:
            queue.task = None
            _fail(
                [*queue.running, *queue.waiting], ModelFailedError("the server is stopping; the message is kept, send it again")
            )
            queue.running, queue.waiting = [], []
            self._drop_if_idle(lane, queue)

    async def _answer(self, lane: Lane, queue: _Queue) -> None:
        """One turn for all that is in `running`; its outcome goes to every one of them."""
        running = queue.running

        def emit(event: TurnEvent) -> None:
            for waiting in running:
                for listener in waiting.listeners:
                    listener(event)

        try:
            replied = await self._turn(lane, queue, emit)
        except (BotError, PersistenceError) as err:
            _fail(running, err)
        except Exception as err:
            logger.exception("turn_failed", channel=lane.channel, thread_ts=lane.thread_ts)
            _fail(running, ModelFailedError(f"the turn failed ({type(err).__name__}); the message is kept, send it again"))
        else:
            emit(replied)
            for waiting in running:
                waiting.answer.set_result(replied)

    async def _turn(self, lane: Lane, queue: _Queue, emit: Listener) -> Replied:
        """Run the turn as a task of its own, so that a stop request ends it alone and not the lane."""
        records = [waiting.record for waiting in queue.running]
        queue.turn = asyncio.ensure_future(self._run(lane, records, emit))
        try:
            return await queue.turn
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                queue.turn.cancel()
                raise
            return await log_stop(self._stores, lane, records)
        finally:
            queue.turn = None


def _fail(waiting: Sequence[_Waiting], err: Exception) -> None:
    for one in waiting:
        if not one.answer.done():
            one.answer.set_exception(err)


def _retrieve(future: "asyncio.Future[Replied]") -> None:
    """A caller may have gone away: its answer's error is then nobody's, and no noise."""
    if not future.cancelled():
        future.exception()
