"""The composition root: opens the stores, introduces the packages to each other and owns what runs."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import structlog
from fastapi import FastAPI

from bot.api import channels, files, forget, health, messages, search, settings, team, topics
from bot.api.guard import Guard
from bot.api.problems import install
from bot.config import Config
from bot.console import start
from bot.lanes import Lanes, Listener
from bot.message import Replied
from bot.stores import Stores, open_stores
from bot.turn import run_turn
from persistence.records import LogRecord
from persistence.rules import RulesStore
from persistence.settings import SettingsStore
from persistence.workspace import Lane, Workspace
from semantic.embedders import load_embedder
from semantic.index import Index
from semantic.indexer import fingerprint_of
from semantic.process import IndexerProcess
from semantic.search import Searcher

VERSION: Final = "0.1.0"
DRAIN_S: Final = 15.0
_THREADS: Final = 64
logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Services:
    """What a surface works with."""

    stores: Stores
    lanes: Lanes


@asynccontextmanager
async def open_services(config: Config, workspace: Workspace, *, surface: str) -> AsyncIterator[Services]:
    """Open the stores over `workspace`, start the indexer in its process, and load the model in the background."""
    # Posts wait in threads for their fsync: more threads make larger batches, not more work.
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="recalld")
    asyncio.get_running_loop().set_default_executor(pool)
    index_uri = config.index_location(workspace.root)
    embedder = load_embedder(config.embedder, threads=1)
    index = Index(index_uri, dimension=embedder.dimension, fingerprint=fingerprint_of(embedder.name))
    searcher = Searcher(workspace.root, index, embedder)
    indexer = IndexerProcess(
        workspace.root,
        index_uri,
        embedder=config.embedder,
        sweep_s=config.sweep_s,
        shared=(await asyncio.to_thread(RulesStore(workspace).load)).rules.shared_dir,
    )
    stores = open_stores(
        workspace, SettingsStore(workspace, overrides=config.setting_overrides), searcher=searcher, indexer=indexer
    )

    async def run(lane: Lane, records: Sequence[LogRecord], emit: Listener) -> Replied:
        return await run_turn(stores, lane, records, surface=surface, emit=emit)

    lanes = Lanes(stores, run, limit=config.lane_limit)
    async with asyncio.TaskGroup() as tasks:
        await indexer.start()
        warming = tasks.create_task(asyncio.to_thread(_warm, searcher))
        try:
            yield Services(stores, lanes)
        finally:
            await lanes.close(DRAIN_S)
            await indexer.stop()
            warming.cancel()


def _warm(searcher: Searcher) -> None:
    try:
        searcher.warm()
    except Exception:
        logger.exception("embedder_unavailable")  # search says `degraded` and goes on by word


def create_app(config: Config, workspace: Workspace) -> FastAPI:
    """The HTTP application over an opened workspace."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_services(config, workspace, surface="http") as services:
            app.state.stores = services.stores
            app.state.lanes = services.lanes
            yield

    app = FastAPI(
        title="recalld",
        version=VERSION,
        description="A chat bot's memory backend: plain files, semantic search, prompts and answers.",
        lifespan=lifespan,
        docs_url=None,  # they load scripts from elsewhere; /openapi.json is the whole document
        redoc_url=None,
    )
    install(app)
    app.add_middleware(Guard)
    for module in (health, channels, messages, search, topics, files, forget, team, settings, start):
        app.include_router(module.router)
    return app
