"""A disk in RAM that knows what is only in its cache and what would survive a power loss. `crash_fs` mounts it.

`posix`: a file's bytes are durable after fsync of the file, names after fsync of their folder, in the order in which they were
made (a journal). `strict`: fsync of a folder makes only that folder's names durable. `efs`: names are durable at once, a file's
bytes after fsync or close, as a network disk promises.
"""

import copy
import errno
import itertools
import os
import random
import stat
import time
from dataclasses import dataclass, field
from typing import Literal

SECTOR_BYTES = 512
NAME_BYTES = 256  # what a name costs on a disk with a capacity
Mode = Literal["posix", "strict", "efs"]
How = Literal["drop", "prefix", "torn"]

_numbers = itertools.count(2)


@dataclass(eq=False, slots=True)
class Node:
    """A file, folder or link: as processes see it, and as it is on the platter."""

    mode: int
    number: int = field(default_factory=lambda: next(_numbers))
    mtime_ns: int = field(default_factory=time.time_ns)
    links: int = 1
    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    unsynced: list[tuple[int, bytes | None]] = field(default_factory=list)  # (offset, bytes), or (length, None): cut to it
    names: dict[str, "Node"] = field(default_factory=dict)
    durable_names: dict[str, "Node"] = field(default_factory=dict)
    target: str = ""

    @property
    def is_folder(self):
        return stat.S_ISDIR(self.mode)


@dataclass(frozen=True, slots=True)
class Change:
    """One name of a folder that became another node (None: went away)."""

    folder: Node
    name: str
    node: Node | None


def fault(code):
    return OSError(code, os.strerror(code))


class Disk:
    """The tree of nodes. Not safe for threads: its owner has a lock."""

    def __init__(self, mode="posix", *, capacity_bytes=None):
        self.mode = mode
        self.capacity_bytes = capacity_bytes
        self.root = Node(stat.S_IFDIR | 0o755)
        self.journal: list[tuple[Change, ...]] = []  # changes of names that are not durable yet, in order
        self._kept: dict[str, Node] = {}

    # -- names

    def find(self, path):
        node = self.root
        for part in filter(None, path.split("/")):
            if not node.is_folder:
                raise fault(errno.ENOTDIR)
            if part not in node.names:
                raise fault(errno.ENOENT)
            node = node.names[part]
        return node

    def _place(self, path):
        folder, _, name = path.rpartition("/")
        return self.find(folder), name

    def _free_place(self, path):
        folder, name = self._place(path)
        if name in folder.names:
            raise fault(errno.EEXIST)
        self._need(NAME_BYTES)
        return folder, name

    def _change(self, *changes):
        for change in changes:
            _apply(change.folder.names, change)
            change.folder.mtime_ns = time.time_ns()
        if self.mode == "efs":
            _commit(changes)
        else:
            self.journal.append(changes)

    def make(self, path, mode):
        """A new file or folder, by the type in `mode`."""
        folder, name = self._free_place(path)
        node = Node(mode)
        self._change(Change(folder, name, node))
        return node

    def symlink(self, path, target):
        self.make(path, stat.S_IFLNK | 0o777).target = target

    def link(self, old, new):
        node = self.find(old)
        folder, name = self._free_place(new)
        self._change(Change(folder, name, node))
        node.links += 1

    def unlink(self, path):
        node = self.find(path)
        folder, name = self._place(path)
        self._change(Change(folder, name, None))
        node.links -= 1

    def rmdir(self, path):
        if self.find(path).names:
            raise fault(errno.ENOTEMPTY)
        self.unlink(path)

    def rename(self, old, new):
        node = self.find(old)
        (old_folder, old_name), (new_folder, new_name) = self._place(old), self._place(new)
        replaced = new_folder.names.get(new_name)
        if replaced is node:
            return
        if replaced is not None and replaced.names:
            raise fault(errno.ENOTEMPTY)
        self._change(Change(new_folder, new_name, node), Change(old_folder, old_name, None))
        if replaced is not None:
            replaced.links -= 1

    # -- bytes

    def write(self, node, offset, data):
        """Write as much as there is room for, as a real disk does; ENOSPC when that is nothing. Returns how much."""
        if self.capacity_bytes is not None:
            room = self.capacity_bytes - self.used_bytes() + max(0, len(node.data) - offset)
            if room <= 0:
                raise fault(errno.ENOSPC)
            data = data[:room]
        _put(node.data, offset, data)
        node.unsynced.append((offset, bytes(data)))
        node.mtime_ns = time.time_ns()
        return len(data)

    def truncate(self, node, length):
        self._need(length - len(node.data))
        _put(node.data, length, None)
        node.unsynced.append((length, None))
        node.mtime_ns = time.time_ns()

    def used_bytes(self):
        nodes = dict.fromkeys(_walk(self.root))
        return sum(len(node.data) + NAME_BYTES * len(node.names) for node in nodes)

    def _need(self, more_bytes):
        if self.capacity_bytes is not None and more_bytes > 0 and self.used_bytes() + more_bytes > self.capacity_bytes:
            raise fault(errno.ENOSPC)

    # -- what survives

    def sync(self, node):
        """Only what is still unsynced reaches the platter: pages that an error dropped do not come back."""
        data = bytearray(node.durable)
        for offset, piece in node.unsynced:
            _put(data, offset, piece)
        node.durable, node.unsynced = bytes(data), []

    def sync_folder(self, folder):
        touching = [place for place, changes in enumerate(self.journal) if any(each.folder is folder for each in changes)]
        if not touching:
            return
        chosen = touching if self.mode == "strict" else list(range(touching[-1] + 1))
        for place in chosen:
            _commit(self.journal[place])
        gone = set(chosen)
        self.journal = [changes for place, changes in enumerate(self.journal) if place not in gone]

    def close(self, node):
        if self.mode == "efs":
            self.sync(node)

    def settle(self):
        """Make everything durable, as an orderly unmount does."""
        for changes in self.journal:
            _commit(changes)
        self.journal = []
        for node in _walk(self.root):
            self.sync(node)

    def lose_power(self, how: How, rng: random.Random):
        """Go back to what is on the platter. `prefix`: the first part of what was unsynced reached it, too.

        `torn`: as `prefix`, and of each file's last write that reached it only a part did, perhaps with NULs for the rest.
        """
        if how != "drop":
            for changes in self.journal[: rng.randint(0, len(self.journal))]:
                _commit(changes)
        self.journal = []
        for node in dict.fromkeys(_walk(self.root, durable=True)):
            data = bytearray(node.durable)
            if how != "drop" and node.unsynced:
                _put_some(data, node.unsynced, rng, torn=how == "torn")
            node.data, node.durable, node.unsynced = data, bytes(data), []
            node.names = dict(node.durable_names)

    def keep(self, name):
        """Remember the disk as it is now, settled; `restore` brings it back as often as wanted."""
        self.settle()
        self._kept[name] = copy.deepcopy(self.root)

    def restore(self, name):
        self.root, self.journal = copy.deepcopy(self._kept[name]), []


def _apply(names, change):
    if change.node is None:
        names.pop(change.name, None)
    else:
        names[change.name] = change.node


def _commit(changes):
    for change in changes:
        _apply(change.folder.durable_names, change)


def _walk(node, *, durable=False):
    yield node
    for below in (node.durable_names if durable else node.names).values():
        yield from _walk(below, durable=durable)


def _put(data, offset, piece):
    if piece is None:
        del data[offset:]
    if len(data) < offset:
        data.extend(bytes(offset - len(data)))
    if piece is not None:
        data[offset : offset + len(piece)] = piece


def _put_some(data, unsynced, rng, *, torn):
    """The first writes whole; of the last one, if the loss tears it, a part and perhaps the size that it would have made."""
    reached = rng.randint(0, len(unsynced))
    for place, (offset, piece) in enumerate(unsynced[:reached], start=1):
        if piece is None or place < reached or not torn:
            _put(data, offset, piece)
            continue
        cut = rng.choice([rng.randint(0, len(piece)), len(piece) // SECTOR_BYTES * SECTOR_BYTES])
        _put(data, offset, piece[:cut])
        if rng.random() < 0.5:
            data.extend(bytes(max(0, offset + len(piece) - len(data))))
