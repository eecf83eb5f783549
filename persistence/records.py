"""The shapes on disk of log lines and context entries, as pydantic models that keep unknown fields, and their line codec."""

import json
import math
import re
import secrets
from typing import Annotated, Any, Final, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from persistence.workspace import is_ts, ts_key

BOT_USER: Final = "bot"
CONTEXT_VERSION: Final = 3
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


class Record(BaseModel):
    """A JSON object of a file: camel-case on disk, unknown fields kept."""

    model_config = ConfigDict(extra="allow", populate_by_name=True, alias_generator=to_camel, ser_json_inf_nan="null")

    def to_json(self) -> dict[str, Any]:  # the JSON object itself: its values are of every JSON type
        """The object as it goes to disk: unset and None fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Attachment(Record):
    """A file that came with a message: its name, and where it lies in the workspace."""

    name: str
    local: str | None = None


class LogRecord(Record):
    """One line of `log.jsonl` (formats: volume.md, "log.jsonl")."""

    ts: str
    date: str | None = None
    thread_ts: str | None = None
    user: str | None = None
    user_name: str | None = None
    display_name: str | None = None
    text: str = ""
    attachments: list[Attachment] | None = None
    is_bot: bool = False
    edited: str | None = None
    deleted: bool | None = None
    id: str | None = None
    reply_to: str | None = None
    answers: list[str] | None = None

    @property
    def root_ts(self) -> str | None:
        """The root's ts for a reply in a thread; None for top-level messages and for the root itself."""
        return self.thread_ts if is_ts(self.thread_ts) and ts_key(str(self.thread_ts)) != ts_key(self.ts) else None


class TextBlock(Record):
    type: Literal["text"] = "text"
    text: str


class ImageBlock(Record):
    type: Literal["image"] = "image"
    data: str
    mime_type: str


class ThinkingBlock(Record):
    type: Literal["thinking"] = "thinking"
    thinking: str


class ToolCallBlock(Record):
    type: Literal["toolCall"] = "toolCall"
    id: str
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)  # whatever JSON the model sent


UserBlock = Annotated[TextBlock | ImageBlock, Field(discriminator="type")]
AssistantBlock = Annotated[TextBlock | ThinkingBlock | ToolCallBlock, Field(discriminator="type")]


class Cost(Record):
    input: float = 0
    output: float = 0
    cache_read: float = 0
    cache_write: float = 0
    total: float = 0


class Usage(Record):
    """Tokens of one model request."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    total_tokens: int = 0
    cost: Cost = Field(default_factory=Cost)


class UserMessage(Record):
    role: Literal["user"] = "user"
    content: str | list[UserBlock]
    timestamp: int


class AssistantMessage(Record):
    role: Literal["assistant"] = "assistant"
    content: list[AssistantBlock]
    api: str = ""
    provider: str = ""
    model: str = ""
    usage: Usage = Field(default_factory=Usage)
    stop_reason: Literal["stop", "length", "toolUse", "error", "aborted"] = "stop"
    error_message: str | None = None
    timestamp: int


class ToolResultMessage(Record):
    role: Literal["toolResult"] = "toolResult"
    tool_call_id: str
    tool_name: str
    content: list[UserBlock]
    is_error: bool = False
    timestamp: int


Message = Annotated[UserMessage | AssistantMessage | ToolResultMessage, Field(discriminator="role")]
"""What a model is given and gives. Other roles on disk are mapped to a UserMessage by `persistence.context`."""

_message: TypeAdapter[UserMessage | AssistantMessage | ToolResultMessage] = TypeAdapter(Message)


def parse_message(value: object) -> UserMessage | AssistantMessage | ToolResultMessage | None:
    """The typed message of an entry, or None when it is of another role or malformed."""
    try:
        return _message.validate_python(value)
    except ValidationError:
        return None


class Entry(Record):
    """Any later line of `context.jsonl`; what belongs to its `type` is in the extra fields."""

    type: str
    id: str
    parent_id: str | None = None
    timestamp: str

    def field(self, name: str) -> Any:  # noqa: ANN401 - a JSON value of a file
        """An extra field by its name on disk, None when absent."""
        return (self.model_extra or {}).get(name)


class Position(Record):
    """A cursor on disk: a byte offset, and the hash that proves that what lies before it is still the same."""

    offset: int = 0
    prefix: str = ""


class SyncState(Record):
    """How far the log is settled for a context. A cache in its own file; a decision where a `custom` entry holds it.

    `through`: messages up to this ts that the context doesn't hold were left out on purpose. `future`: ts that were not yet
    visible. `waiting`: for a root that has not arrived, the ts of a reply.
    """

    log: Position = Field(default_factory=Position)
    context: Position | None = None
    through: str | None = None
    future: list[str] = Field(default_factory=list)
    waiting: dict[str, str] = Field(default_factory=dict)
    saved: int = Field(default=0, exclude=True)
    """Up to which offset of the log the cache file has this state."""


SYNC_ENTRY: Final = "recalld.sync"
"""`customType` of the entry that holds a SyncState."""


def new_entry_id(taken: set[str] | dict[str, Any]) -> str:
    """8 hex digits that are unique in the file."""
    while (entry_id := secrets.token_hex(4)) in taken:
        pass
    return entry_id


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def decode_line(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line, None when it is none (NaN, infinities, over-deep nesting and bad UTF-8 included).

    Half a surrogate pair, as a text cut by another tool may end in, is read as U+FFFD.
    """
    try:
        text = line.decode("utf-8").strip("\ufeff \t\r\x00")
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_parse_float)
        if isinstance(value, dict) and _SURROGATE_ESCAPE.search(line):
            value = _without_surrogates(value)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _parse_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:40]} is too large a number")
    return value


def encode_line(value: dict[str, Any]) -> bytes:
    """One ASCII-escaped JSON object and its LF. A lone surrogate becomes U+FFFD first, NaN is refused (ValueError)."""
    line = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")
    if _SURROGATE_ESCAPE.search(line):
        line = json.dumps(_without_surrogates(value), ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")
    return line + b"\n"


def _without_surrogates(value: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(value, ensure_ascii=False)
    clean: dict[str, Any] = json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    return clean


def parse_log_record(line: bytes) -> LogRecord | None:
    """The record of a log line, None for a line that is no object or has no usable ts."""
    value = decode_line(line)
    if value is None or not is_ts(value.get("ts")):
        return None
    try:
        return LogRecord.model_validate(value)
    except ValidationError as err:
        # Other tools' lines keep their place, and what they say besides, even if a field is of another shape.
        odd = {problem["loc"][0] for problem in err.errors(include_url=False, include_context=False, include_input=False)}
        return LogRecord.model_validate({name: field for name, field in value.items() if name not in odd})
