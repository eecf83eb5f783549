"""Forgetting for good: the targets themselves, every copy of what they say that the volume holds, and a receipt.

The index, its cache and the backups are not of this package: the receipt names what is to be dropped there.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from persistence.audit import AuditLine, Author, append_audit, now_iso, one_line
from persistence.document_path import document_channel
from persistence.errors import PersistenceError
from persistence.files import MAX_TEXT_BYTES, read_bytes
from persistence.forgetting.scrub import Scrub, change_everywhere, count_place, scrub_place
from persistence.forgetting.targets import (
    ChannelTarget,
    DocumentTarget,
    LinesTarget,
    MessageTarget,
    Removal,
    Target,
    document_to_forget,
    is_of_target,
    removals_of,
    texts_of,
)
from persistence.forgetting.words import Words
from persistence.places import Place, PlaceKind, channel_of_state, walk_volume
from persistence.version_store import file_of_version
from persistence.workspace import ChannelId, Workspace, normal_ts, parse_ts
from persistence.wrapper import read_wrapper, wrap_deleted

__all__ = [
    "ChannelTarget",
    "DocumentTarget",
    "LinesTarget",
    "MessageTarget",
    "Receipt",
    "Remaining",
    "Removed",
    "Target",
    "forget",
    "plan_forget",
]

# What recalld itself made of what was said; in anything else a person or a team wrote it, and it is theirs to decide.
_COPIES: Final[frozenset[PlaceKind]] = frozenset({"context", "ledger", "last_prompt", "version", "quarantine", "handoff", "temp"})
_MEMORY: Final[frozenset[PlaceKind]] = frozenset({"memory", "skill", "handoff"})


@dataclass(frozen=True, slots=True)
class Removed:
    """What was (in a plan: would be) removed; `count` are files, versions, lines or messages.

    `kind` is document, version, index_line, lines, message, attachment or folders, or else the kind of the file (`places`) that
    copies were taken out of.
    """

    kind: str
    path: str
    count: int


@dataclass(frozen=True, slots=True)
class Remaining:
    """Where something of it is still said, and why it was left: 1-based line, None for a whole file."""

    path: str
    line: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """What forgetting did. `documents` and `messages` are to be dropped from the index, its cache and its older versions.

    A copy in other words, or of a part of a sentence, is not recognised as one.
    """

    dry_run: bool
    removed: tuple[Removed, ...]
    remaining: tuple[Remaining, ...]
    documents: tuple[str, ...]
    messages: tuple[tuple[ChannelId, str], ...]
    channels: tuple[ChannelId, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    targets: Sequence[Target]
    words: Words
    include_log: bool
    author: Author


def plan_forget(workspace: Workspace, targets: Sequence[Target], *, include_log: bool = False) -> Receipt:
    """What `forget` would do. Changes nothing. Raises as it."""
    plan = _plan(workspace, targets, include_log=include_log, author=Author(""))
    counted = [Removed(place.kind, place.name, _count(workspace, place, scrub)) for place, scrub in _sweep(workspace, plan)]
    copies = [each for each in counted if each.count]
    removals = [_as_removed(each) for each in removals_of(workspace, targets, include_log=include_log)]
    return _receipt(plan, [*copies, *removals], _remaining(workspace, plan, done=False), dry_run=True)


def forget(workspace: Workspace, targets: Sequence[Target], *, author: Author, include_log: bool = False) -> Receipt:
    """Remove the targets with their versions, and take what they say out of everything that recalld made of it.

    First the copies, then the targets: after a kill in between, a second run finds what is left. Memory that others wrote, and
    log lines unless `include_log`, are left and listed. Raises NotFoundError, ForbiddenError, BodyInvalidError,
    PreconditionFailedError (lines of a file that changed), StoreBusyError, StorageFullError, StoreFaultError, UnsafeObjectError.
    """
    plan = _plan(workspace, targets, include_log=include_log, author=author)
    removed = []
    for place, scrub in _sweep(workspace, plan):
        count = scrub_place(workspace, place, scrub) if _count(workspace, place, scrub) else 0
        removed += [Removed(place.kind, place.name, count)] if count else []
    for removal in removals_of(workspace, targets, include_log=include_log):
        removal.act()
        append_audit(workspace, _audit_line(removal, author))
        removed.append(_as_removed(removal))
    return _receipt(plan, removed, _remaining(workspace, plan, done=True), dry_run=False)


def _plan(workspace: Workspace, targets: Sequence[Target], *, include_log: bool, author: Author) -> _Plan:
    texts = [text for target in targets for text in texts_of(workspace, target)]
    elsewhere = [
        (read_bytes(workspace.root, place.name, limit=place.size_bytes + MAX_TEXT_BYTES) or b"").decode("utf-8", "replace")
        for place in walk_volume(workspace)
        if place.kind in _MEMORY and place.is_regular and not _is_target(workspace, place, targets, include_log=include_log)
    ]
    return _Plan(targets, Words.of(texts, said_elsewhere=elsewhere), include_log, author)


def _is_target(workspace: Workspace, place: Place, targets: Sequence[Target], *, include_log: bool) -> bool:
    if any(isinstance(each, LinesTarget) and document_to_forget(workspace, each.path) == place.name for each in targets):
        return True
    return any(is_of_target(workspace, place, target, include_log=include_log) for target in targets)


def _sweep(workspace: Workspace, plan: _Plan) -> Iterator[tuple[Place, Scrub]]:
    """The files that may hold copies, each with what is to be done to its texts."""
    kinds = _COPIES | ({"log"} if plan.include_log else set())
    for place in walk_volume(workspace):
        if place.is_regular and place.kind in kinds and not _is_whole_target(workspace, place, plan):
            yield place, _scrub_for(workspace, place, plan)


def _is_whole_target(workspace: Workspace, place: Place, plan: _Plan) -> bool:
    return any(is_of_target(workspace, place, target, include_log=plan.include_log) for target in plan.targets)


def _scrub_for(workspace: Workspace, place: Place, plan: _Plan) -> Scrub:
    channel = document_channel(place.name) or channel_of_state(place.name)
    said = [each for each in plan.targets if isinstance(each, MessageTarget) and each.channel == channel]
    messages = {normal_ts(parse_ts(each.ts)) for each in said}
    links = _links_in(workspace, place, plan.targets)

    def change(text: str) -> str:
        ts = read_wrapper(text) if messages else None
        return wrap_deleted(ts) if ts is not None and normal_ts(ts) in messages else plan.words.take_out(text)

    return Scrub(
        text=lambda text: change(links.sub("", text) if links is not None else text),
        fields=lambda value: {name: change_everywhere(item, change) for name, item in value.items()},
        action="forget",
        author=plan.author,
    )


def _links_in(workspace: Workspace, place: Place, targets: Sequence[Target]) -> re.Pattern[str] | None:
    """In an index and its versions: the lines of topics that are forgotten."""
    name = file_of_version(place.name) if place.kind == "version" else place.name
    documents = [document_to_forget(workspace, each.path) for each in targets if isinstance(each, DocumentTarget)]
    files = [each.rpartition("/")[2] for each in documents if name == f"{each.rpartition('/')[0]}/MEMORY.md"]
    return re.compile(rf"^.*\]\((?:{'|'.join(map(re.escape, files))})\).*\n?", re.MULTILINE) if files else None


def _count(workspace: Workspace, place: Place, scrub: Scrub) -> int:
    """How many lines of a file would change; 0 for one that is gone or can't be read (it is listed as remaining then)."""
    try:
        return count_place(workspace, place, scrub)
    except PersistenceError:
        return 0


def _remaining(workspace: Workspace, plan: _Plan, *, done: bool) -> list[Remaining]:
    """Where it is still said: after the fact everywhere, in a plan where it would be left."""
    found = []
    for place in walk_volume(workspace):
        goes = place.kind in _COPIES or (place.kind == "log" and plan.include_log) or _is_whole_target(workspace, place, plan)
        if not place.is_regular or place.kind == "cache" or (goes and not done):
            continue
        line = _line_in(workspace, place, plan, done=done)
        if line != 0:
            found.append(Remaining(place.name, line, _reason(place.kind)))
    asked = {each.channel for each in plan.targets if isinstance(each, MessageTarget | ChannelTarget)}
    logs = [workspace.log(channel) for channel in sorted(asked) if not plan.include_log]
    listed = {each.path for each in found}
    return [*found, *(Remaining(log, None, _reason("log")) for log in logs if log not in listed)]


def _line_in(workspace: Workspace, place: Place, plan: _Plan, *, done: bool) -> int | None:
    """The first line that says it, 0 for none, None for a file that can't be read."""
    try:
        data = read_bytes(workspace.root, place.name, limit=place.size_bytes + MAX_TEXT_BYTES) or b""
    except PersistenceError:
        return None
    text = data.decode("utf-8", "replace")
    return plan.words.first_line(text if done else _without_targets(workspace, place, text, plan)) or 0


def _without_targets(workspace: Workspace, place: Place, text: str, plan: _Plan) -> str:
    """What a file will say, with empty lines for what goes."""
    links = _links_in(workspace, place, plan.targets)
    lines = (text if links is None else links.sub("\n", text)).split("\n")
    for target in plan.targets:
        if isinstance(target, LinesTarget) and document_to_forget(workspace, target.path) == place.name:
            gone = slice(target.start_line - 1, target.end_line)
            lines[gone] = [""] * len(lines[gone])
    return "\n".join(lines)


def _reason(kind: PlaceKind) -> str:
    if kind == "log":
        return "log lines go only where the log is asked for"
    if kind in _COPIES:
        return "it came in meanwhile, or the file can't be read: forget it again"
    return "it is said here too, by others: change it there, or forget that as well"


def _receipt(plan: _Plan, removed: Sequence[Removed], remaining: Sequence[Remaining], *, dry_run: bool) -> Receipt:
    documents = [each.path for each in plan.targets if isinstance(each, DocumentTarget | LinesTarget)]
    return Receipt(
        dry_run=dry_run,
        removed=tuple(removed),
        remaining=tuple(remaining),
        documents=tuple(dict.fromkeys(documents)),
        messages=tuple((each.channel, each.ts) for each in plan.targets if isinstance(each, MessageTarget) and plan.include_log),
        channels=tuple(each.channel for each in plan.targets if isinstance(each, ChannelTarget)),
    )


def _as_removed(removal: Removal) -> Removed:
    return Removed(removal.kind, removal.path, removal.count)


def _audit_line(removal: Removal, author: Author) -> AuditLine:
    return AuditLine(now_iso(), author.by, "forget", removal.path, reason=one_line(author.reason), turn=author.turn)
