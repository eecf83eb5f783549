"""The text a log message, a thread marker or a boundary becomes for a model, and how each is recognised by its id again.

Which messages a lane may see is the business of `visibility`.
"""

import re
from typing import Final

from persistence.records import BOT_USER, LogRecord
from persistence.workspace import is_ts, normal_ts

_TAGS: Final = "message|attachment|thread|boundary|omitted"
# What a person writes must not open or close an element of ours, not even with a slash, a blank or an invisible character put
# between the bracket and the name.
_OURS: Final = rf"(?=(?:[^\w<>&]|_){{0,4}}(?:{_TAGS})\b)"
_OPENING: Final = re.compile("<" + _OURS, re.IGNORECASE)
_ESCAPED: Final = re.compile("&lt;" + _OURS, re.IGNORECASE)
_AMPERSAND: Final = re.compile("&(?=(?:amp;)*lt;" + _OURS + ")", re.IGNORECASE)
_ESCAPED_AMPERSAND: Final = re.compile("&amp;(?=(?:amp;)*lt;" + _OURS + ")", re.IGNORECASE)

CLOSING: Final = "</message>"
_WRAPPED: Final = re.compile(
    r'<message ts="(?P<ts>[0-9.]+)"(?: [a-z_]+="[^"<>]*")*>\n(?P<body>.*?)(?:\n<attachment [^<>]*/>)*\n</message>',
    re.DOTALL,
)
# pi-digby wraps per surface; a volume that comes from it must not get its messages twice.
_PEER: Final = re.compile(r'<(?:slack|linear|whatsapp)_message\s(?:[^<>]*\s)?ts="(?P<ts>[0-9.]+)"[^<>]*>\n')
_MARKER: Final = re.compile(r'<(?:slack_)?(?P<kind>thread|boundary|thread_summary|thread_boundary) root_ts="(?P<ts>[0-9.]+)"')


def wrap_message(record: LogRecord) -> str:
    """The record as an element that carries its ts, thread and author as attributes and that its text can't close or forge."""
    name = record.display_name or record.user_name
    user = record.user or (BOT_USER if record.is_bot else None)
    opening = _attributes({"ts": record.ts, "thread_ts": record.thread_ts, "user": user, "name": name})
    lines = [f"<message{opening}>", escape_text(record.text)]
    lines += [f"<attachment{_attributes({'name': each.name, 'path': each.local})}/>" for each in record.attachments or []]
    return "\n".join([*lines, CLOSING])


def wrap_deleted(ts: str) -> str:
    """What stands for a message that was deleted: that it was there, not what it said."""
    return f'<message ts="{ts}" deleted="true">\n\n{CLOSING}'


def wrap_thread_marker(root_ts: str, *, bot_replied: bool) -> str:
    """Says that a thread hangs on a top-level message. No count of replies: it would change with each of them."""
    said = "you replied in it" if bot_replied else "you had not replied in it when this was noted"
    answered = "true" if bot_replied else "false"
    return f'<thread root_ts="{root_ts}" bot_replied="{answered}">Message {root_ts} has a thread of its own; {said}.</thread>'


def wrap_boundary(root_ts: str) -> str:
    """Says where the channel ends and the thread begins."""
    return (
        f'<boundary root_ts="{root_ts}">What stands above was said in the channel before this thread. '
        f"The thread begins with message {root_ts}; later messages of the channel are not shown here.</boundary>"
    )


def wrap_omitted(count: int) -> str:
    """Says how many older messages of the log were not brought into the context."""
    return f'<omitted count="{count}">{count} older messages are not shown here; they are in log.jsonl.</omitted>'


def read_wrapper(text: str) -> str | None:
    """The ts of a wrapped message (pi-digby's wrappers included), None for any other text."""
    match = _WRAPPED.fullmatch(text) or _PEER.match(text)
    return match["ts"] if match is not None and is_ts(match["ts"]) else None


def read_wrapped(text: str) -> tuple[str, str] | None:
    """(ts, the message's text as its author wrote it) of a message that `wrap_message` wrapped, None for any other text."""
    match = _WRAPPED.fullmatch(text)
    return None if match is None or not is_ts(match["ts"]) else (match["ts"], unescape_text(match["body"]))


def read_marker(text: str) -> str | None:
    """The key (`thread_key`, `boundary_key`) of a marker, None for any other text."""
    match = _MARKER.match(text)
    if match is None or not is_ts(match["ts"]):
        return None
    return boundary_key(match["ts"]) if match["kind"].endswith("boundary") else thread_key(match["ts"])


def thread_key(root_ts: str) -> str:
    """What a thread marker is recognised by."""
    return f"thread:{normal_ts(root_ts)}"


def boundary_key(root_ts: str) -> str:
    """What a boundary is recognised by."""
    return f"boundary:{normal_ts(root_ts)}"


def escape_text(text: str) -> str:
    """A person's text without anything that reads as one of our elements; `unescape_text` gives it back exactly."""
    return _OPENING.sub("&lt;", _AMPERSAND.sub("&amp;", text))


def unescape_text(text: str) -> str:
    return _ESCAPED_AMPERSAND.sub("&", _ESCAPED.sub("<", text))


def _attributes(values: dict[str, str | None]) -> str:
    return "".join(f' {name}="{_escape_attribute(value)}"' for name, value in values.items() if value)


def _escape_attribute(value: str) -> str:
    for char, escaped in (("&", "&amp;"), ('"', "&quot;"), ("<", "&lt;"), (">", "&gt;"), ("\n", "&#10;"), ("\r", "&#13;")):
        value = value.replace(char, escaped)
    return value
