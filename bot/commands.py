"""Slash commands: handled without a model, in every surface. A missing argument is a usage message, never text to store."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from bot.errors import BotError
from bot.stores import Stores
from persistence.audit import Author
from persistence.errors import NotFoundError, PersistenceError
from persistence.memory import append_note
from persistence.records import LogRecord
from persistence.teams.log import ORCHESTRATOR
from persistence.topic_store import TopicStore
from persistence.topics.index import TopicEntry
from persistence.workspace import Lane
from semantic.errors import SemanticError
from semantic.types import Query, Scope

_COMMAND: Final = re.compile(r"/(?P<name>memory|remember|forget|search|new|compact|stop|help)(?:\s+(?P<rest>.*))?\Z", re.DOTALL)
_HITS: Final = 5
FRESH_TIMEOUT_S: Final = 2.0

HELP: Final = """\
/memory [status] · /memory list · /memory search <text> · /memory show <topic>
/memory pin <topic> · /memory unpin <topic> · /memory remove <topic> · /memory repair
/memory init · /memory compact (the team's memory) · /memory consolidate
/remember <note> · /forget <topic> · /search <text>
/new (start a fresh conversation) · /compact (sum up a long one) · /stop · /help"""


@dataclass(frozen=True, slots=True)
class Command:
    """A parsed command: `name` with its words, `argument` the rest of the text, stripped."""

    name: str
    argument: str


@dataclass(frozen=True, slots=True)
class Desk:
    """What a command works on, and who gave it. `new`, `compact` and `consolidate` are the lane's ways to tidy its context."""

    stores: Stores
    lane: Lane
    author: Author
    new: Callable[[], Awaitable[str]]
    compact: Callable[[], Awaitable[str]]
    consolidate: Callable[[], Awaitable[str]]

    @property
    def topics(self) -> TopicStore:
        """The channel's topics."""
        return self.stores.topics(self.lane.channel)


def parse_command(text: str) -> Command | None:
    """The command that a message is; None for any other text, also one that only begins with a slash."""
    match = _COMMAND.match(text.strip())
    return None if match is None else Command(match["name"], (match["rest"] or "").strip())


async def run_command(command: Command, desk: Desk) -> str:
    """Do it and say what came of it; a refusal is an answer, with its code."""
    try:
        return await _COMMANDS[command.name](command.argument, desk)
    except (BotError, PersistenceError, SemanticError) as err:
        return f"{err} [{err.code}]"


def author_of(record: LogRecord, command: Command) -> Author:
    """Who gave a command, for versions and the audit."""
    return Author(f"user:{record.user or 'unknown'}", f"/{command.name}")


async def _memory(argument: str, desk: Desk) -> str:
    word, _, rest = argument.partition(" ")
    action = _MEMORY.get(word or "status")
    if action is None:
        return f"/memory {word} is no command. Usage:\n{HELP}"
    return await action(rest.strip(), desk)


async def _status(_: str, desk: Desk) -> str:
    def read() -> str:
        lines = [_describe_topics("this channel", desk.topics), _describe_topics("global", desk.stores.topics(None))]
        team = desk.stores.team(desk.lane.channel).status()
        if team.index_lines or any(log.entries for log in team.logs):
            entries = sum(log.entries for log in team.logs)
            lines.append(
                f"team: index {team.index_lines} of {team.index_limit} lines, {entries} log entries, {len(team.decisions)} "
                f"latest decisions, {len(team.open_questions)} open questions, {len(team.active_runs)} active runs",
            )
        return "\n".join(lines)

    indexed = desk.stores.indexer.status
    documents = sum(counts.documents for counts in indexed.collections.values())
    return (
        f"{await asyncio.to_thread(read)}\nindex: {documents} documents, {indexed.pending} pending, {len(indexed.failed)} failed"
    )


def _describe_topics(where: str, store: TopicStore) -> str:
    status = store.status()
    odd = [
        f"{len(found)} {name}"
        for name, found in (("orphans", status.orphans), ("unindexed", status.unindexed), ("quarantined", status.quarantined))
        if found
    ]
    trouble = f" ({', '.join(odd)}: /memory repair)" if odd else ""
    return f"{where}: {status.topics} topics, {status.pinned} pinned, {status.stale} stale{trouble}"


async def _list(_: str, desk: Desk) -> str:
    own, shared = await asyncio.to_thread(lambda: (desk.topics.list(), desk.stores.topics(None).list()))
    lines = [_line(entry, "") for entry in own] + [_line(entry, " (global)") for entry in shared]
    return "\n".join(lines) or "there are no topics yet: the bot writes them, or PUT /v1/topics/<name>"


def _line(entry: TopicEntry, where: str) -> str:
    flags = " [pin]" * entry.pinned + " [stale?]" * entry.stale
    return f"- {entry.name}{flags}{where}: {entry.summary}"


async def _search_topics(argument: str, desk: Desk) -> str:
    if not argument:
        return "usage: /memory search <text>"
    found = await asyncio.to_thread(desk.topics.search, argument)
    return "\n".join(f"- {match.name} ({match.file}): {match.line}" for match in found) or f"no topic holds {argument!r}"


async def _show(argument: str, desk: Desk) -> str:
    if not argument:
        return "usage: /memory show <topic>"

    def read() -> str:
        try:
            return desk.topics.read(argument).text
        except NotFoundError:
            return desk.stores.topics(None).read(argument).text

    return await asyncio.to_thread(read)


async def _pin(argument: str, desk: Desk) -> str:
    return await _set_pin(argument, desk, pinned=True)


async def _unpin(argument: str, desk: Desk) -> str:
    return await _set_pin(argument, desk, pinned=False)


async def _set_pin(argument: str, desk: Desk, *, pinned: bool) -> str:
    word = "pin" if pinned else "unpin"
    if not argument:
        return f"usage: /memory {word} <topic>"
    done = await asyncio.to_thread(desk.topics.pin, argument, pinned=pinned, author=desk.author)
    return f"{done.after.name} is {'now' if done.changed else 'already'} {word}ned"


async def _remove(argument: str, desk: Desk) -> str:
    if not argument:
        return "usage: /memory remove <topic>"
    return await _take_out(argument, desk)


async def _forget(argument: str, desk: Desk) -> str:
    if not argument:
        return "usage: /forget <topic>"
    return await _take_out(argument, desk)


async def _take_out(argument: str, desk: Desk) -> str:
    removed = await asyncio.to_thread(desk.topics.remove, argument, author=desk.author)
    desk.stores.writes.mark(desk.lane.channel)
    kept = "; its file stays on the volume" if removed.file_kept else ""
    return f"{removed.entry.name} is no longer a topic{kept}"


async def _repair(_: str, desk: Desk) -> str:
    report = await asyncio.to_thread(desk.topics.repair, author=desk.author)
    desk.stores.writes.mark(desk.lane.channel)
    skipped = "".join(f"\n- left alone: {file}: {reason}" for file, reason in report.skipped)
    return f"{len(report.added)} topics added, {len(report.refreshed)} refreshed, {len(report.dropped)} dropped{skipped}"


async def _init(_: str, desk: Desk) -> str:
    created = await asyncio.to_thread(desk.stores.team(desk.lane.channel).init, author=desk.author)
    return f"the team's memory is ready: {len(created)} files made" if created else "the team's memory was there already"


async def _compact_team(_: str, desk: Desk) -> str:
    done = await asyncio.to_thread(desk.stores.team(desk.lane.channel).compact, author=desk.author)
    archived = sum(each.archived for each in done.roles.values())
    over = done.index.over if done.index is not None else 0
    merge = f"; the index has {over} unique lines, merge some facts" if over else ""
    return f"{archived} entries archived{merge}"


async def _remember(argument: str, desk: Desk) -> str:
    if not argument:
        return "usage: /remember <note>"
    team = desk.stores.team(desk.lane.channel)
    if await asyncio.to_thread(team.exists):
        noted = await asyncio.to_thread(team.remember, ORCHESTRATOR, argument, author=desk.author)
        return f"noted in {noted.path}: {noted.text}"
    note = await asyncio.to_thread(append_note, desk.stores.workspace, desk.lane.channel, argument, author=desk.author)
    desk.stores.writes.mark(desk.lane.channel)
    return f"noted in {note.path}#L{note.start_line}-L{note.end_line}"


async def _search(argument: str, desk: Desk) -> str:
    if not argument:
        return "usage: /search <text>"
    await desk.stores.writes.settle(FRESH_TIMEOUT_S)
    query = Query(text=argument, scope=Scope(channel=desk.lane.channel), limit=_HITS)
    found = await asyncio.to_thread(desk.stores.searcher.search, query)
    hits = [f"{hit.score:.2f} {hit.path}#L{hit.start_line}-L{hit.end_line}\n  {hit.snippet}" for hit in found.hits]
    off = f"\n(off: {', '.join(found.degraded)})" if found.degraded else ""
    return ("\n".join(hits) or "nothing found") + off


async def _new(_: str, desk: Desk) -> str:
    return await desk.new()


async def _compact(_: str, desk: Desk) -> str:
    return await desk.compact()


async def _consolidate(_: str, desk: Desk) -> str:
    return await desk.consolidate()


async def _stop(_: str, _desk: Desk) -> str:
    return "Nothing runs here now."  # a running turn was stopped before its lane got to this


async def _help(_: str, _desk: Desk) -> str:
    return HELP


_Action = Callable[[str, Desk], Awaitable[str]]
_COMMANDS: Final[dict[str, _Action]] = {
    "memory": _memory,
    "remember": _remember,
    "forget": _forget,
    "search": _search,
    "new": _new,
    "compact": _compact,
    "stop": _stop,
    "help": _help,
}
_MEMORY: Final[dict[str, _Action]] = {
    "status": _status,
    "list": _list,
    "search": _search_topics,
    "show": _show,
    "pin": _pin,
    "unpin": _unpin,
    "remove": _remove,
    "init": _init,
    "compact": _compact_team,
    "consolidate": _consolidate,
    "repair": _repair,
}
