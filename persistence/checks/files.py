"""Checks and repairs of single files: settings, rules, skills, events, texts, and what killed writers left behind."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from persistence.checks.findings import Finding
from persistence.document_path import document_channel
from persistence.errors import NotUtf8Error, StoreBusyError
from persistence.files import locked, opened_folder, read_bytes, split_name
from persistence.lines import held_lines
from persistence.places import TEMP_NAME, Place
from persistence.rules import RulesStore
from persistence.settings import SettingsStore
from persistence.skills import load_skills
from persistence.version_store import (
    META_SUFFIX,
    file_of_version,
    has_meta,
    is_version_path,
    is_whole_version,
    make_up_meta,
    remove_file,
)
from persistence.workspace import RULES, SETTINGS, ChannelId, Workspace

LEFTOVER_AGE_S: Final = 3600.0
VERSION_TORN: Final = "version_torn"
_CUT_NAME: Final = 100  # longer names are cut in the name of their temporary file
_MAX_BYTES: Final = 1 << 30
_TEXTS: Final = frozenset({"memory", "handoff", "team"})
_PASSED_OVER: Final = ("node_modules", "scratch", "attachments")


def check_place(workspace: Workspace, place: Place) -> Iterator[Finding]:
    """What is wrong with one file, other than in its lines. A temporary file of a server that is writing just now shows too."""
    if not place.is_regular:
        yield from _check_object(place)
    elif place.kind == "temp":
        yield Finding("leftover_temp", place.name, None, "a writer was killed before it put this in place", fixable=True)
    elif place.kind == "log" and place.size_bytes == 0:
        yield Finding("empty_log", place.name, None, "a writer was killed before its first message", fixable=True)
    elif place.kind in _TEXTS or place.name.endswith("/SKILL.md"):
        yield from _check_text(workspace, place.name)
    elif place.kind == "version":
        yield from _check_version(workspace, place.name)
    elif place.kind == "event" and place.name.endswith(".json"):
        yield from _check_event(workspace, place.name)


def _check_object(place: Place) -> Iterator[Finding]:
    """Links and the like where they could be meant to be read; an operator's own dot folders are not ours."""
    parts = place.name.split("/")
    if place.name in (SETTINGS, RULES) or any(part in _PASSED_OVER for part in parts):
        return
    if parts[0].startswith(".") and parts[0] not in (".recalld", ".team", ".agents"):
        return
    yield Finding("unsafe_object", place.name, None, "no regular file: it is never read, indexed or written", fixable=False)


def _check_text(workspace: Workspace, name: str) -> Iterator[Finding]:
    data = read_bytes(workspace.root, name, limit=_MAX_BYTES) or b""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as err:
        line = data.count(b"\n", 0, err.start) + 1
        yield Finding(NotUtf8Error.code, name, line, "bytes that are not UTF-8: the file is never rewritten", fixable=False)


def _check_version(workspace: Workspace, path: str) -> Iterator[Finding]:
    target = path.removesuffix(META_SUFFIX)
    if not is_version_path(target):
        yield Finding("version_unknown", path, None, "no file that recalld makes", fixable=False)
        return
    data = read_bytes(workspace.root, target, limit=_MAX_BYTES)
    if data is None:
        yield Finding("version_without_bytes", path, None, "a writer was killed before it kept the bytes", fixable=True)
    elif path == target and not is_whole_version(path, data):
        yield Finding(VERSION_TORN, path, None, "the bytes were cut short; the file that they were of is whole", fixable=True)
    elif path == target and not has_meta(workspace, path):
        yield Finding("version_without_metadata", path, None, "who replaced these bytes is not known any more", fixable=True)


def _check_event(workspace: Workspace, name: str) -> Iterator[Finding]:
    try:
        value = json.loads(read_bytes(workspace.root, name) or b"")
    except json.JSONDecodeError as err:
        yield Finding("event_bad", name, err.lineno, f"it is no JSON: {err.msg}; it starts nothing", fixable=False)
        return
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        yield Finding("event_bad", name, 1, "it is no event; it starts nothing", fixable=False)


def check_settings(workspace: Workspace) -> Iterator[Finding]:
    """What of settings.json and memory.jsonc is not in force, by key and line."""
    view = SettingsStore(workspace).load()
    for each in view.diagnostics:
        code = "settings_broken" if view.broken and each.key == SETTINGS else "settings_value"
        yield Finding(code, SETTINGS, each.line, f"{each.key}: {each.reason}", fixable=False)
    rules = RulesStore(workspace).load()
    for each in rules.diagnostics:
        code = "rules_broken" if rules.broken else "rules_value"
        yield Finding(code, rules.path, each.line, f"{each.key}: {each.reason}", fixable=False)


def check_skills(workspace: Workspace, channel: ChannelId | None) -> Iterator[Finding]:
    """The skills of a scope that are left out, and why."""
    own = f"{Workspace.skills(channel)}/"
    for problem in load_skills(workspace, channel).problems:
        if f"{problem.path}/".startswith(own):
            yield Finding("skill_broken", problem.path, None, problem.reason, fixable=False)


def remove_leftover(workspace: Workspace, name: str, now: datetime) -> str:
    """Remove a temporary file: what it holds was never acknowledged. Its writer, if it lives, holds the lock of the file."""
    folder, last = split_name(name)
    parts = TEMP_NAME.match(last)
    target = parts["target"] if parts else ""
    if not target or len(target.encode()) >= _CUT_NAME:
        return _remove_if_old(workspace, name, now)
    in_topics = folder.rpartition("/")[2] == "memory" and target.startswith((".", "MEMORY.md"))
    guarded = f"{folder}/MEMORY.md" if in_topics else f"{folder}/{target}" if folder else target
    with locked(workspace.root, guarded, workspace.lock_of(guarded)):
        remove_file(workspace.root, name)
    channel = name.partition("/")[0]
    if any(channel == each.path for each in empty_channels(workspace)):  # it was to be the first file of a channel
        remove_empty_folder(workspace, channel)
    return "removed; it was never acknowledged"


def _remove_if_old(workspace: Workspace, name: str, now: datetime) -> str:
    path = workspace.root / name
    if now.timestamp() - path.stat().st_mtime < LEFTOVER_AGE_S:
        raise StoreBusyError("it is not old enough to be sure that its writer is gone: try again in an hour")
    remove_file(workspace.root, name)
    return "removed; it was never acknowledged"


def repair_version(workspace: Workspace, path: str) -> str:
    """Put a version right: bytes that were cut short go to quarantine, metadata alone goes, lost metadata is made up."""
    target = path.removesuffix(META_SUFFIX)
    name = file_of_version(path) or target
    with locked(workspace.root, name, workspace.lock_of(name)):  # a version is written under the lock of its file
        data = read_bytes(workspace.root, target, limit=_MAX_BYTES)
        if data is None:
            remove_file(workspace.root, target + META_SUFFIX)
            return "removed; it described nothing"
        if is_whole_version(target, data):
            make_up_meta(workspace, target)
            return "described again by what the bytes and their id say"
        remove_file(workspace.root, target + META_SUFFIX)
        return _set_aside(workspace, target)


def _set_aside(workspace: Workspace, name: str) -> str:
    aside = workspace.quarantined(name)
    (folder, last), (quarantine, new_last) = split_name(name), split_name(aside)
    with opened_folder(workspace.root, folder) as old, opened_folder(workspace.root, quarantine, create=True) as new:
        os.rename(last, new_last, src_dir_fd=old, dst_dir_fd=new)
        os.fsync(new)
        os.fsync(old)
    return f"moved to {aside}"


def remove_empty_log(workspace: Workspace, name: str) -> str:
    """Remove a log that has no byte, and its folder if nothing else is in it; an appender that waits makes a new one."""
    with held_lines(workspace.root, name) as data:
        if data:
            return "it has messages by now"
        remove_file(workspace.root, name)
    return remove_empty_folder(workspace, split_name(name)[0])


def remove_empty_folder(workspace: Workspace, folder: str) -> str:
    """Remove a folder with nothing but empty folders in it; one that has a file by now stays."""
    for path, _, _ in os.walk(workspace.root / folder, topdown=False):
        with suppress(OSError):
            Path(path).rmdir()
    return "removed"


def empty_channels(workspace: Workspace) -> Iterator[Finding]:
    """Folders with the name of a channel and no file in them at all."""
    with os.scandir(workspace.root) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    for name in names:
        if document_channel(f"{name}/x") is not None and not any(files for _, _, files in os.walk(workspace.root / name)):
            yield Finding("empty_channel", name, None, "a folder without any file", fixable=True)
