"""The text of a part of a conversation: for a model to read, in portions, or as a list of quotes where no model is. Pure."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from persistence.compaction import SpanItem
from persistence.contexts.messages import BYTES_PER_TOKEN, Lookup, cut_text
from persistence.records import (
    AssistantMessage,
    Message,
    TextBlock,
    ToolCallBlock,
    ToolResultMessage,
    UserMessage,
)
from persistence.secrets import redact
from persistence.workspace import ts_key
from persistence.wrapper import escape_text, read_marker, read_wrapped

QUOTES_LEAD: Final = "No model wrote this summary. It is a list of what was said, oldest first:"
_MAX_TOOL_BYTES: Final = 4_000
_MAX_QUOTE_CHARS: Final = 240
_OMITTED: Final = re.compile(r"<omitted count=")


@dataclass(frozen=True, slots=True)
class Portion:
    """A piece of a transcript that fits a request; `last_id` is the entry that it ends with."""

    text: str
    last_id: str


def split_portions(items: Sequence[SpanItem], *, budget_tokens: int) -> list[Portion]:
    """The whole transcript in as few pieces as fit the budget, cut between messages; a message that is too long alone is cut."""
    limit = max(budget_tokens * BYTES_PER_TOKEN, 1_000)
    portions: list[Portion] = []
    texts: list[str] = []
    size, last_id = 0, ""
    for item in items:
        text = cut_text(render_message(item.message), limit)
        length = len(text.encode("utf-8", "surrogatepass")) + 2
        if texts and size + length > limit:
            portions.append(Portion("\n\n".join(texts), last_id))
            texts, size = [], 0
        texts.append(text)
        size, last_id = size + length, item.entry_id
    return [*portions, Portion("\n\n".join(texts), last_id)] if texts else portions


def render_message(message: Message) -> str:
    """A message as text: people's as they are wrapped, the bot's own with its tool calls; what it thought is left out."""
    match message:
        case UserMessage():
            return "\n".join(_texts(message))
        case AssistantMessage():
            calls = [block for block in message.content if isinstance(block, ToolCallBlock)]
            said = [f"[you said]\n{text}" for text in _texts(message)]
            return "\n".join([*said, *(f"[you called {call.name}] {_arguments(call)}" for call in calls)])
        case ToolResultMessage():
            outcome = "failed" if message.is_error else "answered"
            return f"[{message.tool_name} {outcome}]\n" + cut_text("\n".join(_texts(message)), _MAX_TOOL_BYTES)


def _arguments(call: ToolCallBlock) -> str:
    return cut_text(json.dumps(call.arguments, ensure_ascii=False, default=str), _MAX_TOOL_BYTES)


def _texts(message: Message) -> list[str]:
    if isinstance(message.content, str):
        return [message.content] if message.content.strip() else []
    return [block.text for block in message.content if isinstance(block, TextBlock) and block.text.strip()]


def choose_fence(text: str) -> str:
    """A word that a text does not contain, to mark where it begins and ends; the same for the same text."""
    counter = 0
    while (word := f"transcript-{hashlib.sha256(f'{counter}{text}'.encode('utf-8', 'replace')).hexdigest()[:12]}") in text:
        counter += 1
    return word


def quote_span(items: Sequence[SpanItem], lookup: Lookup, *, before: str, limit_bytes: int) -> str:
    """Who said what and when, oldest first, after the lines of the summary `before`; of too much the newest stay.

    Verbatim, but for what is too long, and for secrets. "" when nothing was said.
    """
    old = [line for line in before.split("\n") if line.strip() and line != QUOTES_LEAD and not line.startswith("[left out:")]
    new = [line for item in items for line in _quotes(item.message, lookup)]
    lines = [*old, *new]
    room = limit_bytes - len(QUOTES_LEAD) - 120
    kept = len(lines)
    while kept and (room := room - len(lines[kept - 1].encode("utf-8", "surrogatepass")) - 1) >= 0:
        kept -= 1
    said = [f"[left out: {kept} older lines; log.jsonl has what was said]"] if kept else []
    return "\n".join([QUOTES_LEAD, *said, *lines[kept:]]) if lines else ""


def _quotes(message: Message, lookup: Lookup) -> Iterator[str]:
    match message:
        case UserMessage():
            texts = _texts(message)
            wrapped = [found for text in texts if (found := read_wrapped(text)) is not None]
            for ts, text in wrapped:
                record = lookup(ts)
                name = (record.display_name or record.user_name or record.user) if record else None
                yield from _quote(float(ts_key(ts)), name or "somebody", text)
            for text in texts if not wrapped else ():
                if read_marker(text) is None and not _OMITTED.match(text):
                    yield from _quote(message.timestamp / 1000, "somebody", text)
        case AssistantMessage():
            yield from _quote(message.timestamp / 1000, "the bot", "\n".join(_texts(message)))
        case ToolResultMessage():
            pass


def _quote(seconds: float, who: str, text: str) -> Iterator[str]:
    said = " ".join(redact(text).split())
    if not said:
        return
    shown = said if len(said) <= _MAX_QUOTE_CHARS else f"{said[:_MAX_QUOTE_CHARS]} […]"
    yield f"- {_date(seconds)} {' '.join(who.split())[:80]}: “{escape_text(shown)}”"


def _date(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "minutes").removesuffix("+00:00")
    except (ValueError, OverflowError, OSError):  # another tool's file may hold any number
        return "some time,"
