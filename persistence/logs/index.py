"""Where each message of a log lies, as compact columns in memory, and their saved form. Values only: the log does the reading.

Sizes: 33 bytes for a line, 16 more for each reply, answer or idempotency key; a million lines take about 50 MB.
"""

import hashlib
import json
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from zlib import crc32

from persistence.lines import Cursor
from persistence.records import LogRecord
from persistence.workspace import is_ts

BEFORE_ALL: Final = -1
NEWEST: Final = 2**64 - 1
_FORMAT: Final = 1
Column: TypeAlias = "array[int]"
_FRESH: Final = 4096
_DELETED, _RESTORED, _SILENT, _LOUD = 1, 2, 4, 8


def ts_ns(ts: str) -> int:
    """A ts as nanoseconds: the whole number that all its spellings share."""
    seconds, _, fraction = ts.partition(".")
    return int(seconds) * 10**9 + int(fraction.ljust(9, "0"))


def ts_text(us: int) -> str:
    """The ts of that many microseconds."""
    return f"{us // 10**6}.{us % 10**6:06d}"


def answered_by(record: LogRecord) -> set[int]:
    """The messages that this one answers."""
    return {ts_ns(ts) for ts in (record.reply_to, *(record.answers or ())) if ts is not None and is_ts(ts)}


def hash_text(text: str) -> int:
    """64 bits of an idempotency key: enough to find its message, whose own key decides."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


class Postings:
    """Values by key, both of 64 bits: sorted columns, and a dict of what came since they were sorted."""

    def __init__(self, keys: "Column | None" = None, values: "Column | None" = None) -> None:
        """Take columns that are sorted by key."""
        self._keys = array("Q") if keys is None else keys
        self._values = array("Q") if values is None else values
        self._fresh: dict[int, list[int]] = {}
        self._fresh_count = 0

    def add(self, key: int, value: int) -> None:
        self._fresh.setdefault(key, []).append(value)
        self._fresh_count += 1
        if self._fresh_count > _FRESH + len(self._keys) // 8:
            self.columns()

    def get(self, key: int) -> list[int]:
        """The values of a key, in the order they were added."""
        low, high = bisect_left(self._keys, key), bisect_right(self._keys, key)
        return [*self._values[low:high], *self._fresh.get(key, ())]

    def __contains__(self, key: int) -> bool:
        at = bisect_left(self._keys, key)
        return key in self._fresh or (at < len(self._keys) and self._keys[at] == key)

    def columns(self) -> tuple[Column, Column]:
        """All keys and values as sorted columns (not to be changed by the caller)."""
        keys, values, done = array("Q"), array("Q"), 0
        for key, fresh in sorted(self._fresh.items()):
            at = bisect_right(self._keys, key)
            keys += self._keys[done:at] + array("Q", [key] * len(fresh))
            values += self._values[done:at] + array("Q", fresh)
            done = at
        self._keys, self._values = keys + self._keys[done:], values + self._values[done:]
        self._fresh, self._fresh_count = {}, 0
        return self._keys, self._values


@dataclass(frozen=True, slots=True)
class Choice:
    """Which messages: strictly between two ts, of a thread with its root, of a user (by a hash: the text decides)."""

    after: int = BEFORE_ALL
    before: int = NEWEST
    thread: int | None = None
    user: str | None = None
    oldest_first: bool = False


class LogIndex:
    """The lines of a log by ts, and what refers to them. Lines are added in file order; `cursor` says up to where."""

    def __init__(self) -> None:
        """Start with an empty log."""
        self.cursor = Cursor()
        self.messages = 0
        self.threads = 0
        self.bad = array("Q")
        self._ts = array("Q")
        self._offset = array("Q")
        self._length = array("Q")
        self._user = array("Q")
        self._state = array("B")
        self._replies = Postings()
        self._in_thread = Postings()
        self._ids = Postings()

    @property
    def lines(self) -> int:
        """How many lines are indexed, bad ones included."""
        return len(self._ts) + len(self.bad)

    def add(self, offset: int, length: int, record: LogRecord | None) -> None:
        """Take the next line of the file; `record` is None for a bad one."""
        if record is None:
            self.bad.append(offset)
            return
        key = ts_ns(record.ts)
        at = bisect_right(self._ts, key)
        known = at > 0 and self._ts[at - 1] == key
        shown_before = known and self.is_shown(key)
        self._ts.insert(at, key)
        self._offset.insert(at, offset)
        self._length.insert(at, length)
        self._user.insert(at, _user_hash(record.user))
        self._state.insert(at, state := _state_of(record))
        self.messages += (self.is_shown(key) - shown_before) if known else not state & (_DELETED | _SILENT)
        self._refer(key, record, known=known)

    def _refer(self, key: int, record: LogRecord, *, known: bool) -> None:
        if is_ts(record.root_ts) and (root := ts_ns(str(record.root_ts))) != key:
            self.threads += root not in self._in_thread
            _put(self._in_thread, root, key, known=known)
        for answered in answered_by(record):
            _put(self._replies, answered, key, known=known)
        if record.id is not None:
            _put(self._ids, hash_text(record.id), key, known=known)

    def spans(self, key: int) -> list[tuple[int, int]]:
        """(offset, length) of each line of a message, in file order; empty when the ts is unknown."""
        low, high = bisect_left(self._ts, key), bisect_right(self._ts, key)
        return list(zip(self._offset[low:high], self._length[low:high], strict=True))

    def is_shown(self, key: int) -> bool:
        """Whether a message is part of the visible history: neither deleted nor silent by the last line that says so."""
        state = 0
        for line in self._state[bisect_left(self._ts, key) : bisect_right(self._ts, key)]:
            state = (line & 3 or state & 3) | (line & 12 or state & 12)
        return not state & (_DELETED | _SILENT)

    def newest(self, *, through: int = NEWEST) -> int:
        """The newest ts that is not after `through`, 0 when there is none."""
        at = bisect_right(self._ts, through)
        return self._ts[at - 1] if at else 0

    def with_id(self, text: str) -> list[int]:
        """The messages that may carry this idempotency key."""
        return self._ids.get(hash_text(text))

    def replies_to(self, key: int) -> list[int]:
        """The messages that answer this one."""
        return self._replies.get(key)

    def shown(self, choice: Choice) -> Iterator[int]:
        """The visible messages that are chosen, in its order."""
        wanted = None if choice.user is None else _user_hash(choice.user)
        rows = self._rows(choice)
        last = None
        for row in rows if choice.oldest_first else reversed(rows):
            key = self._ts[row]
            if key != last and wanted in (None, self._user[row]) and self.is_shown(key):
                last = key
                yield key

    def _rows(self, choice: Choice) -> Sequence[int]:
        if choice.thread is None:
            return range(bisect_right(self._ts, choice.after), bisect_left(self._ts, choice.before))
        keys = sorted({choice.thread, *self._in_thread.get(choice.thread)})
        chosen = keys[bisect_right(keys, choice.after) : bisect_left(keys, choice.before)]
        return [row for key in chosen for row in range(bisect_left(self._ts, key), bisect_right(self._ts, key))]

    def to_bytes(self) -> bytes:
        """The saved form: a line with the hash of what follows, a line of JSON, then the columns as they lie in memory."""
        columns = [column.tobytes() for column in self._columns()]
        header = {
            "format": _FORMAT,
            "order": sys.byteorder,
            "cursor": [self.cursor.offset, self.cursor.prefix],
            "counts": [self.messages, self.threads],
            "sizes": [len(column) for column in columns],
        }
        body = b"\n".join((json.dumps(header).encode(), b"".join(columns)))
        return hashlib.sha256(body).hexdigest().encode() + b"\n" + body

    def _columns(self) -> list[Column]:
        postings = (self._replies, self._in_thread, self._ids)
        plain = [self._ts, self._offset, self._length, self._user, self._state, self.bad]
        return plain + [column for posting in postings for column in posting.columns()]


def _user_hash(user: str | None) -> int:
    return crc32((user or "").encode("utf-8", "surrogatepass"))


def _state_of(record: LogRecord) -> int:
    silent = (record.model_extra or {}).get("silent")
    state = 0 if record.deleted is None else _DELETED if record.deleted else _RESTORED
    return state | (_SILENT if silent is True else _LOUD if silent is False else 0)


def _put(postings: Postings, key: int, value: int, *, known: bool) -> None:
    if not known or value not in postings.get(key):  # only another line of a known message can say the same twice
        postings.add(key, value)


def parse_index(data: bytes) -> LogIndex | None:
    """The index of its saved form; None when it is damaged or of another program version or machine."""
    digest, _, body = data.partition(b"\n")
    if digest != hashlib.sha256(body).hexdigest().encode():
        return None
    line, _, body = body.partition(b"\n")
    try:
        header = json.loads(line)
        if [header["format"], header["order"]] != [_FORMAT, sys.byteorder]:
            return None
        columns = _cut_columns(body, header["sizes"])
        index = LogIndex()
        index.cursor = Cursor(*header["cursor"])
        index.messages, index.threads = header["counts"]
    except (ValueError, KeyError, TypeError):
        return None
    index._ts, index._offset, index._length, index._user, index._state, index.bad = columns[:6]  # noqa: SLF001 - its own maker
    index._replies, index._in_thread, index._ids = (  # noqa: SLF001
        Postings(columns[at], columns[at + 1]) for at in (6, 8, 10)
    )
    return index


def _cut_columns(body: bytes, sizes: list[int]) -> list[Column]:
    columns, start = [], 0
    for number, size in enumerate(sizes):
        column = array("B" if number == 4 else "Q")  # noqa: PLR2004 - the state column
        column.frombytes(body[start : start + size])
        columns.append(column)
        start += size
    if len(columns) != 12:  # noqa: PLR2004
        raise ValueError("not the columns of an index")
    return columns
