"""Which paths from outside name a document, whose it is, and which may be written. Pure but for finding a name's spelling."""

import os
import re
import unicodedata
from typing import Final

from persistence.errors import BodyInvalidError, ChannelInvalidError, ForbiddenError
from persistence.files import opened_folder
from persistence.workspace import GLOBAL_FOLDERS, ChannelId, Workspace, parse_channel_id

TEAM: Final = ".team"
_MAX_PATH_BYTES: Final = 1024
_MAX_PART_BYTES: Final = 200  # a temporary file beside it has a longer name
_NEVER = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
_LAYERS: Final = ("MEMORY.md", "SYSTEM.md")


def parse_document_path(text: str) -> str:
    """A path from outside in its one spelling (NFC). Raises BodyInvalidError, and ForbiddenError for a hidden part.

    Relative to the workspace, `/`-separated; no empty part, `.`, `..`, backslash or control character; nothing hidden but `.team`
    of the workspace or a channel and what is in it.
    """
    path = unicodedata.normalize("NFC", text)
    parts = path.split("/")
    if not path or _NEVER.search(path) or any(part in ("", ".", "..") for part in parts):
        raise BodyInvalidError(
            f"{text[:200]!r} is no path of a document: write it relative to the workspace, with / and without .., as memory/x.md",
        )
    if len(path.encode()) > _MAX_PATH_BYTES or any(len(part.encode()) > _MAX_PART_BYTES for part in parts):
        raise BodyInvalidError(f"the path is too long: at most {_MAX_PATH_BYTES} bytes, {_MAX_PART_BYTES} for each part")
    if is_hidden(parts):
        raise ForbiddenError(f"{text[:200]!r} is hidden: only {TEAM} is open here")
    return path


def is_open_name(part: str) -> bool:
    """Whether a name from the disk can be given as a part of a path."""
    return not _NEVER.search(part)


def is_hidden(parts: list[str]) -> bool:
    """Whether a path has a part that is not shown: a name with a dot in front, unless it is, or lies in, a `.team`."""
    team_at = next((at for at, part in enumerate(parts[:2]) if part == TEAM), len(parts))
    return any(part.startswith(".") for part in parts[:team_at]) or any(part.startswith(".") for part in parts[team_at + 1 :])


def document_channel(path: str) -> ChannelId | None:
    """The channel that a document belongs to, whether or not it exists; None for a global one."""
    first, _, rest = path.partition("/")
    if not rest or first.casefold() in GLOBAL_FOLDERS or first == TEAM:
        return None
    try:
        return parse_channel_id(first)
    except ChannelInvalidError:
        return None


def is_writable(path: str) -> bool:
    """Whether a parsed path may be written: the memory layers, memory, skills, and those of a channel with its scratch folder."""
    parts = path.split("/")
    channel = document_channel(path)
    own = parts if channel is None else parts[1:]
    if any(part.startswith(".") for part in parts):
        return False
    if len(own) == 1:
        return own[0] in _LAYERS
    in_memory = own[0] == "memory" and own[-1].casefold().endswith(".md")
    return in_memory or own[0] == "skills" or (own[0] == "scratch" and channel is not None)


def parse_writable_path(text: str) -> str:
    """As `parse_document_path`, and ForbiddenError for a path that may only be read."""
    path = parse_document_path(text)
    if not is_writable(path):
        raise ForbiddenError(
            f"{path[:200]!r} can't be written here: open are MEMORY.md, SYSTEM.md, memory/**.md and skills/**, "
            "the same in a channel, and a channel's scratch/**",
        )
    return path


def name_on_disk(workspace: Workspace, path: str) -> str:
    """The path as the disk spells it (a name may be there in NFD); parts that are not there stay as they are."""
    if path.isascii():
        return path
    found: list[str] = []
    for part in path.split("/"):
        found.append(part if part.isascii() else _spelling(workspace, "/".join(found), part))
    return "/".join(found)


def _spelling(workspace: Workspace, folder: str, part: str) -> str:
    try:
        with opened_folder(workspace.root, folder) as fd, os.scandir(fd) as entries:
            same = {entry.name for entry in entries if unicodedata.normalize("NFC", entry.name) == part}
    except FileNotFoundError:
        return part
    return part if part in same or not same else min(same)
