"""The machine that writers run on: a process that forks one for each job, so that a new writer costs milliseconds.

`python -m tests.torture.host` takes one JSON object a line: a `Job` to start, answered with the writer's process number, or the
number of one to wait for, answered with its exit status. A writer that ended is reaped only then, so killing it by its number
can't hit another process.
"""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from persistence.errors import PersistenceError
from persistence.workspace import open_workspace
from tests.torture.controls import CONTROLS
from tests.torture.deeds import Journal
from tests.torture.paths import PATHS
from tests.torture.volume import ROOT

_PAUSE_AFTER_ERROR_S = 0.02


@dataclass(frozen=True, slots=True)
class Job:
    """Which write path a writer takes in which workspace, from which deed on and how many (0: until it is killed)."""

    path: str
    root: str
    writer: str
    journal: str
    start: int = 0
    count: int = 0


def work(job):
    """Do deed after deed. Any error that is none of the archive's own is a fault of the product: it is noted as `foreign`."""
    journal, writer, number = Journal(job.journal), None, job.start
    while not job.count or number < job.start + job.count:
        try:
            if writer is None:
                writer = (PATHS | CONTROLS)[job.path](open_workspace(Path(job.root)), job.writer)
            intent = writer.plan(number)
            journal.begin(number, intent)
            journal.acknowledge(number, writer.do(intent))
        except PersistenceError as err:
            journal.refuse(number, err.code, str(err))
            time.sleep(_PAUSE_AFTER_ERROR_S)
        except Exception:  # noqa: BLE001 - the harness judges it
            journal.refuse(number, "foreign", traceback.format_exc())
            time.sleep(_PAUSE_AFTER_ERROR_S)
        number += 1


class Host:
    """A running host. A context manager; at its end every writer that still runs is killed."""

    def __init__(self):
        self._process = None
        self._running = set()

    def __enter__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.torture.host"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(self, *_):
        self.kill_all()
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def _ask(self, **request):
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, job):
        """Start a writer; returns its process number."""
        pid = self._ask(job=asdict(job))
        self._running.add(pid)
        return pid

    def kill(self, pid):
        """SIGKILL a writer, at whatever it is doing."""
        os.kill(pid, signal.SIGKILL)
        return self.wait(pid)

    def wait(self, pid):
        """Wait for a writer's end; returns its exit code, negative for a signal."""
        code = self._ask(wait=pid)
        self._running.discard(pid)
        return code

    def kill_all(self):
        for pid in sorted(self._running):
            self.kill(pid)


def _fork(job):
    pid = os.fork()
    if pid == 0:
        try:
            work(job)
        finally:
            os._exit(0)
    return pid


def _serve():
    for line in sys.stdin:
        request = json.loads(line)
        if "job" in request:
            answer = _fork(Job(**request["job"]))
        else:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
