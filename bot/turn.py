"""One turn, told in order: from the logged messages of a lane to the reply in the log."""

import asyncio
import json
import re
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Final

import structlog
from pydantic_ai.messages import ModelMessage, UserContent
from pydantic_ai.models import Model

from bot.agent import Assignment, Outcome, run_agent
from bot.message import SILENT, Citation, Json, Passage, Recalled, Replied, Reply, TokenUsage, Turn, TurnEvent
from bot.models import resolve_model
from bot.models.mapping import to_model_messages
from bot.prompt import Prompt, PromptInputs, TopicList, build_system_prompt, estimate_tokens
from bot.stores import Stores
from bot.tool import FRESH_TIMEOUT_S, Bench, passage_of
from persistence.context import Context
from persistence.context_messages import ModelMessages
from persistence.files import locked, replace_bytes
from persistence.log import ChannelLog, NewMessage
from persistence.memory import load_memory_layers
from persistence.records import BOT_USER, AssistantMessage, LogRecord, TextBlock, ToolResultMessage, UserMessage
from persistence.settings import Settings
from persistence.skills import load_skills
from persistence.sync import sync_log_to_context
from persistence.topic_store import read_topic_index
from persistence.workspace import ChannelId, Lane, Workspace
from persistence.wrapper import wrap_message
from semantic.errors import QueryEmptyError, SemanticError
from semantic.types import Query

CONTEXT_BUDGET_TOKENS: Final = 100_000
_SOURCE: Final = re.compile(r"([^\s()<>\[\]`\"']+)#L(\d+)(?:-L?(\d+))?")
Emit = Callable[[TurnEvent], None]
logger = structlog.get_logger()


class Stopwatch:
    """Milliseconds by step."""

    def __init__(self) -> None:
        """Start now."""
        self._last = time.perf_counter()
        self.timings_ms: dict[str, float] = {}

    def lap(self, step: str) -> None:
        """Book the time since the last lap on `step`."""
        now = time.perf_counter()
        self.timings_ms[step] = round((now - self._last) * 1000, 2)
        self._last = now


async def run_turn(stores: Stores, lane: Lane, messages: Sequence[LogRecord], *, surface: str, emit: Emit) -> Replied:
    """Answer `messages` (all of one lane, logged, oldest first) with one reply.

    Raises ModelFailedError, TurnTimeoutError and the archive's errors; the messages stay logged in any case.
    """
    watch = Stopwatch()
    settings = (await asyncio.to_thread(stores.settings.load)).values
    model = resolve_model(settings.model)
    log, context = stores.log(lane.channel), stores.context(lane)
    synced = await asyncio.to_thread(sync_log_to_context, log, context, stores.workspace, current_ts=messages[0].ts)
    watch.lap("sync")

    passages = await recall(stores, lane, "\n".join(message.text for message in messages), settings=settings)
    emit(Recalled(passages))
    watch.lap("recall")

    prompt = await asyncio.to_thread(load_prompt, stores.workspace, lane, settings, surface=surface, passages=passages)
    asked = [wrap_message(message) for message in messages] + ([prompt.recall] if prompt.recall else [])
    room = CONTEXT_BUDGET_TOKENS - sum(map(estimate_tokens, asked))
    built = await asyncio.to_thread(_build_history, context, log, budget_tokens=max(0, room))
    await asyncio.to_thread(context.append, [_user_message(asked)])
    await asyncio.to_thread(write_last_prompt, stores.workspace, lane.channel, prompt, asked)
    watch.lap("prompt")

    turn_id = uuid.uuid4().hex[:16]
    bench = Bench(stores, lane, current_ts=messages[0].ts, seen=list(passages), turn_id=turn_id)
    assignment = _assignment(settings, prompt.system, asked, model=model, history=to_model_messages(built.messages))

    async def keep(message: AssistantMessage | ToolResultMessage) -> None:
        await asyncio.to_thread(context.append, [message])

    outcome = await run_agent(assignment, bench, keep=keep, emit=emit)
    watch.lap("agent")

    reply = await _log_reply(stores, lane, messages, outcome, model=settings.model, seen=bench.seen)
    watch.lap("reply")
    turn = Turn(
        id=turn_id,
        synced=synced.added,
        context_messages=len(built.messages) + 1,
        compacted=False,
        recall=passages,
        timings_ms=watch.timings_ms,
    )
    return Replied(reply, turn)


def _build_history(context: Context, log: ChannelLog, *, budget_tokens: int) -> ModelMessages:
    return context.build_messages(budget_tokens=budget_tokens, lookup=log.changes())


async def recall(stores: Stores, lane: Lane, text: str, *, settings: Settings) -> tuple[Passage, ...]:
    """Passages that bear on `text`, from what the lane may see; nothing is worse than no answer, so a broken index gives none."""
    if not settings.recall.enabled:
        return ()
    await stores.writes.settle(FRESH_TIMEOUT_S)
    query = Query(
        text=text,
        scope=Bench(stores, lane, current_ts="").scope,
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


def load_prompt(workspace: Workspace, lane: Lane, settings: Settings, *, surface: str, passages: Sequence[Passage]) -> Prompt:
    """Read the memory layers, topic indexes and skills of the lane's scope and build the prompt."""
    scopes: tuple[ChannelId | None, ...] = (None, lane.channel)
    topics = [
        TopicList(workspace.topic_index(scope), index)
        for scope in scopes
        if (index := read_topic_index(workspace, scope)) is not None and index.entries
    ]
    return build_system_prompt(
        PromptInputs(
            lane=lane,
            surface=surface,
            layers=load_memory_layers(workspace, lane.channel),
            topics=topics,
            skills=load_skills(workspace, lane.channel).items,
            passages=passages,
            budget_tokens=settings.prompt.budget_tokens,
        ),
    )


def write_last_prompt(workspace: Workspace, channel: ChannelId, prompt: Prompt, asked: Sequence[str]) -> None:
    """Keep what the model was given last, for people who look into the volume."""
    name = workspace.last_prompt(channel)
    value = {"system": prompt.system, "user": list(asked), "tokens": prompt.tokens, "fingerprint": prompt.fingerprint}
    with locked(workspace.root, name, workspace.lock_of(name)) as held:
        replace_bytes(workspace.root, name, json.dumps(value, ensure_ascii=False, indent=2).encode("utf-8", "replace"), held)


def _user_message(asked: Sequence[str]) -> UserMessage:
    return UserMessage(content=[TextBlock(text=text) for text in asked], timestamp=int(time.time() * 1000))


def _assignment(
    settings: Settings, system: str, asked: Sequence[UserContent], *, model: Model, history: Sequence[ModelMessage]
) -> Assignment:
    return Assignment(
        model=model,
        model_name=settings.model,
        system=system,
        history=history,
        prompt=asked,
        timeout_s=settings.run_timeout_s,
        warn_before_s=settings.run_timeout_warn_before_s,
    )


async def _log_reply(
    stores: Stores, lane: Lane, messages: Sequence[LogRecord], outcome: Outcome, *, model: str, seen: Sequence[Passage]
) -> Reply:
    silent = outcome.text.strip() == SILENT
    text = "" if silent else outcome.text.strip()
    citations = find_citations(text, seen)
    extra: dict[str, Json] = {
        "model": model,
        "usage": {"input": outcome.usage.input, "output": outcome.usage.output},
        "stopReason": outcome.stop_reason,
        "citations": [{"path": c.path, "startLine": c.start_line, "endLine": c.end_line} for c in citations],
    }
    line = NewMessage(
        text=text,
        user=BOT_USER,
        is_bot=True,
        thread_ts=lane.thread_ts,
        reply_to=messages[-1].ts,
        answers=tuple(message.ts for message in messages),
        extra={**extra, "silent": True} if silent else extra,
    )
    appended = await asyncio.to_thread(stores.log(lane.channel).append, line)
    return Reply(
        ts=None if silent else appended.record.ts,
        text=text,
        silent=silent,
        citations=citations,
        model=model,
        usage=outcome.usage,
        stop_reason=outcome.stop_reason,
    )


async def log_stop(stores: Stores, lane: Lane, messages: Sequence[LogRecord]) -> Replied:
    """End a turn that was stopped: visibly, with a line of the bot in the log."""
    settings = (await asyncio.to_thread(stores.settings.load)).values
    outcome = Outcome("Stopped.", TokenUsage(), "aborted")
    reply = await _log_reply(stores, lane, messages, outcome, model=settings.model, seen=())
    return Replied(reply, Turn(id=uuid.uuid4().hex[:16], synced=0, context_messages=0, compacted=False, recall=(), timings_ms={}))


def find_citations(text: str, seen: Sequence[Passage]) -> tuple[Citation, ...]:
    """The places that a reply names as path#Lstart-Lend and that lie within passages the model was really shown."""
    cited: dict[Citation, None] = {}
    for path, start, end in _SOURCE.findall(text):
        citation = Citation(path, int(start), int(end or start))
        if any(_within(citation, passage) for passage in seen):
            cited[citation] = None
    return tuple(cited)


def _within(citation: Citation, passage: Passage) -> bool:
    return citation.path == passage.path and passage.start_line <= citation.start_line <= citation.end_line <= passage.end_line


def reply_of(record: LogRecord) -> Reply:
    """The reply as it was given, from the bot's own log line: for a retry of a message that has been answered."""
    extra = record.model_extra or {}
    usage = extra.get("usage") or {}
    silent = extra.get("silent") is True
    return Reply(
        ts=None if silent else record.ts,
        text=record.text,
        silent=silent,
        citations=tuple(Citation(str(c["path"]), int(c["startLine"]), int(c["endLine"])) for c in extra.get("citations") or []),
        model=str(extra.get("model", "")),
        usage=TokenUsage(int(usage.get("input", 0)), int(usage.get("output", 0))),
        stop_reason=extra.get("stopReason", "stop"),
    )
