"""Tools on topics: list, read, write, remove, pin. Writing stays in this channel; the global topics are read only from here."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

from pydantic import Field
from pydantic_ai import RunContext

from bot.message import Json, Passage
from bot.tool import Bench, result
from persistence.errors import PersistenceError
from persistence.topic_store import TopicStore
from persistence.topics.index import TopicEntry

T = TypeVar("T")
Name = Annotated[str, Field(min_length=1, max_length=200)]
Where = Literal["channel", "global"]


def _store(bench: Bench, where: Where) -> TopicStore:
    return bench.stores.topics(bench.lane.channel if where == "channel" else None)


async def _answer(work: Callable[[], T], shape: Callable[[T], dict[str, Json]]) -> str:
    try:
        return result(**shape(await asyncio.to_thread(work)))
    except PersistenceError as err:
        return result(error=str(err), code=err.code)


def _entry(entry: TopicEntry) -> dict[str, Json]:
    return {
        "name": entry.name,
        "file": entry.file,
        "summary": entry.summary,
        "updated": entry.stamp,
        "pinned": entry.pinned,
        "stale": entry.stale,
    }


async def topic_list(
    ctx: RunContext[Bench], where: Where = "channel", containing: Annotated[str, Field(max_length=200)] = ""
) -> str:
    """List the topics of this channel or the global ones, with their summaries.

    Args:
        ctx: The turn.
        where: This channel's topics, or the global ones.
        containing: Only topics whose name, file or summary holds this text.
    """
    store = _store(ctx.deps, where)
    return await _answer(
        lambda: store.list(query=containing or None), lambda found: {"topics": [_entry(entry) for entry in found]}
    )


async def topic_read(ctx: RunContext[Bench], name: Name, where: Where = "channel") -> str:
    """Read a topic by its name, its file, or the only one that a text is a part of.

    Args:
        ctx: The turn.
        name: The topic.
        where: A topic of this channel, or a global one.
    """
    bench = ctx.deps
    store = _store(bench, where)
    try:
        topic = await asyncio.to_thread(store.read, name)
    except PersistenceError as err:
        return result(error=str(err), code=err.code)
    path = bench.stores.topic_path(store, topic.entry.file)
    bench.seen.append(Passage(path, 1, topic.text.count("\n") + 1, 1.0, topic.text))
    return result(path=path, truncated=topic.truncated, text=topic.text, **_entry(topic.entry))


async def topic_write(
    ctx: RunContext[Bench],
    name: Name,
    content: Annotated[str, Field(min_length=1, max_length=50_000)],
    summary: Annotated[str, Field(min_length=1, max_length=500)],
    mode: Literal["append", "replace"] = "append",
    *,
    pin: bool = False,
) -> str:
    """Write a topic of this channel: what is known about one subject, in a file of its own with a line in the index.

    Args:
        ctx: The turn.
        name: The topic's name, without brackets.
        content: What to write down.
        summary: One line for the index: what a reader finds there.
        mode: Add to what is there, or rewrite it.
        pin: Keep it first in the index and never stale.
    """
    bench = ctx.deps
    store = _store(bench, "channel")
    answer = await _answer(
        lambda: store.write(name, content, summary, mode=mode, pin=pin, author=bench.author),
        lambda written: {"created": written.created, "file": written.file},
    )
    bench.stores.writes.mark(bench.lane.channel)
    return answer


async def topic_remove(ctx: RunContext[Bench], name: Name) -> str:
    """Take a topic of this channel out of the index; its file stays on the volume.

    Args:
        ctx: The turn.
        name: The topic.
    """
    bench = ctx.deps
    store = _store(bench, "channel")
    answer = await _answer(lambda: store.remove(name, author=bench.author), lambda removed: {"removed": removed.entry.name})
    bench.stores.writes.mark(bench.lane.channel)
    return answer


async def topic_pin(ctx: RunContext[Bench], name: Name, *, pinned: bool = True) -> str:
    """Pin or unpin a topic of this channel.

    Args:
        ctx: The turn.
        name: The topic.
        pinned: False to unpin.
    """
    bench = ctx.deps
    store = _store(bench, "channel")
    return await _answer(
        lambda: store.pin(name, pinned=pinned, author=bench.author),
        lambda done: {"name": done.after.name, "pinned": done.after.pinned, "changed": done.changed},
    )
