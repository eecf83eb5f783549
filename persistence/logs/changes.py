"""What can be done to a log, and what each change comes to: a new line, a replay, or a refusal. No file is opened here."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from pydantic import JsonValue

from persistence.errors import BodyInvalidError, MessageConflictError, NotFoundError, PersistenceError, TooLargeError
from persistence.lines import MAX_LINE_BYTES
from persistence.logs.index import LogIndex, ts_ns, ts_text
from persistence.records import Attachment, LogRecord, decode_line, encode_line, parse_log_record
from persistence.redaction import Redact, redact_fields
from persistence.secrets import redact as take_secrets_out
from persistence.workspace import parse_ts

# A line further in the future is somebody's mistake in units: it must not drag the ts of all later messages with it.
_HORIZON_S: Final = 86_400
_KEPT_OF_DELETED: Final[tuple[str, ...]] = ("date", "ts", "threadTs", "user", "userName", "displayName", "isBot")
_LONGEST: Final = {"ts": "9999999999.999999999", "date": "0" * 24}

Line: TypeAlias = dict[str, JsonValue]
Span: TypeAlias = tuple[int, int]
"""(offset, length) of a line in the file."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to append. `id` is its idempotency key; `extra` are further fields of the line, named as on disk."""

    text: str
    user: str
    user_name: str | None = None
    display_name: str | None = None
    thread_ts: str | None = None
    attachments: tuple[Attachment, ...] = ()
    is_bot: bool = False
    ts: str | None = None
    id: str | None = None
    reply_to: str | None = None
    answers: tuple[str, ...] = ()
    extra: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Appended:
    """The message as it is in the log; `replayed`: it was there before and nothing was appended."""

    record: LogRecord
    replayed: bool


@dataclass(frozen=True, slots=True)
class Post:
    """A checked new message: its line but for ts and date. `size_bytes` is the most that the line can take."""

    line: Line
    text: str
    ts: str | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Edit:
    ts: str
    text: str


@dataclass(frozen=True, slots=True)
class Delete:
    ts: str


Change: TypeAlias = Post | Edit | Delete


def plan_post(message: NewMessage, *, redact: Redact) -> Post:
    """Check a new message and give its line, its texts redacted; raises BodyInvalidError, TooLargeError."""
    known = LogRecord(
        ts="0",
        thread_ts=None if message.thread_ts is None else parse_ts(message.thread_ts),
        user=message.user,
        user_name=message.user_name,
        display_name=message.display_name,
        text=message.text,
        attachments=list(message.attachments) or None,
        is_bot=message.is_bot,
        id=message.id,
        reply_to=None if message.reply_to is None else parse_ts(message.reply_to),
        answers=[parse_ts(ts) for ts in message.answers] or None,
    )
    try:
        line: Line = {**redact_fields({**message.extra, **known.to_json()}, redact), **_LONGEST}
    except RecursionError as err:
        raise BodyInvalidError("the message is nested too deeply") from err
    encoded = encode_checked(line)
    ts = None if message.ts is None else parse_ts(message.ts)
    return Post(line, _text_of(encoded), ts, len(encoded))


def encode_checked(line: Line) -> bytes:
    """The line's bytes; raises BodyInvalidError for a value that JSON can't hold, TooLargeError for a line beyond reading."""
    try:
        encoded = encode_line(line)
    except (ValueError, TypeError, RecursionError) as err:
        raise BodyInvalidError(f"the message holds a value that JSON can't: {err}") from err
    if len(encoded) > MAX_LINE_BYTES:
        raise TooLargeError(f"the message is over {MAX_LINE_BYTES} bytes")
    return encoded


def merge_lines(lines: Sequence[bytes]) -> LogRecord | None:
    """One message of all its lines, in file order: a later field wins, but nothing said is lost to a line that leaves it out.

    A text is replaced by an empty one only where the line says that it is an edit. A deleted message has no text.
    """
    values = [value for line in lines if (value := decode_line(line)) is not None]
    merged: dict[str, Any] = {}  # JSON objects of a file
    for value in values:
        meant = {"text"} if value.get("edited") or value.get("deleted") else set()
        merged |= {name: item for name, item in value.items() if item not in (None, "", []) or name in meant}
    record = parse_log_record(lines[0] if len(lines) == 1 else encode_line(merged)) if values else None
    if record is not None and record.deleted:
        record.text = ""
    return record


def unknown_message(ts: str) -> NotFoundError:
    """The error for a ts that is not, or no longer, in the log."""
    return NotFoundError(f"there is no message {ts} in this channel")


class Batch:
    """What one commit will write. Each change is decided on the log as it is under the lock and on the changes before it."""

    def __init__(self, index: LogIndex, read: Callable[[list[Span]], list[bytes]], *, now_s: float) -> None:
        """Take the up-to-date index and a way to read lines of the file."""
        self.lines: list[bytes] = []
        self._index = index
        self._read = read
        self._now_us = int(now_s * 10**6)
        self._now_iso = _iso(now_s)
        self._horizon_ns = int((now_s + _HORIZON_S) * 10**9)
        self._newest = index.newest(through=self._horizon_ns)
        self._staged: dict[int, list[bytes]] = {}
        self._ids: dict[str, int] = {}

    def apply(self, change: Change) -> Appended | PersistenceError:
        """The outcome of the next change; an error is of this change alone."""
        try:
            match change:
                case Post():
                    return self._post(change)
                case Edit():
                    return self._edit(change)
                case Delete():
                    return self._delete(change)
        except PersistenceError as err:
            return err

    def _post(self, post: Post) -> Appended:
        earlier = self._earlier(post)
        if earlier:
            return Appended(_replay(earlier, post.text), replayed=True)
        ts = post.ts or self._next_ts()
        line = {"date": _iso(ts_ns(ts) / 10**9), "ts": ts} | {k: v for k, v in post.line.items() if k not in _LONGEST}
        if post.line.get("threadTs") is not None and ts_ns(str(post.line["threadTs"])) == ts_ns(ts):
            del line["threadTs"]  # a root carries none
        return Appended(self._stage(line), replayed=False)

    def _edit(self, edit: Edit) -> Appended:
        record = self._present(edit.ts)
        line = record.to_json() | {"text": edit.text, "edited": self._now_iso}
        if _text_of(encode_checked(line)) == record.text:
            return Appended(record, replayed=True)
        return Appended(self._stage(line), replayed=False)

    def _delete(self, delete: Delete) -> Appended:
        fields = self._present(delete.ts).to_json()
        line: Line = {name: fields[name] for name in _KEPT_OF_DELETED if name in fields}
        line |= {"text": "", "deleted": True}
        self._stage(line)
        record = merge_lines(self._lines_of(ts_ns(delete.ts)))
        if record is None:  # it was staged a line above
            raise unknown_message(delete.ts)
        return Appended(record, replayed=False)

    def _stage(self, line: Line) -> LogRecord:
        encoded = encode_checked(line)
        record = parse_log_record(encoded)
        if record is None:
            raise BodyInvalidError("the message makes no valid line of the log")
        key = ts_ns(record.ts)
        self.lines.append(encoded)
        self._staged.setdefault(key, []).append(encoded)
        if record.id is not None:
            self._ids[record.id] = key
        if key <= self._horizon_ns:
            self._newest = max(self._newest, key)
        return record

    def _next_ts(self) -> str:
        return ts_text(max(self._now_us, self._newest // 1000 + 1))

    def _present(self, ts: str) -> LogRecord:
        record = merge_lines(self._lines_of(ts_ns(ts)))
        if record is None or record.deleted:
            raise unknown_message(ts)
        return record

    def _earlier(self, post: Post) -> list[bytes]:
        """The lines of the message that this one repeats, by its id or else its ts; none when it is new."""
        message_id = post.line.get("id")
        for key in self._keys_of_id(message_id) if isinstance(message_id, str) else ():
            lines = self._lines_of(key)
            if any(record.id == message_id for line in lines if (record := parse_log_record(line)) is not None):
                return lines
        return [] if post.ts is None else self._lines_of(ts_ns(post.ts))

    def _keys_of_id(self, message_id: str) -> Iterator[int]:
        if message_id in self._ids:
            yield self._ids[message_id]
        yield from self._index.with_id(message_id)

    def _lines_of(self, key: int) -> list[bytes]:
        spans = self._index.spans(key)
        return (self._read(spans) if spans else []) + self._staged.get(key, [])


def _replay(earlier: list[bytes], text: str) -> LogRecord:
    """The message that is there; raises MessageConflictError unless `text` is what it says or said first."""
    record = merge_lines(earlier)
    if record is None or not _is_same(text, (record.text, _text_of(earlier[0]))):
        ts = "" if record is None else f" {record.ts}"
        raise MessageConflictError(f"message{ts} is in the log with another text: use PATCH to change it, or another ts or key")
    return record


def _is_same(text: str, said: Sequence[str]) -> bool:
    """A text that was redacted then and comes back as it was is the same message, and the other way round."""
    return text in said or take_secrets_out(text) in [take_secrets_out(each) for each in said]


def _text_of(line: bytes) -> str:
    """The text as it is read back from the line: what JSON in UTF-8 can't hold is replaced by then."""
    record = parse_log_record(line)
    return "" if record is None else record.text


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
