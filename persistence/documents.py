"""Documents: listing, reading, writing, appending to and deleting the files of the workspace that are open to clients by path.

Which paths those are is in `document_path`; what the files mean is the business of the rooms that own them.
"""

import heapq
import os
import re
import stat
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from persistence.audit import iso_of
from persistence.document_path import (
    TEAM,
    document_channel,
    is_open_name,
    name_on_disk,
    parse_document_path,
    parse_writable_path,
)
from persistence.errors import BodyInvalidError, NotFoundError, NotUtf8Error, PersistenceError, PreconditionRequiredError
from persistence.files import MAX_TEXT_BYTES, TextFile, etag_of, locked, opened_folder, read_bytes, read_text
from persistence.path_glob import matches_glob
from persistence.secrets import refuse_new_secrets
from persistence.versions import (
    Author,
    changed_meanwhile,
    edit_text,
    encode_text,
    remove_with_version,
    replace_with_version,
)
from persistence.workspace import Workspace

__all__ = [
    "AppendedText",
    "Document",
    "DocumentInfo",
    "DocumentPage",
    "WrittenDocument",
    "append_document",
    "delete_document",
    "document_channel",
    "document_name",
    "list_documents",
    "read_document",
    "writable_name",
    "write_document",
]

_TAG = re.compile(r'\s*(?:(?P<weak>W/)?"(?P<etag>[\x21\x23-\x7e\x80-\xff]*)"|(?P<any>\*))\s*(?:,|\Z)')
_NO_BYTES: Final = b""
_MAX_GLOB: Final = 200


@dataclass(frozen=True, slots=True)
class DocumentInfo:
    """One file of a listing. `modified` is ISO 8601 in UTC; `etag` None for a file that is too large to be read as a document."""

    path: str
    size_bytes: int
    modified: str
    etag: str | None


@dataclass(frozen=True, slots=True)
class DocumentPage:
    """Files in the order of their paths; `next_after` continues the listing, None at its end."""

    items: list[DocumentInfo]
    next_after: str | None


@dataclass(frozen=True, slots=True)
class Document:
    """The text of a file, or lines of it (1-based, inclusive), with LF ends; `etag` is that of the whole file's bytes.

    `utf8` False: bad bytes were replaced, and the file can't be written.
    """

    path: str
    text: str
    etag: str
    last_modified_s: float
    total_lines: int
    utf8: bool


@dataclass(frozen=True, slots=True)
class WrittenDocument:
    """A file after a write. `version`: the id under which its earlier bytes are kept, None when it had none, or the same."""

    path: str
    etag: str
    created: bool
    version: str | None


@dataclass(frozen=True, slots=True)
class AppendedText:
    """Where an appended text stands: lines are 1-based, inclusive, without its heading."""

    path: str
    start_line: int
    end_line: int
    etag: str


def document_name(workspace: Workspace, path: str) -> str:
    """The name on disk of a document that may be read, for its versions. Raises BodyInvalidError, ForbiddenError."""
    return name_on_disk(workspace, parse_document_path(path))


def writable_name(workspace: Workspace, path: str) -> str:
    """The name on disk of a document that may be written, for restoring. Raises BodyInvalidError, ForbiddenError."""
    return name_on_disk(workspace, parse_writable_path(path))


def list_documents(
    workspace: Workspace,
    *,
    prefix: str = "",
    glob: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> DocumentPage:
    """Up to `limit` regular files whose path begins with `prefix` and fits `glob`, behind the path `after`. No link is followed.

    A glob without `/` is about the last part of the path. Costs a walk, and reading of the files that are returned. Raises
    BodyInvalidError for a glob that is too long.
    """
    if len(glob or "") > _MAX_GLOB:
        raise BodyInvalidError(f"the glob is too long: at most {_MAX_GLOB} characters")
    wanted = unicodedata.normalize("NFC", prefix)
    paths = (
        (path, name, found)
        for path, name, found in _walk(workspace, wanted)
        if path.startswith(wanted) and (after is None or path > after) and (glob is None or matches_glob(path, glob))
    )
    first = heapq.nsmallest(limit + 1, paths, key=lambda item: item[0])
    items = [_info(workspace, *each) for each in first[:limit]]
    return DocumentPage(items, items[-1].path if len(first) > limit and items else None)


def _info(workspace: Workspace, path: str, name: str, found: os.stat_result) -> DocumentInfo:
    etag = None
    if found.st_size <= MAX_TEXT_BYTES:
        try:
            etag = etag_of(read_bytes(workspace.root, name) or _NO_BYTES)
        except PersistenceError:  # gone, grown or turned into something else since it was listed
            etag = None
    return DocumentInfo(path, found.st_size, iso_of(found.st_mtime), etag)


def _walk(
    workspace: Workspace, prefix: str, folder: str = "", *, in_team: bool = False
) -> Iterator[tuple[str, str, os.stat_result]]:
    """(path, name on disk, status) of each file below a folder that is not hidden; only where `prefix` can lead."""
    try:
        with opened_folder(workspace.root, folder) as fd, os.scandir(fd) as entries:
            listed = [(entry.name, _status(entry)) for entry in entries]
    except (FileNotFoundError, PersistenceError):  # gone or replaced since it was listed
        return
    for last, found in listed:
        name = f"{folder}/{last}" if folder else last
        path = unicodedata.normalize("NFC", name)
        is_team = last == TEAM and not in_team and folder.count("/") == 0
        if found is None or not is_open_name(last) or (last.startswith(".") and not is_team):
            continue
        if stat.S_ISREG(found.st_mode):
            yield path, name, found
        elif stat.S_ISDIR(found.st_mode) and f"{path}/".startswith(prefix[: len(path) + 1]):
            yield from _walk(workspace, prefix, name, in_team=in_team or is_team)


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None


def read_document(
    workspace: Workspace,
    path: str,
    *,
    start_line: int | None = None,
    end_line: int | None = None,
) -> Document:
    """The text of a document, or its lines from `start_line` to `end_line`; lines behind its end are left out.

    Raises NotFoundError, BodyInvalidError, ForbiddenError, UnsafeObjectError, TooLargeError.
    """
    name = document_name(workspace, path)
    file = read_text(workspace.root, name)
    if file is None:
        raise NotFoundError(f"there is no document {path[:200]!r}")
    first, last = start_line or 1, end_line
    if (start_line is not None and start_line < 1) or (last is not None and last < first):
        raise BodyInvalidError("start_line and end_line are 1-based and inclusive, end_line is not before start_line")
    text = file.text.replace("\r\n", "\n")
    lines = text.split("\n")[: None if not text.endswith("\n") else -1] if text else []
    if start_line is not None or last is not None:
        text = "".join(f"{line}\n" for line in lines[first - 1 : last])
    return Document(unicodedata.normalize("NFC", path), text, file.etag, file.mtime_s, len(lines), file.utf8)


def write_document(
    workspace: Workspace,
    path: str,
    text: str,
    *,
    author: Author,
    if_match: str | None = None,
    if_none_match: str | None = None,
) -> WrittenDocument:
    """Create or replace a document whole; the conditions are the headers If-Match and If-None-Match as they came.

    Raises PreconditionRequiredError when there is neither, PreconditionFailedError (with etag and diff) when one does not hold,
    SecretDetectedError, TooLargeError, NotUtf8Error, ForbiddenError, BodyInvalidError, UnsafeObjectError, StoreBusyError.
    """
    name = writable_name(workspace, path)
    _require_condition(if_match, if_none_match, path)
    new = text.replace("\r\n", "\n")
    data = encode_text(path, new)
    with locked(workspace.root, name, workspace.lock_of(name)) as held:
        old = read_text(workspace.root, name)
        if not _holds(if_match, if_none_match, old):
            raise changed_meanwhile(path, old, new)
        _refuse_not_utf8(path, old)
        refuse_new_secrets("" if old is None else old.text, new, where=path)
        version = replace_with_version(workspace, name, data, held, author=author)
    return WrittenDocument(unicodedata.normalize("NFC", path), etag_of(data), old is None, version)


def delete_document(workspace: Workspace, path: str, *, author: Author, if_match: str | None) -> str:
    """Remove a document; returns the version id under which its bytes are kept. Raises as `write_document`, and NotFoundError."""
    name = writable_name(workspace, path)
    _require_condition(if_match, None, path)
    with locked(workspace.root, name, workspace.lock_of(name)) as held:
        old = read_text(workspace.root, name)
        if old is None:
            raise NotFoundError(f"there is no document {path[:200]!r}")
        if not _holds(if_match, None, old):
            raise changed_meanwhile(path, old, "")
        version = remove_with_version(workspace, name, held, author=author)
    return version or ""


def append_document(workspace: Workspace, path: str, text: str, *, author: Author, heading: str | None = None) -> AppendedText:
    """Add a text at the end of a document, on lines of its own, atomically among writers; an absent document is created.

    `heading` becomes a `## ` line before it. Raises as `write_document` but for the conditions.
    """
    name = writable_name(workspace, path)
    body = text.replace("\r\n", "\n").strip("\n")
    if not body.strip():
        raise BodyInvalidError("the text is blank: give something to append")
    title = " ".join((heading or "").split())
    start_line = 0

    def change(old: str) -> str:
        nonlocal start_line
        base = old if not old or old.endswith("\n") else f"{old}\n"
        gap = "\n" if title and base and not base.endswith("\n\n") else ""
        before = f"{base}{gap}## {title}\n\n" if title else base
        start_line = before.count("\n") + 1
        return f"{before}{body}\n"

    file = edit_text(workspace, name, change, author=author)
    return AppendedText(unicodedata.normalize("NFC", path), start_line, start_line + body.count("\n"), file.etag)


def _require_condition(if_match: str | None, if_none_match: str | None, path: str) -> None:
    if if_match is None and if_none_match is None:
        raise PreconditionRequiredError(
            f"{path[:200]!r}: send If-Match with the ETag that you read, or If-None-Match: * to create it",
        )


def _holds(if_match: str | None, if_none_match: str | None, current: TextFile | None) -> bool:
    etag = None if current is None else current.etag
    return (if_match is None or _names(if_match, etag)) and (if_none_match is None or not _names(if_none_match, etag))


def _names(header: str, etag: str | None) -> bool:
    """Whether a list of tags, or `*`, names the file as it is; a weak tag never does."""
    at = 0
    while etag is not None and at < len(header) and (tag := _TAG.match(header, at)) is not None:
        if tag["any"] or (tag["etag"] == etag and not tag["weak"]):
            return True
        at = tag.end()
    return False


def _refuse_not_utf8(path: str, old: TextFile | None) -> None:
    if old is not None and not old.utf8:
        raise NotUtf8Error(f"{path!r} holds bytes that are not UTF-8: repair it by hand, recalld does not rewrite it")
