"""Routes of search and of the index."""

import asyncio
import time
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query

from bot.api.access import StoresDep
from bot.api.problems import responses
from bot.api.search_schemas import FreshnessOut, IndexOut, IndexUpdateOut, SearchBody, SearchOut, hit_out, index_out, utc
from bot.stores import Stores
from persistence.workspace import parse_channel_id
from semantic.types import Collection, Mode, Scope
from semantic.types import Query as SearchQuery

router = APIRouter(prefix="/v1", tags=["search"])
WAIT_S: Final = 10.0
_CODES: Final = ("query_empty", "channel_invalid", "degraded")


@router.get("/search", responses=responses(*_CODES))
async def search_get(
    stores: StoresDep,
    *,
    q: Annotated[str, Query(max_length=20_000, description="Any text", examples=["how do we roll back?"])],
    channel: Annotated[
        str | None, Query(max_length=200, description="Its files and the global ones; absent: global only")
    ] = None,
    scope: Literal["channel", "all"] = "channel",
    collection: Annotated[list[Collection] | None, Query()] = None,
    mode: Mode = "hybrid",
    limit: Annotated[int, Query(ge=1, le=200)] = 10,
    min_score: Annotated[float, Query(ge=0, le=1)] = 0.0,
    wait: Annotated[bool, Query(description="First index every write acknowledged before this request")] = False,
) -> SearchOut:
    """Find passages by meaning and by word, with exact lines."""
    body = SearchBody(
        q=q, channel=channel, scope=scope, collections=collection or [], mode=mode, limit=limit, min_score=min_score, wait=wait
    )
    return await _search(stores, body)


@router.post("/search", responses=responses(*_CODES))
async def search_post(stores: StoresDep, body: SearchBody) -> SearchOut:
    """Find passages, with the fields as a body."""
    return await _search(stores, body)


async def _search(stores: Stores, body: SearchBody) -> SearchOut:
    channel = None if body.channel is None else parse_channel_id(body.channel)
    query = SearchQuery(
        text=body.q,
        scope=Scope(channel=channel, everything=body.scope == "all"),
        collections=tuple(body.collections),
        mode=body.mode,
        limit=body.limit,
        min_score=body.min_score,
    )
    caught_up = await stores.indexer.flush(WAIT_S) if body.wait else True
    started = time.perf_counter()
    found = await asyncio.to_thread(stores.searcher.search, query)
    took_ms = (time.perf_counter() - started) * 1000
    return SearchOut(
        query=body.q,
        mode=body.mode,
        took_ms=round(took_ms, 2),
        index=_freshness(stores, found.degraded, caught_up=caught_up),
        hits=[hit_out(hit) for hit in found.hits],
    )


def _freshness(stores: Stores, degraded: tuple[str, ...], *, caught_up: bool) -> FreshnessOut:
    status = stores.indexer.status
    through = status.indexed_through_s
    return FreshnessOut(
        indexed_through=None if through is None else utc(through),
        pending=status.pending,
        stale=not caught_up or status.pending > 0 or through is None or status.state == "failed",
        degraded=list(degraded),
    )


@router.get("/index", responses=responses(), tags=["index"])
async def read_index(stores: StoresDep) -> IndexOut:
    """What is indexed, what waits, what failed and why."""
    return index_out(stores.indexer.status)


@router.post("/index/update", responses=responses(), tags=["index"])
async def update_index(stores: StoresDep, *, wait: bool = False) -> IndexUpdateOut:
    """Sweep the workspace now; with `wait` answer when every change before the request is searchable."""
    if wait:
        done = await stores.indexer.flush(WAIT_S * 3)
    else:
        stores.indexer.wake()
        done = False
    return IndexUpdateOut(done=done, index=index_out(stores.indexer.status))
