"""Replies: written to the log with what they rest on, and read back from there for a retry."""

import asyncio
import re
import uuid
from collections.abc import Sequence
from typing import Final

from bot.agent import Outcome
from bot.message import SILENT, Citation, Json, Passage, Replied, Reply, TokenUsage, Turn
from bot.stores import Stores
from persistence.log import NewMessage
from persistence.records import BOT_USER, LogRecord
from persistence.workspace import Lane

_SOURCE: Final = re.compile(r"([^\s()<>\[\]`\"']+)#L(\d+)(?:-L?(\d+))?")


def new_turn_id() -> str:
    """An id for a turn: 16 hex digits."""
    return uuid.uuid4().hex[:16]


async def log_reply(
    stores: Stores, lane: Lane, messages: Sequence[LogRecord], outcome: Outcome, *, model: str, seen: Sequence[Passage]
) -> Reply:
    """Append the bot's line for an outcome, durably; a silent one is a line that no history shows."""
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
    outcome = Outcome("Stopped.", TokenUsage(), "aborted")
    reply = await log_reply(stores, lane, messages, outcome, model="", seen=())
    return Replied(reply, Turn(new_turn_id(), 0, 0, compacted=False, recall=(), timings_ms={}))


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
