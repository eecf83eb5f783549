"""The shapes of search and of the index on the wire."""

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from bot.api.schemas import Body
from semantic.types import Collection, Hit, IndexStatus, Mode


class SearchBody(Body):
    """A search. The query is data, never query syntax."""

    q: Annotated[str, Field(max_length=20_000)]
    channel: Annotated[str | None, Field(max_length=200)] = None
    scope: Literal["channel", "all"] = "channel"
    collections: Annotated[list[Collection], Field(max_length=4, default_factory=list)]
    mode: Mode = "hybrid"
    limit: Annotated[int, Field(ge=1, le=200)] = 10
    min_score: Annotated[float, Field(ge=0, le=1)] = 0.0
    wait: bool = False


class FreshnessOut(BaseModel):
    """How fresh the answer is: every change before `indexed_through` is in it."""

    indexed_through: datetime | None
    pending: int
    stale: bool
    degraded: list[str]


class HitOut(BaseModel):
    id: str
    score: float
    collection: Collection
    channel: str | None
    path: str
    heading: list[str]
    start_line: int
    end_line: int
    snippet: str
    text: str
    modified: datetime
    outdated: bool


class SearchOut(BaseModel):
    query: str
    mode: Mode
    took_ms: float
    index: FreshnessOut
    hits: list[HitOut]


class CollectionOut(BaseModel):
    documents: int
    chunks: int


class FailureOut(BaseModel):
    path: str
    reason: str


class IndexOut(BaseModel):
    state: str
    detail: str
    fingerprint: str
    collections: dict[str, CollectionOut]
    pending: int
    failed: list[FailureOut]
    indexed_through: datetime | None
    last_sweep_ms: float | None


class IndexUpdateOut(BaseModel):
    """`done`: every change before the request is searchable now."""

    done: bool
    index: IndexOut


def hit_out(hit: Hit) -> HitOut:
    """A hit on the wire."""
    return HitOut(
        id=hit.id,
        score=round(hit.score, 4),
        collection=hit.collection,
        channel=hit.channel,
        path=hit.path,
        heading=list(hit.heading),
        start_line=hit.start_line,
        end_line=hit.end_line,
        snippet=hit.snippet,
        text=hit.text,
        modified=utc(hit.modified_s),
        outdated=hit.outdated,
    )


def index_out(status: IndexStatus) -> IndexOut:
    """The index's state on the wire."""
    return IndexOut(
        state=status.state,
        detail=status.detail,
        fingerprint=status.fingerprint,
        collections={
            name: CollectionOut(documents=counts.documents, chunks=counts.chunks) for name, counts in status.collections.items()
        },
        pending=status.pending,
        failed=[FailureOut(path=failure.path, reason=failure.reason) for failure in status.failed],
        indexed_through=None if status.indexed_through_s is None else utc(status.indexed_through_s),
        last_sweep_ms=status.last_sweep_ms,
    )


def utc(seconds: float) -> datetime:
    """Seconds since the epoch as a UTC time."""
    return datetime.fromtimestamp(seconds, UTC)
