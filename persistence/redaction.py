"""Takes secrets out of the JSON of log lines and context entries, without touching what they are recognised by. Pure."""

from collections.abc import Callable
from typing import Final, TypeAlias

from pydantic import JsonValue

Redact: TypeAlias = Callable[[str], str]
"""Takes the secrets out of a text (`secrets.redact`), or gives it back as it is where that is turned off."""

JsonObject: TypeAlias = dict[str, JsonValue]

# Ids, kinds, times and paths; pictures; and what a provider signed, which it refuses if a character of it is changed.
_IDS: Final = ("ts", "threadTs", "user", "id", "replyTo", "answers", "parentId", "toolCallId", "firstKeptEntryId")
_KINDS: Final = ("type", "customType", "role", "toolName", "name", "api", "provider", "model", "stopReason", "mimeType")
_TIMES_AND_PLACES: Final = ("date", "edited", "timestamp", "local", "cwd")
_SIGNATURES: Final = ("thinkingSignature", "textSignature", "thoughtSignature", "signature")
_LEFT_ALONE: Final = frozenset((*_IDS, *_KINDS, *_TIMES_AND_PLACES, *_SIGNATURES, "data"))


def redact_fields(value: JsonObject, redact: Redact) -> JsonObject:
    """The object with every text in it redacted, at any depth, but for ids, times, paths, pictures and signatures."""
    clean = {
        name: item if name in _LEFT_ALONE and isinstance(item, str) else _redacted(item, redact) for name, item in value.items()
    }
    if clean.get("thinking") != value.get("thinking"):  # a signature of the other words would be refused
        clean = {name: item for name, item in clean.items() if name not in _SIGNATURES}
    return clean


def _redacted(value: JsonValue, redact: Redact) -> JsonValue:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [_redacted(item, redact) for item in value]
    return redact_fields(value, redact) if isinstance(value, dict) else value
