"""What can be set, and how the layers (legacy file, settings.json, environment) make what is in force. Opens no file."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, NoReturn, TypeAlias
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic.alias_generators import to_camel

Origin: TypeAlias = Literal["default", "file", "env", "legacy"]
ReplyBehaviour: TypeAlias = Literal["mention", "channel", "thread"]
ThinkingLevel: TypeAlias = Literal["off", "minimal", "low", "medium", "high", "xhigh", "max"]
SearchedCollection: TypeAlias = Literal["memory", "channels", "skills", "history"]
JsonObject: TypeAlias = dict[str, JsonValue]
KeyPath: TypeAlias = tuple[str, ...]

_TOKEN = re.compile(r'(?P<text>"(?:[^"\\]|\\.)*")(?P<key>\s*:)?|[{}]', re.DOTALL)


def _check_timezone(name: str) -> str:
    try:
        if name != "UTC":
            ZoneInfo(name)
    except (OSError, ValueError, KeyError) as err:
        raise ValueError(f"{name!r} is no IANA time zone, as Europe/Berlin is") from err
    return name


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class Compaction(_Part):
    """When a context is summarised. `reserve_tokens` are left free for the answer."""

    enabled: bool = True
    reserve_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = 16_384
    keep_recent_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = 20_000


class Recall(_Part):
    """What a turn searches for by itself."""

    enabled: bool = True
    limit: Annotated[int, Field(ge=1, le=50)] = 6
    min_score: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    collections: tuple[SearchedCollection, ...] = ("memory", "channels", "skills", "history")


class Prompt(_Part):
    """How large the system prompt may get."""

    budget_tokens: Annotated[int, Field(ge=1000, le=10_000_000)] = 24_000


class Settings(_Part):
    """The values in force (formats: volume.md, "settings.json")."""

    model: Annotated[str, Field(pattern=r"^[^\s/]+/\S+$", max_length=300)] = "builtin/recall"
    thinking_level: ThinkingLevel = "off"
    run_timeout_s: Annotated[int, Field(ge=1, le=86_400)] = 360
    run_timeout_warn_before_s: Annotated[int, Field(ge=0, le=86_400)] = 60
    reply_behaviour: dict[str, ReplyBehaviour] = Field(default_factory=dict)
    compaction: Compaction = Compaction()
    recall: Recall = Recall()
    prompt: Prompt = Prompt()
    redact_secrets: bool = True
    shell_tool: bool = False
    timezone: Annotated[str, AfterValidator(_check_timezone)] = "UTC"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """Something in a layer that is not in force, or doubtful; `line` is 1-based, None outside of settings.json."""

    key: str
    reason: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class ParsedSettings:
    """A settings file: its object, the line of each key, and the keys that it holds more than once."""

    values: JsonObject
    lines: dict[KeyPath, int] = field(default_factory=dict)
    repeated: tuple[tuple[KeyPath, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """A value that is refused: its key as the layer spells it, and the value, so that two refusals can be told apart."""

    path: KeyPath
    reason: str
    value: str


@dataclass(frozen=True, slots=True)
class Layer:
    """The sound values of one layer by their own key, and the refused ones."""

    sound: dict[KeyPath, JsonValue]
    problems: tuple[Problem, ...]


def _leaves(part: type[BaseModel], above: KeyPath = ()) -> Iterator[KeyPath]:
    for name, info in part.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from _leaves(info.annotation, (*above, name))
        else:
            yield (*above, name)


LEAVES: Final = tuple(_leaves(Settings))
_GROUPS: Final = frozenset(path[:-1] for path in LEAVES if len(path) > 1)
_BY_CHANNEL: Final[KeyPath] = ("reply_behaviour",)
# The reference's spellings first, ours last: where a file has both, ours wins.
_SPELLINGS: Final[dict[KeyPath, KeyPath]] = {
    ("slack", "replyBehaviour"): _BY_CHANNEL,
    ("runTimeout",): ("run_timeout_s",),
    **{tuple(to_camel(part) for part in path): path for path in LEAVES},
    **{path: path for path in LEAVES},
}


def parse_settings(data: bytes) -> ParsedSettings:
    """The object of a settings file. Raises ValueError with the reason (a JSONDecodeError has the line)."""
    text = data.decode("utf-8-sig")
    try:
        values = json.loads(text, parse_constant=_refuse_constant, parse_float=_parse_float)
    except RecursionError as err:
        raise ValueError("it is nested too deeply") from err
    if not isinstance(values, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - the file's fault, not a caller's
    lines, repeated = _locate_keys(text)
    return ParsedSettings(values, lines, repeated)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _parse_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:40]} is too large a number")
    return value


def _locate_keys(text: str) -> tuple[dict[KeyPath, int], tuple[tuple[KeyPath, int], ...]]:
    """The line of each key of a valid JSON text, and every repetition of a key in one object."""
    lines: dict[KeyPath, int] = {}
    repeated: list[tuple[KeyPath, int]] = []
    open_objects: list[tuple[KeyPath, set[str]]] = []
    path: KeyPath = ()
    line, counted = 1, 0
    for token in _TOKEN.finditer(text):
        if token["key"] is not None:
            line, counted = line + text.count("\n", counted, token.start()), token.start()
            above, names = open_objects[-1]
            name = json.loads(token["text"], strict=False)
            path = (*above, name)
            if name in names:
                repeated.append((path, line))
            names.add(name)
            lines[path] = line
        elif token[0] == "{":
            open_objects.append((path, set()))
        elif token[0] == "}":
            path = open_objects.pop()[0]
    return lines, tuple(repeated)


def read_layer(values: Mapping[str, JsonValue]) -> Layer:
    """The known settings of a layer, in any of their spellings, each checked for itself."""
    problems = [
        Problem(path, "must be an object", _shown(values[path[0]]))
        for path in sorted({*_GROUPS, ("slack",)})
        if path[0] in values and not isinstance(values[path[0]], dict)
    ]
    sound: dict[KeyPath, JsonValue] = {}
    for path, own, value in _find_known(values):
        if (reason := _refusal(own, value)) is None:
            sound[own] = value
        else:
            problems.append(Problem(path, reason, _shown(value)))
    return Layer(sound, tuple(problems))


def _find_known(values: Mapping[str, JsonValue]) -> Iterator[tuple[KeyPath, KeyPath, JsonValue]]:
    """(path as spelled, own path, value) of each known setting; those by channel one by one."""
    for path, own in _SPELLINGS.items():
        holder: object = values
        for part in path[:-1]:
            holder = holder.get(part) if isinstance(holder, Mapping) else None
        if not isinstance(holder, Mapping) or path[-1] not in holder:
            continue
        value = holder[path[-1]]
        if own == _BY_CHANNEL and isinstance(value, dict):
            yield from (((*path, channel), (*own, channel), item) for channel, item in value.items())
        else:
            yield path, own, value


def _refusal(own: KeyPath, value: JsonValue) -> str | None:
    """Why a value can't be in force, None when it can."""
    try:
        Settings.model_validate_json(json.dumps(nest({own: value})))
    except ValidationError as err:
        return err.errors(include_url=False, include_input=False)[0]["msg"].removeprefix("Value error, ")
    return None


def nest(flat: Mapping[KeyPath, JsonValue]) -> dict[str, Any]:
    """The object of values by key path. Any: its values are of every JSON type."""
    nested: dict[str, Any] = {}
    for path, value in flat.items():
        holder = nested
        for part in path[:-1]:
            holder = holder.setdefault(part, {})
        holder[path[-1]] = value
    return nested


def combine(layers: list[tuple[Origin, Layer]]) -> tuple[Settings, dict[str, Origin]]:
    """The values in force, later layers over earlier ones, and where each comes from (`default` for the rest)."""
    flat: dict[KeyPath, JsonValue] = {}
    origins: dict[str, Origin] = {".".join(path): "default" for path in LEAVES}
    for origin, layer in layers:
        flat |= layer.sound
        origins |= dict.fromkeys((".".join(path) for path in layer.sound), origin)
    return Settings.model_validate_json(json.dumps(nest(flat))), origins


def merge_patch(old: JsonValue, patch: JsonValue) -> JsonValue:
    """`old` after an RFC 7396 merge patch: None removes, objects merge, anything else replaces. Keys keep their order."""
    if not isinstance(patch, Mapping):
        return patch
    merged: JsonObject = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def unknown_keys(old: Mapping[str, JsonValue], patch: Mapping[str, JsonValue], above: KeyPath = ()) -> Iterator[KeyPath]:
    """The keys that a patch would bring in although nothing reads them: misspelt, most likely. Those in the file are fine."""
    for name, value in patch.items():
        path = (*above, name)
        there = old.get(name)
        if path in _SPELLINGS or above in _SPELLINGS or value is None:
            continue
        if any(known[: len(path)] == path for known in _SPELLINGS) or isinstance(there, dict):
            if isinstance(value, Mapping):
                yield from unknown_keys(there if isinstance(there, dict) else {}, value, path)
        elif name not in old:
            yield path


def infinite_keys(value: JsonValue, path: KeyPath = ()) -> Iterator[KeyPath]:
    """The keys whose numbers JSON can't hold."""
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from infinite_keys(item, (*path, name))
    elif isinstance(value, list):
        for item in value:
            yield from infinite_keys(item, path)


def encode_settings(values: JsonObject) -> bytes:
    """The file's bytes. Raises ValueError for what JSON or UTF-8 can't hold."""
    try:
        return (json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate can only be written as an escape
        return (json.dumps(values, indent=2, allow_nan=False) + "\n").encode("ascii")


def _shown(value: JsonValue) -> str:
    return json.dumps(value)[:200]
