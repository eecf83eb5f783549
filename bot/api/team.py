"""Routes of team memory and of run checkpoints."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field, JsonValue

from bot.api.access import HTTP, MAX_PAGE, ChannelDep, StoresDep, decode_cursor, encode_cursor
from bot.api.problems import responses
from bot.api.schemas import Body
from bot.stores import Stores
from persistence.runs import Head, Resume
from persistence.team import Appended, TeamMemory
from persistence.teams.compaction import Compaction
from persistence.teams.decisions import Decision
from persistence.teams.run_events import parse_body
from persistence.teams.run_report import RunReport
from persistence.teams.status import TeamStatus
from persistence.workspace import ChannelId

router = APIRouter(prefix="/v1/channels/{channel}/team", tags=["team"])
Role = Annotated[str, Field(min_length=1, max_length=40)]
_CODES = ("channel_invalid", "role_invalid", "role_unknown", "unsafe_object", "store_busy", "storage_full")


class RememberBody(Body):
    """A note for the log of a role; "decision: …" makes a decision record too."""

    note: Annotated[str, Field(min_length=1, max_length=16_000)]
    role: Role = "orchestrator"
    run_id: Annotated[str | None, Field(max_length=40)] = None


class DecisionBody(Body):
    title: Annotated[str, Field(min_length=1, max_length=400)]
    body: Annotated[str, Field(max_length=17_000)] = ""
    role: Role = "orchestrator"
    supersedes: Annotated[str | None, Field(max_length=200)] = None
    run_id: Annotated[str | None, Field(max_length=40)] = None


class EntryBody(Body):
    """An entry of a role's own log."""

    role: Role
    done: Annotated[str, Field(min_length=1, max_length=1_000)]
    stage: Annotated[str, Field(min_length=1, max_length=200)]
    artifact: Annotated[str | None, Field(max_length=500)] = None
    next_step: Annotated[str | None, Field(max_length=500)] = None
    run_id: Annotated[str | None, Field(max_length=40)] = None


class IndexBody(Body):
    """The whole team index, at most 60 lines; `expected_etag` is that of the text that was read."""

    text: Annotated[str, Field(max_length=100_000)]
    role: Role = "orchestrator"
    expected_etag: Annotated[str | None, Field(max_length=100)] = None


class EtagOut(BaseModel):
    etag: str


class DecisionPage(BaseModel):
    items: list[Decision]
    next_cursor: None = None


class RunBody(Body):
    goal: Annotated[str, Field(min_length=1, max_length=400)]
    by: Annotated[str, Field(max_length=200)] = "agent:orchestrator"


class EventBody(Body):
    """The next event of a run: its number and the hash of the one before (from the run's report)."""

    event: Annotated[dict[str, JsonValue], Field(max_length=20)]
    by: Annotated[str, Field(max_length=200)]
    seq: Annotated[int, Field(ge=2)]
    prev: Annotated[str, Field(max_length=100)]


class RunPage(BaseModel):
    items: list[RunReport]
    next_cursor: str | None = None


class InitOut(BaseModel):
    """The files that were made; empty when everything was there."""

    created: Sequence[str]


def _team(stores: Stores, channel: ChannelId) -> TeamMemory:
    return stores.team(channel)


@router.get("/status", responses=responses("channel_invalid", "unsafe_object"))
async def team_status(channel: ChannelDep, stores: StoresDep) -> TeamStatus:
    """What the team's memory holds: index, logs, decisions, open questions, runs. Makes and touches nothing."""
    return await asyncio.to_thread(_team(stores, channel).status)


@router.post("/init", responses=responses("channel_invalid", "unsafe_object", "store_busy", "storage_full"))
async def team_init(channel: ChannelDep, stores: StoresDep) -> InitOut:
    """Make what is missing of the tree; what is there is never changed."""
    return InitOut(created=await asyncio.to_thread(_team(stores, channel).init, author=HTTP))


@router.post("/compact", responses=responses(*_CODES, "agents_active"))
async def team_compact(
    channel: ChannelDep, stores: StoresDep, role: Annotated[str | None, Query(max_length=40)] = None
) -> Compaction:
    """Archive what is over the limits; refused while an agent is at work."""
    return await asyncio.to_thread(_team(stores, channel).compact, role, author=HTTP)


@router.post("/remember", responses=responses(*_CODES, "secret_detected", "run_entry_quota"))
async def team_remember(channel: ChannelDep, body: RememberBody, stores: StoresDep) -> Appended:
    """Append a note to the log of a role."""
    return await asyncio.to_thread(_team(stores, channel).remember, body.role, body.note, run_id=body.run_id, author=HTTP)


@router.post("/decisions", responses=responses(*_CODES, "secret_detected", "decision_immutable"))
async def team_decide(channel: ChannelDep, body: DecisionBody, stores: StoresDep) -> Decision:
    """Record a decision. A record is never changed: a later one supersedes it."""
    return await asyncio.to_thread(
        _team(stores, channel).decide,
        body.role,
        body.title,
        body=body.body,
        supersedes=body.supersedes,
        run_id=body.run_id,
        author=HTTP,
    )


@router.get("/decisions", responses=responses("channel_invalid", "unsafe_object"))
async def list_decisions(
    channel: ChannelDep, stores: StoresDep, limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50
) -> DecisionPage:
    """The latest decisions, newest first."""
    return DecisionPage(items=await asyncio.to_thread(_team(stores, channel).decisions, limit=limit))


@router.get("/decisions/{decision_id}", responses=responses("channel_invalid", "not_found", "unsafe_object"))
async def read_decision(channel: ChannelDep, decision_id: str, stores: StoresDep) -> Decision:
    """A decision as recorded."""
    return await asyncio.to_thread(_team(stores, channel).read_decision, decision_id)


@router.post("/entries", responses=responses(*_CODES, "forbidden", "secret_detected", "run_entry_quota"))
async def append_entry(channel: ChannelDep, body: EntryBody, stores: StoresDep) -> Appended:
    """Append an entry to the log of a role: at most five in one run."""
    return await asyncio.to_thread(
        _team(stores, channel).append_entry,
        body.role,
        body.done,
        stage=body.stage,
        artifact=body.artifact,
        next_step=body.next_step,
        run_id=body.run_id,
        author=HTTP,
    )


@router.put("/index", responses=responses(*_CODES, "forbidden", "index_full", "precondition_failed", "secret_detected"))
async def write_index(channel: ChannelDep, body: IndexBody, stores: StoresDep) -> EtagOut:
    """Replace the team's index, which only the orchestrator may."""
    team = _team(stores, channel)
    etag = await asyncio.to_thread(team.write_index, body.role, body.text, author=HTTP, expected_etag=body.expected_etag)
    return EtagOut(etag=etag)


@router.get("/runs", responses=responses("channel_invalid"))
async def list_runs(
    channel: ChannelDep, stores: StoresDep, limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50, cursor: str | None = None
) -> RunPage:
    """Runs, newest first, as they stand now."""
    before = decode_cursor(cursor)
    found = await asyncio.to_thread(_team(stores, channel).runs.page, limit=limit + 1, before=before)
    more = encode_cursor(found[limit - 1].run_id) if len(found) > limit else None
    return RunPage(items=found[:limit], next_cursor=more)


@router.post("/runs", responses=responses(*_CODES, "secret_detected"))
async def start_run(channel: ChannelDep, body: RunBody, stores: StoresDep) -> Head:
    """Begin a run."""
    return await asyncio.to_thread(_team(stores, channel).runs.start, body.goal, by=body.by)


@router.post("/runs/resume", responses=responses(*_CODES, "not_found", "conflict", "event_refused", "run_corrupt"))
async def resume_run(
    channel: ChannelDep, stores: StoresDep, run_id: Annotated[str | None, Query(max_length=40)] = None
) -> Resume:
    """Go on with the only unfinished run or the named one; attempts whose lease ran out are recorded as interrupted."""
    return await asyncio.to_thread(_team(stores, channel).runs.resume, run_id)


@router.get("/runs/{run_id}", responses=responses("channel_invalid", "not_found"))
async def read_run(channel: ChannelDep, run_id: str, stores: StoresDep) -> RunReport:
    """A run as it stands now: tasks, gates, and which approvals still count."""
    return await asyncio.to_thread(_team(stores, channel).runs.report, run_id)


@router.post(
    "/runs/{run_id}/events",
    responses=responses(
        *_CODES, "not_found", "conflict", "event_refused", "run_corrupt", "too_large", "forbidden", "secret_detected"
    ),
)
async def append_event(channel: ChannelDep, run_id: str, body: EventBody, stores: StoresDep) -> Head:
    """Append an event to a run."""
    event = parse_body(body.event)
    return await asyncio.to_thread(_team(stores, channel).runs.append, run_id, event, by=body.by, seq=body.seq, prev=body.prev)
