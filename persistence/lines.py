"""Files of LF-terminated lines: durable appending under a lock on the file itself, and reading by byte offset.

What a line means is the business of `log` and `context`.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from persistence.files import flock, open_regular, opened_folder, split_name, sync_folder, translate, write_all
from persistence.records import decode_line
from persistence.workspace import QUARANTINE

TAIL_BYTES: Final = 64 * 1024
MAX_LINE_BYTES: Final = 16 * 1024 * 1024
_EDGE_BYTES: Final = 512
_LOCK_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a file as seen under its lock: whole lines without their LF, newest last; `fd` is open only in `build`."""

    lines: list[bytes]
    size_bytes: int
    whole_file: bool
    fd: int


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a reader has come: a byte offset, and a hash that tells whether what lies before it is still the same."""

    offset: int = 0
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Slice:
    """Lines from a cursor on, each with its byte offset. `restarted`: the file is another one, these are all its lines."""

    lines: list[tuple[int, bytes]]
    cursor: Cursor
    restarted: bool


def append_lines(
    root: Path,
    name: str,
    build: Callable[[Tail], list[bytes]],
    *,
    timeout_s: float = _LOCK_TIMEOUT_S,
) -> int:
    """Append what `build` makes of the file's tail (lines with their LF) durably; return the offset of the first of them.

    The protocol of facts "append" (0 of 22,896 acknowledged lines lost between two NFS hosts): the file is opened anew, locked
    on that very descriptor, a torn tail is sealed with a newline and copied to quarantine, all lines go in one write, then
    fsync, then close. On a failure the old size is restored and nothing may be acknowledged; fsync is never retried.
    Raises StoreBusyError, StorageFullError, StoreFaultError, UnsafeObjectError, and whatever `build` raises.
    """
    try:
        fd = _open_locked(root, name, time.monotonic() + timeout_s)
        try:
            return _append_locked(root, name, fd, build)
        finally:
            os.close(fd)  # releases the lock
    except OSError as err:
        raise translate(err, name) from err


def _append_locked(root: Path, name: str, fd: int, build: Callable[[Tail], list[bytes]]) -> int:
    size = os.fstat(fd).st_size
    tail, torn = _read_tail(fd, size)
    seal = b"\n" if torn else b""
    if torn and decode_line(torn) is None:
        _quarantine(root, name, size - len(torn), torn)
    lines = build(tail)
    _write_durably(fd, name, size, (seal if lines else b"") + b"".join(lines))
    if size == 0:
        sync_folder(root, split_name(name)[0])
    return size + len(seal)


def append_after(
    root: Path,
    name: str,
    build: Callable[[int], tuple[int, list[bytes]]],
    *,
    timeout_s: float = _LOCK_TIMEOUT_S,
) -> None:
    """As `append_lines`, for files whose end must be sound: what lies behind the sound bytes is copied to quarantine and cut off.

    `build` gets the open file and gives how many of its bytes are sound and the lines that follow these.
    """
    try:
        fd = _open_locked(root, name, time.monotonic() + timeout_s)
        try:
            size = os.fstat(fd).st_size
            sound, lines = build(fd)
            if sound < size:
                _quarantine(root, name, sound, os.pread(fd, size - sound, sound))
                os.ftruncate(fd, sound)
            _write_durably(fd, name, sound, b"".join(lines))
            if sound == 0:
                sync_folder(root, split_name(name)[0])
        finally:
            os.close(fd)  # releases the lock
    except OSError as err:
        raise translate(err, name) from err


def _open_locked(root: Path, name: str, deadline: float) -> int:
    while True:
        fd = open_regular(root, name, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            flock(fd, name, deadline=deadline)
            if _is_still(root, name, fd):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # renamed or removed while we waited: lock the file that stands there now


def _is_still(root: Path, name: str, fd: int) -> bool:
    folder, last = split_name(name)
    with opened_folder(root, folder) as folder_fd:
        try:
            return os.stat(last, dir_fd=folder_fd, follow_symlinks=False).st_ino == os.fstat(fd).st_ino
        except FileNotFoundError:
            return False


def _read_tail(fd: int, size: int) -> tuple[Tail, bytes]:
    """(whole lines of the tail, the torn bytes after the last LF)."""
    length = TAIL_BYTES
    while True:
        start = max(0, size - length)
        data = os.pread(fd, size - start, start)
        body, found_lf, torn = data.rpartition(b"\n")
        if start == 0 or found_lf or length >= MAX_LINE_BYTES:
            break
        length *= 4  # a torn tail longer than the window: its start must be found for quarantine
    lines = body.split(b"\n") if found_lf else []
    if start > 0 and lines:
        lines = lines[1:]  # cut by the window
    return Tail([line for line in lines if line.strip()], size, whole_file=start == 0, fd=fd), torn


def _quarantine(root: Path, name: str, offset: int, torn: bytes) -> None:
    """Copy torn bytes aside; they also stay where they are, as a bad line. The name holds offset and hash, so twice is once."""
    digest = hashlib.sha256(torn).hexdigest()
    aside = f"{QUARANTINE}/{name.replace('/', '%2F')}.{offset}.{digest[:16]}"
    with suppress(FileExistsError):
        fd = open_regular(root, aside, os.O_WRONLY | os.O_CREAT)
        try:
            with os.fdopen(fd, "wb", buffering=0):
                write_all(fd, torn)
                os.fsync(fd)
        except OSError as err:
            raise translate(err, aside) from err
        sync_folder(root, QUARANTINE)


def _write_durably(fd: int, name: str, size: int, data: bytes) -> None:
    try:
        write_all(fd, data)
        os.fsync(fd)  # also with nothing to write: a retry must not be acknowledged on bytes that were never synced
    except OSError as err:
        with suppress(OSError):
            os.ftruncate(fd, size)
        raise translate(err, name) from err


def read_lines(root: Path, name: str, cursor: Cursor, *, limit_bytes: int | None = None) -> Slice:
    """The whole lines after `cursor` (none, with a cursor at 0, when the file is absent); empty lines are left out.

    A last line without LF counts when it is a complete JSON object. When the file shrank or differs before the cursor, it is
    read from the start and `restarted` is True. With `limit_bytes` it stops at the first line end after that many bytes (a
    slice that consumed fewer was the last). Raises UnsafeObjectError, StoreFaultError.
    """
    try:
        fd = open_regular(root, name)
    except FileNotFoundError:
        return Slice([], Cursor(), restarted=cursor.offset > 0)
    try:
        return read_open_lines(fd, cursor, limit_bytes=limit_bytes)
    except OSError as err:
        raise translate(err, name) from err
    finally:
        os.close(fd)


def read_open_lines(fd: int, cursor: Cursor, *, limit_bytes: int | None = None) -> Slice:
    """As `read_lines`, of an open file: inside `append_lines` it saves opening the file again. Raises OSError."""
    same = cursor.offset == 0 or _prefix_hash(fd, cursor.offset) == cursor.prefix
    start = cursor.offset if same else 0
    lines, end = _split(_read_from(fd, start, limit_bytes), start)
    return Slice(lines, Cursor(end, _prefix_hash(fd, end)), restarted=not same)


def find_end(root: Path, name: str) -> Cursor:
    """The cursor behind the last whole line, found without reading what lies before it."""
    try:
        fd = open_regular(root, name)
    except FileNotFoundError:
        return Cursor()
    try:
        size = os.fstat(fd).st_size
        end = size - len(_read_tail(fd, size)[1])
        return Cursor(end, _prefix_hash(fd, end))
    except OSError as err:
        raise translate(err, name) from err
    finally:
        os.close(fd)


def read_last_lines(root: Path, name: str) -> list[bytes]:
    """The whole lines at the end of `name` (some 64 KiB of them), oldest first; none when the file is absent."""
    try:
        fd = open_regular(root, name)
    except FileNotFoundError:
        return []
    try:
        return _read_tail(fd, os.fstat(fd).st_size)[0].lines
    except OSError as err:
        raise translate(err, name) from err
    finally:
        os.close(fd)


@contextmanager
def held_lines(root: Path, name: str, *, timeout_s: float = _LOCK_TIMEOUT_S) -> Iterator[bytes]:
    """All bytes of `name` (made when absent), while no appender of any process or host gets in; for replacing the file whole.

    An appender that waited finds another file in its place afterwards and locks that one.
    """
    fd = _open_locked(root, name, time.monotonic() + timeout_s)
    try:
        yield _read_from(fd, 0, None)
    except OSError as err:
        raise translate(err, name) from err
    finally:
        with suppress(OSError):  # nothing was written through it
            os.close(fd)


def read_spans(root: Path, name: str, spans: list[tuple[int, int]]) -> list[bytes]:
    """The bytes of each (offset, length), all from one opening; b"" for each when the file is absent."""
    try:
        fd = open_regular(root, name)
    except FileNotFoundError:
        return [b""] * len(spans)
    try:
        return [os.pread(fd, length, offset) for offset, length in spans]
    except OSError as err:
        raise translate(err, name) from err
    finally:
        os.close(fd)


def _read_from(fd: int, start: int, limit: int | None) -> bytes:
    parts, size = [], 0
    while part := os.pread(fd, 1 << 20, start + size):
        parts.append(part)
        line_end = size + part.rfind(b"\n") + 1
        size += len(part)
        if limit is not None and line_end >= limit and b"\n" in part:
            return b"".join(parts)[:line_end]
    return b"".join(parts)


def _split(data: bytes, start: int) -> tuple[list[tuple[int, bytes]], int]:
    """Lines with offsets, and the offset up to which they were consumed."""
    lines: list[tuple[int, bytes]] = []
    begin = 0
    while (end := data.find(b"\n", begin)) >= 0:
        if data[begin:end].strip():
            lines.append((start + begin, data[begin:end]))
        begin = end + 1
    if begin < len(data) and decode_line(data[begin:]) is not None:
        lines.append((start + begin, data[begin:]))
        begin = len(data)
    return lines, start + begin


def _prefix_hash(fd: int, offset: int) -> str:
    """Hash of the first and the last bytes before `offset`; "" when the file is shorter."""
    if os.fstat(fd).st_size < offset:
        return ""
    head = os.pread(fd, min(_EDGE_BYTES, offset), 0)
    last = os.pread(fd, min(_EDGE_BYTES, offset), max(0, offset - _EDGE_BYTES))
    return hashlib.sha256(head + last).hexdigest()[:32]
