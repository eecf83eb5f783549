"""The conversation's vocabulary: what comes in, what a turn makes of it, and the events on the way. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from persistence.records import Attachment, LogRecord
from persistence.workspace import ChannelId, Lane

StopReason = Literal["stop", "length", "error", "aborted"]
Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]

SILENT = "[SILENT]"
"""A reply of exactly this text posts nothing."""


@dataclass(frozen=True, slots=True)
class IncomingMessage:
    """One message as an adapter parsed it. `key` is the client's idempotency key; `ts` is assigned when None."""

    channel: ChannelId
    text: str
    user: str
    user_name: str | None = None
    display_name: str | None = None
    ts: str | None = None
    thread_ts: str | None = None
    attachments: tuple[Attachment, ...] = ()
    key: str | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict)

    @property
    def lane(self) -> Lane:
        """The lane that answers this message: its thread's, or the channel's."""
        return Lane(self.channel, self.thread_ts)


@dataclass(frozen=True, slots=True)
class Citation:
    """A place in the workspace that a reply rests on; lines are 1-based and inclusive."""

    path: str
    start_line: int
    end_line: int


@dataclass(frozen=True, slots=True)
class Passage:
    """A recalled passage as the prompt shows it."""

    path: str
    start_line: int
    end_line: int
    score: float
    text: str

    @property
    def source(self) -> str:
        """The place in the form that prompts and replies use."""
        return f"{self.path}#L{self.start_line}-L{self.end_line}"


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of all model requests of a turn."""

    input: int = 0
    output: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """The final reply. `ts` is None when it was silent: then nothing is posted."""

    ts: str | None
    text: str
    silent: bool
    citations: tuple[Citation, ...]
    model: str
    usage: TokenUsage
    stop_reason: StopReason


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn did, for the caller and the inspector. Times in milliseconds by step."""

    id: str
    synced: int
    context_messages: int
    compacted: bool
    recall: tuple[Passage, ...]
    timings_ms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Answered:
    """The outcome of a message: its log record, and the reply and turn that answered it (None for a replayed one's turn)."""

    message: LogRecord
    reply: Reply | None
    turn: Turn | None
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Accepted:
    """The message is durably in the log."""

    message: LogRecord


@dataclass(frozen=True, slots=True)
class Recalled:
    """The passages that the prompt will show."""

    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """The model called a tool; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolReturned:
    """A tool's result, as the model sees it."""

    id: str
    name: str
    text: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class Delta:
    """More text of the reply."""

    text: str


@dataclass(frozen=True, slots=True)
class Replied:
    """The turn ended with a reply."""

    reply: Reply
    turn: Turn


TurnEvent = Accepted | Recalled | ToolCalled | ToolReturned | Delta | Replied
"""What an adapter hears of a turn while it runs. Errors come as the exception of the answer, not as an event."""
