"""Route of forgetting for good: files, contexts, log lines if asked, and the index with its older versions."""

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter
from pydantic import BaseModel, Field, model_validator

from bot.api.access import HTTP, StoresDep
from bot.api.problems import responses
from bot.api.schemas import Body
from bot.stores import Stores
from persistence.documents import read_document
from persistence.forget import ChannelTarget, DocumentTarget, LinesTarget, Receipt, Target, forget, plan_forget
from persistence.workspace import parse_channel_id
from semantic.types import Query, Scope

router = APIRouter(prefix="/v1", tags=["forget"])
PURGE_S: Final = 60.0
_MAX_HITS: Final = 20
_CODES: Final = (
    "channel_invalid",
    "not_found",
    "forbidden",
    "query_empty",
    "precondition_failed",
    "unsafe_object",
    "store_busy",
    "storage_full",
    "degraded",
)


class ForgetBody(Body):
    """What to forget: a file by `path`, a whole `channel`, or the passages that a `query` finds (of `channel`'s scope, if given).

    `dry_run` (the default) only says what would go. The log is left alone unless `include_log`.
    """

    path: Annotated[str | None, Field(min_length=1, max_length=1000)] = None
    channel: Annotated[str | None, Field(max_length=200)] = None
    query: Annotated[str | None, Field(min_length=1, max_length=10_000)] = None
    include_log: bool = False
    dry_run: bool = True

    @model_validator(mode="after")
    def _one_thing(self) -> "ForgetBody":
        if self.path is not None and (self.channel is not None or self.query is not None):
            raise ValueError("give path, or channel, or query (with a channel for its scope), not several")
        if self.path is None and self.channel is None and self.query is None:
            raise ValueError("give path, or channel, or query")
        return self


class ForgottenOut(BaseModel):
    """The receipt. `index`: "purged" when the index holds nothing of it in any version, "pending" when that is still to come."""

    receipt: Receipt
    index: str


@router.post("/forget", responses=responses(*_CODES))
async def forget_for_good(body: ForgetBody, stores: StoresDep) -> ForgottenOut:
    """Forget a file, a channel or passages: with versions and copies, without a way back. The receipt names every place."""
    targets = await _targets(stores, body)
    if body.dry_run:
        receipt = await asyncio.to_thread(plan_forget, stores.workspace, targets, include_log=body.include_log)
        return ForgottenOut(receipt=receipt, index="untouched")
    receipt = await asyncio.to_thread(forget, stores.workspace, targets, author=HTTP, include_log=body.include_log)
    for channel in {None, *receipt.channels, *(channel for channel, _ in receipt.messages)}:
        stores.writes.mark(channel)
    purged = await stores.indexer.purge(PURGE_S)
    return ForgottenOut(receipt=receipt, index="purged" if purged else "pending")


async def _targets(stores: Stores, body: ForgetBody) -> list[Target]:
    channel = None if body.channel is None else parse_channel_id(body.channel)
    if body.path is not None:
        return [DocumentTarget(body.path)]
    if body.query is None:
        return [] if channel is None else [ChannelTarget(channel)]
    await stores.indexer.flush(PURGE_S)
    query = Query(text=body.query, scope=Scope(channel=channel, everything=channel is None), limit=_MAX_HITS, min_score=0.35)
    found = await asyncio.to_thread(stores.searcher.search, query)
    return [
        await asyncio.to_thread(_lines, stores, hit.path, hit.start_line, hit.end_line) for hit in found.hits if not hit.outdated
    ]


def _lines(stores: Stores, path: str, start_line: int, end_line: int) -> LinesTarget:
    return LinesTarget(path, start_line, end_line, read_document(stores.workspace, path).etag)
