"""The events of a run's file (formats: team.md), kept strictly to their schema, and the codec of their lines. Pure.

What events add up to is decided in `run_state`; the file is `runs`'.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from persistence.errors import BodyInvalidError, TooLargeError
from persistence.records import decode_line, encode_line
from persistence.workspace import is_plain_path

MAX_EVENT_BYTES: Final = 4096
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z\Z", re.ASCII)


def _check_time(text: str) -> str:
    if not _TIME.match(text):
        raise ValueError("write a time in UTC with milliseconds, as 2026-01-31T09:05:00.000Z")
    datetime.fromisoformat(text)  # ValueError for a day that does not exist
    return text


def _check_path(text: str) -> str:
    if not is_plain_path(text):
        raise ValueError(
            "write a path relative to the workspace, without '..', '.' or empty parts, outside of recalld's own state"
        )
    return text


Id: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Role: TypeAlias = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
Time: TypeAlias = Annotated[str, AfterValidator(_check_time)]
Attempt: TypeAlias = Annotated[int, Field(ge=1)]
Note: TypeAlias = Annotated[str, Field(max_length=200)]
Hash: TypeAlias = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
By: TypeAlias = Annotated[str, Field(pattern=r"^(agent:[a-z][a-z0-9-]{0,31}|human:[^\s\x00-\x1f]{1,64}|system)$")]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Artifact(_Strict):
    """A file of the workspace at one revision: `rev` is "sha256:" and the hash of its bytes."""

    path: Annotated[str, AfterValidator(_check_path)]
    rev: Hash


class RunStarted(_Strict):
    type: Literal["run.started"]
    goal: Annotated[str, Field(min_length=1, max_length=200)]
    workspace: str
    """The scope: a channel id, or "." for the whole workspace."""


class TaskAdded(_Strict):
    type: Literal["task.added"]
    task: Id
    role: Role
    title: Annotated[str, Field(min_length=1, max_length=120)]
    depends_on: tuple[Id, ...] = ()


class AttemptStarted(_Strict):
    type: Literal["attempt.started"]
    task: Id
    attempt: Attempt
    role: Role
    lease_until: Time


class AttemptHeartbeat(_Strict):
    type: Literal["attempt.heartbeat"]
    task: Id
    attempt: Attempt
    lease_until: Time


class AttemptFinished(_Strict):
    type: Literal["attempt.finished"]
    task: Id
    attempt: Attempt
    outcome: Literal["ok", "failed", "cancelled", "interrupted"]
    artifacts: tuple[Artifact, ...] = ()
    note: Note = ""


class GateRequested(_Strict):
    type: Literal["gate.requested"]
    gate: Id
    task: Id
    artifacts: tuple[Artifact, ...]


class GateApproved(_Strict):
    type: Literal["gate.approved"]
    gate: Id
    artifacts: tuple[Artifact, ...]
    note: Note = ""


class GateRejected(_Strict):
    type: Literal["gate.rejected"]
    gate: Id
    artifacts: tuple[Artifact, ...]
    note: Note = ""


class RunFinished(_Strict):
    type: Literal["run.finished"]
    outcome: Literal["ok", "failed", "aborted"]


Body: TypeAlias = (
    RunStarted
    | TaskAdded
    | AttemptStarted
    | AttemptHeartbeat
    | AttemptFinished
    | GateRequested
    | GateApproved
    | GateRejected
    | RunFinished
)
"""What an event says, besides what all events have."""

_by: TypeAdapter[str] = TypeAdapter(By)
_body: TypeAdapter[Body] = TypeAdapter(Annotated[Body, Field(discriminator="type")])


class Envelope(BaseModel):
    """What all events have; the fields of the body stand beside these."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    v: Literal[1] = 1
    seq: Annotated[int, Field(ge=1)]
    ts: Time
    run_id: str
    type: str
    by: By
    prev: Hash | None


@dataclass(frozen=True, slots=True)
class Event:
    """An event as read. `body` is None for a type that this program doesn't know; `unknown` says what it doesn't know."""

    envelope: Envelope
    body: Body | None
    unknown: str | None = None


def parse_body(value: Mapping[str, JsonValue]) -> Body:
    """An event's own fields from outside. Raises BodyInvalidError for an unknown type or field and for a bad value."""
    try:
        return _body.validate_json(json.dumps(dict(value)))
    except (ValidationError, ValueError) as err:
        raise BodyInvalidError(f"this is no event of a run: {_reasons(err)}") from err


def check_by(text: str) -> None:
    """Check who makes an event. Raises BodyInvalidError."""
    try:
        _by.validate_python(text)
    except ValidationError as err:
        raise BodyInvalidError(f"{text[:80]!r} can make no event: use agent:<role>, human:<id> or system") from err


def _reasons(err: ValueError) -> str:
    """Where and what, never the value: it may be a secret."""
    if not isinstance(err, ValidationError):
        return "it can't be written as JSON"
    details = err.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in details[:5])


def encode_event(envelope: Envelope, body: Body) -> bytes:
    """The line, with its LF. Raises TooLargeError."""
    common = envelope.model_dump(mode="json", include={"v", "seq", "ts", "run_id", "type", "by", "prev"})
    line = encode_line(common | body.model_dump(mode="json"))
    if len(line) > MAX_EVENT_BYTES:
        raise TooLargeError(f"the event is {len(line)} bytes long, {MAX_EVENT_BYTES} are allowed: put the text in a file")
    return line


def parse_event(line: bytes) -> Event:
    """The event of a line without its LF. Raises ValueError, with the reason, for what is none."""
    value = decode_line(line)
    if value is None:
        raise ValueError("it is no JSON object")
    try:
        envelope = Envelope.model_validate_json(line)
    except ValidationError as err:
        raise ValueError(_reasons(err)) from err
    return _parse_body_leniently(envelope)


def _parse_body_leniently(envelope: Envelope) -> Event:
    """Types and fields of a newer program are kept and reported; a bad value of a known field is an error (ValueError)."""
    value = {"type": envelope.type, **(envelope.model_extra or {})}
    try:
        return Event(envelope, _body.validate_json(json.dumps(value)))
    except ValidationError as err:
        found = err.errors(include_url=False, include_input=False, include_context=False)
        if any(each["type"] == "union_tag_invalid" for each in found):
            return Event(envelope, None, f"type {envelope.type[:60]!r}")
        extra = [each for each in found if each["type"] == "extra_forbidden"]
        names = {str(each["loc"][1]) for each in extra if len(each["loc"]) == 2}  # noqa: PLR2004 - (type, field)
        if len(names) < len(found):
            raise ValueError(_reasons(err)) from err
    known = {name: field for name, field in value.items() if name not in names}
    return Event(envelope, _body.validate_json(json.dumps(known)), f"fields {', '.join(sorted(names))[:60]} of {envelope.type}")


def hash_of(line: bytes) -> str:
    """The hash that the next line names as `prev`: of the raw line, without its LF."""
    return f"sha256:{hashlib.sha256(line).hexdigest()}"


def time_text(moment: datetime) -> str:
    """A moment as events write it; of equal length, so that the texts compare like the moments."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def texts_of(body: Body) -> Iterator[str]:
    """Every text that the writer chose, to be looked at for secrets; hashes are none."""
    yield from _texts(body.model_dump(exclude={"type"}))


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for name, field in value.items():
                yield from _texts(field) if name != "rev" else ()
        case list() | tuple():
            for item in value:
                yield from _texts(item)
        case _:
            return


def artifacts_of(body: Body) -> tuple[Artifact, ...]:
    """The artifacts that the event names."""
    match body:
        case AttemptFinished() | GateRequested() | GateApproved() | GateRejected():
            return body.artifacts
        case _:
            return ()
