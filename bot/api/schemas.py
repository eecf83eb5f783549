"""The shapes on the wire, as pydantic models: snake case, unknown body fields refused."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

from bot.message import Answered, Passage, Reply, Turn
from bot.prompt import Section
from persistence.records import LogRecord
from persistence.workspace import is_ts

MAX_TEXT_CHARS = 40_000


def _check_ts(value: str) -> str:
    if not is_ts(value):
        raise ValueError("write a ts as seconds.micros, for instance 1764500000.000100")
    return value


def _check_text(value: str) -> str:
    if not value.strip():
        raise ValueError("the text is blank")
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise ValueError("the text holds a lone surrogate, which is no character")
    return value


Ts = Annotated[str, AfterValidator(_check_ts), Field(examples=["1764500000.000100"])]
Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS), AfterValidator(_check_text)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class Body(BaseModel):
    """A request body: unknown fields are refused, and no value is bent into another type."""

    model_config = ConfigDict(extra="forbid", strict=True)


class AttachmentBody(Body):
    name: Annotated[str, Field(min_length=1, max_length=500)]
    local: Annotated[str | None, Field(max_length=1000)] = None


class MessageBody(Body):
    """A message to post."""

    text: Text
    user: Name
    user_name: Name | None = None
    display_name: Name | None = None
    ts: Ts | None = None
    thread_ts: Ts | None = None
    attachments: Annotated[list[AttachmentBody], Field(max_length=50)] = []
    respond: bool = True
    metadata: Annotated[dict[str, JsonValue], Field(max_length=50)] = {}

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"text": "when can we deploy?", "user": "amy"}]}
    )


class EditBody(Body):
    text: Text


class AttachmentOut(BaseModel):
    name: str
    local: str | None = None


class MessageOut(BaseModel):
    """A log record."""

    ts: str
    date: str | None
    thread_ts: str | None
    user: str | None
    user_name: str | None
    display_name: str | None
    text: str
    attachments: list[AttachmentOut]
    is_bot: bool
    edited: str | None = None
    reply_to: str | None = None
    metadata: JsonValue = None


class CitationOut(BaseModel):
    path: str
    start_line: int
    end_line: int


class PassageOut(CitationOut):
    score: float


class UsageOut(BaseModel):
    input: int
    output: int


class ReplyOut(BaseModel):
    ts: str | None
    text: str
    silent: bool
    citations: list[CitationOut]
    model: str
    usage: UsageOut
    stop_reason: str


class TurnOut(BaseModel):
    id: str
    synced: int
    context_messages: int
    compacted: bool
    recall: list[PassageOut]
    timings_ms: dict[str, float]


class AnsweredOut(BaseModel):
    """What posting a message gives back."""

    message: MessageOut
    reply: ReplyOut | None = None
    turn: TurnOut | None = None


class MessagePage(BaseModel):
    items: list[MessageOut]
    next_cursor: str | None = None


class ChannelOut(BaseModel):
    channel: str
    messages: int
    last_ts: str | None
    size_bytes: int
    threads: int
    bad_lines: int


class ChannelPage(BaseModel):
    items: list[ChannelOut]
    next_cursor: str | None = None


class EntryOut(BaseModel):
    """A context entry, as it stands in the file."""

    model_config = ConfigDict(extra="allow")
    type: str
    id: str


class EntryPage(BaseModel):
    items: list[EntryOut]
    next_cursor: str | None = None


class PromptMessageOut(BaseModel):
    role: Literal["user", "assistant", "tool"]
    text: str


class SectionOut(BaseModel):
    name: str
    tokens: int
    truncated: bool
    omitted_lines: int
    sources: list[str]


class PromptOut(BaseModel):
    system: str
    messages: list[PromptMessageOut]
    sections: list[SectionOut]
    tokens: int
    fingerprint: str


class DiagnosticOut(BaseModel):
    key: str
    reason: str
    line: int | None = None


class SettingsOut(BaseModel):
    values: dict[str, JsonValue]
    origins: dict[str, str]
    diagnostics: list[DiagnosticOut]


class HealthOut(BaseModel):
    status: Literal["ok"] = "ok"


class ReadyOut(BaseModel):
    status: Literal["ok", "degraded", "starting"]
    checks: dict[str, str]


class StopOut(BaseModel):
    """Whether a turn was running."""

    stopped: bool


def message_out(record: LogRecord) -> MessageOut:
    """A log record on the wire; a deleted one has lost its text."""
    extra = record.model_extra or {}
    return MessageOut(
        ts=record.ts,
        date=record.date,
        thread_ts=record.thread_ts,
        user=record.user,
        user_name=record.user_name,
        display_name=record.display_name,
        text=record.text,
        attachments=[AttachmentOut(name=a.name, local=a.local) for a in record.attachments or []],
        is_bot=record.is_bot,
        edited=record.edited,
        reply_to=record.reply_to,
        metadata=extra.get("metadata"),
    )


def passages_out(passages: Iterable[Passage]) -> list[PassageOut]:
    """Recalled passages on the wire: their places and scores."""
    return [PassageOut(path=p.path, start_line=p.start_line, end_line=p.end_line, score=p.score) for p in passages]


def reply_out(reply: Reply) -> ReplyOut:
    """A reply on the wire."""
    return ReplyOut(
        ts=reply.ts,
        text=reply.text,
        silent=reply.silent,
        citations=[CitationOut(path=c.path, start_line=c.start_line, end_line=c.end_line) for c in reply.citations],
        model=reply.model,
        usage=UsageOut(input=reply.usage.input, output=reply.usage.output),
        stop_reason=reply.stop_reason,
    )


def turn_out(turn: Turn) -> TurnOut:
    """A turn on the wire."""
    return TurnOut(
        id=turn.id,
        synced=turn.synced,
        context_messages=turn.context_messages,
        compacted=turn.compacted,
        recall=passages_out(turn.recall),
        timings_ms=dict(turn.timings_ms),
    )


def answered_out(answered: Answered) -> AnsweredOut:
    """The outcome of a message on the wire."""
    return AnsweredOut(
        message=message_out(answered.message),
        reply=None if answered.reply is None else reply_out(answered.reply),
        turn=None if answered.turn is None else turn_out(answered.turn),
    )


def section_out(section: Section) -> SectionOut:
    """A prompt section on the wire, without its text."""
    return SectionOut(
        name=section.name,
        tokens=section.tokens,
        truncated=section.truncated,
        omitted_lines=section.omitted_lines,
        sources=list(section.sources),
    )
