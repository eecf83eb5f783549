"""What can be forgotten (a document, lines of one, messages, a channel): what it says, and removing it itself, for good.

Copies of what it says elsewhere are `forget`'s.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from persistence.document_path import document_channel, name_on_disk, parse_document_path
from persistence.errors import BodyInvalidError, ForbiddenError, NotFoundError, PersistenceError, PreconditionFailedError
from persistence.files import etag_of, locked, open_regular, read_bytes, replace_bytes
from persistence.lines import held_lines
from persistence.logs.index import ts_ns
from persistence.places import Place, PlaceKind, channel_of_state, kind_of, walk_volume
from persistence.records import decode_line, encode_line, parse_log_record
from persistence.topics.index import file_key, parse_topic_index
from persistence.version_store import META_SUFFIX, read_version, remove_file, version_ids
from persistence.workspace import STATE, ChannelId, Workspace, parse_ts

_MAX_BYTES: Final = 1 << 32
_LINES: Final[frozenset[PlaceKind]] = frozenset({"log", "context", "ledger"})
_NO_DOCUMENTS: Final[frozenset[PlaceKind]] = frozenset({"log", "context", "settings", "last_prompt"})
_KEPT_OF_MESSAGE: Final = ("date", "ts", "threadTs", "user", "userName", "displayName", "isBot", "id", "replyTo", "answers")
_NOTED: Final[frozenset[PlaceKind]] = frozenset({"memory", "handoff", "skill"})


@dataclass(frozen=True, slots=True)
class DocumentTarget:
    """A document with all its versions, by its path."""

    path: str


@dataclass(frozen=True, slots=True)
class LinesTarget:
    """Lines of a document (1-based, inclusive), as a search found them; `etag` is of the file that they were read from."""

    path: str
    start_line: int
    end_line: int
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class MessageTarget:
    """A message of a channel; it is a line of the log, so it goes only where the log was asked for."""

    channel: ChannelId
    ts: str


@dataclass(frozen=True, slots=True)
class ChannelTarget:
    """Everything of a channel; its log and attachments only where the log was asked for."""

    channel: ChannelId


Target: TypeAlias = DocumentTarget | LinesTarget | MessageTarget | ChannelTarget


@dataclass(frozen=True, slots=True)
class Removal:
    """Something that is to be removed: of which kind, where, how many (files, versions, lines, messages), and how."""

    kind: str
    path: str
    count: int
    act: Callable[[], None]


def texts_of(workspace: Workspace, target: Target) -> list[str]:
    """What a target says now and said in its versions; of a channel what its memory says. Raises NotFoundError."""
    match target:
        case DocumentTarget(path):
            return _texts_of_document(workspace, path)
        case LinesTarget():
            return ["\n".join(_chosen_lines(workspace, target))]
        case MessageTarget(channel, ts):
            return _texts_of_message(workspace, channel, ts)
        case ChannelTarget(channel):
            return _texts_of_channel(workspace, channel)


def _texts_of_document(workspace: Workspace, path: str) -> list[str]:
    name = document_to_forget(workspace, path)
    current = read_bytes(workspace.root, name, limit=_MAX_BYTES)
    found = [] if current is None else [current]
    for version_id in version_ids(workspace, name):
        with suppress(NotFoundError):  # cut short by a crash: it goes with the others
            found.append(read_version(workspace, name, version_id)[1])
    if current is None and not version_ids(workspace, name):
        raise NotFoundError(f"there is no document {path[:200]!r}, and none was kept")
    return [data.decode("utf-8-sig", "replace") for data in found]


def document_to_forget(workspace: Workspace, path: str) -> str:
    """The name on disk. Raises BodyInvalidError, and ForbiddenError for what is no document."""
    name = name_on_disk(workspace, parse_document_path(path))
    if kind_of(name) in _NO_DOCUMENTS:
        raise ForbiddenError(f"{path[:200]!r} is no document: forget the channel or its messages instead")
    return name


def _chosen_lines(workspace: Workspace, target: LinesTarget) -> list[str]:
    name = document_to_forget(workspace, target.path)
    data = read_bytes(workspace.root, name, limit=_MAX_BYTES)
    if data is None:
        raise NotFoundError(f"there is no document {target.path[:200]!r}")
    _check_lines(target, data)
    return data.decode("utf-8-sig", "replace").split("\n")[target.start_line - 1 : target.end_line]


def _check_lines(target: LinesTarget, data: bytes) -> None:
    if not 1 <= target.start_line <= target.end_line:
        raise BodyInvalidError("start_line and end_line are 1-based and inclusive, end_line is not before start_line")
    if target.etag is not None and etag_of(data) != target.etag:
        raise PreconditionFailedError(f"{target.path!r} changed since its lines were found: search again", etag=etag_of(data))


def _texts_of_message(workspace: Workspace, channel: ChannelId, ts: str) -> list[str]:
    lines = read_bytes(workspace.root, workspace.log(channel), limit=_MAX_BYTES) or b""
    records = [record for line in lines.split(b"\n") if (record := parse_log_record(line)) is not None]
    texts = [record.text for record in records if ts_ns(record.ts) == ts_ns(parse_ts(ts))]
    if not texts:
        raise NotFoundError(f"there is no message {ts} in this channel")
    return texts


def _texts_of_channel(workspace: Workspace, channel: ChannelId) -> list[str]:
    if not (workspace.root / channel).is_dir():
        raise NotFoundError("there is no such channel")
    noted = [place for place in walk_volume(workspace) if place.kind in _NOTED and document_channel(place.name) == channel]
    found = [read_bytes(workspace.root, place.name, limit=_MAX_BYTES) for place in noted if place.is_regular]
    return [data.decode("utf-8-sig", "replace") for data in found if data is not None]


def is_of_target(workspace: Workspace, place: Place, target: Target, *, include_log: bool) -> bool:
    """Whether a file goes whole with a target, so that nothing need be taken out of it."""
    match target:
        case DocumentTarget(path):
            name = document_to_forget(workspace, path)
            return place.name == name or place.name.startswith(f"{workspace.version(name, '')}/")
        case ChannelTarget(channel):
            return _is_of_channel(workspace, place, channel) and (include_log or not _is_of_log(place, channel))
        case _:
            return False


def _is_of_channel(workspace: Workspace, place: Place, channel: ChannelId) -> bool:
    if place.name.startswith(f"{channel}/") or channel_of_state(place.name) == channel:
        return True
    return place.kind == "event" and place.is_regular and _channel_of_event(workspace, place.name) == channel


def _channel_of_event(workspace: Workspace, name: str) -> object:
    try:
        value = json.loads(read_bytes(workspace.root, name) or b"")
    except (ValueError, RecursionError, PersistenceError):
        return None
    return value.get("channelId") if isinstance(value, dict) else None


def _is_of_log(place: Place, channel: ChannelId) -> bool:
    in_quarantine = place.kind == "quarantine" and f"/{channel}%2Flog.jsonl" in place.name
    return place.kind == "log" or place.name.startswith(f"{channel}/attachments/") or in_quarantine


def removals_of(workspace: Workspace, targets: Sequence[Target], *, include_log: bool) -> Iterator[Removal]:
    """What is to be removed, in the order in which it may be: a kill in between loses nothing that a second run needs."""
    spans: dict[str, list[LinesTarget]] = {}
    messages: dict[ChannelId, set[int]] = {}
    for target in targets:
        match target:
            case DocumentTarget(path):
                yield from _remove_document(workspace, document_to_forget(workspace, path))
            case LinesTarget(path):
                spans.setdefault(document_to_forget(workspace, path), []).append(target)
            case MessageTarget(channel, ts):
                messages.setdefault(channel, set()).add(ts_ns(parse_ts(ts)))
            case ChannelTarget(channel):
                yield from _remove_channel(workspace, channel, include_log=include_log)
    for name, chosen in spans.items():
        yield _remove_lines(workspace, name, chosen)
    for channel, keys in messages.items() if include_log else ():
        yield from _remove_messages(workspace, channel, keys)


def _remove_document(workspace: Workspace, name: str) -> Iterator[Removal]:
    folder, _, file = name.rpartition("/")
    index = f"{folder}/MEMORY.md"
    if folder.rpartition("/")[2] == "memory" and file != "MEMORY.md" and _listed(workspace, index, file):
        yield Removal("index_line", index, 1, lambda: _drop_from_index(workspace, index, file))
    ids = version_ids(workspace, name)
    if ids:
        yield Removal("version", name, len(ids), lambda: _remove_versions(workspace, name))
    if read_bytes(workspace.root, name, limit=_MAX_BYTES) is not None:
        yield Removal("document", name, 1, lambda: _remove_under_lock(workspace, name))


def _listed(workspace: Workspace, index: str, file: str) -> set[int]:
    """The lines of an index that name a file."""
    text = (read_bytes(workspace.root, index) or b"").decode("utf-8-sig", "replace")
    return {entry.line for entry in parse_topic_index(text).entries if file_key(entry.file) == file_key(file)}


def _drop_from_index(workspace: Workspace, index: str, file: str) -> None:
    with locked(workspace.root, index, workspace.lock_of(index)) as held:
        gone = _listed(workspace, index, file)
        lines = (read_bytes(workspace.root, index) or b"").split(b"\n")
        kept = [line for number, line in enumerate(lines, start=1) if number not in gone]
        replace_bytes(workspace.root, index, b"\n".join(kept), held)


def _remove_versions(workspace: Workspace, name: str) -> None:
    folder = workspace.version(name, "")
    with locked(workspace.root, name, workspace.lock_of(name)):
        for version_id in version_ids(workspace, name):
            remove_file(workspace.root, f"{folder}/{version_id}")
            remove_file(workspace.root, f"{folder}/{version_id}{META_SUFFIX}")
    with suppress(OSError):
        (workspace.root / folder).rmdir()


def _remove_under_lock(workspace: Workspace, name: str) -> None:
    with locked(workspace.root, name, workspace.lock_of(name)) as held, ExitStack() as stack:
        if kind_of(name) in _LINES:  # an appender that waits finds the file gone and makes a new one
            stack.enter_context(held_lines(workspace.root, name))
        held.assert_held()
        remove_file(workspace.root, name)


def _remove_channel(workspace: Workspace, channel: ChannelId, *, include_log: bool) -> Iterator[Removal]:
    target = ChannelTarget(channel)
    for place in walk_volume(workspace):
        if is_of_target(workspace, place, target, include_log=include_log):
            yield Removal(place.kind, place.name, 1, partial(_remove_under_lock, workspace, place.name))
    yield Removal("folders", channel, 1, lambda: _remove_folders(workspace, channel))


def _remove_folders(workspace: Workspace, channel: ChannelId) -> None:
    """Remove the folders of a channel that have nothing in them any more."""
    state = workspace.root / STATE
    patterns = (f"*/{channel}", f"*/*/{channel}", f"versions/{channel}%2F*")
    for top in (workspace.root / channel, *(found for pattern in patterns for found in state.glob(pattern))):
        for folder, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):
                Path(folder).rmdir()


def _remove_lines(workspace: Workspace, name: str, chosen: Sequence[LinesTarget]) -> Removal:
    gone = {number for each in chosen for number in range(each.start_line, each.end_line + 1)}

    def act() -> None:
        with locked(workspace.root, name, workspace.lock_of(name)) as held:
            data = read_bytes(workspace.root, name, limit=_MAX_BYTES)
            if data is None:
                return
            for each in chosen:
                _check_lines(each, data)
            lines = data.split(b"\n")
            kept = [line for number, line in enumerate(lines, start=1) if number not in gone]
            replace_bytes(workspace.root, name, b"\n".join(kept), held)

    return Removal("lines", name, len(gone), act)


def _remove_messages(workspace: Workspace, channel: ChannelId, keys: set[int]) -> Iterator[Removal]:
    name = workspace.log(channel)
    attached = sorted(set(_attachments(workspace, channel, keys)))
    for file in attached:
        yield Removal("attachment", file, 1, partial(_remove_under_lock, workspace, file))

    def act() -> None:
        with locked(workspace.root, name, workspace.lock_of(name)) as held, held_lines(workspace.root, name) as data:
            replace_bytes(workspace.root, name, emptied(data, keys), held)

    yield Removal("message", name, len(keys), act)


def _attachments(workspace: Workspace, channel: ChannelId, keys: set[int]) -> Iterator[str]:
    for line in (read_bytes(workspace.root, workspace.log(channel), limit=_MAX_BYTES) or b"").split(b"\n"):
        record = parse_log_record(line)
        if record is None or ts_ns(record.ts) not in keys:
            continue
        for attachment in record.attachments or []:
            file = attachment.local or ""
            with suppress(PersistenceError, OSError):
                path = parse_document_path(file if file.startswith(f"{channel}/") else f"{channel}/{file}")
                if path.startswith(f"{channel}/attachments/"):
                    os.close(open_regular(workspace.root, path))
                    yield path


def emptied(log: bytes, keys: set[int]) -> bytes:
    """The log with nothing left of these messages but that they were there, each as one deleted line."""
    lines: list[bytes] = []
    seen: set[int] = set()
    for line in log.split(b"\n"):
        record = parse_log_record(line)
        if record is None or ts_ns(record.ts) not in keys:
            lines.append(line)
        elif ts_ns(record.ts) not in seen:
            seen.add(ts_ns(record.ts))
            fields = {name: value for name, value in (decode_line(line) or {}).items() if name in _KEPT_OF_MESSAGE}
            lines.append(encode_line(fields | {"text": "", "deleted": True}).rstrip(b"\n"))
    return b"\n".join(lines)
