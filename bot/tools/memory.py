"""Tools on memory files: find, read, note down."""

import asyncio
from typing import Annotated, Final

from pydantic import Field
from pydantic_ai import RunContext

from bot.message import Passage
from bot.tool import FRESH_TIMEOUT_S, Bench, passage_of, result
from persistence.errors import PersistenceError
from persistence.files import read_text
from persistence.memory import append_note, remove_note
from semantic.errors import SemanticError
from semantic.scanner import classify
from semantic.types import Query

MAX_NOTE_CHARS: Final = 4000
MAX_READ_LINES: Final = 400


async def memory_search(
    ctx: RunContext[Bench],
    query: Annotated[str, Field(min_length=1, max_length=10_000)],
    limit: Annotated[int, Field(ge=1, le=20)] = 6,
) -> str:
    """Find passages in memory files and skills by meaning and by word.

    Args:
        ctx: The turn.
        query: What to look for, in plain words.
        limit: How many passages at most.
    """
    bench = ctx.deps
    await bench.stores.writes.settle(FRESH_TIMEOUT_S)
    try:
        found = await asyncio.to_thread(bench.stores.searcher.search, Query(text=query, scope=bench.scope, limit=limit))
    except SemanticError as err:
        return result(error=str(err), code=err.code)
    passages = [passage_of(hit) for hit in found.hits]
    bench.seen.extend(passages)
    return result(
        passages=[{"source": passage.source, "score": passage.score, "text": passage.text} for passage in passages],
        degraded=list(found.degraded),
    )


async def memory_read(
    ctx: RunContext[Bench],
    path: Annotated[str, Field(min_length=1, max_length=1000)],
    start_line: Annotated[int, Field(ge=1)] = 1,
    end_line: Annotated[int | None, Field(ge=1)] = None,
) -> str:
    """Show lines of a memory or skill file of this channel's scope.

    Args:
        ctx: The turn.
        path: The file, relative to the workspace, as sources name it.
        start_line: First line, from 1.
        end_line: Last line; at most 400 lines are shown.
    """
    bench = ctx.deps
    placed = classify(path)
    if placed is None or placed[1] not in (None, bench.lane.channel):
        return result(error=f"{path!r} is no memory or skill file of this channel's scope")
    try:
        file = await asyncio.to_thread(read_text, bench.stores.workspace.root, path)
    except PersistenceError as err:
        return result(error=str(err), code=err.code)
    if file is None:
        return result(error=f"there is no file {path!r}")
    lines = file.text.removesuffix("\n").split("\n")
    last = min(end_line or len(lines), len(lines), start_line + MAX_READ_LINES - 1)
    text = "\n".join(lines[start_line - 1 : last])
    bench.seen.append(Passage(path, start_line, max(last, start_line), 1.0, text))
    return result(path=path, start_line=start_line, end_line=last, total_lines=len(lines), text=text)


async def memory_append(ctx: RunContext[Bench], text: Annotated[str, Field(min_length=1, max_length=MAX_NOTE_CHARS)]) -> str:
    """Write a note into this channel's MEMORY.md, where every later turn of the channel finds it.

    Args:
        ctx: The turn.
        text: The note: one fact, in a full sentence.
    """
    bench = ctx.deps
    try:
        note = await asyncio.to_thread(append_note, bench.stores.workspace, bench.lane.channel, text, author=bench.author)
    except PersistenceError as err:
        return result(error=str(err), code=err.code)
    bench.stores.writes.mark(bench.lane.channel)
    passage = Passage(note.path, note.start_line, note.end_line, 1.0, text)
    bench.seen.append(passage)
    return result(source=passage.source, text=text)


async def memory_forget(
    ctx: RunContext[Bench],
    text: Annotated[str, Field(min_length=1, max_length=MAX_NOTE_CHARS)],
    line: Annotated[int, Field(ge=1)],
) -> str:
    """Remove a note from this channel's MEMORY.md. An earlier version of the file is kept on the volume.

    Args:
        ctx: The turn.
        text: The note's lines, exactly as they stand in the file.
        line: The line on which they start.
    """
    bench = ctx.deps
    try:
        note = await asyncio.to_thread(
            remove_note, bench.stores.workspace, bench.lane.channel, text, start_line=line, author=bench.author
        )
    except PersistenceError as err:
        return result(error=str(err), code=err.code)
    bench.stores.writes.mark(bench.lane.channel)
    return result(path=note.path, line=note.start_line, removed=text)
