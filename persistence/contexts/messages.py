"""What a model is given of a context: messages of the three roles it knows, complete in their tool calls, within a budget.

Values only. The rules are in formats: volume.md, "context.jsonl".
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from persistence.contexts.tree import EntryTree
from persistence.records import (
    AssistantMessage,
    Entry,
    ImageBlock,
    LogRecord,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultMessage,
    UserBlock,
    UserMessage,
    parse_message,
)
from persistence.wrapper import CLOSING, read_wrapper, wrap_deleted, wrap_message

BYTES_PER_TOKEN: Final = 4
MAX_TOOL_RESULT_BYTES: Final = 51_200
_MESSAGE_TOKENS: Final = 4
_IMAGE_TOKENS: Final = 1_600
_LEAD_TOKENS: Final = 64
_MIN_TEXT_BYTES: Final = 256
_NO_RESULT: Final = "No result: the run ended before this call was finished. Call the tool again if its result is still needed."

Lookup = Callable[[str], LogRecord | None]


@dataclass(frozen=True, slots=True)
class ModelMessages:
    """`omitted`: older messages that did not fit, as the first message says. `tokens` is an estimate of the whole."""

    messages: list[Message]
    omitted: int
    tokens: int


def build_model_messages(tree: EntryTree, *, budget_tokens: int, lookup: Lookup) -> ModelMessages:
    """The newest messages on the way to the leaf that fit, from a user message on, after the last compaction's summary.

    `lookup` gives a log message as it is now. When not even the newest exchange fits, its longest texts are cut.
    """
    budget = max(budget_tokens - _LEAD_TOKENS, 0)
    summary = None if tree.compaction is None else map_summary(tree.compaction, limit_bytes=budget // 2 * BYTES_PER_TOKEN)
    budget -= 0 if summary is None else estimate_tokens(summary)
    first, kept = _take_newest(tree, budget, lookup)
    omitted = tree.count_older(first)
    messages = [*_lead(summary, omitted, kept), *pair_tool_results(kept)]
    return ModelMessages(messages, omitted, sum(map(estimate_tokens, messages)))


def _take_newest(tree: EntryTree, budget: int, lookup: Lookup) -> tuple[int | None, list[Message]]:
    """(position of the oldest message taken, the messages oldest first). They begin with a user message if older ones are cut."""
    taken: list[tuple[int, Message]] = []
    whole = spent = 0  # `whole`: how many of `taken` are complete exchanges
    for at in tree.walk_back():
        message = map_entry(tree.entries[at], lookup)
        if message is None:
            continue
        spent += _reserve_tokens(message)
        if spent > budget and whole:
            break
        taken.append((at, message))
        if isinstance(message, UserMessage):
            whole = len(taken)
            if spent > budget:
                break
    else:
        whole = len(taken)
    kept = [message for _, message in reversed(taken[:whole])]
    first = taken[whole - 1][0] if whole else None
    return first, kept if sum(map(_reserve_tokens, kept)) <= budget else shrink(kept, budget)


def _lead(summary: UserMessage | None, omitted: int, kept: Sequence[Message]) -> list[Message]:
    blocks = list(summary.content) if summary is not None and not isinstance(summary.content, str) else []
    if omitted:
        said = f"[{omitted} older messages of this conversation were left out here, since they don't fit; log.jsonl has them.]"
        blocks.append(TextBlock(text=said))
    timestamp = summary.timestamp if summary is not None else kept[0].timestamp if kept else 0
    return [UserMessage(content=blocks, timestamp=timestamp)] if blocks else []


def pair_tool_results(messages: Sequence[Message]) -> list[Message]:
    """The messages with each tool call followed by its result: a missing one is made, one without its call is left out."""
    groups: list[list[Message]] = []
    open_calls: dict[str, tuple[list[Message], int]] = {}
    for message in messages:
        if isinstance(message, ToolResultMessage):
            if (found := open_calls.pop(message.tool_call_id, None)) is not None:
                found[0][found[1]] = message
            continue
        group: list[Message] = [message]
        groups.append(group)
        for call in _calls_of(message):
            open_calls[call.id] = (group, len(group))
            group.append(_missing_result(call, message.timestamp))
    return [message for group in groups for message in group]


def _calls_of(message: Message) -> list[ToolCallBlock]:
    if not isinstance(message, AssistantMessage):
        return []
    return [block for block in message.content if isinstance(block, ToolCallBlock)]


def _missing_result(call: ToolCallBlock, timestamp: int) -> ToolResultMessage:
    content: list[UserBlock] = [TextBlock(text=_NO_RESULT)]
    return ToolResultMessage(tool_call_id=call.id, tool_name=call.name, content=content, is_error=True, timestamp=timestamp)


def map_entry(entry: Entry, lookup: Lookup) -> Message | None:
    """The entry as a message for the model, None when it is not for it. Log messages are as `lookup` has them now."""
    match entry.type:
        case "message":
            value = entry.field("message")
            message = _map_message(value) if isinstance(value, dict) else None
        case "custom_message":
            message = _user_message(entry.field("content"), _entry_ms(entry))
        case "branch_summary":
            message = map_summary(entry)
        case _:
            return None
    if isinstance(message, UserMessage):
        message = _with_changes(message, lookup)
    return message if message is not None and (message.content or isinstance(message, ToolResultMessage)) else None


def map_summary(entry: Entry, *, limit_bytes: int | None = None) -> UserMessage:
    """The summary of a compaction or a branch as a message, cut to `limit_bytes`."""
    summary = str(entry.field("summary") or "")
    return _summary_message(entry.type, summary if limit_bytes is None else cut_text(summary, limit_bytes), _entry_ms(entry))


def _summary_message(kind: str, summary: str, timestamp: int) -> UserMessage:
    about = "another branch of this conversation" if kind.startswith("branch") else "the conversation before this point"
    return UserMessage(content=[TextBlock(text=f"[Summary of {about}]\n{summary}")], timestamp=timestamp)


def _map_message(value: dict[str, Any]) -> Message | None:
    timestamp = value["timestamp"] if isinstance(value.get("timestamp"), int) else 0
    match value.get("role"):
        case "user" | "assistant" | "toolResult":
            return parse_message(value) or _salvage(value, timestamp)
        case "custom" | "hookMessage":
            return _user_message(value.get("content"), timestamp)
        case "branchSummary" | "compactionSummary" as role:
            return _summary_message(role, str(value.get("summary") or ""), timestamp)
        case "bashExecution" if value.get("excludeFromContext") is not True:
            return _user_message(_describe_run(value), timestamp)
    return None


def _salvage(value: dict[str, Any], timestamp: int) -> Message | None:
    """A message of another tool with one odd block or field: what is sound of it."""
    content = value.get("content")
    sound = {name: field for name, field in value.items() if name not in {"usage", "stopReason", "details"}}
    if isinstance(content, list):
        sound["content"] = [block for block in content if _is_sound(block, value["role"], timestamp)]
    return parse_message(sound | {"timestamp": timestamp})


def _is_sound(block: object, role: str, timestamp: int) -> bool:
    probe = {"role": role, "content": [block], "timestamp": timestamp, "toolCallId": "", "toolName": ""}
    return parse_message(probe) is not None


def _user_message(content: object, timestamp: int) -> UserMessage | None:
    value = {"role": "user", "content": content, "timestamp": timestamp}
    message = parse_message(value) or _salvage(value, timestamp)
    return message if isinstance(message, UserMessage) else None


def _describe_run(value: dict[str, Any]) -> str:
    end = "cancelled" if value.get("cancelled") is True else f"exit code {value.get('exitCode')}"
    return f"[A command was run: {end}]\n$ {value.get('command')}\n{value.get('output') or ''}"


def _entry_ms(entry: Entry) -> int:
    try:
        return int(datetime.fromisoformat(entry.timestamp).timestamp() * 1000)
    except ValueError:
        return 0


def _with_changes(message: UserMessage, lookup: Lookup) -> UserMessage:
    if isinstance(message.content, str):
        return message.model_copy(update={"content": _current_text(message.content, lookup)})
    blocks = [
        block.model_copy(update={"text": _current_text(block.text, lookup)}) if isinstance(block, TextBlock) else block
        for block in message.content
    ]
    return message.model_copy(update={"content": blocks})


def _current_text(text: str, lookup: Lookup) -> str:
    ts = read_wrapper(text)
    record = None if ts is None else lookup(ts)
    if record is None:
        return text
    if record.deleted:
        return wrap_deleted(record.ts)
    return wrap_message(record) if record.edited else text


def estimate_tokens(message: Message) -> int:
    """Tokens of a message: UTF-8 bytes / 4 rounded up for each part, a flat sum for an image."""
    if isinstance(message.content, str):
        return _MESSAGE_TOKENS + _text_tokens(message.content)
    return _MESSAGE_TOKENS + sum(map(_block_tokens, message.content))


def _block_tokens(block: TextBlock | ImageBlock | ThinkingBlock | ToolCallBlock) -> int:
    match block:
        case TextBlock():
            return _text_tokens(block.text)
        case ThinkingBlock():
            return _text_tokens(block.thinking)
        case ToolCallBlock():
            said = block.id + block.name + json.dumps(block.arguments, ensure_ascii=False, default=str)
            return _text_tokens(said)
        case ImageBlock():
            return _IMAGE_TOKENS


def _text_tokens(text: str) -> int:
    return -(-_size_bytes(text) // BYTES_PER_TOKEN)


def _reserve_tokens(message: Message) -> int:
    """What a message may come to: each tool call with the result that stands in if its own is missing."""
    return estimate_tokens(message) + len(_calls_of(message)) * (_text_tokens(_NO_RESULT) + _MESSAGE_TOKENS)


def shrink(exchange: Sequence[Message], budget_tokens: int) -> list[Message]:
    """One exchange made to fit: its texts are cut ever shorter, and at last only what the user said is left."""
    limit = MAX_TOOL_RESULT_BYTES
    while limit >= _MIN_TEXT_BYTES:
        short = [_shorten(message, limit) for message in exchange]
        if sum(map(_reserve_tokens, short)) <= budget_tokens:
            return short
        limit //= 2
    said = "\n".join(text for message in exchange[:1] if isinstance(message, UserMessage) for text in _texts(message))
    text = cut_text(said, (budget_tokens - _MESSAGE_TOKENS) * BYTES_PER_TOKEN)
    return [UserMessage(content=[TextBlock(text=text)], timestamp=exchange[0].timestamp)] if text else []


def _texts(message: UserMessage) -> list[str]:
    if isinstance(message.content, str):
        return [message.content]
    return [block.text for block in message.content if isinstance(block, TextBlock)]


def _shorten(message: Message, limit_bytes: int) -> Message:
    """The message with each of its texts cut; what the model thought and called is left whole."""
    if isinstance(message.content, str):
        return message.model_copy(update={"content": cut_text(message.content, limit_bytes)})
    blocks = [
        block.model_copy(update={"text": cut_text(block.text, limit_bytes)}) if isinstance(block, TextBlock) else block
        for block in message.content
    ]
    return message.model_copy(update={"content": blocks})


def cap_tool_result(message: ToolResultMessage) -> ToolResultMessage:
    """The result with its text, when that is over 51,200 bytes, cut to them; the cut is stated in the text."""
    texts = [block.text for block in message.content if isinstance(block, TextBlock)]
    if sum(map(_size_bytes, texts)) <= MAX_TOOL_RESULT_BYTES:
        return message
    text = TextBlock(text=cut_text("\n".join(texts), MAX_TOOL_RESULT_BYTES))
    return message.model_copy(update={"content": [text, *(each for each in message.content if not isinstance(each, TextBlock))]})


def cut_text(text: str, limit_bytes: int) -> str:
    """The beginning of a text that is over `limit_bytes` (UTF-8), at most so long with the line that states the cut.

    A wrapped message stays closed. "" where there is no room even for the statement.
    """
    size = _size_bytes(text)
    if size <= limit_bytes:
        return text
    closing = f"\n{CLOSING}" if text.endswith(CLOSING) else ""
    room = limit_bytes - len(f"\n[cut: {size} of {size} bytes shown]{closing}")
    if room <= 0:
        return ""
    shown = text.encode("utf-8", "surrogatepass")[:room].decode("utf-8", "ignore")
    head, line_end, rest = shown.rpartition("\n")
    if line_end and len(rest) < len(shown) // 4:
        shown = head
    return f"{shown}\n[cut: {_size_bytes(shown)} of {size} bytes shown]{closing}"


def _size_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
