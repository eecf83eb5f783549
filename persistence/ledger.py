"""The flush ledger of a lane: which span of its context was flushed into memory, and which was let go without, and why.

A span that is not in here as flushed or waived is never compacted (see `compaction`).
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Literal

from pydantic import ValidationError

from persistence.lines import append_lines, read_last_lines
from persistence.records import Record, decode_line, encode_line
from persistence.workspace import Lane, Workspace

MAX_TEXT_BYTES: Final = 12_288
"""A row must fit into what is read of the file's end, whatever its summary escapes to."""


class FlushRow(Record):
    """How far the flush of one span has come; a later row of the same `id` replaces an earlier one.

    `kind`: whether the span makes room for a summary, or the whole context is put away. `previous` is the compaction that the
    span begins after, `first_id` and `last_id` are its entries, `first_kept_id` is what stays. `through`: the entry up to which
    the model has been asked; `summary` is of that much. `why`: the last failure, or the reason for going on without a flush.
    """

    id: str
    kind: Literal["compact", "archive"]
    reason: Literal["manual", "threshold", "overflow"]
    previous: str | None = None
    first_id: str
    last_id: str
    first_kept_id: str | None = None
    state: Literal["pending", "flushed", "waived"] = "pending"
    attempts: int = 0
    notes: int = 0
    through: str | None = None
    summary: str = ""
    why: str | None = None
    timestamp: str = ""

    @property
    def is_settled(self) -> bool:
        """Whether the span may go."""
        return self.state != "pending"


class FlushLedger:
    """Owns a lane's ledger: one appended line for each step. Reading looks at the file's end only."""

    def __init__(self, workspace: Workspace, lane: Lane, *, clock: Callable[[], float] = time.time) -> None:
        """Open no file yet; `clock` gives seconds since the epoch."""
        self._root = workspace.root
        self._name = workspace.flush_ledger(lane)
        self._clock = clock

    def last(self) -> FlushRow | None:
        """The newest row, None when there is none. Raises StoreFaultError, UnsafeObjectError."""
        for line in reversed(read_last_lines(self._root, self._name)):
            if (row := _parse(line)) is not None:
                return row
        return None

    def find(self, flush_id: str) -> FlushRow | None:
        """The newest row of a flush, None when it is not among the last ones."""
        rows = (_parse(line) for line in reversed(read_last_lines(self._root, self._name)))
        return next((row for row in rows if row is not None and row.id == flush_id), None)

    def record(self, row: FlushRow) -> FlushRow:
        """Append a row durably and return it. Raises StoreBusyError, StorageFullError, StoreFaultError."""
        stamped = row.model_copy(update={"timestamp": datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="seconds")})
        append_lines(self._root, self._name, lambda _: [encode_line(stamped.to_json())])
        return stamped


def _parse(line: bytes) -> FlushRow | None:
    try:
        return FlushRow.model_validate(decode_line(line))
    except ValidationError:
        return None
