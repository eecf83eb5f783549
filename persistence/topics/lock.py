"""The lock of a topic directory, and the `.lock` file by which other tools exclude each other in a shared one.

recalld's processes exclude each other by a real file lock alone; the `.lock` file is taken on top of it, for the others.
"""

import os
import random
import re
import secrets
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from persistence.errors import PersistenceError, StoreBusyError
from persistence.files import Held, locked, opened_folder, read_bytes, translate, write_all
from persistence.topics.folder import TOKEN_FILE, TopicFolder

ABANDONED_S: Final = 60.0
_BEAT_S: Final = 5.0
_TOKEN_BYTES: Final = 4096
_HOST_FIELD: Final = 3
_PID = re.compile(r"[1-9][0-9]{0,8}\Z")


@dataclass(frozen=True, slots=True)
class LockWaits:
    """How long a writer waits for a directory's lock: once for its own, twice with a pause between for a shared one."""

    own_s: float = 0.5
    shared_s: float = 2.0
    shared_pause_s: float = 1.0


@contextmanager
def directory_locked(folder: TopicFolder, waits: LockWaits) -> Iterator[Held]:
    """Hold a topic directory's lock, which is also the lock of its index. Raises StoreBusyError; never goes on without it."""
    with ExitStack() as stack:
        if not folder.shared:
            held = stack.enter_context(_own_lock(folder, waits.own_s))
        else:
            folder.make()
            try:
                held = stack.enter_context(_shared_lock(folder, waits.shared_s))
            except StoreBusyError:
                time.sleep(waits.shared_pause_s)
                held = stack.enter_context(_shared_lock(folder, waits.shared_s))
        yield held


@contextmanager
def _own_lock(folder: TopicFolder, timeout_s: float) -> Iterator[Held]:
    with locked(folder.home.root, folder.index_name, folder.home.lock_of(folder.index_name), timeout_s=timeout_s) as held:
        yield held


@contextmanager
def _shared_lock(folder: TopicFolder, timeout_s: float) -> Iterator[Held]:
    deadline = time.monotonic() + timeout_s
    with _own_lock(folder, timeout_s) as held:
        token = Token(folder)
        token.acquire(deadline, held)
        try:
            yield held.also(token.prove)
        finally:
            token.release()


def is_abandoned(token: str, *, age_s: float, host: str, is_alive: Callable[[int], bool]) -> bool:
    """Whether a `.lock` file may be taken away, by what it holds (`pid TAB epoch-ms TAB random [TAB host]`) and its age.

    Only recalld writes the host, and only while it holds the real lock, which is ours now: a dead process of this host held it.
    A process number says nothing about another host, so there (and without a host) the file must also be old.
    """
    fields = token.strip().split("\t")
    pid = int(fields[0]) if _PID.match(fields[0]) else 0
    if len(fields) > _HOST_FIELD:
        return age_s > ABANDONED_S or (fields[_HOST_FIELD] == host and pid > 0 and not is_alive(pid))
    return age_s > ABANDONED_S and (pid == 0 or not is_alive(pid))


def is_process(pid: int) -> bool:
    """Whether a process of this number is here; one of another user counts."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class Token:
    """Our `.lock` file in a shared directory: made exclusively, kept fresh, and removed only while it is still ours."""

    def __init__(self, folder: TopicFolder, *, is_alive: Callable[[int], bool] = is_process) -> None:
        """Make the text that says who holds it; nothing is written yet. `is_alive` tells whether a process is there."""
        self._is_alive = is_alive
        self._root = folder.home.root
        self._folder = folder.folder
        self._name = folder.name(TOKEN_FILE)
        self._lock_name = folder.home.lock_of(folder.index_name)
        self._text = f"{os.getpid()}\t{time.time_ns() // 1_000_000}\t{secrets.token_hex(8)}\t{socket.gethostname()}"
        self._beat = 0.0

    def acquire(self, deadline: float, held: Held) -> None:
        """Take the `.lock` file, from an abandoned holder too; raises StoreBusyError at the `deadline` (monotonic)."""
        while not self._create():
            if self._take_away(held):
                continue
            if time.monotonic() >= deadline:
                raise StoreBusyError(f"another tool holds {self._name!r} of the shared topics: nothing was written, try again")
            time.sleep(random.uniform(0.02, 0.05))  # noqa: S311 - jitter, no secret
        self._beat = time.monotonic()

    def _create(self) -> bool:
        """Make the file with its text in one step, so that a kill never leaves an empty one that nobody may judge."""
        temp = f"{TOKEN_FILE}.tmp-{os.getpid()}-{secrets.token_hex(6)}"
        with opened_folder(self._root, self._folder) as fd:
            if _status(fd) is not None:
                return False
            try:
                _write(fd, temp, self._text)
                try:
                    os.link(temp, TOKEN_FILE, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
                except FileExistsError:
                    return os.stat(temp, dir_fd=fd).st_nlink > 1  # a network file system may have answered twice
                except OSError:  # no hard links on this mount
                    _write(fd, TOKEN_FILE, self._text)
            except FileExistsError:
                return False
            except OSError as err:
                raise translate(err, self._name) from err
            finally:
                with suppress(OSError):
                    os.unlink(temp, dir_fd=fd)
        return True

    def _take_away(self, held: Held) -> bool:
        """Remove the holder's file if the holder is gone and it is still the file that was judged; whether it is away."""
        held.assert_held()
        with opened_folder(self._root, self._folder) as fd:
            seen = _status(fd)
            if seen is None:
                return True
            if not stat.S_ISREG(seen.st_mode) or not self._is_abandoned(seen) or _version(_status(fd)) != _version(seen):
                return False
            try:
                os.unlink(TOKEN_FILE, dir_fd=fd)
            except OSError as err:
                return isinstance(err, FileNotFoundError)
        return True

    def _is_abandoned(self, seen: os.stat_result) -> bool:
        now_s = (self._root / self._lock_name).stat().st_mtime  # the file system's own clock: the lock was just written
        return is_abandoned(self._read(), age_s=now_s - seen.st_mtime, host=socket.gethostname(), is_alive=self._is_alive)

    def _read(self) -> str:
        data = read_bytes(self._root, self._name, limit=_TOKEN_BYTES)
        return "" if data is None else data.decode("utf-8", "replace")

    def prove(self) -> None:
        """Say that it is still ours, and keep it fresh; raises StoreBusyError when somebody took it."""
        if self._read() != self._text:
            raise StoreBusyError(f"{self._name!r} was taken by another tool while it was held: nothing more was written")
        if time.monotonic() - self._beat > _BEAT_S:
            with opened_folder(self._root, self._folder) as fd:
                os.utime(TOKEN_FILE, dir_fd=fd, follow_symlinks=False)
            self._beat = time.monotonic()

    def release(self) -> None:
        """Remove the file if it is ours; a failure leaves it to be judged as abandoned."""
        with suppress(OSError, PersistenceError):
            if self._read() == self._text:
                with opened_folder(self._root, self._folder) as fd:
                    os.unlink(TOKEN_FILE, dir_fd=fd)


def _status(fd: int) -> os.stat_result | None:
    try:
        return os.stat(TOKEN_FILE, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _version(status: os.stat_result | None) -> tuple[int, int] | None:
    return None if status is None else (status.st_ino, status.st_mtime_ns)


def _write(fd: int, name: str, text: str) -> None:
    opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=fd)
    try:
        write_all(opened, text.encode())
    finally:
        os.close(opened)
