"""One commit for many callers: threads queue, one of them commits what is queued, each gets its own result or error."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from persistence.errors import PersistenceError, StoreFaultError

Item = TypeVar("Item")
Result = TypeVar("Result")

BATCH_BYTES: Final = 256 * 1024


@dataclass(slots=True)
class _Ticket(Generic[Item, Result]):
    """A caller's place in the queue; `outcome` is set once."""

    item: Item
    size_bytes: int
    outcome: Result | PersistenceError | None = None


class GroupCommit(Generic[Item, Result]):
    """The queue of one file. `commit` gets what is queued, in order, and gives a result or error for each."""

    def __init__(self, commit: Callable[[list[Item]], list[Result | PersistenceError]]) -> None:
        """Take the function that makes a batch durable; a PersistenceError that it raises is the error of the whole batch."""
        self._commit = commit
        self._changed = threading.Condition()
        self._queue: deque[_Ticket[Item, Result]] = deque()
        self._busy = False
        self.batches = 0

    def submit(self, item: Item, size_bytes: int) -> Result:
        """Wait until `item` is committed and return its result, or raise its error."""
        ticket: _Ticket[Item, Result] = _Ticket(item, size_bytes)
        with self._changed:
            self._queue.append(ticket)
        while (outcome := ticket.outcome) is None:
            if batch := self._lead_or_wait(ticket):
                self._run(batch)
        if isinstance(outcome, PersistenceError):
            raise outcome
        return outcome

    def _lead_or_wait(self, ticket: _Ticket[Item, Result]) -> list[_Ticket[Item, Result]]:
        """The batch that this thread must commit; empty once another thread has committed its ticket."""
        with self._changed:
            while self._busy and ticket.outcome is None:
                self._changed.wait()
            if ticket.outcome is not None:
                return []
            self._busy = True
            return self._take_batch()

    def _take_batch(self) -> list[_Ticket[Item, Result]]:
        batch = [self._queue.popleft()]
        room = BATCH_BYTES - batch[0].size_bytes
        while self._queue and self._queue[0].size_bytes <= room:
            batch.append(self._queue.popleft())
            room -= batch[-1].size_bytes
        return batch

    def _run(self, batch: list[_Ticket[Item, Result]]) -> None:
        outcomes: list[Result | PersistenceError] = []
        try:
            outcomes = self._commit([ticket.item for ticket in batch])
        except PersistenceError as err:
            outcomes = [err] * len(batch)
        finally:  # also when this thread is interrupted: the others must not wait for ever
            outcomes = outcomes or [StoreFaultError("the write was interrupted: nothing was acknowledged")] * len(batch)
            with self._changed:
                self.batches += 1
                self._busy = False
                for ticket, outcome in zip(batch, outcomes, strict=True):
                    ticket.outcome = outcome
                self._changed.notify_all()
