"""The grammar of a team's logs, archives and index (formats: team.md): what an entry is, what overflows, what is a duplicate.

Pure, and in bytes wherever lines are moved, so that they stay as they are. Reading and writing the files is `team`'s.
"""

import hashlib
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

from persistence.errors import BodyInvalidError, RoleInvalidError, RoleUnknownError, SecretDetectedError
from persistence.secrets import is_transcript, refuse_secrets

ORCHESTRATOR: Final = "orchestrator"
DEFAULT_ROLES: Final = (ORCHESTRATOR, "analyst", "architect", "dev", "reviewer", "tester")
ENTRY_LIMIT: Final = 40
"""Entries that a log keeps when it is compacted."""
INDEX_LIMIT: Final = 60
MAX_ENTRY_CHARS: Final = 400
RUN_QUOTA: Final = 5
NOTHING: Final = "-"

_ROLE = re.compile(r"[a-z][a-z0-9-]{0,31}\Z", re.ASCII)
_ENTRY = re.compile(rb"- ([0-9]{4}-[0-9]{2}-[0-9]{2}) \| ")
_FIELD_END = re.compile(r"(?<!\\)\|")
_BATCH = re.compile(rb"<!-- batch ([0-9a-f]{64}) -->[ \t\r]*\Z")
# Whatever a reader could take for a line end, and what no line of text should hold.
_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a log, its fields unescaped; `line` is 1-based. `next_step` is None where nothing is open."""

    date: str
    stage: str
    done: str
    artifact: str | None
    next_step: str | None
    line: int


@dataclass(frozen=True, slots=True)
class Overflow:
    """A log split for compaction: `kept` is its new text, `moved` the lines to archive by the month of their own date."""

    kept: bytes
    moved: dict[str, list[bytes]]


class EntryDateError(ValueError):
    """An entry that would move to the archive has a date that does not exist, so nobody knows to which; `line` is 1-based."""

    def __init__(self, line: int, text: str) -> None:
        """Take the line and its date."""
        self.line = line
        super().__init__(f"line {line} has the date {text}, which does not exist: correct it")


def parse_role(text: str, roles: Container[str]) -> str:
    """Check a role from outside. Raises RoleInvalidError for what can be none, RoleUnknownError for one not configured."""
    if not _ROLE.match(text):
        raise RoleInvalidError(f"{text[:60]!r} is no role: use 1-32 of a-z 0-9 - starting with a letter")
    if text not in roles:
        raise RoleUnknownError(f"there is no role {text!r} here: configure it first")
    return text


def refuse_private(text: str, *, where: str) -> None:
    """Raises SecretDetectedError for a text that holds what looks like a secret, or that is a raw transcript."""
    refuse_secrets(text, where=where)
    if is_transcript(text):
        raise SecretDetectedError(f"{where} is a raw transcript: write down what came of it instead")


def is_role(text: str) -> bool:
    """Whether a file's name could be a role's, configured or not."""
    return _ROLE.match(text) is not None


def flatten(text: str) -> str:
    """The text on one line: line ends and control characters, with the blanks around them, become one space."""
    clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return " ".join(part.strip() for part in _BREAKS.split(clean) if part.strip())


def render_entry(day: date, stage: str, done: str, *, artifact: str | None = None, next_step: str | None = None) -> str:
    """The line of an entry, without LF. Raises BodyInvalidError when something is missing or the line is too long."""
    fields = [flatten(field or "") for field in (stage, done, artifact, next_step)]
    if not fields[0] or not fields[1]:
        raise BodyInvalidError("an entry needs a stage or task and what was done")
    line = " | ".join([f"- {day.isoformat()}", *(field.replace("|", r"\|") or NOTHING for field in fields)])
    if len(line) > MAX_ENTRY_CHARS:
        raise BodyInvalidError(f"the entry would be {len(line)} characters long, {MAX_ENTRY_CHARS} are allowed: shorten it")
    return line


def parse_entries(data: bytes) -> list[Entry]:
    """The entries of a log or an archive; what is none is left out. Bytes that are not UTF-8 are replaced."""
    numbered = enumerate(data.split(b"\n"), start=1)
    return [_parse_entry(line, number) for number, line in numbered if _ENTRY.match(line)]


def _parse_entry(line: bytes, number: int) -> Entry:
    fields = [field.strip().replace(r"\|", "|") for field in _FIELD_END.split(line.decode("utf-8", "replace"))]
    stage, done, artifact, next_step = [*fields[1:5], *[NOTHING] * (5 - len(fields))][:4]
    return Entry(fields[0].removeprefix("- "), stage, done, _or_none(artifact), _or_none(next_step), number)


def _or_none(field: str) -> str | None:
    return None if field in ("", NOTHING) else field


def head_of_log(role: str) -> bytes:
    """What a new log begins with."""
    return f"# Log: {role}\n\n".encode()


def split_overflow(log: bytes) -> Overflow:
    """The entries before the newest `ENTRY_LIMIT` (in the order of the file) and the log without them; other lines stay.

    Raises EntryDateError.
    """
    lines = log.split(b"\n")
    entries = [place for place, line in enumerate(lines) if _ENTRY.match(line)]
    overflow = entries[:-ENTRY_LIMIT]
    moved: dict[str, list[bytes]] = {}
    for place in overflow:
        moved.setdefault(_month(lines[place], place + 1), []).append(lines[place])
    gone = set(overflow)
    return Overflow(b"\n".join(line for place, line in enumerate(lines) if place not in gone), moved)


def _month(line: bytes, number: int) -> str:
    text = line[2:12].decode("ascii")
    try:
        return date.fromisoformat(text).strftime("%Y-%m").zfill(7)
    except ValueError as err:
        raise EntryDateError(number, text) from err


def add_batch(archive: bytes, lines: Sequence[bytes], *, title: str) -> bytes:
    """The archive with `lines` under a batch header; those that its last batches hold already are not added again.

    After a crash between archiving and rewriting the log, its overflow begins with what the last batches hold, whatever was
    appended since. (So a batch that is equal to the last one, byte for byte, is one batch.)
    """
    headers = [found[1].decode("ascii") for line in archive.split(b"\n") if (found := _BATCH.match(line))]
    rest = lines[_count_archived(headers, lines) :]
    if not rest:
        return archive
    start = archive or f"# {title}\n\n".encode()
    gap = b"" if start.endswith(b"\n") else b"\n"
    return start + gap + f"<!-- batch {_digest(rest)} -->\n".encode() + b"".join(line + b"\n" for line in rest)


def _count_archived(headers: list[str], lines: Sequence[bytes]) -> int:
    """How many of the first lines are, batch by batch, what the last headers stand for."""
    for first in range(max(0, len(headers) - len(lines)), len(headers)):
        place: int | None = 0
        for header in headers[first:]:
            place = _end_of_batch(header, lines, place) if place is not None else None
        if place is not None:
            return place
    return 0


def _end_of_batch(header: str, lines: Sequence[bytes], start: int) -> int | None:
    running = hashlib.sha256()
    for place in range(start, len(lines)):
        running.update(lines[place] + b"\n")
        if running.hexdigest() == header:
            return place + 1
    return None


def _digest(lines: Sequence[bytes]) -> str:
    return hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest()


def count_lines(data: bytes) -> int:
    """Physical lines; the final newline ends the last one and begins none."""
    return len(data.removesuffix(b"\n").split(b"\n")) if data else 0


def without_duplicates(index: bytes) -> bytes:
    """The index without the repetitions of its entry lines (`- …`), which are compared without the blanks at their end.

    The first one stays as it is. Headings, blank lines and prose are never duplicates.
    """
    seen: set[bytes] = set()
    kept = []
    for line in index.split(b"\n"):
        bare = line.rstrip()
        if not line.startswith(b"- ") or bare not in seen:
            kept.append(line)
            seen.add(bare)
    return b"\n".join(kept)
