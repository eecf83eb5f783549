"""Every file-system operation of every write path goes wrong once: EIO, ENOSPC, half a write, a lost fsync, the power going."""

import errno
import random
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from persistence.workspace import open_workspace
from tests.torture.crew import Crew, Figures, check_doctor
from tests.torture.host import Host
from tests.torture.paths import PATHS
from tests.torture.volume import CrashVolume

_ALLOCATING = ("create", "mkdir", "symlink", "link", "write", "rename", "fsync", "fsyncdir", "flush")
_LASTING = ("create", "mkdir", "link", "write", "rename", "unlink", "truncate", "fsync", "fsyncdir", "chmod")
_FULL_FOR = 4  # so many operations find no space; then there is some again
_FAST = "/dev/shm" if Path("/dev/shm").is_dir() else None


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong: at which operations it can, the fields of its rule, and how a deed may then be refused."""

    name: str
    ops: tuple[str, ...]
    rule: dict
    codes: frozenset[str]


# A workspace that can't be opened is degraded; a lock that can't be written to can't be proved to be held: busy.
_IO_CODES = frozenset({"store_error", "store_busy", "degraded"})
FAULTS = (
    Fault("EIO", (), {"errno": errno.EIO}, _IO_CODES),
    Fault("EIO from then on", _LASTING, {"errno": errno.EIO, "times": 6}, _IO_CODES | {"rollback_failed"}),
    Fault(
        "ENOSPC",
        _ALLOCATING,
        {"errno": errno.ENOSPC, "times": _FULL_FOR},
        frozenset({"storage_full", "degraded", "rollback_failed"}),
    ),
    Fault("half a write", ("write",), {"half": True}, frozenset()),
    Fault(
        "half a write, then ENOSPC", ("write",), {"half": True, "errno": errno.ENOSPC}, frozenset({"storage_full", "degraded"})
    ),
    Fault("an fsync that fails and forgets", ("fsync",), {"half": True, "errno": errno.EIO}, _IO_CODES),
    Fault("power loss", _LASTING, {"then": "power_loss"}, _IO_CODES | {"rollback_failed"}),
    Fault("SIGKILL", _LASTING, {"then": "kill"}, frozenset()),
)
_HOWS = ("drop", "prefix", "torn")


def run_faults(*, seed, paths=tuple(PATHS), mode="posix", share=1.0, say=lambda _: None):
    """Let each operation of each path go wrong in each way (of these trials a random share); returns the figures."""
    rng, figures = random.Random(seed), Figures(seed)
    with tempfile.TemporaryDirectory(prefix="torture-") as folder, Host() as host, CrashVolume(folder, mode) as volume:
        for path in paths:
            for warm, start, count in PATHS[path].CYCLES:
                bench = _Bench(host, volume, Path(folder) / f"{path}{start}", path)
                bench.prepare(warm, start, count)
                bench.try_all(rng, share, figures)
            say(f"{path}: {figures}")
    return figures


class _Bench:
    """One write path on one volume, which is put back to the same state before each trial."""

    def __init__(self, host, volume, folder, path):
        self._host = host
        self._volume = volume
        self._base = folder / "base"
        self._journals = folder / "trial"
        self._base.mkdir(parents=True)
        self._path = path
        self._start = self._count = 0
        self.trace = []

    def _crew(self, folder):
        return Crew(self._host, self._volume.root, folder, paths=(self._path,), alone=True)

    def prepare(self, warm, start, count):
        """Do the deeds that come before, remember the volume as it is then, and which operations the deeds in question do."""
        self._start, self._count = start, count
        self._volume.restore("empty")
        crew = self._crew(self._base)
        if warm:
            crew.start(count=warm)
            crew.wait_all()
        self._volume.keep("begun")
        self._volume.clear()
        self._begin().wait_all()
        self.trace = self._volume.trace

    def _begin(self):
        shutil.rmtree(self._journals, ignore_errors=True)
        shutil.copytree(self._base, self._journals)
        crew = self._crew(self._journals)
        crew.start(start=self._start, count=self._count)
        return crew

    def try_all(self, rng, share, figures):
        for place, (op, name) in enumerate(self.trace, start=1):
            for fault in FAULTS:
                if (not fault.ops or op in fault.ops) and rng.random() < share:
                    problems = self._try(fault, place, rng.randrange(10**6), figures)
                    figures.problems += [f"{self._path}: {fault.name} at {place} ({op} {name}): {each}" for each in problems]
        for how in _HOWS:
            problems = self._try_after_all(how, rng.randrange(10**6), figures)
            figures.problems += [f"{self._path}: power loss ({how}) after it was acknowledged: {each}" for each in problems]

    def _try(self, fault, place, seed, figures):
        self._volume.restore("begun")
        how = _HOWS[seed % len(_HOWS)]
        ops = {"op": "|".join(fault.ops)} if fault.rule.get("times", 1) > 1 else {}
        nth = place if not ops else sum(op in fault.ops for op, _ in self.trace[:place])
        self._volume.rule(nth=nth, how=how, seed=seed, **ops, **fault.rule)
        crew = self._begin()
        crew.wait_all()
        figures.injected += 1
        return _refusals(crew, fault) + self._go_on(crew, figures)

    def _try_after_all(self, how, seed, figures):
        self._volume.restore("begun")
        crew = self._begin()
        crew.wait_all()
        self._volume.power_loss(how, seed=seed)
        figures.power_losses += 1
        return self._go_on(crew, figures)

    def _go_on(self, crew, figures):
        """What is wrong once the disk is well again, before and after the same kinds of deeds are done anew."""
        self._volume.clear()
        self._volume.power_on()
        figures.rounds += 1
        problems = self._look(crew)
        crew.start(count=self._count)
        crew.wait_all()
        last = crew.stories()[0][2][-self._count :]
        problems += [f"service did not go on: {deed.error} {deed.detail}" for deed in last if not deed.is_done]
        problems += self._look(crew)
        crew.count_into(figures)
        return list(dict.fromkeys(problems))

    def _look(self, crew):
        """What a fresh start and the doctor find, on a copy: nothing is repaired before the next deed."""
        with tempfile.TemporaryDirectory(prefix="torture-", dir=_FAST) as folder:
            copied = Path(folder) / "copy"
            self._volume.copy_to(copied)
            return check_doctor(open_workspace(copied)) + crew.check(copied)


def _refusals(crew, fault):
    """Refusals with another code than the fault may have."""
    codes = Counter(deed.error for _, _, deeds in crew.stories() for deed in deeds if deed.error not in (None, "foreign"))
    return [f"refused as {code}" for code in codes if code not in fault.codes]
