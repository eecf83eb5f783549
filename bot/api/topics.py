"""Routes of topics, memory rules and hand-overs."""

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from bot.api.access import HTTP, StoresDep
from bot.api.problems import responses
from bot.api.schemas import Body, DiagnosticOut
from bot.stores import Stores
from persistence.handoff import Handoff, read_handoff
from persistence.shared_dir import MergePlan, merge, plan_merge, shared_directory
from persistence.topic_store import Pinned, Removed, RepairReport, Topic, TopicMatch, TopicStatus, TopicStore, Written
from persistence.topics.index import TopicEntry
from persistence.workspace import ChannelId, parse_channel_id

router = APIRouter(prefix="/v1", tags=["topics"])
ScopeQuery = Annotated[str | None, Query(max_length=200, description="Its topics; absent: the global ones")]
_NAME_CODES = ("topic_blank", "not_found", "ambiguous", "channel_invalid", "unsafe_object", "store_busy")
_WRITE_CODES = (
    *_NAME_CODES,
    "topic_structural",
    "topic_no_slug",
    "topic_reserved",
    "topic_retired",
    "secret_detected",
    "precondition_failed",
    "not_utf8",
    "too_large",
    "storage_full",
    "rollback_failed",
)


class TopicBody(Body):
    """A topic to write. `summary` is its line in the index; `append` adds under a date, `replace` rewrites."""

    content: Annotated[str, Field(min_length=1, max_length=500_000)]
    summary: Annotated[str, Field(max_length=4_000)]
    pin: bool = False
    mode: Literal["append", "replace"] = "append"
    channel: Annotated[str | None, Field(max_length=200)] = None
    expected_etag: Annotated[str | None, Field(max_length=100)] = None


class TopicPage(BaseModel):
    items: list[TopicEntry]
    matches: list[TopicMatch] | None = None
    status: TopicStatus
    next_cursor: None = None


class RulesOut(BaseModel):
    path: str
    broken: bool
    always_persist: list[str]
    never_persist: list[str]
    always_ask: list[str]
    values: dict[str, int | bool]
    diagnostics: list[DiagnosticOut]


class HandoffOut(BaseModel):
    """The newest hand-over; null when there is none."""

    handoff: Handoff | None


def _scope(channel: str | None) -> ChannelId | None:
    return None if channel is None else parse_channel_id(channel)


def _store(stores: Stores, channel: str | None) -> TopicStore:
    return stores.topics(_scope(channel))


@router.get("/topics", responses=responses("channel_invalid", "unsafe_object"))
async def list_topics(
    stores: StoresDep,
    channel: ScopeQuery = None,
    q: Annotated[str | None, Query(max_length=500, description="In names, summaries and bodies")] = None,
    *,
    pinned: bool | None = None,
    stale: bool | None = None,
) -> TopicPage:
    """The topics of a scope in the order of its index, and what does not agree. With `q` also where the text occurs."""

    def read() -> TopicPage:
        store = _store(stores, channel)
        matches = None if q is None or not q.strip() else store.search(q)
        return TopicPage(items=store.list(query=q, pinned=pinned, stale=stale), matches=matches, status=store.status())

    return await asyncio.to_thread(read)


@router.post("/topics/repair", responses=responses(*_NAME_CODES, "storage_full"))
async def repair_topics(stores: StoresDep, channel: ScopeQuery = None) -> RepairReport:
    """Make index, files and the list of removed topics agree again. A second run changes nothing."""
    report = await asyncio.to_thread(_store(stores, channel).repair, author=HTTP)
    stores.writes.mark(_scope(channel))
    return report


@router.post("/topics/merge-shared", responses=responses("store_busy", "unsafe_object", "not_utf8", "storage_full"))
async def merge_shared(stores: StoresDep, *, dry_run: bool = True) -> MergePlan:
    """Carry the global topics over into the shared directory, once. `dry_run` (the default) only says what would happen."""
    shared = await asyncio.to_thread(shared_directory, stores.workspace)
    if dry_run:
        return await asyncio.to_thread(plan_merge, stores.workspace, shared)
    return await asyncio.to_thread(merge, stores.workspace, shared, author=HTTP)


@router.get("/topics/{name:path}", responses=responses(*_NAME_CODES))
async def read_topic(name: str, stores: StoresDep, channel: ScopeQuery = None) -> Topic:
    """A topic by its name, its file, or the only one that a text is a part of."""
    return await asyncio.to_thread(_store(stores, channel).read, name)


@router.put("/topics/{name:path}", responses=responses(*_WRITE_CODES))
async def write_topic(name: str, body: TopicBody, stores: StoresDep) -> Written:
    """Write a topic: its file and its line in the index, both or neither."""
    written = await asyncio.to_thread(
        _store(stores, body.channel).write,
        name,
        body.content,
        body.summary,
        author=HTTP,
        pin=body.pin,
        mode=body.mode,
        expected_etag=body.expected_etag,
    )
    stores.writes.mark(_scope(body.channel))
    return written


@router.delete("/topics/{name:path}", responses=responses(*_NAME_CODES, "pinned", "storage_full"))
async def remove_topic(name: str, stores: StoresDep, channel: ScopeQuery = None) -> Removed:
    """Take a topic out of the index; its file stays, and it is remembered that it was removed."""
    removed = await asyncio.to_thread(_store(stores, channel).remove, name, author=HTTP)
    stores.writes.mark(_scope(channel))
    return removed


@router.post("/topics/{name:path}/pin", responses=responses(*_NAME_CODES, "storage_full"))
async def pin_topic(name: str, stores: StoresDep, channel: ScopeQuery = None) -> Pinned:
    """Pin a topic: never stale, first in the prompt, can't be removed."""
    return await _set_pin(stores, name, channel, pinned=True)


@router.post("/topics/{name:path}/unpin", responses=responses(*_NAME_CODES, "storage_full"))
async def unpin_topic(name: str, stores: StoresDep, channel: ScopeQuery = None) -> Pinned:
    """Unpin a topic."""
    return await _set_pin(stores, name, channel, pinned=False)


async def _set_pin(stores: Stores, name: str, channel: str | None, *, pinned: bool) -> Pinned:
    done = await asyncio.to_thread(_store(stores, channel).pin, name, pinned=pinned, author=HTTP)
    stores.writes.mark(_scope(channel))
    return done


@router.get("/rules", responses=responses())
async def read_rules(stores: StoresDep) -> RulesOut:
    """The memory rules as they are in force, and what is wrong in memory.jsonc by key and line."""
    view = await asyncio.to_thread(stores.rules.load)
    rules = view.rules
    return RulesOut(
        path=view.path,
        broken=view.broken,
        always_persist=list(rules.always_persist),
        never_persist=list(rules.never_persist),
        always_ask=list(rules.always_ask),
        values={
            "max_lines": rules.max_lines,
            "stale_after_days": rules.stale_after_days,
            "inject_every_n_turns": rules.inject_every_n_turns,
            "handoff_keep": rules.handoff_keep,
            "auto_resume_after_threshold_compaction": rules.auto_resume_after_threshold_compaction,
            "consolidate_on_compact": rules.consolidate_on_compact,
            "shared_dir": rules.shared_dir,
        },
        diagnostics=[DiagnosticOut(key=d.key, reason=d.reason, line=d.line) for d in view.diagnostics],
    )


@router.get("/handoff", responses=responses("channel_invalid", "unsafe_object"))
async def read_newest_handoff(stores: StoresDep, channel: ScopeQuery = None) -> HandoffOut:
    """What the last compaction handed over."""
    return HandoffOut(handoff=await asyncio.to_thread(read_handoff, stores.workspace, _scope(channel)))
