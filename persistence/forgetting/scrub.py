"""Takes words out of files for good: the old bytes are kept nowhere. What is taken out is decided by the caller.

Everything else that changes a file keeps its bytes (`versions`).
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, TypeAlias

from pydantic import JsonValue

from persistence.audit import Action, AuditLine, Author, append_audit, now_iso, one_line
from persistence.files import locked, read_bytes, replace_bytes
from persistence.lines import held_lines
from persistence.places import Place
from persistence.records import decode_line, encode_line
from persistence.redaction import JsonObject
from persistence.version_store import remove_file, rewrite_version
from persistence.workspace import Workspace

ChangeText: TypeAlias = Callable[[str], str]

_LINES: Final = frozenset({"log", "context", "ledger"})
_OWN: Final = frozenset({"version", "quarantine", "last_prompt", "temp"})
_MAX_BYTES: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class Scrub:
    """What is to be done to each text, and to each JSON object of a file of lines. Nothing may be found in what it gives back."""

    text: ChangeText
    fields: Callable[[JsonObject], JsonObject]
    action: Action
    author: Author


def change_everywhere(value: JsonValue, change: ChangeText) -> JsonValue:
    """The JSON value with every text in it changed, at any depth, the names of fields left alone."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [change_everywhere(item, change) for item in value]
    return {name: change_everywhere(item, change) for name, item in value.items()} if isinstance(value, dict) else value


def scrub_place(workspace: Workspace, place: Place, scrub: Scrub) -> int:
    """Change a file where it stands, under its lock; returns how many lines of it changed. A last prompt that would change goes.

    Lines that are no JSON are changed as text, bytes that are not UTF-8 stay. Raises StoreBusyError, StorageFullError,
    StoreFaultError, UnsafeObjectError.
    """
    if place.kind == "version":
        return _scrub_version(workspace, place.name, scrub)
    with locked(workspace.root, place.name, workspace.lock_of(place.name)) as held, ExitStack() as stack:
        if place.kind in _LINES:
            data = stack.enter_context(held_lines(workspace.root, place.name))
        else:
            data = read_bytes(workspace.root, place.name, limit=_MAX_BYTES) or b""
        as_lines = place.kind in _LINES or (place.kind in _OWN and _holds_lines(data))
        new, count = scrub_lines(data, scrub) if as_lines else scrub_text(data, scrub)
        if count and place.kind == "last_prompt":
            remove_file(workspace.root, place.name)
        elif count:
            replace_bytes(workspace.root, place.name, new, held)
        if count:
            note_scrub(workspace, place.name, scrub)
    return count


def count_place(workspace: Workspace, place: Place, scrub: Scrub) -> int:
    """How many lines of a file `scrub_place` would change. Raises as it, but for the locks."""
    data = read_bytes(workspace.root, place.name, limit=_MAX_BYTES) or b""
    as_lines = place.kind in _LINES or (place.kind in _OWN and _holds_lines(data))
    return (scrub_lines(data, scrub) if as_lines else scrub_text(data, scrub))[1]


def _holds_lines(data: bytes) -> bool:
    """Whether a file that has no kind of its own is one of JSON lines."""
    return decode_line(data.partition(b"\n")[0]) is not None


def note_scrub(workspace: Workspace, name: str, scrub: Scrub) -> None:
    """The audit line of a scrub: without etags, since the hash of a short text gives it away."""
    author = scrub.author
    line = AuditLine(now_iso(), author.by, scrub.action, name, reason=one_line(author.reason), turn=author.turn)
    append_audit(workspace, line)


def scrub_lines(data: bytes, scrub: Scrub) -> tuple[bytes, int]:
    """A file of JSON lines, changed; a line that needs no change keeps its bytes."""
    lines, count = data.split(b"\n"), 0
    for at, line in enumerate(lines):
        new = _scrub_line(line, scrub)
        if new != line:
            lines[at], count = new, count + 1
    return b"\n".join(lines), count


def _scrub_line(line: bytes, scrub: Scrub) -> bytes:
    value = decode_line(line) if line.strip() else None
    if value is not None:
        try:
            new = scrub.fields(value)
            return line if new == value else encode_line(new).rstrip(b"\n")
        except (RecursionError, ValueError):
            pass
    return scrub_text(line, scrub)[0]


def scrub_text(data: bytes, scrub: Scrub) -> tuple[bytes, int]:
    """A text, changed, and how many of its lines went or came; bytes that are not UTF-8 stay."""
    text = data.decode("utf-8", "surrogateescape")
    new = scrub.text(text)
    if new == text:
        return data, 0
    before, after = text.split("\n"), new.split("\n")
    return new.encode("utf-8", "surrogateescape"), max(1, len(set(before) - set(after)))


def _scrub_version(workspace: Workspace, path: str, scrub: Scrub) -> int:
    data = read_bytes(workspace.root, path, limit=_MAX_BYTES) or b""
    new, count = scrub_lines(data, scrub) if _holds_lines(data) else scrub_text(data, scrub)
    if count and rewrite_version(workspace, path, new):
        note_scrub(workspace, path, scrub)
    return count
