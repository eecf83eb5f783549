"""`builtin/recall`: the model that needs no key. It never writes a sentence of its own about facts.

It understands a few kinds of request, uses the same tools as any other model through the same loop, and answers with quoted
passages and their sources.
"""

import json
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from bot.models.quoting import Quote, best_quotes
from bot.words import content_words
from persistence.wrapper import read_wrapped

MODEL_NAME: Final = "builtin/recall"
Kind = Literal["remember", "forget", "who", "about", "help"]

_PLEASE: Final = r"^(?:please\s+|can you\s+)?"
_FLAGS: Final = re.IGNORECASE | re.DOTALL
_PATTERNS: Final[tuple[tuple[Kind, re.Pattern[str]], ...]] = (
    ("remember", re.compile(_PLEASE + r"(?:remember|note|keep in mind|don'?t forget)(?:\s+that\b|\s*:|,)?\s+(.+)", _FLAGS)),
    ("forget", re.compile(_PLEASE + r"forget(?:\s+(?:about|that))?\s+(.+)", _FLAGS)),
    ("who", re.compile(r"^who\s+(?:said|mentioned|told|wrote|talked|asked)\b\s*(.*)", _FLAGS)),
    ("about", re.compile(r"^what\s+do\s+(?:you|we)\s+know\s+about\s+(.+)", _FLAGS)),
    ("help", re.compile(r"^(?:help|/help|what can you do)\W*$", _FLAGS)),
)
_QUESTION: Final = re.compile(
    r"[?？]\s*$|^(?:who|what|when|where|why|how|which|is|are|do|does|did|can|could|should|will)\b", re.IGNORECASE
)
_MENTION: Final = re.compile(r"^\s*(?:<@[A-Z0-9]+>|@\w+)[\s,:]*")

_NOTE_PLACE: Final = re.compile(r"(?:^|/)MEMORY\.md#L\d+-L\d+$")

HELP: Final = (
    "I am builtin/recall, a small program, not a language model. I remember what you tell me to (“remember that …”), forget it "
    "(“forget …”), find it again by meaning (“when …?”, “what do you know about …?”) and in this channel's history (“who said "
    "…?”), and always name the source. /help lists the commands."
)
NOTHING: Final = "I have nothing about that in memory or in this channel's history."
LOGGED: Final = (
    "I keep this in the channel's history. To have it in memory say “remember that …”; to ask me something, ask a question."
)


@dataclass(frozen=True, slots=True)
class Request:
    """What one message asks for. `id` makes the ids of its tool calls: unique, and the same for the same message."""

    id: str
    kind: Kind
    text: str
    is_question: bool


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call that a request still needs."""

    id: str
    tool: str
    arguments: dict[str, str | int]


def recall_model() -> FunctionModel:
    """The model, for the agent library."""
    return FunctionModel(_respond, stream_function=_stream, model_name=MODEL_NAME)


def _respond(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    requests, results = read_requests(messages), _read_results(messages)
    if calls := next_calls(requests, results):
        return ModelResponse(parts=[ToolCallPart(call.tool, dict(call.arguments), call.id) for call in calls])
    return ModelResponse(parts=[TextPart(compose(requests, results))])


async def _stream(messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    requests, results = read_requests(messages), _read_results(messages)
    if calls := next_calls(requests, results):
        for number, call in enumerate(calls):
            yield {number: DeltaToolCall(call.tool, json.dumps(call.arguments), tool_call_id=call.id)}
        return
    for line in compose(requests, results).splitlines(keepends=True):
        yield line


def read_requests(messages: Sequence[ModelMessage]) -> list[Request]:
    """What the newest user turn asks for: one request for each of its messages."""
    for message in reversed(messages):
        if isinstance(message, ModelRequest):
            prompts = [part.content for part in message.parts if isinstance(part, UserPromptPart)]
            if prompts:
                content = prompts[-1]
                texts = [content] if isinstance(content, str) else [item for item in content if isinstance(item, str)]
                said = [wrapped for text in texts if (wrapped := read_wrapped(text)) is not None]
                return [classify_request(ts, text) for ts, text in said]
    return []


def classify_request(request_id: str, text: str) -> Request:
    """The kind of a message, by how it begins."""
    text = _MENTION.sub("", text).strip()
    for kind, pattern in _PATTERNS:
        if match := pattern.match(text):
            wanted = match[1].strip() if match.groups() else text
            return Request(request_id, kind, wanted, is_question=kind in ("who", "about"))
    return Request(request_id, "about", text, is_question=is_question(text))


def is_question(text: str) -> bool:
    """Whether a message asks something, by its end or its first word."""
    return _QUESTION.search(text) is not None


def _read_results(messages: Sequence[ModelMessage]) -> dict[str, dict[str, object]]:
    """Tool results by call id."""
    results = {}
    for message in messages:
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if isinstance(part, ToolReturnPart):
                results[part.tool_call_id] = _parse_result(part)
    return results


def _parse_result(part: ToolReturnPart) -> dict[str, object]:
    try:
        value = json.loads(part.content) if isinstance(part.content, str) else part.content
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"error": str(part.content)}


def next_calls(requests: Sequence[Request], results: dict[str, dict[str, object]]) -> list[Call]:
    """The tool calls that are still needed before there is an answer."""
    return [call for request in requests for call in _calls_of(request, results) if call.id not in results]


def _calls_of(request: Request, results: dict[str, dict[str, object]]) -> list[Call]:
    history = Call(f"recall-{request.id}-history", "history_search", {"words": request.text[:1000] or "said"})
    search = Call(f"recall-{request.id}-search", "memory_search", {"query": request.text[:10_000] or "everything"})
    match request.kind:
        case "remember":
            return [Call(f"recall-{request.id}-note", "memory_append", {"text": request.text[:4000]})]
        case "who":
            return [history]
        case "forget":
            quote = _note_to_forget(results.get(search.id, {}), request.text)
            return [search] if quote is None else [search, _forget(request.id, quote)]
        case "about":
            found = results.get(search.id)
            lost = found is not None and request.is_question and not best_quotes(found, request.text)
            return [search, history] if lost else [search]
        case "help":
            return []


def _note_to_forget(found: dict[str, object], wanted: str) -> Quote | None:
    """The one note of a MEMORY.md that is plainly meant; None when nothing is, or when it could be several."""
    words = content_words(wanted)
    fitting = [quote for quote in best_quotes(found, wanted) if words and words <= content_words(quote.text)]
    return fitting[0] if len(fitting) == 1 and _NOTE_PLACE.search(fitting[0].source) else None


def _forget(request_id: str, quote: Quote) -> Call:
    line = int(quote.source.rpartition("#L")[2].partition("-")[0])
    return Call(f"recall-{request_id}-forget", "memory_forget", {"text": quote.text, "line": line})


def compose(requests: Sequence[Request], results: dict[str, dict[str, object]]) -> str:
    """The answer, from nothing but tool results."""
    answers = [_compose_one(request, results) for request in requests]
    return "\n\n".join(dict.fromkeys(answers)) or HELP


def _compose_one(request: Request, results: dict[str, dict[str, object]]) -> str:
    noted = results.get(f"recall-{request.id}-note", {})
    searched = results.get(f"recall-{request.id}-search", {})
    quotes = best_quotes(searched, request.text)
    match request.kind:
        case "help":
            return HELP
        case "remember":
            return _noted(noted)
        case "forget":
            return _forgotten(results.get(f"recall-{request.id}-forget"), quotes)
        case "who" | "about":
            said = _said(results.get(f"recall-{request.id}-history", {}), request.text)
            return _quoted(quotes) or said or _nothing(request, searched)


def _noted(result: dict[str, object]) -> str:
    if "error" in result:
        return f"I could not write that down: {result['error']}"
    return f"Noted: {result.get('text')}\n({result.get('source')})"


def _forgotten(result: dict[str, object] | None, quotes: Sequence[Quote]) -> str:
    if result is not None and "error" not in result:
        return f"Forgotten: {result.get('removed')}\n(it stood in {result.get('path')}; an earlier version of the file is kept)"
    if not quotes:
        return NOTHING
    places = "\n".join(f"> {quote.text}\n({quote.source})" for quote in quotes)
    return f"I am not sure what to remove, so I removed nothing. Say exactly which line, or edit the file:\n{places}"


def _quoted(quotes: Sequence[Quote]) -> str:
    return "\n\n".join("> " + quote.text.replace("\n", "\n> ") + f"\n({quote.source})" for quote in quotes)


def _said(result: dict[str, object], question: str) -> str:
    """Messages of the history with at least half of the question's content words; other people's questions are no answer."""
    wanted = content_words(question)
    lines = []
    messages = result.get("messages")
    for message in messages if isinstance(messages, list) else []:
        text = str(message.get("text", ""))
        if is_question(text):
            continue
        if 2 * len(wanted & content_words(text)) >= max(1, len(wanted)):
            who = f"{message.get('name')}, {str(message.get('date'))[:16]}, ts {message.get('ts')}"
            lines.append(f"> {' '.join(text.split())[:500]}\n({who})")
    return "\n\n".join(lines[:3])


def _nothing(request: Request, searched: dict[str, object]) -> str:
    if not request.is_question:
        return LOGGED
    off = searched.get("degraded")
    if isinstance(off, list) and off:
        return f"{NOTHING} (While I looked, this was off: {', '.join(map(str, off))}. Ask again in a moment.)"
    return NOTHING
