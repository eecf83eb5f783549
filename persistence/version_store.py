"""How versions lie on disk: keeping the bytes of a file, listing and reading what is kept, letting go of what is old.

When bytes are kept, and for whom, is `versions`'s.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from persistence.audit import Author, one_line
from persistence.errors import NotFoundError, PersistenceError
from persistence.files import (
    etag_of,
    open_regular,
    opened_folder,
    read_bytes,
    split_name,
    sync_folder,
    translate,
    write_all,
)
from persistence.workspace import VERSIONS, Workspace

MAX_VERSIONS: Final = 50
MAX_VERSION_AGE: Final = timedelta(days=180)
MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
"""A larger file is not replaced: its bytes could not be kept."""

_ID_DIGITS: Final = 12
_CUT_BYTES: Final = 167  # a name that was shortened is at least as long
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
        with os.fdopen(fd, "wb", buffering=0):  # a network disk may refuse what was written as late as when it is closed
            write_all(fd, data)
            if sync:
                os.fsync(fd)
    except OSError as err:
        raise translate(err, path) from err


def _prune(workspace: Workspace, name: str, ids: list[str], now: datetime) -> None:
    oldest, too_old = len(ids) - MAX_VERSIONS, (now - MAX_VERSION_AGE).strftime(_STAMP)
    gone = [each for place, each in enumerate(ids[:-1]) if place < oldest or each < too_old]
    if gone:
        with opened_folder(workspace.root, workspace.version(name, "")) as fd:
            for entry in (part for each in gone for part in (each, each + META_SUFFIX)):
                with suppress(OSError):  # whatever stays is tried again at the next write
                    os.unlink(entry, dir_fd=fd)


def remove_file(root: Path, name: str) -> None:
    """Unlink a file durably, never through a link; nothing happens when it is absent. The caller holds the file's lock."""
    folder, last = split_name(name)
    try:
        with opened_folder(root, folder) as folder_fd:
            os.unlink(last, dir_fd=folder_fd)
            os.fsync(folder_fd)
    except FileNotFoundError:
        return
    except OSError as err:
        raise translate(err, name) from err


def rewrite_version(workspace: Workspace, path: str, data: bytes) -> bool:
    """Give the version in the file `path` other bytes, for good: it gets an id with the old time. False: it is no version."""
    folder, old_id = split_name(path)
    if not _ID.match(old_id):
        return False
    etag = etag_of(data)
    new_id = f"{old_id.partition('-')[0]}-{etag[:12]}"
    meta = _read_meta_at(workspace, path + META_SUFFIX)
    if meta is not None:
        clean = replace(meta, id=new_id, size_bytes=len(data), etag=etag)
        _write_new(workspace, f"{folder}/{new_id}{META_SUFFIX}", _version.dump_json(clean), sync=False)
    _write_new(workspace, f"{folder}/{new_id}", data, sync=True)
    sync_folder(workspace.root, folder)
    if new_id != old_id:
        remove_file(workspace.root, path)
        remove_file(workspace.root, path + META_SUFFIX)
    return True


def file_of_version(path: str) -> str | None:
    """The name of the file that a path under the versions is about, None where it was shortened or is not ours."""
    folder, version_id = split_name(path.removesuffix(META_SUFFIX))
    part = split_name(folder)[1]
    if not _ID.match(version_id) or split_name(folder)[0] != VERSIONS or len(part.encode("utf-8", "replace")) >= _CUT_BYTES:
        return None
    return part.replace("%2F", "/").replace("%25", "%")


def is_version_path(path: str) -> bool:
    """Whether a path under the versions is one of a version's bytes."""
    return _ID.match(split_name(path)[1]) is not None


def is_whole_version(path: str, data: bytes) -> bool:
    """Whether these are all bytes of the version in `path`: its id says so."""
    return etag_of(data).startswith(path[-_ID_DIGITS:])


def has_meta(workspace: Workspace, path: str) -> bool:
    """Whether it is known who replaced the version in `path`."""
    return _read_meta_at(workspace, path + META_SUFFIX) is not None


def make_up_meta(workspace: Workspace, path: str) -> None:
    """Write what the bytes and the id of a version say of it, where nothing else does."""
    data = read_bytes(workspace.root, path, limit=MAX_KEPT_BYTES)
    if data is not None and not has_meta(workspace, path):
        meta = derived_meta(file_of_version(path) or "", split_name(path)[1], data)
        _write_new(workspace, path + META_SUFFIX, _version.dump_json(meta), sync=True)


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
    if data is None or not is_whole_version(version_id, data):
        return None
    return read_meta(workspace, name, version_id) or derived_meta(name, version_id, data), data


def read_meta(workspace: Workspace, name: str, version_id: str) -> Version | None:
    """What was noted of a version; None when that is lost."""
    return _read_meta_at(workspace, workspace.version(name, version_id) + META_SUFFIX)


def _read_meta_at(workspace: Workspace, path: str) -> Version | None:
    try:
        data = read_bytes(workspace.root, path)
        return None if data is None else _version.validate_json(data)
    except (ValidationError, PersistenceError):
        return None


def derived_meta(name: str, version_id: str, data: bytes) -> Version:
    """What the bytes and the id themselves say of a version."""
    created = _time_of(version_id).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return Version(version_id, name, created, "", "", None, len(data), etag_of(data))
