"""Between the archive's own message records and the agent library's messages. Pure."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import assert_never

from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from persistence.records import (
    AssistantBlock,
    AssistantMessage,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultMessage,
    Usage,
    UserBlock,
    UserMessage,
)

Message = UserMessage | AssistantMessage | ToolResultMessage


def to_model_messages(messages: Iterable[Message]) -> list[ModelMessage]:
    """The archive's messages as the library takes them: neighbouring requests are one."""
    mapped: list[ModelMessage] = []
    for message in messages:
        match message:
            case AssistantMessage():
                mapped.append(_response(message))
            case UserMessage():
                _add_request(mapped, UserPromptPart(user_content(message), timestamp=_time(message.timestamp)))
            case ToolResultMessage():
                _add_request(mapped, _tool_return(message))
            case _:
                assert_never(message)
    return mapped


def _add_request(mapped: list[ModelMessage], part: ModelRequestPart) -> None:
    if mapped and isinstance(mapped[-1], ModelRequest):
        mapped[-1] = ModelRequest(parts=[*mapped[-1].parts, part])
    else:
        mapped.append(ModelRequest(parts=[part]))


def user_content(message: UserMessage) -> str | Sequence[UserContent]:
    """A user message's content as the library takes it."""
    if isinstance(message.content, str):
        return message.content
    return [_user_block(block) for block in message.content]


def _user_block(block: UserBlock) -> UserContent:
    match block:
        case TextBlock():
            return block.text
        case ImageBlock():
            return BinaryContent.from_data_uri(f"data:{block.mime_type};base64,{block.data}")
        case _:
            assert_never(block)


def _tool_return(message: ToolResultMessage) -> ToolReturnPart:
    text = "\n".join(block.text for block in message.content if isinstance(block, TextBlock))
    return ToolReturnPart(
        message.tool_name,
        text,
        message.tool_call_id,
        outcome="failed" if message.is_error else "success",
        timestamp=_time(message.timestamp),
    )


def _response(message: AssistantMessage) -> ModelResponse:
    parts = [_assistant_block(block) for block in message.content]
    return ModelResponse(parts=parts or [TextPart("")], model_name=message.model or None, timestamp=_time(message.timestamp))


def _assistant_block(block: AssistantBlock) -> ModelResponsePart:
    match block:
        case TextBlock():
            return TextPart(block.text)
        case ThinkingBlock():
            return ThinkingPart(block.thinking)
        case ToolCallBlock():
            return ToolCallPart(block.name, block.arguments, block.id)
        case _:
            assert_never(block)


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def to_assistant_message(response: ModelResponse, *, model: str) -> AssistantMessage:
    """A completed model response as a record. `model` is the name in settings, "provider/model id"."""
    provider, _, model_id = model.partition("/")
    blocks = [block for part in response.parts if (block := _record_block(part)) is not None]
    calls = any(isinstance(block, ToolCallBlock) for block in blocks)
    usage = response.usage
    return AssistantMessage(
        content=blocks,
        api=provider,
        provider=provider,
        model=model_id,
        usage=Usage(
            input=usage.input_tokens,
            output=usage.output_tokens,
            cache_read=usage.cache_read_tokens,
            cache_write=usage.cache_write_tokens,
            total_tokens=usage.total_tokens,
        ),
        stop_reason="toolUse" if calls else "length" if response.finish_reason == "length" else "stop",
        timestamp=int(response.timestamp.timestamp() * 1000),
    )


def _record_block(part: ModelResponsePart) -> AssistantBlock | None:
    match part:
        case TextPart():
            return TextBlock(text=part.content) if part.content else None
        case ThinkingPart():
            return ThinkingBlock(thinking=part.content)
        case ToolCallPart():
            return ToolCallBlock(id=part.tool_call_id, name=part.tool_name, arguments=part.args_as_dict())
        case _:
            return None


def to_tool_result(part: ToolReturnPart) -> ToolResultMessage:
    """A tool's result as a record."""
    text = part.content if isinstance(part.content, str) else json.dumps(part.content, default=str)
    return ToolResultMessage(
        tool_call_id=part.tool_call_id,
        tool_name=part.tool_name,
        content=[TextBlock(text=text)],
        is_error=part.outcome != "success",
        timestamp=int(part.timestamp.timestamp() * 1000),
    )
