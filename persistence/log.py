"""`log.jsonl` of one channel: durable, idempotent appending and reading of messages. What a lane may see is `visibility`'s."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from persistence.errors import PersistenceError, TsFutureError
from persistence.files import locked, read_bytes, replace_bytes
from persistence.lines import Cursor, Slice, Tail, append_lines, read_lines, read_open_lines, read_spans
from persistence.logs.changes import (
    Appended,
    Batch,
    Change,
    Delete,
    Edit,
    NewMessage,
    Post,
    merge_lines,
    plan_post,
    unknown_message,
)
from persistence.logs.group_commit import GroupCommit
from persistence.logs.index import BEFORE_ALL, NEWEST, Choice, LogIndex, answered_by, parse_index, ts_ns
from persistence.records import LogRecord, parse_log_record
from persistence.redaction import Redact
from persistence.secrets import redact as redact_text
from persistence.workspace import ChannelId, Workspace, parse_ts

__all__ = ["Appended", "ChannelLog", "LogSlice", "LogStats", "NewMessage"]

logger = logging.getLogger(__name__)

MAX_FUTURE_S: Final = 300
_READ_BYTES: Final = 8 * 1024 * 1024
_SAVED_LINES: Final = 2000
_SAVED_SHARE: Final = 16
_MAX_INDEX_BYTES: Final = 1 << 32
_BAD_SHOWN: Final = 100


@dataclass(frozen=True, slots=True)
class LogSlice:
    """The raw records after a cursor with their byte offsets, unmerged; `restarted`: the log is another one, these are all."""

    records: list[tuple[int, LogRecord]]
    cursor: Cursor
    restarted: bool


@dataclass(frozen=True, slots=True)
class LogStats:
    """Counts of the visible messages; `bad_offsets` are the byte offsets of the first bad lines."""

    messages: int
    threads: int
    last_ts: str | None
    size_bytes: int
    bad_lines: int
    bad_offsets: tuple[int, ...]


class ChannelLog:
    """One channel's log. Safe for threads and for other processes that append; keep one instance per channel and process.

    An append or read costs what is new since the last one, not what is old: positions are kept in a `LogIndex`, which is
    saved in the cache now and then so that a restart does not parse the log again.
    """

    def __init__(
        self,
        workspace: Workspace,
        channel: ChannelId,
        *,
        clock: Callable[[], float] = time.time,
        redact: Redact = redact_text,
    ) -> None:
        """Open no file yet; `clock` gives seconds since the epoch, `redact` takes secrets out of what is appended."""
        self._root = workspace.root
        self._name = workspace.log(channel)
        self._sidecar = workspace.log_index(channel)
        self._lock_name = workspace.lock_of(self._sidecar)
        self._clock = clock
        self._redact = redact
        self._commits = GroupCommit(self._commit)
        self._mutex = threading.Lock()  # guards the index; never held while the log is written
        self._index: LogIndex | None = None
        self._saved_lines = 0

    @property
    def batches(self) -> int:
        """How many batches were written, each with one fsync."""
        return self._commits.batches

    def append(self, message: NewMessage) -> Appended:
        """Append a message durably, or find it there already (same ts or same id, with the text it has now or had first).

        Its secrets are taken out first; a text that differs in nothing else is the same. Without a ts it gets the later of now
        and one microsecond after the newest. Raises MessageConflictError, TsFutureError, BodyInvalidError, TooLargeError, and
        what `append_lines` raises.
        """
        post = plan_post(message, redact=self._redact)
        self._refuse_future(post)
        return self._submit(post, post.size_bytes)

    def edit(self, ts: str, text: str) -> LogRecord:
        """Give a message another text; raises NotFoundError when it is unknown or deleted."""
        self._refuse_unknown(parse_ts(ts))
        return self._submit(Edit(ts, self._redact(text)), len(text)).record

    def delete(self, ts: str) -> LogRecord:
        """Hide a message's text everywhere; raises NotFoundError when it is unknown or deleted already."""
        self._refuse_unknown(parse_ts(ts))
        return self._submit(Delete(ts), 0).record

    def get(self, ts: str) -> LogRecord | None:
        """The message as it is now, all its lines merged (also a deleted or silent one); None when the ts is unknown."""
        return next(iter(self._read(lambda _: [ts_ns(parse_ts(ts))])), None)

    def changes(self) -> Callable[[str], LogRecord | None]:
        """A look-up of what became of messages: the merged record of one that was edited or deleted, None for any other.

        It is true of the moment of this call, and opens the file only for changed messages.
        """
        with self._mutex:
            index = self._fresh_index()

        def look_up(ts: str) -> LogRecord | None:
            with self._mutex:
                changed = len(index.spans(ts_ns(ts))) > 1
            return self.get(ts) if changed else None

        return look_up

    def reply_to(self, ts: str) -> LogRecord | None:
        """The bot's message that answers this one, alone or together with others; None while there is none."""
        key = ts_ns(parse_ts(ts))
        replies = self._read(lambda index: index.replies_to(key))
        return next((reply for reply in reversed(replies) if reply.is_bot and key in answered_by(reply)), None)

    def page(
        self,
        *,
        before: str | None = None,
        after: str | None = None,
        thread_ts: str | None = None,
        user: str | None = None,
        limit: int = 50,
        newest_first: bool = False,
    ) -> list[LogRecord]:
        """Up to `limit` visible messages strictly between `after` and `before`, newest last unless `newest_first`.

        The newest that match; only with `after` and no `before` the oldest, so that one can page forward. `thread_ts` gives a
        root and its replies. Deleted and silent messages are left out.
        """
        choice = Choice(
            after=BEFORE_ALL if after is None else ts_ns(parse_ts(after)),
            before=NEWEST if before is None else ts_ns(parse_ts(before)),
            thread=None if thread_ts is None else ts_ns(parse_ts(thread_ts)),
            user=user,
            oldest_first=after is not None and before is None,
        )
        found = self._read(lambda index: islice(index.shown(choice), limit))
        found = [record for record in found if user is None or record.user == user]
        return found if choice.oldest_first != newest_first else found[::-1]

    def lines_from(self, cursor: Cursor) -> LogSlice:
        """The records of the lines after `cursor`, as they lie in the file; bad lines are left out."""
        found = read_lines(self._root, self._name, cursor)
        parsed = [(offset, parse_log_record(line)) for offset, line in found.lines]
        return LogSlice([(offset, record) for offset, record in parsed if record is not None], found.cursor, found.restarted)

    def stats(self) -> LogStats:
        """What the log holds now."""
        last = self.page(limit=1)
        with self._mutex:
            index = self._fresh_index()
            return LogStats(
                messages=index.messages,
                threads=index.threads,
                last_ts=last[0].ts if last else None,
                size_bytes=index.cursor.offset,
                bad_lines=len(index.bad),
                bad_offsets=tuple(index.bad[:_BAD_SHOWN]),
            )

    def _refuse_future(self, post: Post) -> None:
        if post.ts is not None and ts_ns(post.ts) > (self._clock() + MAX_FUTURE_S) * 10**9:
            raise TsFutureError(
                f"ts {post.ts} is more than {MAX_FUTURE_S} s in the future: check the sender's clock, or leave ts out",
            )

    def _refuse_unknown(self, ts: str) -> None:
        """Before the file is opened for writing, which would make a folder for a channel that is not there."""
        record = self.get(ts)
        if record is None or record.deleted:
            raise unknown_message(ts)

    def _submit(self, change: Change, size_bytes: int) -> Appended:
        appended = self._commits.submit(change, size_bytes)
        self._save_when_due()
        return appended

    def _commit(self, changes: list[Change]) -> list[Appended | PersistenceError]:
        outcomes: list[Appended | PersistenceError] = []

        def build(tail: Tail) -> list[bytes]:
            with self._mutex:
                index = self._fresh_index(tail.fd)
            batch = Batch(index, lambda spans: read_spans(self._root, self._name, spans), now_s=self._clock())
            outcomes.extend(batch.apply(change) for change in changes)
            return batch.lines

        if self._index is None:  # a long log is not read for the first time while others wait for its lock
            with self._mutex:
                self._fresh_index()
        append_lines(self._root, self._name, build)
        return outcomes

    def _read(self, choose: Callable[[LogIndex], Iterable[int]]) -> list[LogRecord]:
        """The merged messages that `choose` picks. A log rewritten by hand under the index is indexed again, once."""
        for attempt in (1, 2):
            with self._mutex:
                index = self._fresh_index()
                picked = [(key, spans) for key in choose(index) if (spans := index.spans(key))]
            self._save_when_due()
            lines = iter(read_spans(self._root, self._name, [span for _, spans in picked for span in spans]))
            records = [(key, merge_lines(list(islice(lines, len(spans))))) for key, spans in picked]
            sound = [record for key, record in records if record is not None and ts_ns(record.ts) == key]
            if len(sound) == len(picked) or attempt == 2:  # noqa: PLR2004 - the last attempt
                return sound
            with self._mutex:
                self._index, self._saved_lines = LogIndex(), 0
        return []

    def _fresh_index(self, fd: int | None = None) -> LogIndex:
        """The index with every line that is in the file now. The caller holds the mutex."""
        index = self._index or self._load_index()
        while True:
            start = index.cursor
            found = self._next_lines(start, fd)
            if found.restarted:
                index, start, self._saved_lines = LogIndex(), Cursor(), 0
            for offset, line in found.lines:
                index.add(offset, len(line), parse_log_record(line))
            index.cursor = found.cursor
            if found.cursor.offset - start.offset < _READ_BYTES:
                self._index = index
                return index

    def _next_lines(self, cursor: Cursor, fd: int | None) -> Slice:
        if fd is None:
            return read_lines(self._root, self._name, cursor, limit_bytes=_READ_BYTES)
        return read_open_lines(fd, cursor, limit_bytes=_READ_BYTES)

    def _load_index(self) -> LogIndex:
        try:
            data = read_bytes(self._root, self._sidecar, limit=_MAX_INDEX_BYTES)
        except PersistenceError as err:
            logger.warning("the saved index of %s can't be read and is made anew: %s", self._name, err)
            data = None
        index = parse_index(data or b"") or LogIndex()
        self._saved_lines = index.lines
        return index

    def _save_when_due(self) -> None:
        """Save the index when a sixteenth of the lines is new: a constant share of the cost of adding them."""
        with self._mutex:
            index = self._index
            if index is None or index.lines - self._saved_lines < max(_SAVED_LINES, index.lines // _SAVED_SHARE):
                return
            self._saved_lines = index.lines  # also if saving fails: it is a cache, and the next share of lines tries again
            data = index.to_bytes()
        try:
            with locked(self._root, self._sidecar, self._lock_name, timeout_s=0) as held:
                replace_bytes(self._root, self._sidecar, data, held)
        except PersistenceError as err:
            logger.warning("the index of %s was not saved: %s", self._name, err)
