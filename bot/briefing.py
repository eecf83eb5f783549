"""Reads what a prompt is made of, for a turn and for its preview. What becomes of it is decided in `bot.prompt`."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from bot.consolidation import ChosenModel, MemoryJob
from bot.errors import ModelFailedError
from bot.message import Passage
from bot.models import resolve_model
from bot.models.recall import MODEL_NAME
from bot.prompt import Prompt, PromptInputs, TopicList, build_system_prompt
from bot.stores import Stores
from bot.tool import FRESH_TIMEOUT_S, passage_of
from persistence.compaction import find_pending_handoff
from persistence.context import Context
from persistence.errors import PersistenceError
from persistence.files import locked, replace_bytes
from persistence.handoff import Handoff
from persistence.ledger import FlushLedger
from persistence.memory import MemoryLayer, load_memory_layer
from persistence.rules import Rules, render_rules
from persistence.settings import Settings
from persistence.skills import load_skills
from persistence.sync import Synced, sync_log_to_context
from persistence.topics.folder import INDEX_FILE
from persistence.workspace import ChannelId, Lane, Workspace
from semantic.errors import QueryEmptyError, SemanticError
from semantic.types import Query, Scope

DEFAULT_WINDOW_TOKENS: Final = 128_000
"""The window of a model that doesn't say how large it is."""

TakeTopics = Callable[[Callable[[], Sequence[TopicList]]], Sequence[TopicList]]
logger = structlog.get_logger()


async def open_job(stores: Stores, lane: Lane) -> MemoryJob:
    """The model, rules and settings in force for a lane now. Raises ModelFailedError for a model that can't be had."""
    settings = (await asyncio.to_thread(stores.settings.load)).values
    return await _open_job(stores, lane, settings, settings.model)


async def open_job_for_commands(stores: Stores, lane: Lane) -> MemoryJob:
    """As `open_job`, but a model that can't be had is no reason to refuse a command: then there is no language model to ask."""
    settings = (await asyncio.to_thread(stores.settings.load)).values
    try:
        return await _open_job(stores, lane, settings, settings.model)
    except ModelFailedError:
        return await _open_job(stores, lane, settings, MODEL_NAME)


async def _open_job(stores: Stores, lane: Lane, settings: Settings, name: str) -> MemoryJob:
    rules = (await asyncio.to_thread(stores.rules.load)).rules
    model = resolve_model(name)
    return MemoryJob(stores, lane, ChosenModel(model, name, model.context_window or DEFAULT_WINDOW_TOKENS), rules, settings)


def sync_lane(job: MemoryJob, current_ts: str) -> Synced:
    """Bring into the lane's context what the log has before `current_ts`."""
    stores = job.stores
    return sync_log_to_context(stores.log(job.lane.channel), job.context, stores.workspace, current_ts=current_ts)


async def recall(stores: Stores, lane: Lane, text: str, *, settings: Settings) -> tuple[Passage, ...]:
    """Passages that bear on `text`, from what the lane may see. A search that is off gives none: the turn goes on without."""
    if not settings.recall.enabled:
        return ()
    await stores.writes.settle(FRESH_TIMEOUT_S)
    query = Query(
        text=text,
        scope=Scope(channel=lane.channel),
        collections=tuple(settings.recall.collections),
        limit=settings.recall.limit,
        min_score=settings.recall.min_score,
    )
    try:
        found = await asyncio.to_thread(stores.searcher.search, query)
    except QueryEmptyError:
        return ()
    except SemanticError:
        logger.warning("recall_unavailable", channel=lane.channel, exc_info=True)
        return ()
    return tuple(passage_of(hit) for hit in found.hits if not hit.outdated)


def load_prompt(job: MemoryJob, context: Context, *, surface: str, passages: Sequence[Passage], take: TakeTopics) -> Prompt:
    """Read memory layers, topic indexes, rules, skills and a pending hand-over of the lane's scope and build the prompt.

    `take` decides whether the topic indexes are read anew (docs/decisions/0006).
    """
    workspace, channel = job.stores.workspace, job.lane.channel
    layers, unreadable = _load_layers(workspace, channel)
    return build_system_prompt(
        PromptInputs(
            lane=job.lane,
            surface=surface,
            layers=layers,
            unreadable=unreadable,
            topics=take(lambda: load_topics(job.stores, channel, job.rules)),
            skills=load_skills(workspace, channel).items,
            passages=passages,
            rules=render_rules(job.rules),
            handoff=_load_handoff(workspace, context),
            budget_tokens=job.settings.prompt.budget_tokens,
        ),
    )


def take_topics(job: MemoryJob) -> TakeTopics:
    """For a turn: counts it."""
    every_n, written = job.rules.inject_every_n_turns, job.stores.writes.seen_from(job.lane.channel)
    return lambda read: job.stores.held.take(job.lane, read, every_n=every_n, written=written)


def peek_topics(job: MemoryJob) -> TakeTopics:
    """For a preview: what the next turn would show."""
    every_n, written = job.rules.inject_every_n_turns, job.stores.writes.seen_from(job.lane.channel)
    return lambda read: job.stores.held.peek(job.lane, read, every_n=every_n, written=written)


def _load_layers(workspace: Workspace, channel: ChannelId) -> tuple[list[MemoryLayer], list[str]]:
    """The layers, and why one can't be read: a bad file of the workspace must not silence the channel."""
    layers, unreadable = [], []
    for owner in (None, channel):
        try:
            layer = load_memory_layer(workspace, owner)
        except PersistenceError as err:
            unreadable.append(f"{workspace.memory(owner)} can't be read: {err}")
        else:
            layers += [layer] if layer is not None else []
    return layers, unreadable


def load_topics(stores: Stores, channel: ChannelId, rules: Rules) -> list[TopicList]:
    """The topic indexes of a channel's scope that hold something; one that can't be read is left out and reported."""
    topics = []
    for owner in (None, channel):
        store = stores.topics(owner)
        path = stores.topic_path(store, INDEX_FILE)
        try:
            index = store.index()
        except PersistenceError:
            logger.warning("topic_index_unreadable", name=path, exc_info=True)
            continue
        if index is not None and index.entries:
            topics.append(TopicList(path, index, rules.max_lines))
    return topics


def _load_handoff(workspace: Workspace, context: Context) -> Handoff | None:
    try:
        return find_pending_handoff(workspace, context, FlushLedger(workspace, context.lane))
    except PersistenceError:
        logger.warning("handoff_unreadable", channel=context.lane.channel, exc_info=True)
        return None


def write_last_prompt(workspace: Workspace, channel: ChannelId, prompt: Prompt, asked: Sequence[str]) -> None:
    """Keep what the model was given last, for people who look into the volume."""
    name = workspace.last_prompt(channel)
    value = {"system": prompt.system, "user": list(asked), "tokens": prompt.tokens, "fingerprint": prompt.fingerprint}
    with locked(workspace.root, name, workspace.lock_of(name)) as held:
        replace_bytes(workspace.root, name, json.dumps(value, ensure_ascii=False, indent=2).encode("utf-8", "replace"), held)
