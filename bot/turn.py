"""One turn, told in order: from the logged messages of a lane to the reply in the log."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bot.agent import Assignment, Outcome, run_agent
from bot.briefing import load_prompt, open_job, open_job_for_commands, recall, sync_lane, take_topics, write_last_prompt
from bot.commands import Desk, author_of, parse_command, run_command
from bot.compacting import CompactionReport, compact_if_due, flush_and_archive, flush_and_compact
from bot.consolidation import MemoryJob, consolidate
from bot.message import Passage, Recalled, Replied, TokenUsage, Turn, TurnEvent
from bot.models.mapping import to_model_messages
from bot.prompt import Prompt, estimate_tokens
from bot.reply import log_reply, new_turn_id
from bot.stores import Stores
from bot.tool import Bench
from persistence.contexts.messages import ModelMessages
from persistence.records import AssistantMessage, LogRecord, TextBlock, ToolResultMessage, UserMessage
from persistence.sync import Synced
from persistence.workspace import Lane
from persistence.wrapper import wrap_message

Emit = Callable[[TurnEvent], None]
T = TypeVar("T")


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


async def in_thread(work: Callable[[], T]) -> T:
    """As `asyncio.to_thread`, but who is stopped waits for the thread: the next turn must not meet it in the context."""
    thread = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        await asyncio.wait({thread})
        raise


@dataclass(frozen=True, slots=True)
class Briefed:
    """What a model is about to be asked: the prompt, the earlier messages, and the texts of the new one."""

    synced: Synced
    passages: tuple[Passage, ...]
    prompt: Prompt
    asked: list[str]
    history: ModelMessages
    compacted: bool


async def run_turn(stores: Stores, lane: Lane, messages: Sequence[LogRecord], *, surface: str, emit: Emit) -> Replied:
    """Answer `messages` (all of one lane, logged, oldest first) with one reply: commands first, the rest by the model.

    Raises ModelFailedError, TurnTimeoutError and the archive's errors; the messages stay logged in any case.
    """
    watch, turn_id = Stopwatch(), new_turn_id()
    asking = [message for message in messages if parse_command(message.text) is None]
    job = await (open_job(stores, lane) if asking else open_job_for_commands(stores, lane))
    said = [await _obey(job, message) for message in messages if parse_command(message.text) is not None]
    if not asking:
        outcome = Outcome("\n\n".join(said), TokenUsage(), "stop")
        reply = await log_reply(stores, lane, messages, outcome, model="", seen=())
        watch.lap("commands")
        return Replied(reply, Turn(turn_id, 0, 0, compacted=False, recall=(), timings_ms=watch.timings_ms))

    briefed = await _brief(job, asking, surface=surface, emit=emit, watch=watch)
    bench = Bench(stores, lane, current_ts=asking[0].ts, seen=list(briefed.passages), turn_id=turn_id)
    outcome = await _ask(job, briefed, bench, emit=emit)
    watch.lap("agent")
    if said:
        outcome = Outcome("\n\n".join([*said, outcome.text]), outcome.usage, outcome.stop_reason)
    reply = await log_reply(stores, lane, messages, outcome, model=job.chosen.name, seen=bench.seen)
    watch.lap("reply")
    turn = Turn(
        id=turn_id,
        synced=briefed.synced.added,
        context_messages=len(briefed.history.messages) + 1,
        compacted=briefed.compacted,
        recall=briefed.passages,
        timings_ms=watch.timings_ms,
    )
    return Replied(reply, turn)


async def _obey(job: MemoryJob, message: LogRecord) -> str:
    """Handle one slash command."""
    command = parse_command(message.text)
    if command is None:
        return ""

    async def new() -> str:
        await asyncio.to_thread(sync_lane, job, message.ts)  # what was only logged belongs to the conversation that is put away
        report = await flush_and_archive(job)
        job.stores.held.forget(job.lane)
        return f"A fresh conversation. {_describe(report)}"

    async def compact() -> str:
        await asyncio.to_thread(sync_lane, job, message.ts)
        report = await flush_and_compact(job, reason="manual")
        job.stores.held.forget(job.lane)
        return _describe(report)

    async def bring_together() -> str:
        answer = await consolidate(job)
        job.stores.writes.mark(job.lane.channel)
        return answer.text

    desk = Desk(job.stores, job.lane, author_of(message, command), new=new, compact=compact, consolidate=bring_together)
    return await run_command(command, desk)


def _describe(report: CompactionReport) -> str:
    waived = f" Nothing was written down of it: {report.why}." if report.flush == "waived" else ""
    match report.status:
        case "compacted":
            tokens = f"{report.tokens_before} tokens are now {report.tokens_after}"
            return f"Summed up: {tokens}; {report.notes} notes were written.{waived}"
        case "archived":
            return f"The old one is kept as {report.kept_as}.{waived}" if report.kept_as else "There was no old one."
        case "nothing":
            return "There is nothing to sum up yet."
        case "superseded":
            return "Another turn has just summed it up."


async def _brief(job: MemoryJob, asking: Sequence[LogRecord], *, surface: str, emit: Emit, watch: Stopwatch) -> Briefed:
    """Sync, recall, build the prompt, make room, and put the new message into the context."""
    stores, lane, context = job.stores, job.lane, job.context
    synced = await in_thread(lambda: sync_lane(job, asking[0].ts))
    watch.lap("sync")

    passages = await recall(stores, lane, "\n".join(message.text for message in asking), settings=job.settings)
    emit(Recalled(passages))
    watch.lap("recall")

    prompt, asked = await _load(job, asking, passages, surface=surface)
    incoming = sum(map(estimate_tokens, asked))
    report = await compact_if_due(job, system_tokens=estimate_tokens(prompt.system), incoming_tokens=incoming)
    compacted = report is not None and report.status == "compacted"
    if compacted:
        stores.held.forget(lane)
        prompt, asked = await _load(job, asking, passages, surface=surface)
    watch.lap("prompt")

    room = job.limits.threshold_tokens - estimate_tokens(prompt.system) - sum(map(estimate_tokens, asked))
    history = await in_thread(lambda: context.build_messages(budget_tokens=max(0, room), lookup=job.changes))
    await in_thread(lambda: context.append([_user_message(asked)]))
    await asyncio.to_thread(write_last_prompt, stores.workspace, lane.channel, prompt, asked)
    watch.lap("context")
    return Briefed(synced, passages, prompt, asked, history, compacted)


async def _load(
    job: MemoryJob, asking: Sequence[LogRecord], passages: Sequence[Passage], *, surface: str
) -> tuple[Prompt, list[str]]:
    """The prompt, and the texts of the new message: what was said, and what goes beside it."""
    take = take_topics(job)
    prompt = await asyncio.to_thread(load_prompt, job, job.context, surface=surface, passages=passages, take=take)
    return prompt, [wrap_message(message) for message in asking] + ([prompt.beside] if prompt.beside else [])


async def _ask(job: MemoryJob, briefed: Briefed, bench: Bench, *, emit: Emit) -> Outcome:
    """Run the agent; each completed message goes into the context as it is made."""
    assignment = Assignment(
        model=job.chosen.model,
        model_name=job.chosen.name,
        system=briefed.prompt.system,
        history=to_model_messages(briefed.history.messages),
        prompt=briefed.asked,
        timeout_s=job.settings.run_timeout_s,
        warn_before_s=job.settings.run_timeout_warn_before_s,
    )

    async def keep(message: AssistantMessage | ToolResultMessage) -> None:
        await in_thread(lambda: job.context.append([message]))

    return await run_agent(assignment, bench, keep=keep, emit=emit)


def _user_message(asked: Sequence[str]) -> UserMessage:
    return UserMessage(content=[TextBlock(text=text) for text in asked], timestamp=int(time.time() * 1000))
