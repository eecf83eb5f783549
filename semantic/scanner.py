"""What documents a workspace holds, and safe reading of one. Looks and reads only; what to do about it is decided in `plan`."""

import os
import re
import stat as stat_module
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from semantic.errors import DocumentChangedError, DocumentUnreadableError, IndexFaultError
from semantic.types import Collection, DocumentStat, Failure

MAX_DOCUMENT_BYTES: Final = 4 * 1024 * 1024
_MARK: Final = ".recalld/VERSION"
_MAX_DEPTH: Final = 32
SHARED_PREFIX: Final = ".agents/memory/"
"""Topics that this workspace shares with other tools; they are looked at only when that is turned on."""

_REMOVED: Final = ".ocl-removed"
_MAX_REMOVED_BYTES: Final = 1 << 20
_CHANNEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\Z", re.ASCII)
_NO_CHANNELS: Final = frozenset({"memory", "skills", "events", "attachments", "threads", "scratch"})
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What a scan saw, by NFC path.

    `unreadable`: files and folders that could not be looked at, "" for the root; what is indexed of them must be kept.
    `folders`: the folders that were listed, as named on disk.
    """

    documents: dict[str, DocumentStat] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()
    problems: tuple[Failure, ...] = ()
    folders: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DocumentRead:
    """A document's bytes and its stat at the moment of reading."""

    data: bytes
    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int


def is_channel(name: str) -> bool:
    """Whether a folder of this name can be a channel (volume.md, "Channel ids")."""
    return _CHANNEL.match(name) is not None and ".." not in name and name.casefold() not in _NO_CHANNELS


def classify(path: str) -> tuple[Collection, str | None] | None:
    """The collection and channel of a workspace-relative path, or None when such a file is not indexed."""
    parts = path.removeprefix(SHARED_PREFIX).split("/")
    if any(not part or part.startswith(".") for part in parts) or not _is_markdown(parts[-1]):
        return None
    if path.startswith(SHARED_PREFIX):
        return "memory", None
    found = _classify_global(parts)
    if found is not None or len(parts) == 1 or not is_channel(parts[0]):
        return found
    return _classify_channel(parts[0], parts[1:])


def _classify_global(parts: list[str]) -> tuple[Collection, None] | None:
    if len(parts) == 1:
        return ("memory", None) if _stem(parts[0]) in ("MEMORY", "SYSTEM") else None
    if parts[0] == "memory":
        return "memory", None
    return ("skills", None) if parts[0] == "skills" else None


def _classify_channel(channel: str, parts: list[str]) -> tuple[Collection, str] | None:
    if len(parts) == 1:
        return ("channels", channel) if _stem(parts[0]) == "MEMORY" else None
    if parts[0] == "memory":
        return "channels", channel
    return ("skills", channel) if parts[0] == "skills" else None


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def _is_markdown(name: str) -> bool:
    return name[-3:].casefold() == ".md" and len(name) > len(".md")


def may_hold_documents(folder: str) -> bool:
    """Whether documents can lie in a folder of this workspace-relative path."""
    return classify(f"{folder}/MEMORY.md") is not None


def scan(root: Path, *, shared: bool = False) -> ScanResult:
    """List every document by stat alone: regular files below real folders, no link followed at any level but the root's own.

    With `shared` also the topics that are shared with other tools.

    A file whose name is NFD on disk has its NFC path here; `read_document` finds it by that. Raises IndexFaultError when the
    root is no workspace, before or after: a volume that goes away must delete nothing.
    """
    root_fd = _open_root(root)
    try:
        sweep = _Sweep()
        sweep.folder(root_fd, "", 0)
        if shared:
            sweep.shared(root_fd)
    finally:
        os.close(root_fd)
    os.close(_open_root(root))
    return ScanResult(sweep.documents, tuple(sweep.unreadable), tuple(sweep.problems), frozenset(sweep.folders))


def _open_root(root: Path) -> int:
    try:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as err:
        raise IndexFaultError(f"the workspace {str(root)!r} can't be opened ({err.strerror}): nothing was changed") from err
    try:
        if not stat_module.S_ISREG(os.stat(_MARK, dir_fd=fd, follow_symlinks=False).st_mode):
            raise FileNotFoundError
    except OSError as err:
        os.close(fd)
        raise IndexFaultError(f"{str(root)!r} is no workspace ({_MARK} is missing): is the volume mounted?") from err
    return fd


class _Sweep:
    """One walk over the workspace and what it found."""

    def __init__(self) -> None:
        self.documents: dict[str, DocumentStat] = {}
        self.unreadable: list[str] = []
        self.problems: list[Failure] = []
        self.folders: list[str] = []

    def folder(self, fd: int, path: str, depth: int) -> None:
        """Look at everything in an opened folder; `path` is its name on disk, "" for the root."""
        try:
            with os.scandir(fd) as entries:
                found = sorted(entries, key=lambda entry: (_nfc(entry.name), entry.name != _nfc(entry.name)))
        except OSError as err:
            self._keep(path, f"can't be listed: {err.strerror}")
            return
        self.folders.append(path)
        removed = self._removed_topics(fd, found)
        before = ""
        for entry in found:
            if _nfc(entry.name) in removed:
                continue
            entry_path = f"{path}/{entry.name}" if path else entry.name
            if _nfc(entry.name) == before:
                self._problem(_nfc(entry_path), "stands there twice, in two Unicode forms of the name: rename one of them")
            else:
                self._entry(fd, entry, entry_path, depth)
            before = _nfc(entry.name)

    def shared(self, root_fd: int) -> None:
        """Look at the shared topics, which lie in a hidden folder."""
        fd, path = os.dup(root_fd), SHARED_PREFIX.rstrip("/")
        try:
            for part in path.split("/"):
                below = os.open(part, _FOLDER_FLAGS, dir_fd=fd)
                os.close(fd)
                fd = below
            self.folder(fd, path, 2)
        except FileNotFoundError:
            return
        except OSError as err:
            self._keep(path, f"can't be looked at: {err.strerror}")
        finally:
            os.close(fd)

    def _removed_topics(self, fd: int, found: list[os.DirEntry[str]]) -> frozenset[str]:
        """Names of topics that were taken out of the index (formats: topics, "tombstones"): their files stay, unsearched."""
        if not any(entry.name == _REMOVED for entry in found):
            return frozenset()
        try:
            removed_fd = os.open(_REMOVED, _FILE_FLAGS, dir_fd=fd)
        except OSError:
            return frozenset()
        try:
            regular = stat_module.S_ISREG(os.fstat(removed_fd).st_mode)
            lines = os.read(removed_fd, _MAX_REMOVED_BYTES).decode("utf-8", "replace").split("\n") if regular else []
        finally:
            os.close(removed_fd)
        return frozenset(_nfc(line.strip()) for line in lines if line.strip().casefold().endswith(".md"))

    def _entry(self, fd: int, entry: os.DirEntry[str], path: str, depth: int) -> None:
        kind = classify(_nfc(path))
        if entry.name.startswith(".") or not (kind or may_hold_documents(_nfc(path))):
            return
        try:
            if entry.is_symlink():
                if kind or entry.is_dir():
                    self._problem(path, "is a link: it is not followed")
            elif entry.is_dir(follow_symlinks=False):
                self._below(fd, entry.name, path, depth)
            elif kind:
                self._file(path, *kind, entry.stat(follow_symlinks=False))
        except FileNotFoundError:
            return  # gone since the listing
        except OSError as err:
            self._keep(path, f"can't be looked at: {err.strerror}")

    def _below(self, fd: int, name: str, path: str, depth: int) -> None:
        if depth >= _MAX_DEPTH:
            self._keep(path, f"lies more than {_MAX_DEPTH} folders deep: it is not indexed")
            return
        below = os.open(name, _FOLDER_FLAGS, dir_fd=fd)
        try:
            self.folder(below, path, depth + 1)
        finally:
            os.close(below)

    def _file(self, disk_path: str, collection: Collection, channel: str | None, found: os.stat_result) -> None:
        path = _nfc(disk_path)
        if not stat_module.S_ISREG(found.st_mode):
            self._problem(path, "is no regular file: it is not read")
            return
        if not path.isprintable() and not _is_text(path):
            self._problem(path, "has a name that is not UTF-8: rename it")
            return
        self.documents[path] = DocumentStat(
            path, collection, channel, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
        )

    def _keep(self, path: str, reason: str) -> None:
        self.unreadable.append(_nfc(path))
        self._problem(_nfc(path), reason)

    def _problem(self, path: str, reason: str) -> None:
        self.problems.append(Failure(path.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), reason))


def _nfc(path: str) -> str:
    return path if path.isascii() else unicodedata.normalize("NFC", path)


def _is_text(path: str) -> bool:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def read_document(root: Path, path: str, *, limit_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
    """The bytes of a document; raises as `load_document` does."""
    return load_document(root, path, limit_bytes=limit_bytes).data


def load_document(root: Path, path: str, *, limit_bytes: int = MAX_DOCUMENT_BYTES) -> DocumentRead:
    """Read a document by its NFC path: never through a link, never waiting on a FIFO, checked on the open descriptor.

    Raises DocumentUnreadableError (no regular file, no permission, over `limit_bytes`); DocumentChangedError when it is gone
    or is written to right now.
    """
    try:
        with _opened_document(root, path) as fd:
            return _read_stable(fd, path, limit_bytes)
    except FileNotFoundError as err:
        raise DocumentChangedError(f"{path!r} is gone") from err
    except OSError as err:
        raise DocumentUnreadableError(f"{path!r} can't be read: {err.strerror}") from err


@contextmanager
def _opened_document(root: Path, path: str) -> Iterator[int]:
    *folders, name = path.split("/")
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part, flags in [*((folder, _FOLDER_FLAGS) for folder in folders), (name, _FILE_FLAGS)]:
            below = _open_part(fd, part, flags)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def _open_part(fd: int, part: str, flags: int) -> int:
    """Open by the exact name, else by the one name in the folder that has this NFC form."""
    try:
        return os.open(part, flags, dir_fd=fd)
    except FileNotFoundError:
        twin = None if part.isascii() else next((name for name in os.listdir(fd) if _nfc(name) == part), None)
        if twin is None:
            raise
        return os.open(twin, flags, dir_fd=fd)


def _read_stable(fd: int, path: str, limit_bytes: int) -> DocumentRead:
    before = os.fstat(fd)
    if not stat_module.S_ISREG(before.st_mode):
        raise DocumentUnreadableError(f"{path!r} is no regular file")
    if before.st_size > limit_bytes:
        raise DocumentUnreadableError(f"{path!r} is over {limit_bytes} bytes: split it into smaller files")
    parts = []
    while part := os.read(fd, 1 << 20):
        parts.append(part)
        if sum(map(len, parts)) > limit_bytes:
            raise DocumentChangedError(f"{path!r} grew while it was read")
    found = os.fstat(fd)
    read = DocumentRead(b"".join(parts), found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
    if (before.st_size, before.st_mtime_ns, before.st_ctime_ns) != (read.size_bytes, read.mtime_ns, read.ctime_ns):
        raise DocumentChangedError(f"{path!r} changed while it was read")
    return read
