"""A FUSE file system over a `Disk` in RAM, with faults by rule and power loss on command; its own process, one per mount.

`python -m tests.torture.crash_fs MOUNTPOINT SOCKET [MODE]`. The socket takes one JSON object a line and answers each with one:
`rule` (fields of `Rule`), `clear`, `report`, `power_loss` (how, seed), `power_on`, `capacity` (size_bytes), `keep` and `restore`
(name), `copy_to` (folder).
Locks (flock) are the kernel's business, as on a local disk.
"""

import errno
import json
import os
import random
import signal
import socketserver
import stat
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import mfusepy

from tests.torture.disk import Disk, Node, fault
from tests.torture.rules import Rules

_NO_CACHE = {"attr_timeout": 0, "entry_timeout": 0, "negative_timeout": 0}


@dataclass(frozen=True, slots=True)
class Handle:
    """An open file or folder. One from before a power loss or a restore is good for nothing but closing."""

    node: Node
    path: str
    life: int
    writes: bool


class CrashFs(mfusepy.Operations):
    """The operations. Each asks the rules first; while the power is off each one fails."""

    use_ns = True

    def __init__(self, disk):
        self.disk = disk
        self.rules = Rules()
        self.mutex = threading.RLock()
        self._handles: dict[int, Handle] = {}
        self._last_handle = 0
        self._life = 0
        self._is_on = True

    def init_with_config(self, _connection, config):
        # Operations on open files come without their path: it may be gone, or be another file's.
        config.nullpath_ok = 1

    # -- going wrong

    def _run(self, op, path, action, *, half_done=None):
        """Do `action` unless a rule says otherwise: then do it by half or not at all; and what is to happen after it, happens."""
        rule = self.rules.find(op, path) if self._is_on else None
        time.sleep(rule.delay_s if rule is not None else 0)
        with self.mutex:
            if not self._is_on:
                raise fault(errno.EIO)
            if rule is None:
                return action()
            result = self._go_wrong(rule, action, half_done or action)
        if rule.then == "kill":
            os.kill(mfusepy.fuse_get_context()[2], signal.SIGKILL)
        return result

    def _go_wrong(self, rule, action, half_done):
        if rule.errno and not rule.half:
            raise fault(rule.errno)
        result = half_done() if rule.half else action()
        if rule.errno:
            raise fault(rule.errno)
        if rule.then == "power_loss":
            self._lose_power(rule.how, rule.seed)
        return result

    def _lose_power(self, how, seed):
        self.disk.lose_power(how, random.Random(seed))
        self._is_on = False
        self._life += 1

    def power_loss(self, how="drop", seed=0):
        """What is not durable is gone, and nothing works until `power_on`."""
        with self.mutex:
            self._lose_power(how, seed)

    def power_on(self):
        with self.mutex:
            self._is_on = True

    def keep(self, name):
        with self.mutex:
            self.disk.keep(name)

    def restore(self, name):
        """The disk as it was when it was kept, with the power on and no rule."""
        self.rules.clear()
        with self.mutex:
            self.disk.restore(name)
            self._life += 1
            self._is_on = True

    def capacity(self, size_bytes=None):
        with self.mutex:
            self.disk.capacity_bytes = size_bytes

    def copy_to(self, folder):
        """Write everything as it is now into a folder of another disk."""
        with self.mutex:
            _copy(self.disk.root, Path(folder))

    # -- handles

    def _opened(self, node, path, *, writes=False):
        self._last_handle += 1
        self._handles[self._last_handle] = Handle(node, path, self._life, writes)
        return self._last_handle

    def _node(self, number):
        handle = self._handles[number]
        if handle.life != self._life:
            raise fault(errno.EIO)
        return handle.node

    def _path(self, number):
        return self._handles[number].path

    def open(self, path, flags):
        def action():
            node = self.disk.find(path)
            if flags & os.O_TRUNC and node.data:
                self.disk.truncate(node, 0)
            return self._opened(node, path, writes=flags & os.O_ACCMODE != os.O_RDONLY)

        return self._run("open", path, action)

    def create(self, path, mode, _flags=None):
        made = stat.S_IFREG | stat.S_IMODE(mode)
        return self._run("create", path, lambda: self._opened(self.disk.make(path, made), path, writes=True))

    def opendir(self, path):
        return self._run("opendir", path, lambda: self._opened(self.disk.find(path), path))

    def release(self, _path, number):
        self._handles.pop(number, None)
        return 0

    def releasedir(self, _path, number):
        self._handles.pop(number, None)
        return 0

    # -- reading

    def getattr(self, path, fh=None):
        with self.mutex:
            if not self._is_on:
                raise fault(errno.EIO)
            node = self.disk.find(path) if fh is None else self._node(fh)
            return {
                "st_ino": node.number,
                "st_mode": node.mode,
                "st_nlink": node.links,
                "st_size": len(node.data),
                "st_blocks": -(-len(node.data) // 512),
                **dict.fromkeys(("st_atime", "st_mtime", "st_ctime"), node.mtime_ns),
            }

    def readdir(self, _path, number):
        """With the numbers of the files: an entry of number 0 counts as a deleted one, and nobody gets to see it."""

        def action():
            folder = self._node(number)
            nodes = {".": folder, "..": folder, **folder.names}
            return [(name, {"st_ino": node.number, "st_mode": node.mode}, 0) for name, node in nodes.items()]

        return self._run("readdir", self._path(number), action)

    def readlink(self, path):
        return self._run("readlink", path, lambda: self.disk.find(path).target)

    def read(self, _path, size, offset, number):
        return self._run("read", self._path(number), lambda: bytes(self._node(number).data[offset : offset + size]))

    def statfs(self, _path):
        with self.mutex:
            block, free = 4096, 1 << 30
            if self.disk.capacity_bytes is not None:
                free = max(0, self.disk.capacity_bytes - self.disk.used_bytes())
            total = (self.disk.capacity_bytes or 1 << 30) // block
            return {"f_bsize": block, "f_frsize": block, "f_blocks": total, "f_bfree": free // block, "f_bavail": free // block}

    # -- writing

    def mkdir(self, path, mode):
        self._run("mkdir", path, lambda: self.disk.make(path, stat.S_IFDIR | stat.S_IMODE(mode)))

    def symlink(self, target, source):
        self._run("symlink", target, lambda: self.disk.symlink(target, source))

    def link(self, target, source):
        self._run("link", target, lambda: self.disk.link(source, target))

    def unlink(self, path):
        self._run("unlink", path, lambda: self.disk.unlink(path))

    def rmdir(self, path):
        self._run("rmdir", path, lambda: self.disk.rmdir(path))

    def rename(self, old, new):
        self._run("rename", new, lambda: self.disk.rename(old, new))

    def write(self, _path, data, offset, number):
        def write_first(size):
            return self.disk.write(self._node(number), offset, data[:size])

        half = max(1, len(data) // 2)
        return self._run("write", self._path(number), lambda: write_first(len(data)), half_done=lambda: write_first(half))

    def truncate(self, path, length, fh=None):
        name = path if fh is None else self._path(fh)
        self._run("truncate", name, lambda: self.disk.truncate(self.disk.find(path) if fh is None else self._node(fh), length))

    def chmod(self, path, mode, fh=None):
        def action():
            node = self.disk.find(path) if fh is None else self._node(fh)
            node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(mode)

        self._run("chmod", path if fh is None else self._path(fh), action)

    def chown(self, path, _uid, _gid, fh=None):
        self._run("chown", path if fh is None else self._path(fh), lambda: None)

    def utimens(self, path, times=None, fh=None):
        def action():
            node = self.disk.find(path) if fh is None else self._node(fh)
            node.mtime_ns = time.time_ns() if times is None else times[1]

        self._run("utimens", path if fh is None else self._path(fh), action)

    # -- making durable

    def fsync(self, _path, _datasync, number):
        def forget():
            self._node(number).unsynced.clear()

        self._run("fsync", self._path(number), lambda: self.disk.sync(self._node(number)), half_done=forget)

    def fsyncdir(self, _path, _datasync, number):
        self._run("fsyncdir", self._path(number), lambda: self.disk.sync_folder(self._node(number)))

    def flush(self, _path, number):
        """Closing. Nothing that was only read can fail to be closed."""
        handle = self._handles[number]
        if handle.life == self._life and handle.writes:
            self._run("flush", self._path(number), lambda: self.disk.close(self._node(number)))


def _copy(node, path):
    if node.is_folder:
        path.mkdir()
        for name, below in node.names.items():
            _copy(below, path / name)
    elif stat.S_ISLNK(node.mode):
        path.symlink_to(node.target)
        return
    else:
        path.write_bytes(node.data)
    path.chmod(stat.S_IMODE(node.mode))
    os.utime(path, ns=(node.mtime_ns, node.mtime_ns))


class _Fuse3(mfusepy.FUSE):
    """Also gives the open file to the operations that may come with one and without a path."""

    def truncate_fuse_3(self, path, length, file):
        return self.operations.truncate(_text(path), length, _number(file))

    def chmod_fuse_3(self, path, mode, file):
        return self.operations.chmod(_text(path), mode, _number(file))

    def chown_fuse_3(self, path, uid, gid, file):
        return self.operations.chown(_text(path), uid, gid, _number(file))


def _text(path):
    return None if path is None else os.fsdecode(path)


def _number(file):
    return file.contents.fh if file else None


class _Commands(socketserver.StreamRequestHandler):
    """One connection of the control socket."""

    def handle(self):
        for line in self.rfile:
            try:
                answer = {"result": self.server.run(**json.loads(line))}
            except Exception as err:  # noqa: BLE001 - whoever asked gets it
                answer = {"error": repr(err)}
            self.wfile.write(json.dumps(answer).encode() + b"\n")


class _ControlServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, address, file_system):
        super().__init__(address, _Commands)
        rules = file_system.rules
        self._commands = {"rule": rules.add, "clear": rules.clear, "report": rules.report} | {
            name: getattr(file_system, name) for name in ("power_loss", "power_on", "keep", "restore", "capacity", "copy_to")
        }

    def run(self, command, **fields):
        return self._commands[command](**fields)


def main(mountpoint, socket, mode="posix"):
    file_system = CrashFs(Disk(mode))
    server = _ControlServer(socket, file_system)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    _Fuse3(
        file_system, mountpoint, foreground=True, fsname="crash_fs", hard_remove=True, use_ino=True, direct_io=True, **_NO_CACHE
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
