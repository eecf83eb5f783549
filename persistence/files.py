"""Safe opening, atomic replacing and locking of single files, by workspace-relative name. What they mean is decided above."""

import errno
import fcntl
import hashlib
import os
import random
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from persistence.errors import (
    PersistenceError,
    StorageFullError,
    StoreBusyError,
    StoreFaultError,
    TooLargeError,
    UnsafeObjectError,
)

LOCK_TIMEOUT_S: Final = 5.0
# A free lock goes to whoever asks first, most often the writer that just let go of it, and the others starve. So one waiter at
# a time has the turn (a lock of its own) to ask for the lock, and asks often; a writer that comes back stands behind it.
_LOCK_PAUSE_S: Final = 0.01
_TURN_PAUSE_S: Final = 0.002
MAX_TEXT_BYTES: Final = 4 * 1024 * 1024
_SAFE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class TextFile:
    """A text file as read: without BOM, bytes that are not UTF-8 replaced and `utf8` False."""

    text: str
    etag: str
    utf8: bool
    mtime_s: float


def etag_of(data: bytes) -> str:
    """SHA-256 of the bytes, in hex: the strong validator of a file."""
    return hashlib.sha256(data).hexdigest()


def translate(err: OSError, name: str) -> PersistenceError:
    """The archive's error for a failed operation on `name`: by what the caller can do about it."""
    if err.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFullError(f"no space left while writing {name!r}: free some space on the volume and try again")
    if err.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR):
        return UnsafeObjectError(f"{name!r} is, or lies behind, a link or another object that is no regular file")
    return StoreFaultError(f"{name!r}: {err.strerror}")


@contextmanager
def opened_folder(root: Path, name: str, *, create: bool = False) -> Iterator[int]:
    """A descriptor of the folder `name` below `root`, no link followed at any level (the root itself may be one).

    Raises FileNotFoundError when it is absent and not to be created, UnsafeObjectError when a part is no real folder. What the
    disk refuses in the block is translated too, but for a name that is not there or is taken.
    """
    try:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in [part for part in name.split("/") if part]:
                fd = _step(fd, part, name, create=create)
            yield fd
        finally:
            os.close(fd)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as err:
        raise translate(err, name) from err


def _step(fd: int, part: str, name: str, *, create: bool) -> int:
    try:
        if create:
            with suppress(FileExistsError):
                os.mkdir(part, 0o777, dir_fd=fd)
                os.fsync(fd)
        below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    except FileNotFoundError:
        raise
    except OSError as err:
        raise translate(err, name) from err
    os.close(fd)
    return below


def split_name(name: str) -> tuple[str, str]:
    """(folder, last part) of a workspace-relative name."""
    folder, _, last = name.rpartition("/")
    return folder, last


def open_regular(root: Path, name: str, flags: int = os.O_RDONLY) -> int:
    """Open the regular file `name`, never through a link, never blocking on a FIFO; the caller closes the descriptor.

    With O_CREAT missing folders are made. Raises FileNotFoundError, UnsafeObjectError, StorageFullError, StoreFaultError.
    """
    folder, last = split_name(name)
    with opened_folder(root, folder, create=bool(flags & os.O_CREAT)) as folder_fd:
        try:
            fd = os.open(last, flags | _SAFE, 0o666, dir_fd=folder_fd)
        except FileNotFoundError:
            raise
        except OSError as err:
            raise translate(err, name) from err
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise UnsafeObjectError(f"{name!r} is no regular file")
    return fd


def read_bytes(root: Path, name: str, *, limit: int = MAX_TEXT_BYTES) -> bytes | None:
    """The bytes of `name`, or None when there is no such file; raises TooLargeError over `limit`."""
    found = _read(root, name, limit)
    return None if found is None else found[0]


def _read(root: Path, name: str, limit: int) -> tuple[bytes, float] | None:
    try:
        fd = open_regular(root, name)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as file:
        try:
            data, mtime_s = file.read(limit + 1), os.fstat(file.fileno()).st_mtime
        except OSError as err:
            raise translate(err, name) from err
        if len(data) > limit:
            raise TooLargeError(f"{name!r} is over {limit} bytes")
        return data, mtime_s


def real_place(root: Path, name: str) -> tuple[Path, str]:
    """(folder, last part) of the file that `name` leads to, for the few names that may be links. Raises StoreFaultError."""
    path = root / name
    try:
        if path.is_symlink():
            path = Path(os.path.realpath(path))
    except OSError as err:
        raise translate(err, name) from err
    return path.parent, path.name


def read_text(root: Path, name: str, *, limit: int = MAX_TEXT_BYTES) -> TextFile | None:
    """The text of `name` (a BOM dropped, bad bytes replaced), or None when there is no such file."""
    found = _read(root, name, limit)
    if found is None:
        return None
    data, mtime_s = found
    body = data.removeprefix(_BOM)
    try:
        return TextFile(body.decode("utf-8"), etag_of(data), utf8=True, mtime_s=mtime_s)
    except UnicodeDecodeError:
        return TextFile(body.decode("utf-8", "replace"), etag_of(data), utf8=False, mtime_s=mtime_s)


def sync_folder(root: Path, folder: str) -> None:
    """Make the names in `folder` durable."""
    with opened_folder(root, folder) as fd:
        os.fsync(fd)


class Held:
    """A held file lock that can prove it is still held: a partition longer than the lease loses it silently."""

    def __init__(self, fd: int, name: str, *, proofs: tuple[Callable[[], None], ...] = ()) -> None:
        """Take the descriptor that holds the lock of the file `name`."""
        self._fd = fd
        self._name = name
        self._proofs = proofs

    def also(self, proof: Callable[[], None]) -> "Held":
        """The same lock, held only while `proof` (which raises otherwise) says that another one is held too."""
        return Held(self._fd, self._name, proofs=(*self._proofs, proof))

    def assert_held(self) -> None:
        """Write through the lock's own descriptor; the kernel answers EIO when the lock was lost (facts: fencing).

        Raises StoreBusyError then, and StorageFullError when there is no room for those few bytes: the lock is held all the same.
        """
        for proof in self._proofs:
            proof()
        try:
            os.pwrite(self._fd, secrets.token_hex(8).encode(), 0)
            os.fdatasync(self._fd)
        except OSError as err:
            if isinstance(full := translate(err, self._name), StorageFullError):
                raise full from err
            raise StoreBusyError(f"the lock of {self._name!r} was lost while it was held: nothing was written") from err


@contextmanager
def locked(root: Path, name: str, lock_name: str, *, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[Held]:
    """Hold the exclusive lock of `name` (a real flock on `lock_name`, never unlinked) among threads, processes and hosts.

    Raises StoreBusyError when another holder keeps it for `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    with _opened_lock(root, lock_name) as fd:
        with _opened_lock(root, f"{lock_name}.turn") as turn:
            flock(turn, name, deadline=deadline)
            flock(fd, name, deadline=deadline, pause_s=_TURN_PAUSE_S)
        yield Held(fd, name)


@contextmanager
def _opened_lock(root: Path, lock_name: str) -> Iterator[int]:
    try:
        fd = open_regular(root, lock_name, os.O_RDWR | os.O_CREAT)
    except OSError as err:
        raise translate(err, lock_name) from err
    try:
        yield fd
    finally:
        with suppress(OSError):  # late news of what was written to prove that it is held; the lock is released all the same
            os.close(fd)


def flock(fd: int, name: str, *, deadline: float, pause_s: float = _LOCK_PAUSE_S) -> None:
    """Take the exclusive lock of an open file; raises StoreBusyError when another holds it until `deadline` (monotonic)."""
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as err:
            if err.errno not in (errno.EAGAIN, errno.EACCES):
                raise translate(err, name) from err
            if time.monotonic() >= deadline:
                raise StoreBusyError(f"another writer holds {name!r}: nothing was written, try again") from err
            time.sleep(random.uniform(0.2, 1) * pause_s)  # noqa: S311 - jitter against lock convoys, no secret
        else:
            return


def replace_bytes(root: Path, name: str, data: bytes, held: Held) -> None:
    """Replace `name` whole: after a crash at any point the file holds the old or the new bytes, never others.

    Keeps mode and, where permitted, owner of the old file. The caller holds the file's lock (`held`).
    """
    folder, last = split_name(name)
    with opened_folder(root, folder, create=True) as folder_fd:
        old = _stat_regular(folder_fd, last, name)
        temp = f".{last[:100]}.tmp-{os.getpid()}-{secrets.token_hex(6)}"
        try:
            _write_temp(folder_fd, temp, data, old)
            held.assert_held()
            os.rename(temp, last, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
            os.fsync(folder_fd)
        except BaseException as err:
            with suppress(OSError):
                os.unlink(temp, dir_fd=folder_fd)
            if isinstance(err, OSError):
                raise translate(err, name) from err
            raise


def create_bytes(root: Path, name: str, data: bytes) -> bool:
    """Create `name` whole and durably; False when something stands there already, which is left alone, whoever was faster."""
    folder, last = split_name(name)
    with opened_folder(root, folder, create=True) as folder_fd:
        temp = f".{last[:100]}.tmp-{os.getpid()}-{secrets.token_hex(6)}"
        try:
            _write_temp(folder_fd, temp, data, None)
            publish_new(folder_fd, temp, last)
            os.fsync(folder_fd)
        except FileExistsError:
            return False
        except OSError as err:
            raise translate(err, name) from err
        finally:
            with suppress(OSError):
                os.unlink(temp, dir_fd=folder_fd)
    return True


def publish_new(folder_fd: int, temp: str, last: str, *, link: Callable[..., None] = os.link) -> None:
    """Give a written temp file its name; raises FileExistsError when that is taken.

    Where the disk has no links, an empty file takes the name first.
    """
    try:
        link(temp, last, src_dir_fd=folder_fd, dst_dir_fd=folder_fd, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError as err:
        if err.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS):
            raise
        os.close(os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, 0o666, dir_fd=folder_fd))
        os.rename(temp, last, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)


def _stat_regular(folder_fd: int, last: str, name: str) -> os.stat_result | None:
    try:
        found = os.stat(last, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise UnsafeObjectError(f"{name!r} is no regular file: it is not replaced")
    return found


def _write_temp(folder_fd: int, temp: str, data: bytes, old: os.stat_result | None) -> None:
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, 0o666, dir_fd=folder_fd)
    try:
        write_all(fd, data)
        if old is not None:
            os.fchmod(fd, stat.S_IMODE(old.st_mode))
            with suppress(PermissionError):  # an EFS access point owns every file and refuses chown
                os.fchown(fd, old.st_uid, old.st_gid)
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write every byte: a short write is not an error to the kernel."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
