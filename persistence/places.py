"""Walks the volume and says of each file what it is. Follows no link, reads no content."""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from persistence.document_path import TEAM, document_channel
from persistence.errors import PersistenceError
from persistence.files import opened_folder
from persistence.workspace import AUDIT, CACHE, INDEX, LOCKS, QUARANTINE, SHARED_TOPICS, STATE, VERSIONS, ChannelId, Workspace

PlaceKind: TypeAlias = Literal[
    "log",
    "context",
    "ledger",
    "run",
    "audit",
    "memory",
    "handoff",
    "skill",
    "team",
    "settings",
    "event",
    "last_prompt",
    "version",
    "quarantine",
    "state",
    "cache",
    "temp",
    "other",
]

TEMP_NAME = re.compile(r"\.?(?P<target>.+)\.tmp-[0-9]+-[A-Za-z0-9]+\Z")
_FLUSHES: Final = f"{STATE}/flushes/"
_UNWALKED: Final = frozenset({INDEX, LOCKS, f"{STATE}/snapshots", ".git"})
_LAYERS: Final = frozenset({"MEMORY.md", "SYSTEM.md"})
_SETTINGS: Final = frozenset({"settings.json", "digby.json", "memory.jsonc"})


@dataclass(frozen=True, slots=True)
class Place:
    """A file, link or other object on the volume, by its name there; `is_regular` False: nothing that is ever opened."""

    kind: PlaceKind
    name: str
    is_regular: bool
    size_bytes: int
    mtime_s: float


def walk_volume(workspace: Workspace) -> Iterator[Place]:
    """Every object below the workspace that is no folder, in the order of their names; the index and the locks are left out."""
    yield from _walk(workspace, "")


def _walk(workspace: Workspace, folder: str) -> Iterator[Place]:
    try:
        with opened_folder(workspace.root, folder) as fd, os.scandir(fd) as entries:
            listed = sorted((entry.name, _status(entry)) for entry in entries)
    except (FileNotFoundError, PersistenceError):  # gone or replaced since it was listed
        return
    for last, found in listed:
        name = f"{folder}/{last}" if folder else last
        if not found or name in _UNWALKED:
            continue
        mode, size, mtime_s = found
        if stat.S_ISDIR(mode):
            yield from _walk(workspace, name)
        else:
            yield Place(kind_of(name), name, stat.S_ISREG(mode), int(size), mtime_s)


def _status(entry: os.DirEntry[str]) -> tuple[int, int, float] | tuple[()]:
    try:
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return ()
    return found.st_mode, found.st_size, found.st_mtime


def kind_of(name: str) -> PlaceKind:
    """What a file is, by its name alone."""
    last = name.rpartition("/")[2]
    if TEMP_NAME.match(last):
        return "temp"
    if name.startswith((f"{STATE}/", f"{SHARED_TOPICS}/{STATE}/")):  # a shared directory keeps its own versions
        return _kind_of_state(name.removeprefix(f"{SHARED_TOPICS}/"))
    channel = document_channel(name)
    own = name if channel is None else name.partition("/")[2]
    first = own.partition("/")[0]
    if channel is not None and own in ("log.jsonl", "last_prompt.json", "last_prompt.jsonl"):
        return "log" if own == "log.jsonl" else "last_prompt"
    if channel is not None and last in ("context.jsonl", "context.v3.jsonl") and (own == last or first == "threads"):
        return "context"
    return _kind_of_document(own, first, last)


def _kind_of_state(name: str) -> PlaceKind:
    if name == AUDIT:
        return "audit"
    folders: tuple[tuple[str, PlaceKind], ...] = (
        (f"{VERSIONS}/", "version"),
        (f"{QUARANTINE}/", "quarantine"),
        (f"{CACHE}/", "cache"),
        (_FLUSHES, "ledger"),
    )
    return next((kind for prefix, kind in folders if name.startswith(prefix)), "state")


def _kind_of_document(own: str, first: str, last: str) -> PlaceKind:
    is_topic = (first == "memory" or own.startswith(f"{SHARED_TOPICS}/")) and last.casefold().endswith(".md")
    if last == "HANDOFF.md" and own.count("/") <= 1:
        return "handoff"
    if own in _LAYERS or is_topic:
        return "memory"
    if own in _SETTINGS:
        return "settings"
    folders: dict[str, PlaceKind] = {TEAM: "team", "skills": "skill", "events": "event"}
    return "run" if own.startswith(f"{TEAM}/runs/") else folders.get(first, "other")


def channel_of_state(name: str) -> ChannelId | None:
    """The channel that a file of recalld's own state is about, by its name; None for one of the whole workspace."""
    for prefix in (_FLUSHES, f"{CACHE}/sync/", f"{CACHE}/log/", f"{VERSIONS}/", f"{QUARANTINE}/", f"{CACHE}/team/"):
        if name.startswith(prefix):
            rest = name.removeprefix(prefix).replace("%2F", "/").replace("%25", "%")
            return document_channel(rest if "/" in rest else f"{rest.removesuffix('.index')}/log.jsonl")
    return None
