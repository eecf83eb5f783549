"""Versions: every write to a file of memory keeps the bytes it replaces, so that it can be seen, compared and undone.

What is in `audit.jsonl` besides is `audit`'s.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from pydantic import TypeAdapter, ValidationError

from persistence.audit import Action, AuditLine, Author, append_audit, now_iso, one_line
from persistence.diff import diff_texts
from persistence.errors import (
    NotFoundError,
    NotUtf8Error,
    PersistenceError,
    PreconditionFailedError,
    TooLargeError,
)
from persistence.files import (
    MAX_TEXT_BYTES,
    Held,
    TextFile,
    etag_of,
    locked,
    open_regular,
    opened_folder,
    read_bytes,
    read_text,
    replace_bytes,
    split_name,
    sync_folder,
    translate,
    write_all,
)
from persistence.secrets import refuse_new_secrets
from persistence.workspace import Workspace

__all__ = ["Author", "Version", "edit_text", "remove_with_version", "replace_with_version"]

MAX_VERSIONS: Final = 50
MAX_VERSION_AGE: Final = timedelta(days=180)
MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
"""A larger file is not replaced: its bytes could not be kept."""

META_SUFFIX: Final = ".json"
_NEVER_PRUNED: Final = ".jsonl"
_STAMP: Final = "%Y%m%dT%H%M%S.%fZ"
_ID = re.compile(r"([0-9]{8}T[0-9]{6}\.[0-9]{6}Z)-([0-9a-f]{12})\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Version:
    """Bytes that a file once had. `created` is when they were replaced; `by`, `reason` and `turn` are of what replaced them."""

    id: str
    name: str
    created: str
    by: str
    reason: str
    turn: str | None
    size_bytes: int
    etag: str


_version: TypeAdapter[Version] = TypeAdapter(Version)


def replace_with_version(workspace: Workspace, name: str, data: bytes, held: Held, *, author: Author) -> str | None:
    """Replace a file, keeping the bytes it had; returns their version id (None: it was absent, or has these bytes already).

    The caller holds the file's lock. A crash at any point leaves the old or the new bytes in the file, at worst with a version
    of the old ones that is not needed. Raises UnsafeObjectError, TooLargeError, StoreBusyError, StorageFullError,
    StoreFaultError; the file is unchanged then.
    """
    old = read_bytes(workspace.root, name, limit=MAX_KEPT_BYTES)
    if old == data:
        return None
    with recorded_change(workspace, name, old, data, author=author) as version_id:
        replace_bytes(workspace.root, name, data, held)
    return version_id


def remove_with_version(workspace: Workspace, name: str, held: Held, *, author: Author) -> str | None:
    """Remove a file, keeping its bytes; returns their version id, None when there was no file. Locks and raises as above."""
    old = read_bytes(workspace.root, name, limit=MAX_KEPT_BYTES)
    if old is None:
        return None
    with recorded_change(workspace, name, old, None, author=author) as version_id:
        held.assert_held()
        remove_file(workspace, name)
    return version_id


def edit_text(
    workspace: Workspace,
    name: str,
    change: Callable[[str], str],
    *,
    author: Author,
    expected_etag: str | None = None,
) -> TextFile:
    """Read a text file, give its text ("" when absent) to `change` and replace it with the result, all under its lock.

    A BOM and CRLF of the old text are normalised away; a change that changes nothing leaves the file as it is. Raises
    NotUtf8Error, SecretDetectedError for a secret that the old text did not hold, PreconditionFailedError (with a diff) when
    the file is not the version `expected_etag`, and as `replace_with_version`.
    """
    with locked(workspace.root, name, workspace.lock_of(name)) as held:
        old = read_text(workspace.root, name)
        if old is not None and not old.utf8:
            raise NotUtf8Error(f"{name!r} holds bytes that are not UTF-8: repair it by hand, recalld does not rewrite it")
        before = "" if old is None else old.text.replace("\r\n", "\n")
        text = change(before)
        if expected_etag is not None and (old is None or old.etag != expected_etag):
            raise changed_meanwhile(name, old, text)
        if old is not None and text == before:
            return old
        refuse_new_secrets(before, text, where=name)
        data = encode_text(name, text)
        replace_with_version(workspace, name, data, held, author=author)
    return TextFile(text, etag_of(data), utf8=True, mtime_s=time.time())


def changed_meanwhile(name: str, current: TextFile | None, wanted: str) -> PreconditionFailedError:
    """The error for a file that is another than the writer read, with what it would have changed in the current text."""
    diff = diff_texts("" if current is None else current.text, wanted, old_label=f"current/{name}", new_label=f"yours/{name}")
    state = "is not there" if current is None else "changed since it was read"
    return PreconditionFailedError(
        f"{name!r} {state}: nothing was written, read it again",
        etag=None if current is None else current.etag,
        diff=diff,
    )


def encode_text(name: str, text: str) -> bytes:
    """The bytes of a text file: UTF-8, lone surrogates replaced. Raises TooLargeError."""
    data = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode("utf-8")
    if len(data) > MAX_TEXT_BYTES:
        raise TooLargeError(f"{name!r} would be over {MAX_TEXT_BYTES} bytes")
    return data


@contextmanager
def recorded_change(
    workspace: Workspace,
    name: str,
    old: bytes | None,
    new: bytes | None,
    *,
    author: Author,
    action: Action | None = None,
) -> Iterator[str | None]:
    """Keep `old` and write the audit line, then let the block make the change; yields the version id of `old`.

    For files that are not replaced by `replace_with_version`, such as a settings file behind a link. None stands for no file.
    """
    version_id = None if old is None else keep_version(workspace, name, old, author=author)
    line = AuditLine(
        time=now_iso(),
        by=author.by,
        action=action or ("create" if old is None else "remove" if new is None else "replace"),
        name=name,
        version=version_id,
        old_etag=None if old is None else etag_of(old),
        new_etag=None if new is None else etag_of(new),
        reason=one_line(author.reason),
        turn=author.turn,
    )
    append_audit(workspace, line)
    try:
        yield version_id
    except BaseException:
        with suppress(PersistenceError):
            append_audit(workspace, replace(line, action="failed", time=now_iso()))
        raise


def keep_version(workspace: Workspace, name: str, data: bytes, *, author: Author) -> str:
    """Keep bytes of a file durably; returns the version's id. The caller holds the file's lock.

    The oldest versions of the file beyond `MAX_VERSIONS` or `MAX_VERSION_AGE` go; the newest always stays. Contexts that were
    put away are not versions of one text but the only copies of what was said, and all stay.
    """
    etag, ids = etag_of(data), version_ids(workspace, name)
    now = datetime.now(UTC)
    if ids:  # the order of the ids is the order of the writes, also when the clock was set back
        now = max(now, _time_of(ids[-1]) + timedelta(microseconds=1))
    version_id = f"{now.strftime(_STAMP)}-{etag[:12]}"
    created = now.isoformat(timespec="microseconds").replace("+00:00", "Z")
    reason = one_line(author.reason)
    meta = Version(version_id, name, created, author.by, reason, author.turn, len(data), etag)
    path = workspace.version(name, version_id)
    # Only the bytes must survive a power loss: their id says when they were replaced, and proves that they are complete.
    _write_new(workspace, path + META_SUFFIX, _version.dump_json(meta), sync=False)
    _write_new(workspace, path, data, sync=True)
    sync_folder(workspace.root, split_name(path)[0])
    if not name.endswith(_NEVER_PRUNED):
        _prune(workspace, name, [*ids, version_id], now)
    return version_id


def _write_new(workspace: Workspace, path: str, data: bytes, *, sync: bool) -> None:
    fd = open_regular(workspace.root, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(fd, data)
        if sync:
            os.fsync(fd)
    except OSError as err:
        raise translate(err, path) from err
    finally:
        os.close(fd)


def _prune(workspace: Workspace, name: str, ids: list[str], now: datetime) -> None:
    oldest, too_old = len(ids) - MAX_VERSIONS, (now - MAX_VERSION_AGE).strftime(_STAMP)
    gone = [each for place, each in enumerate(ids[:-1]) if place < oldest or each < too_old]
    if gone:
        with opened_folder(workspace.root, workspace.version(name, "")) as fd:
            for entry in (part for each in gone for part in (each, each + META_SUFFIX)):
                with suppress(OSError):  # whatever stays is tried again at the next write
                    os.unlink(entry, dir_fd=fd)


def remove_version(workspace: Workspace, name: str, version_id: str) -> None:
    """Remove one version for good; nothing happens when it is gone already."""
    path = workspace.version(name, version_id)
    remove_file(workspace, path)
    remove_file(workspace, path + META_SUFFIX)


def remove_file(workspace: Workspace, name: str) -> None:
    """Unlink a file durably, never through a link; nothing happens when it is absent. Raises StoreFaultError."""
    folder, last = split_name(name)
    try:
        with opened_folder(workspace.root, folder) as folder_fd:
            os.unlink(last, dir_fd=folder_fd)
            os.fsync(folder_fd)
    except FileNotFoundError:
        return
    except OSError as err:
        raise translate(err, name) from err


def version_ids(workspace: Workspace, name: str) -> list[str]:
    """The ids of a file's versions, oldest first; also of those whose bytes are not complete."""
    try:
        with opened_folder(workspace.root, workspace.version(name, "")) as fd, os.scandir(fd) as entries:
            return sorted(entry.name for entry in entries if _ID.match(entry.name))
    except FileNotFoundError:
        return []


def _time_of(version_id: str) -> datetime:
    try:
        return datetime.strptime(version_id.partition("-")[0], _STAMP).replace(tzinfo=UTC)
    except ValueError:  # digits that make no date: somebody else's file
        return datetime.fromtimestamp(0, UTC)


def list_versions(workspace: Workspace, name: str) -> list[Version]:
    """The kept versions of a file, newest first. A file that never was has none."""
    found = [_read(workspace, name, version_id) for version_id in reversed(version_ids(workspace, name))]
    return [version[0] for version in found if version is not None]


def read_version(workspace: Workspace, name: str, version_id: str) -> tuple[Version, bytes]:
    """A version with its bytes. Raises NotFoundError."""
    found = _read(workspace, name, version_id) if _ID.match(version_id) else None
    if found is None:
        raise NotFoundError(f"{name!r} has no version {version_id[:60]!r}: list its versions")
    return found


def _read(workspace: Workspace, name: str, version_id: str) -> tuple[Version, bytes] | None:
    """A version with its bytes, None unless they are complete."""
    data = read_bytes(workspace.root, workspace.version(name, version_id), limit=MAX_KEPT_BYTES)
    if data is None or not etag_of(data).startswith(version_id.partition("-")[2]):
        return None
    return read_meta(workspace, name, version_id) or derived_meta(name, version_id, data), data


def read_meta(workspace: Workspace, name: str, version_id: str) -> Version | None:
    """What was noted of a version; None when that is lost."""
    try:
        data = read_bytes(workspace.root, workspace.version(name, version_id) + META_SUFFIX)
        return None if data is None else _version.validate_json(data)
    except (ValidationError, PersistenceError):
        return None


def derived_meta(name: str, version_id: str, data: bytes) -> Version:
    """What the bytes and the id themselves say of a version."""
    created = _time_of(version_id).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return Version(version_id, name, created, "", "", None, len(data), etag_of(data))


def restore_version(workspace: Workspace, name: str, version_id: str, *, author: Author) -> str:
    """Give a file the bytes of one of its versions again (also after it was removed); returns the new etag.

    What it holds now becomes a version itself, so a restore can be undone. Raises NotFoundError, SecretDetectedError, and as
    `replace_with_version`.
    """
    with locked(workspace.root, name, workspace.lock_of(name)) as held:
        _, data = read_version(workspace, name, version_id)
        current = read_bytes(workspace.root, name, limit=MAX_KEPT_BYTES)
        refuse_new_secrets(_text_of(current or b""), _text_of(data), where=name)
        if current != data:
            with recorded_change(workspace, name, current, data, author=author, action="restore"):
                replace_bytes(workspace.root, name, data, held)
    return etag_of(data)


def undo(workspace: Workspace, name: str, *, author: Author) -> str:
    """Restore what the file held before the last change; doing it twice brings the change back. Raises as `restore_version`."""
    newest = next(iter(list_versions(workspace, name)), None)
    if newest is None:
        raise NotFoundError(f"{name!r} has no earlier version")
    return restore_version(workspace, name, newest.id, author=author)


def diff_versions(workspace: Workspace, name: str, *, old: str | None, new: str | None) -> str:
    """The unified diff between two versions of a file; None stands for the file as it is now (empty when absent)."""

    def side(version_id: str | None) -> str:
        data = read_bytes(workspace.root, name) if version_id is None else read_version(workspace, name, version_id)[1]
        return _text_of(data or b"")

    return diff_texts(side(old), side(new), old_label=f"{old or 'current'}/{name}", new_label=f"{new or 'current'}/{name}")


def _text_of(data: bytes) -> str:
    return data.decode("utf-8-sig", "replace")
