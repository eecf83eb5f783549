"""One topic directory on disk: what is in it, its list of removed topics, and changing several of its files as one.

Which changes are made, and under which lock, is decided in `topic_store`.
"""

import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from persistence.errors import PersistenceError, RollbackFailedError, StorageFullError, UnsafeObjectError
from persistence.files import (
    Held,
    locked,
    open_regular,
    opened_folder,
    read_bytes,
    read_text,
    replace_bytes,
    sync_folder,
    translate,
)
from persistence.topics.index import file_key, is_safe_topic_file
from persistence.workspace import ChannelId, Workspace

INDEX_FILE: Final = "MEMORY.md"
REMOVED_FILE: Final = ".ocl-removed"
TOKEN_FILE: Final = ".lock"  # noqa: S105 - the name of a file
SENTINEL_FILE: Final = ".shared-dir-migrated"
_OWN_FILES: Final = frozenset({INDEX_FILE, REMOVED_FILE, TOKEN_FILE, SENTINEL_FILE})
SEEN_BYTES: Final = 51_200
"""How much of a topic a reader or a search sees."""

_TEMP = re.compile(r"\.?(?P<target>.+)\.tmp-[0-9]+-[A-Za-z0-9]+\Z")
_TEMP_AGE_S: Final = 3600.0
_KEPT_BYTES: Final = 64 * 1024 * 1024
_TEMP_NAME_CUT: Final = 100  # longer names are cut in the name of their temporary file


@dataclass(frozen=True, slots=True)
class Listing:
    """What a topic directory holds: regular topic files by `file_key`, as the disk spells them, and names of other kinds.

    `taken` are all names and `unsafe` those of what is no regular file, both as `file_key` in one case.
    """

    files: Mapping[str, str]
    taken: frozenset[str]
    unsafe: frozenset[str]
    temps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicFolder:
    """A topic directory. `home` is what its locks and versions belong to: the workspace, or a shared directory itself."""

    home: Workspace
    folder: str
    shared: bool = False

    @classmethod
    def of(cls, workspace: Workspace, channel: ChannelId | None) -> "TopicFolder":
        return cls(workspace, Workspace.topics(channel))

    def name(self, file: str) -> str:
        """The name of a file of this directory, relative to `home`."""
        return f"{self.folder}/{file}" if self.folder else file

    @property
    def index_name(self) -> str:
        return self.name(INDEX_FILE)

    def make(self) -> None:
        """Make the directory of a shared folder, which nothing else makes; one in the workspace is made by its first write."""
        root = self.home.root
        missing = [path for path in (root, *root.parents) if not path.exists()]
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise translate(err, root.name) from err
        for path in missing:
            sync_folder(path.parent, "")

    def list_files(self) -> Listing:
        """Look what is there now; an absent directory is an empty one. Raises UnsafeObjectError, StoreFaultError.

        On a network disk a listing can lack what another host made seconds ago: open a file to know that it is gone.
        """
        files: dict[str, str] = {}
        taken, unsafe, temps = set(), set(), []
        for name, is_regular in self._scan():
            taken.add(file_key(name).casefold())
            if not is_regular:
                unsafe.add(file_key(name).casefold())
            elif _TEMP.match(name):
                temps.append(name)
            elif is_safe_topic_file(name):
                files[file_key(name)] = name
        return Listing(files, frozenset(taken), frozenset(unsafe), tuple(temps))

    def _scan(self) -> list[tuple[str, bool]]:
        try:
            with opened_folder(self.home.root, self.folder) as fd, os.scandir(fd) as found:
                return sorted((entry.name, entry.is_file(follow_symlinks=False)) for entry in found if _is_text(entry.name))
        except FileNotFoundError:
            return []
        except OSError as err:
            raise translate(err, self.folder or ".") from err

    def status(self, file: str) -> os.stat_result | None:
        """The status of a regular file, by opening it; None when it is gone or is something else."""
        try:
            fd = open_regular(self.home.root, self.name(file))
        except (FileNotFoundError, UnsafeObjectError):
            return None
        try:
            return os.fstat(fd)
        finally:
            os.close(fd)

    def read_start(self, file: str) -> str | None:
        """The first part of a topic's text, cut at a whole character; None when it is gone or is no regular file."""
        try:
            fd = open_regular(self.home.root, self.name(file))
        except (FileNotFoundError, UnsafeObjectError):
            return None
        with os.fdopen(fd, "rb") as opened:
            try:
                data = opened.read(SEEN_BYTES)
            except OSError as err:
                raise translate(err, self.name(file)) from err
        return data.decode("utf-8-sig", "replace").removesuffix("\ufffd")

    def read_removed(self) -> tuple[str, ...]:
        """The files whose topics were removed, each once; names that are no topic's are ignored."""
        found = read_text(self.home.root, self.name(REMOVED_FILE))
        names = [] if found is None else [line.strip() for line in found.text.split("\n")]
        return tuple(dict.fromkeys(name for name in names if is_safe_topic_file(name)))

    def write_removed(self, names: Iterable[str], held: Held) -> None:
        """Replace the list of removed topics."""
        data = "".join(f"{name}\n" for name in names).encode()
        replace_bytes(self.home.root, self.name(REMOVED_FILE), data, held)

    def sweep(self, listing: Listing) -> None:
        """Remove what killed writers left behind.

        The caller holds the directory's lock, so a temporary file can only be alive if it is an editor's of one topic.
        """
        for temp in listing.temps:
            found = _TEMP.match(temp)
            target = found["target"] if found else ""
            status = self.status(temp)
            if status is None:
                continue
            with suppress(PersistenceError):  # what can't be swept is no reason to refuse a write
                if target in _OWN_FILES or time.time() - status.st_mtime > _TEMP_AGE_S:
                    self._unlink(temp)
                elif len(target.encode()) < _TEMP_NAME_CUT:
                    name = self.name(target)
                    with locked(self.home.root, name, self.home.lock_of(name), timeout_s=0):
                        self._unlink(temp)

    def _unlink(self, file: str) -> None:
        with suppress(FileNotFoundError), opened_folder(self.home.root, self.folder) as fd:
            try:
                os.unlink(file, dir_fd=fd)
            except FileNotFoundError:
                return
            except OSError as err:
                raise translate(err, self.name(file)) from err

    @contextmanager
    def all_or_nothing(self, files: Iterable[str], held: Held) -> Iterator[None]:
        """Put these files back as they were if the block fails. Raises RollbackFailedError when that fails too.

        Each one has a second name meanwhile, so that going back is a rename and needs no space on a full disk.
        """
        before: dict[str, str | None] = {}
        try:
            for file in files:
                before[file] = self._link(file, held)
            yield
        except BaseException as err:
            failed = [self.name(file) for file, kept in before.items() if not self._is_put_back(file, kept, held)]
            if failed:
                raise RollbackFailedError(
                    f"a change failed half-way ({err}) and could not be taken back: look at {', '.join(failed)}, then repair",
                    names=tuple(failed),
                ) from err
            raise
        finally:
            for kept in before.values():
                if kept is not None:
                    with suppress(PersistenceError):  # the next sweep finds it
                        self._unlink(kept)

    def _link(self, file: str, held: Held) -> str | None:
        """A second name for a file, one that a sweep removes; None when there is no such file. A copy where links can't be."""
        kept = f".{file}.tmp-{os.getpid()}-{secrets.token_hex(6)}"
        try:
            with opened_folder(self.home.root, self.folder) as fd:
                os.link(file, kept, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError:
            data = read_bytes(self.home.root, self.name(file), limit=_KEPT_BYTES)
            if data is None:
                return None
            replace_bytes(self.home.root, self.name(kept), data, held)
        return kept

    def _is_put_back(self, file: str, kept: str | None, held: Held) -> bool:
        try:
            with suppress(StorageFullError):
                held.assert_held()
            with opened_folder(self.home.root, self.folder) as fd:
                if kept is None:
                    with suppress(FileNotFoundError):
                        os.unlink(file, dir_fd=fd)
                else:
                    os.rename(kept, file, src_dir_fd=fd, dst_dir_fd=fd)
                os.fsync(fd)
        except FileNotFoundError:  # the folder was never made: there is nothing to put back
            return kept is None
        except (OSError, PersistenceError):
            return False
        return True


def _is_text(name: str) -> bool:
    """Whether a name on disk is UTF-8; one that is not is nothing of ours."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
