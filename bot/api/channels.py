"""Routes of channels, their history and their contexts."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Literal

from fastapi import APIRouter, Query

from bot.api.access import MAX_PAGE, ChannelDep, LanesDep, StoresDep, decode_cursor, encode_cursor, parse_time
from bot.api.preview import preview_prompt
from bot.api.problems import responses
from bot.api.schemas import (
    ChannelOut,
    ChannelPage,
    EntryOut,
    EntryPage,
    MessagePage,
    PromptOut,
    StopOut,
    Text,
    Ts,
    message_out,
)
from bot.briefing import open_job, sync_lane
from bot.compacting import CompactionReport, flush_and_archive, flush_and_compact
from bot.consolidation import MemoryJob
from bot.errors import BodyInvalidError, NotFoundError
from bot.lanes import Lanes
from bot.stores import Stores
from persistence.context import Context
from persistence.workspace import ChannelId, Lane, is_ts

router = APIRouter(prefix="/v1/channels", tags=["channels"])
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]


def _describe(stores: Stores, channel: ChannelId) -> ChannelOut:
    stats = stores.log(channel).stats()
    return ChannelOut(
        channel=channel,
        messages=stats.messages,
        last_ts=stats.last_ts,
        size_bytes=stats.size_bytes,
        threads=stats.threads,
        bad_lines=stats.bad_lines,
    )


@router.get("", responses=responses())
async def list_channels(stores: StoresDep, limit: Limit = 50, cursor: str | None = None) -> ChannelPage:
    """Every channel that has a log, a memory or a context, by name."""
    after = decode_cursor(cursor)

    def read() -> ChannelPage:
        names = [name for name in stores.workspace.channels() if after is None or name > after]
        items = [_describe(stores, name) for name in names[:limit]]
        return ChannelPage(items=items, next_cursor=encode_cursor(names[limit - 1]) if len(names) > limit else None)

    return await asyncio.to_thread(read)


def _existing(stores: Stores, channel: ChannelId) -> ChannelId:
    if not stores.workspace.has_channel(channel):
        raise NotFoundError(f"there is no channel {channel!r}: it exists from its first message on")
    return channel


@router.get("/{channel}", responses=responses("channel_invalid", "not_found"))
async def read_channel(channel: ChannelDep, stores: StoresDep) -> ChannelOut:
    """Counts, size and newest message of a channel."""
    return await asyncio.to_thread(lambda: _describe(stores, _existing(stores, channel)))


@router.get("/{channel}/messages", responses=responses("channel_invalid", "not_found"))
async def read_history(
    channel: ChannelDep,
    stores: StoresDep,
    *,
    thread_ts: Annotated[Ts | None, Query(description="Only this thread: its root and replies")] = None,
    before: Annotated[str | None, Query(description="A ts or an ISO time with offset, exclusive")] = None,
    after: Annotated[str | None, Query(description="A ts or an ISO time with offset, exclusive")] = None,
    user: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = 50,
    order: Literal["asc", "desc"] = "asc",
    cursor: str | None = None,
) -> MessagePage:
    """The newest messages that match, newest last (`order=desc`: first). `next_cursor` leads to the older ones."""
    older_than = decode_cursor(cursor)
    if older_than is not None and not is_ts(older_than):
        raise BodyInvalidError("the cursor is not one that a page of this list gave")
    until = older_than or parse_time(before, "before")
    since = parse_time(after, "after")

    def read() -> MessagePage:
        log = stores.log(_existing(stores, channel))
        found = log.page(before=until, after=since, thread_ts=thread_ts, user=user, limit=limit + 1, newest_first=True)
        items = [message_out(record) for record in found[:limit]]
        more = encode_cursor(found[limit - 1].ts) if len(found) > limit else None
        return MessagePage(items=items if order == "desc" else items[::-1], next_cursor=more)

    return await asyncio.to_thread(read)


@router.post("/{channel}/stop", responses=responses("channel_invalid"))
async def stop_turn(channel: ChannelDep, lanes: LanesDep, thread_ts: Ts | None = None) -> StopOut:
    """Stop the turn that runs in the lane; its messages get the reply "Stopped."."""
    return StopOut(stopped=await lanes.stop(Lane(channel, thread_ts)))


@router.get("/{channel}/context", responses=responses("channel_invalid", "context_unsupported"))
async def read_context(
    channel: ChannelDep, stores: StoresDep, thread_ts: Ts | None = None, limit: Limit = 50, cursor: str | None = None
) -> EntryPage:
    """Entries of the lane's context, oldest first, as they stand in the file."""
    after = decode_cursor(cursor)

    def read() -> EntryPage:
        context = Context(stores.workspace, Lane(channel, thread_ts))  # one of its own: a turn may be using the shared one
        context.refresh()
        found = context.entries(after=after, limit=limit + 1)
        items = [EntryOut.model_validate(entry.to_json()) for entry in found[:limit]]
        return EntryPage(items=items, next_cursor=encode_cursor(items[-1].id) if len(found) > limit else None)

    return await asyncio.to_thread(read)


@router.delete("/{channel}/context", responses=responses("channel_invalid", "store_busy", "model_error", "turn_timeout"))
async def archive_context(
    channel: ChannelDep, stores: StoresDep, lanes: LanesDep, thread_ts: Ts | None = None
) -> CompactionReport:
    """Put the lane's context aside and start afresh, after what matters in it was written down; history and memory stay."""
    return await _tidy(stores, lanes, Lane(channel, thread_ts), flush_and_archive)


@router.post("/{channel}/context/compact", responses=responses("channel_invalid", "store_busy", "model_error", "turn_timeout"))
async def compact_context(
    channel: ChannelDep, stores: StoresDep, lanes: LanesDep, thread_ts: Ts | None = None
) -> CompactionReport:
    """Sum up the older part of the lane's context, after what matters in it was written down."""
    return await _tidy(stores, lanes, Lane(channel, thread_ts), lambda job: flush_and_compact(job, reason="manual"))


async def _tidy(
    stores: Stores, lanes: Lanes, lane: Lane, work: Callable[[MemoryJob], Awaitable[CompactionReport]]
) -> CompactionReport:
    """Do it while no turn of the lane runs."""

    async def alone() -> CompactionReport:
        job = await open_job(stores, lane)
        await asyncio.to_thread(sync_lane, job, f"{time.time():.6f}")
        report = await work(job)
        stores.held.forget(lane)
        return report

    return await lanes.run_alone(lane, alone)


@router.get("/{channel}/prompt", responses=responses("channel_invalid"))
async def read_prompt(channel: ChannelDep, stores: StoresDep, text: Text, thread_ts: Ts | None = None) -> PromptOut:
    """The prompt that a message with this text would get now. Changes nothing."""
    return await preview_prompt(stores, Lane(channel, thread_ts), text)
