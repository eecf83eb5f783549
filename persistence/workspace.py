"""Where things are on the volume: ids from outside become workspace-relative names only here. Reads only folder listings."""

import hashlib
import os
import re
import secrets
import stat
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Final, NewType

from persistence.errors import BodyInvalidError, ChannelInvalidError, WorkspaceUnusableError

ChannelId = NewType("ChannelId", str)
"""A checked channel id: safe as one folder name."""

LAYOUT_VERSION: Final = "1\n"
GLOBAL_FOLDERS: Final = frozenset({"memory", "skills", "events", "attachments", "threads", "scratch"})
_CHANNEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\Z", re.ASCII)
_TS = re.compile(r"[0-9]{1,10}(\.[0-9]{1,9})?\Z", re.ASCII)  # its nanoseconds fit 64 bits
_NEVER_IN_PATH = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
_CHANNEL_SIGNS: Final = ("log.jsonl", "MEMORY.md", "context.jsonl", "memory")


@dataclass(frozen=True, slots=True)
class Lane:
    """The queue of one channel (`thread_ts` None) or of one thread of it."""

    channel: ChannelId
    thread_ts: str | None = None


def parse_channel_id(text: str) -> ChannelId:
    """Check a channel id from outside (formats: volume.md, "Channel ids").

    Raises ChannelInvalidError for anything that is not 1-128 of `A-Z a-z 0-9 . _ : -` starting with a letter or digit, that
    holds `..`, or that is the name of a folder which is not a channel.
    """
    if not _CHANNEL.match(text) or ".." in text or text.casefold() in GLOBAL_FOLDERS:
        raise ChannelInvalidError(
            f"{text[:140]!r} is not a channel id: use 1-128 of A-Z a-z 0-9 . _ : - starting with a letter or digit, "
            f"and none of {', '.join(sorted(GLOBAL_FOLDERS))}",
        )
    return ChannelId(text)


def parse_ts(text: str) -> str:
    """Check a message ts from outside (`seconds.micros`); raises BodyInvalidError."""
    if not _TS.match(text):
        raise BodyInvalidError(f"{text[:40]!r} is not a message ts: write seconds.micros, as in 1764500000.000100")
    return text


def ts_key(ts: str) -> Decimal:
    """The value that ts compare by: decimals, since floats and text order them wrongly."""
    return Decimal(ts)


def normal_ts(ts: str) -> str:
    """The spelling that stands for all spellings of one ts: `seconds.micros`, more digits only where they say something."""
    seconds, _, fraction = ts.partition(".")
    return f"{int(seconds)}.{fraction.rstrip('0').ljust(6, '0')}"


def is_ts(text: object) -> bool:
    """Whether a value from a file is usable as a ts."""
    return isinstance(text, str) and _TS.match(text) is not None


@dataclass(frozen=True, slots=True)
class Workspace:
    """The mounted folder. Every other value here is a `/`-separated name relative to `root`."""

    root: Path

    @staticmethod
    def log(channel: ChannelId) -> str:
        return f"{channel}/log.jsonl"

    @staticmethod
    def context(lane: Lane) -> str:
        if lane.thread_ts is None:
            return f"{lane.channel}/context.jsonl"
        return f"{lane.channel}/threads/{parse_ts(lane.thread_ts)}/context.jsonl"

    @staticmethod
    def context_beside(lane: Lane) -> str:
        """Where a lane's context lives while a file of a newer version, which is left alone, has the usual name."""
        return Workspace.context(lane).removesuffix(".jsonl") + ".v3.jsonl"

    @staticmethod
    def version(name: str, label: str) -> str:
        """Where the previous bytes of a file are kept; `label` tells its versions apart and sorts by time ("": their folder)."""
        return f"{VERSIONS}/{_as_one_part(name)}/{label}".rstrip("/")

    @staticmethod
    def quarantined(name: str) -> str:
        """Where a file goes that is set aside whole."""
        return f"{QUARANTINE}/{_as_one_part(name)}"

    @staticmethod
    def handoff(channel: ChannelId | None) -> str:
        return "HANDOFF.md" if channel is None else f"{channel}/HANDOFF.md"

    @staticmethod
    def flush_ledger(lane: Lane) -> str:
        """Where it stands what of a lane's context has been flushed into memory, and what was let go without."""
        lane_name = "channel" if lane.thread_ts is None else parse_ts(lane.thread_ts)
        return f".recalld/flushes/{lane.channel}/{lane_name}.jsonl"

    @staticmethod
    def last_prompt(channel: ChannelId) -> str:
        return f"{channel}/last_prompt.json"

    @staticmethod
    def memory(channel: ChannelId | None) -> str:
        return "MEMORY.md" if channel is None else f"{channel}/MEMORY.md"

    @staticmethod
    def topics(channel: ChannelId | None) -> str:
        return "memory" if channel is None else f"{channel}/memory"

    @staticmethod
    def topic_index(channel: ChannelId | None) -> str:
        return f"{Workspace.topics(channel)}/MEMORY.md"

    @staticmethod
    def team_memory(channel: ChannelId | None) -> str:
        """Where a team's memory is unless the operator puts it elsewhere (`resolve_memory_dir`)."""
        return ".team/memory" if channel is None else f"{channel}/.team/memory"

    @staticmethod
    def team_runs(channel: ChannelId | None) -> str:
        return ".team/runs" if channel is None else f"{channel}/.team/runs"

    @staticmethod
    def team_entries(memory_dir: str, run_id: str) -> str:
        """How many log entries each role wrote in a run; without this cache the count of a run begins anew."""
        return f"{CACHE}/team/{_as_one_part(memory_dir)}/{run_id}.jsonl"

    @staticmethod
    def skills(channel: ChannelId | None) -> str:
        return "skills" if channel is None else f"{channel}/skills"

    @staticmethod
    def sync_state(lane: Lane) -> str:
        lane_name = "channel" if lane.thread_ts is None else parse_ts(lane.thread_ts)
        return f".recalld/cache/sync/{lane.channel}/{lane_name}.json"

    @staticmethod
    def log_index(channel: ChannelId) -> str:
        return f".recalld/cache/log/{channel}.index"

    @staticmethod
    def lock_of(name: str) -> str:
        """The lock file that guards a replaced file (never the file itself: it is renamed over)."""
        return f".recalld/locks/{_as_one_part(name)}.lock"

    def channels(self) -> Iterator[ChannelId]:
        """Every channel folder, sorted: a real folder with a legal id that holds a log, memory or context."""
        with os.scandir(self.root) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        for name in names:
            nfc = unicodedata.normalize("NFC", name)
            if _CHANNEL.match(nfc) and ".." not in nfc and nfc.casefold() not in GLOBAL_FOLDERS and self._is_channel(name):
                yield ChannelId(name)

    def _is_channel(self, name: str) -> bool:
        return any(os.path.lexists(self.root / name / sign) for sign in _CHANNEL_SIGNS)

    def has_channel(self, channel: ChannelId) -> bool:
        """Whether the channel's folder exists and is a real folder with something of a channel in it."""
        try:
            mode = (self.root / channel).lstat().st_mode
        except FileNotFoundError:
            return False
        return stat.S_ISDIR(mode) and self._is_channel(channel)


_MAX_PART_BYTES: Final = 200
_HASH_DIGITS: Final = 32


def _as_one_part(name: str) -> str:
    """A whole name as one part of a path: the same for its NFC and NFD spellings, shortened by a hash when it is too long."""
    part = unicodedata.normalize("NFC", name).replace("%", "%25").replace("/", "%2F")
    data = part.encode("utf-8", "surrogateescape")
    if len(data) <= _MAX_PART_BYTES:
        return part
    digest = hashlib.sha256(data).hexdigest()[:_HASH_DIGITS]
    return f"{data[: _MAX_PART_BYTES - _HASH_DIGITS - 1].decode('utf-8', 'ignore')}~{digest}"


SETTINGS: Final = "settings.json"
LEGACY_SETTINGS: Final = "digby.json"
RULES: Final = "memory.jsonc"
LEGACY_RULES: Final = "memory/RULES.jsonc"
LEGACY_RULES_BACKUP: Final = "memory/RULES.jsonc.bak"
LAST_RULES: Final = ".recalld/last-rules.json"
LEGACY_HANDOFF: Final = "memory/HANDOFF.md"
HANDOFF_TAKEN_OVER: Final = ".recalld/handoff-taken-over"
STATE: Final = ".recalld"
VERSION: Final = ".recalld/VERSION"
VERSIONS: Final = ".recalld/versions"
AUDIT: Final = ".recalld/audit.jsonl"
QUARANTINE: Final = ".recalld/quarantine"
INDEX: Final = ".recalld/index"
CACHE: Final = ".recalld/cache"
LOCKS: Final = ".recalld/locks"
SHARED_TOPICS: Final = ".agents/memory"


def resolve_memory_dir(workspace: Workspace, channel: ChannelId | None, memory_dir: str | None) -> str:
    """The workspace-relative folder of a team's memory: `memory_dir` from the scope's own folder on, or the usual place.

    Raises BodyInvalidError for a folder outside the workspace, in another channel, among the runs or in recalld's own state.
    """
    if memory_dir is None:
        return Workspace.team_memory(channel)
    path = os.path.normpath(workspace.root / (channel or "") / memory_dir) if memory_dir.strip() else ""
    name = os.path.relpath(path, workspace.root) if path else ".."
    runs = Workspace.team_runs(channel)
    bad = name == "." or name.startswith("..") or "\0" in name or f"{name}/".startswith((f"{runs}/", f"{STATE}/"))
    if bad or not is_in_scope(workspace, channel, name):
        raise BodyInvalidError(
            f"memory_dir {memory_dir[:200]!r} can't be used: name a folder inside the workspace, as .team/memory"
        )
    return name


def is_plain_path(name: str) -> bool:
    """Whether a text from outside is a workspace-relative path in its one normal spelling, not in recalld's own state."""
    parts = name.split("/")
    normal = not _NEVER_IN_PATH.search(name) and unicodedata.normalize("NFC", name) == name
    return normal and not any(part in ("", ".", "..") for part in parts) and parts[0].casefold() != STATE


def is_in_scope(workspace: Workspace, channel: ChannelId | None, name: str) -> bool:
    """Whether a workspace-relative name is a global one or one of `channel`, not of another channel."""
    first = name.partition("/")[0]
    return first == channel or not _CHANNEL.match(first) or not workspace.has_channel(ChannelId(first))


def open_workspace(root: Path) -> Workspace:
    """Make `root` ready (`.recalld/` and its VERSION) and return it.

    Raises WorkspaceUnusableError, with what to do, when it is no folder, or can't be read or written, or was made by a newer
    layout.
    """
    try:
        resolved = root.resolve(strict=True)
        if not resolved.is_dir():
            raise WorkspaceUnusableError(f"{str(root)!r} is not a folder: give the workspace folder with --workspace")
        for folder in (STATE, LOCKS, QUARANTINE, CACHE, INDEX):
            _make_state_folder(resolved / folder)
        _check_version(resolved / VERSION)
        for made in (resolved, resolved / STATE):
            _sync(made)
        next(resolved.iterdir(), None)
    except (ValueError, RuntimeError) as err:  # a NUL in the path; a link to itself
        raise WorkspaceUnusableError(f"{str(root)!r} is no path of a folder: give the workspace folder with --workspace") from err
    except FileNotFoundError as err:
        raise WorkspaceUnusableError(f"{str(root)!r} does not exist: create the folder or mount the volume there") from err
    except OSError as err:
        raise WorkspaceUnusableError(
            f"{str(root)!r} can't be used ({err.strerror}): the user that runs recalld must own it and be able to write to it",
        ) from err
    return Workspace(resolved)


def probe(workspace: Workspace) -> None:
    """Prove that the volume can be written right now; raises WorkspaceUnusableError."""
    path = workspace.root / STATE / f".probe-{os.getpid()}"
    try:
        path.write_bytes(b"ok")
        path.unlink()
    except OSError as err:
        raise WorkspaceUnusableError(f"the volume can't be written: {err.strerror}") from err


def _make_state_folder(path: Path) -> None:
    path.mkdir(exist_ok=True)
    if path.is_symlink():
        raise WorkspaceUnusableError(f"{str(path)!r} is a link: recalld keeps its state in a real folder, remove the link")


def _check_version(path: Path) -> None:
    try:
        found = path.read_text("utf-8", "replace")
    except FileNotFoundError:
        _write_version(path)
        return
    if found.strip() != LAYOUT_VERSION.strip():
        raise WorkspaceUnusableError(
            f"the workspace has layout version {found.strip()[:20]!r}, this recalld knows {LAYOUT_VERSION.strip()!r}: "
            "start the newer recalld on it",
        )


def _write_version(path: Path) -> None:
    """Give the file its name when it is whole: another task may start at this moment, or this one may be killed."""
    temp = path.with_name(f".{path.name}.tmp-{os.getpid()}-{secrets.token_hex(6)}")
    try:
        with temp.open("x", encoding="utf-8") as file:
            file.write(LAYOUT_VERSION)
            file.flush()
            os.fsync(file.fileno())
        temp.replace(path)
    finally:
        temp.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
