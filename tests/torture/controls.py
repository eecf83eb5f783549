"""Small writers of lines, one that is sound and three that each leave one thing out. The torture must find these three out."""

import fcntl
import json
import os
from collections import Counter

from persistence.files import translate

FILE = "control/lines.txt"


class SoundLines:
    """Locked, sealed, synced: as the archive does it, in a few lines of its own."""

    WRITERS = 3
    CYCLES = ()
    LOCKS = SEALS = SYNCS = True

    def __init__(self, workspace, writer):
        self._path = workspace.root / FILE
        self._path.parent.mkdir(exist_ok=True)
        _sync(workspace.root)
        self._writer = writer

    def plan(self, number):
        return {"id": f"{self._writer}:{number}"}

    def do(self, intent):
        try:
            return self._append(intent)
        except OSError as err:
            raise translate(err, FILE) from err

    def _append(self, intent):
        fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            if self.LOCKS:
                fcntl.flock(fd, fcntl.LOCK_EX)
            data = os.pread(fd, os.fstat(fd).st_size, 0)
            number = max((line["number"] for line in _parse(data)), default=0) + 1
            seal = b"\n" if self.SEALS and data and not data.endswith(b"\n") else b""
            line = {"number": number, **intent, "text": "words " * (number % 400)}
            os.write(fd, seal + json.dumps(line).encode() + b"\n")
            if self.SYNCS:
                os.fsync(fd)
                _sync(self._path.parent)
        finally:
            os.close(fd)
        return {"number": number}

    @staticmethod
    def check(workspace, stories):
        path = workspace.root / FILE
        lines = _parse(path.read_bytes()) if path.exists() else []
        ids = Counter(line["id"] for line in lines)
        wanted = [deed.intent["id"] for deeds in stories.values() for deed in deeds if deed.is_done]
        problems = [f"{each} was acknowledged and is there {ids[each]} times" for each in wanted if ids[each] != 1]
        numbers = Counter(line["number"] for line in lines)
        return problems + [f"the number {each} was given {times} times" for each, times in numbers.items() if times > 1]


class WithoutSync(SoundLines):
    SYNCS = False


class WithoutLock(SoundLines):
    LOCKS = False


class WithoutSeal(SoundLines):
    SEALS = False


CONTROLS = {"sound": SoundLines, "without-sync": WithoutSync, "without-lock": WithoutLock, "without-seal": WithoutSeal}


def _parse(data):
    lines = []
    for line in data.split(b"\n"):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        lines += [value] if isinstance(value, dict) else []
    return lines


def _sync(folder):
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
