"""The indexer's lease: one writer to an index at a time, among threads, processes and hosts, and proof of it before a commit."""

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import filelock

from semantic.errors import IndexBusyError, IndexFaultError

_KEPT_GENERATIONS: Final = 3
_POLL_S: Final = 0.02


def lease_of(root: Path, index_uri: str) -> "Lease":
    """The lease of the index at `index_uri`: in its folder, or on the volume when it lies elsewhere (`s3://…`)."""
    if "://" not in index_uri:
        return Lease(Path(index_uri) / "indexer.lock")
    return Lease(root / ".recalld" / "locks" / f"indexer-{hashlib.sha256(index_uri.encode()).hexdigest()[:16]}.lock")


class Lease:
    """A real flock on `path` (never unlinked), and beside it numbered generations `<name>.gen-<n>` made by exclusive create.

    A holder that was cut off longer than the lock lives finds at its next `check` that the lock is lost or a newer generation
    exists, and must not commit.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: tuple[int, int] | None = None

    @contextmanager
    def held(self, *, timeout_s: float) -> Iterator[int]:
        """Hold the lease; gives its generation. Raises IndexBusyError when another holder keeps it for `timeout_s`."""
        fds: list[int] = []
        lock = self._lock(timeout_s, fds)
        try:
            lock.acquire()
        except filelock.Timeout as err:
            raise IndexBusyError(
                f"another indexer has held the lease for {timeout_s:g} s: try again, or stop the other one"
            ) from err
        except OSError as err:
            raise self._fault(err) from err
        try:
            generation = self._next_generation()
            self._held = (fds[-1], generation)
            yield generation
        finally:
            self._held = None
            lock.release()

    def _lock(self, timeout_s: float, fds: list[int]) -> filelock.BaseFileLock:
        with suppress(OSError):  # a missing folder that can't be made is reported by the lock itself
            self._path.parent.mkdir(parents=True, exist_ok=True)
        return filelock.FileLock(
            self._path,
            timeout=timeout_s,
            mode=0o666,
            thread_local=False,
            fallback_to_soft=False,
            poll_interval=_POLL_S,
            on_acquired=fds.append,
        )

    def check(self) -> None:
        """Prove that the lease is still held; raises IndexBusyError when it is not: the commit must not happen.

        The write goes through the lock's own descriptor: after a lost lock the kernel refuses it (EIO on NFS).
        """
        if self._held is None:
            raise IndexBusyError("the lease is not held: nothing was committed")
        fd, generation = self._held
        try:
            os.pwrite(fd, secrets.token_hex(8).encode(), 0)
            os.fsync(fd)
            newest = max(self._generations(), default=0)
        except OSError as err:
            raise IndexBusyError("the lease was lost while it was held: nothing was committed, the next sweep goes on") from err
        if newest != generation:
            raise IndexBusyError(f"another indexer took over (generation {newest}, ours {generation}): nothing was committed")

    def _generations(self) -> list[int]:
        prefix = f"{self._path.name}.gen-"
        numbers = (beside.name.removeprefix(prefix) for beside in self._path.parent.iterdir() if beside.name.startswith(prefix))
        return sorted(int(number) for number in numbers if number.isdecimal())

    def _generation_path(self, generation: int) -> Path:
        return self._path.with_name(f"{self._path.name}.gen-{generation}")

    def _next_generation(self) -> int:
        """Take the next free number; the exclusive create has one winner even if the lock should have two holders."""
        try:
            while True:
                known = self._generations()
                generation = max(known, default=0) + 1
                with suppress(FileExistsError):
                    os.close(os.open(self._generation_path(generation), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
                    break
            for old in known[: 1 - _KEPT_GENERATIONS]:
                with suppress(FileNotFoundError):
                    self._generation_path(old).unlink()
        except OSError as err:
            raise self._fault(err) from err
        return generation

    def _fault(self, err: OSError) -> IndexFaultError:
        return IndexFaultError(
            f"the lease {self._path.name!r} can't be used ({err.strerror}): check the folder {self._path.parent}"
        )
