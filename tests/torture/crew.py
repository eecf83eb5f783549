"""The writers of all paths on one volume: started, killed, and what they left checked against what they were told."""

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from persistence.doctor import examine, repair
from persistence.workspace import QUARANTINE, open_workspace
from tests.torture.controls import CONTROLS
from tests.torture.deeds import read_deeds
from tests.torture.host import Job
from tests.torture.paths import PATHS

_ALL = PATHS | CONTROLS
_LATER = timedelta(hours=2)  # leftovers are only taken away when their writer must be gone


@dataclass(slots=True)
class Figures:
    """What a torture did and found."""

    seed: int
    rounds: int = 0
    kills: int = 0
    power_losses: int = 0
    injected: int = 0
    acknowledged: Counter = field(default_factory=Counter)
    cut_short: int = 0
    refused: Counter = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def __str__(self):
        acked = ", ".join(f"{path} {count}" for path, count in sorted(self.acknowledged.items()))
        did = {"kills": self.kills, "power losses": self.power_losses, "faults": self.injected}
        lines = [
            f"seed {self.seed}: {self.rounds} rounds, " + ", ".join(f"{count} {name}" for name, count in did.items() if count),
            f"  acknowledged {self.acknowledged.total()} ({acked})",
            f"  cut short {self.cut_short}, refused {dict(self.refused)}",
            f"  problems: {len(self.problems)}",
            *(f"    {problem}" for problem in self.problems),
        ]
        return "\n".join(lines)


class Crew:
    """Two or so writers on each of the given paths. Their journals are kept in `folder`, outside of the volume."""

    def __init__(self, host, root, folder, *, paths=tuple(PATHS), alone=False):
        self._host = host
        self._root = root
        self._folder = folder
        self._writers = [(path, f"{path}{n}") for path in paths for n in range(1 if alone else _ALL[path].WRITERS)]
        self.pids = []

    @property
    def size(self):
        return len(self._writers)

    def _journal(self, writer):
        return self._folder / f"{writer}.journal"

    def start(self, *, count=0, start=0):
        """Start every writer at the given deed, or after its last one if that is later."""
        for path, writer in self._writers:
            deeds = read_deeds(self._journal(writer))
            first = max(start, deeds[-1].number + 1 if deeds else 0)
            job = Job(path, str(self._root), writer, str(self._journal(writer)), start=first, count=count)
            self.pids.append(self._host.start(job))

    def kill(self, pid):
        self.pids.remove(pid)
        self._host.kill(pid)

    def kill_all(self):
        for pid in tuple(self.pids):
            self.kill(pid)

    def wait_all(self):
        while self.pids:
            self._host.wait(self.pids.pop())

    def stories(self):
        """(path, writer, deeds) of every writer."""
        return [(path, writer, read_deeds(self._journal(writer))) for path, writer in self._writers]

    def check(self, root=None):
        """What is wrong on the volume now (or on its copy at `root`), as a fresh start finds it."""
        workspace, stories = open_workspace(root or self._root), self.stories()
        problems = []
        for path in dict.fromkeys(path for path, _ in self._writers):
            own = {writer: deeds for each, writer, deeds in stories if each == path}
            begun = {writer: [deed for deed in deeds if deed.intent] for writer, deeds in own.items()}
            problems += [f"{path}: {problem}" for problem in _ALL[path].check(workspace, begun)]
            foreign = [deed.detail for deeds in own.values() for deed in deeds if deed.error == "foreign"]
            problems += [f"{path}: an error that is none of the archive's own: {detail}" for detail in dict.fromkeys(foreign)]
        return problems + check_files(workspace)

    def count_into(self, figures):
        for path, _, deeds in self.stories():
            figures.acknowledged[path] += sum(deed.is_done for deed in deeds)
            figures.cut_short += sum(not deed.is_done and deed.error is None for deed in deeds)
            figures.refused.update(deed.error for deed in deeds if deed.error)


def check_doctor(workspace):
    """Whether the doctor puts right all that is left, and finds nothing then but lines that were torn and are kept for ever."""
    now = datetime.now(UTC) + _LATER
    repaired = repair(workspace, examine(workspace, now=now), now=now)
    problems = [f"doctor: {each.finding} was not repaired: {each.action}" for each in repaired if not each.done]
    return problems + [
        f"doctor: {each}" for each in examine(workspace, now=now) if not each.code.endswith(("_bad_line", "_torn_tail"))
    ]


def check_files(workspace):
    """Whether every file that people or the next start will read is whole; bad lines must be kept in quarantine, too."""
    problems = []
    aside = {path.read_bytes() for path in (workspace.root / QUARANTINE).glob("*")}
    for path in sorted(workspace.root.rglob("*")):
        name = str(path.relative_to(workspace.root))
        if ".tmp-" in path.name or not path.is_file() or name.startswith(QUARANTINE):
            continue
        if path.suffix == ".jsonl":
            problems += [f"{name}: a bad line that is not in quarantine" for line in _bad_lines(path) if line not in aside]
        elif path.suffix in (".md", ".json") and "/versions/" not in name and _is_torn(path):
            problems.append(f"{name} is empty, or holds NULs")
    return problems


def _is_torn(path):
    """A file that is appended to (a team's log) is empty from its making to its first line."""
    data = path.read_bytes()
    return b"\0" in data or (not data and path.parent.name != "log")


def _bad_lines(path):
    """The whole lines that are no JSON. What stands behind the last LF waits for the next append."""
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            json.loads(line or b"{}")
        except ValueError:
            yield line
