"""`audit.jsonl`: one line for each change that recalld made to a file of the volume. Who and what, never content."""

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias

from pydantic import TypeAdapter, ValidationError

from persistence.errors import BodyInvalidError
from persistence.files import open_regular, translate
from persistence.lines import append_lines
from persistence.records import encode_line
from persistence.workspace import AUDIT, Workspace

Action: TypeAlias = Literal["create", "replace", "remove", "restore", "forget", "redact", "repair", "failed"]

_BLOCK_BYTES: Final = 64 * 1024
_MAX_REASON: Final = 200


@dataclass(frozen=True, slots=True)
class Author:
    """Who makes a change: `by` is "user:amy", "key:ops-bot", "cli", "bot" or "recalld"; `reason` one line without content."""

    by: str
    reason: str = ""
    turn: str | None = None


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One change. `version` is where the bytes before it are kept; an etag is None where there was, or is, no file.

    The line is written before the change, so that no change is without one. "failed" after it says that the change was not made.
    """

    time: str
    by: str
    action: Action
    name: str
    version: str | None = None
    old_etag: str | None = None
    new_etag: str | None = None
    reason: str = ""
    turn: str | None = None


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Lines, newest first; `before` continues the listing, None at its end."""

    items: list[AuditLine]
    before: int | None


_line: TypeAdapter[AuditLine] = TypeAdapter(AuditLine)


def now_iso() -> str:
    """The time in UTC, with microseconds."""
    return iso_of(time.time())


def iso_of(seconds: float) -> str:
    """Seconds since the epoch as ISO 8601 in UTC, with microseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def one_line(reason: str) -> str:
    """A reason as it is kept: one line of at most 200 characters."""
    return " ".join(reason.split())[:_MAX_REASON]


def append_audit(workspace: Workspace, line: AuditLine) -> None:
    """Append a line durably. Raises StoreBusyError, StorageFullError, StoreFaultError."""
    encoded = encode_line({name: value for name, value in asdict(line).items() if value not in (None, "")})
    append_lines(workspace.root, AUDIT, lambda _: [encoded])


def read_audit(
    workspace: Workspace,
    *,
    before: int | None = None,
    limit: int = 50,
    name: str | None = None,
    by: str | None = None,
) -> AuditPage:
    """Up to `limit` lines before the position `before` (None: from the end), newest first, of one file or author if given.

    Costs what it returns or skips, not what the file holds. Raises BodyInvalidError for a position that can't be one.
    """
    items: list[AuditLine] = []
    for offset, raw in _lines_backwards(workspace, before):
        line = parse_audit_line(raw)
        if line is None or (name is not None and line.name != name) or (by is not None and line.by != by):
            continue
        items.append(line)
        if len(items) == limit:
            return AuditPage(items, offset or None)
    return AuditPage(items, None)


def parse_audit_line(raw: bytes) -> AuditLine | None:
    """The line, None when it is none."""
    try:
        return _line.validate_json(raw)
    except ValidationError:
        return None


def _lines_backwards(workspace: Workspace, before: int | None) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of each whole line that ends at or before `before`, the last one first."""
    try:
        fd = open_regular(workspace.root, AUDIT)
    except FileNotFoundError:
        return
    try:
        size = os.fstat(fd).st_size
        end = size if before is None else before
        if not 0 <= end <= size:
            raise BodyInvalidError(f"there is no position {before} in the audit: list it from the start")
        kept = b""  # the part of a line whose beginning lies in an earlier block
        while end > 0:
            start = max(0, end - _BLOCK_BYTES)
            block = os.pread(fd, end - start, start) + kept
            first = 0 if start == 0 else block.find(b"\n") + 1
            kept, end = (block[:first], start) if first else (block, start)
            yield from _split_backwards(block[first:], start + first) if first or start == 0 else ()
    except OSError as err:
        raise translate(err, AUDIT) from err
    finally:
        os.close(fd)


def _split_backwards(block: bytes, start: int) -> Iterator[tuple[int, bytes]]:
    """The lines of a block that begins at offset `start`; a torn last one is no line yet."""
    end = block.rfind(b"\n")
    while end >= 0:
        begin = block.rfind(b"\n", 0, end) + 1
        if block[begin:end].strip():
            yield start + begin, block[begin:end]
        end = begin - 1
