"""A mounted `crash_fs` seen from a test: mounting, and the commands of its control socket."""

import ctypes.util
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
_MOUNT_TIMEOUT_S = 20.0


def why_no_crash_fs():
    """What is missing here to mount a file system of one's own; "" when nothing is."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse can't be opened"
    if ctypes.util.find_library("fuse3") is None:
        return "libfuse3 is not installed (Debian: apt-get install fuse3)"
    return ""


class CrashVolume:
    """A crash_fs mounted below `folder`; `root` is its mount point; as "empty" it can be restored. A context manager."""

    def __init__(self, folder, mode="posix"):
        self.root = Path(folder) / "volume"
        self._socket_path = Path(folder) / "control"
        self._log_path = Path(folder) / "crash_fs.log"
        self._mode = mode
        self._process = None
        self._socket = None
        self._answers = None

    def __enter__(self):
        self.root.mkdir()
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.torture.crash_fs", str(self.root), str(self._socket_path), self._mode],
                cwd=ROOT,
                env={**os.environ, "FUSE_LIBRARY_NAME": "fuse3"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + _MOUNT_TIMEOUT_S
        while not self.root.is_mount():
            if self._process.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"crash_fs was not mounted: {self._log_path.read_text()}")
            time.sleep(0.02)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(os.path.relpath(self._socket_path))  # an absolute path may be too long for a socket
        self._answers = self._socket.makefile("rb")
        self.keep("empty")
        return self

    def __exit__(self, *_):
        if self._socket is not None:
            self._answers.close()
            self._socket.close()
        for unmount in (["fusermount3", "-u", "-z"], ["umount", "-l"]):
            if subprocess.run([*unmount, str(self.root)], capture_output=True, check=False).returncode == 0:
                break
        self._process.terminate()
        self._process.wait(10)

    def _ask(self, command, **fields):
        self._socket.sendall(json.dumps({"command": command, **fields}).encode() + b"\n")
        answer = json.loads(self._answers.readline())
        if "error" in answer:
            raise AssertionError(f"crash_fs: {answer['error']}")
        return answer["result"]

    def rule(self, **fields):
        """Let operations go wrong (the fields of `rules.Rule`)."""
        self._ask("rule", **fields)

    def clear(self):
        """Drop all rules, and forget which operations there were."""
        self._ask("clear")

    @property
    def trace(self):
        """(operation, path) of every operation since the last `clear`."""
        return [tuple(each) for each in self._ask("report")["trace"]]

    @property
    def hits(self):
        """How many operations went wrong since the last `clear`."""
        return sum(rule["hits"] for rule in self._ask("report")["rules"])

    def power_loss(self, how="drop", *, seed=0):
        self._ask("power_loss", how=how, seed=seed)

    def power_on(self):
        self._ask("power_on")

    def capacity(self, size_bytes=None):
        self._ask("capacity", size_bytes=size_bytes)

    def keep(self, name):
        """Make everything durable and remember it under a name for `restore`."""
        self._ask("keep", name=name)

    def restore(self, name):
        self._ask("restore", name=name)

    def copy_to(self, folder):
        """Copy everything into a new folder of another disk, where looking at it is quick."""
        self._ask("copy_to", folder=str(folder))
