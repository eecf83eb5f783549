"""Versions: every write to a file of memory keeps the bytes it replaces, so that it can be seen, compared and undone.

How they lie on disk is in `version_store`, what the audit says in `audit`.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

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
    read_bytes,
    read_text,
    replace_bytes,
)
from persistence.secrets import refuse_new_secrets
from persistence.version_store import (
    MAX_KEPT_BYTES,
    MAX_VERSION_AGE,
    MAX_VERSIONS,
    Version,
    keep_version,
    list_versions,
    read_version,
    remove_file,
)
from persistence.workspace import Workspace

__all__ = [
    "MAX_KEPT_BYTES",
    "MAX_VERSIONS",
    "MAX_VERSION_AGE",
    "Author",
    "Version",
    "changed_meanwhile",
    "diff_versions",
    "edit_text",
    "encode_text",
    "list_versions",
    "read_version",
    "recorded_change",
    "remove_with_version",
    "replace_with_version",
    "restore_version",
    "undo",
]


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
        remove_file(workspace.root, name)
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
