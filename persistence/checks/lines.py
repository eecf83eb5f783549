"""Checks and repairs of files of JSON lines: logs, contexts, ledgers, the audit."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from persistence.audit import Author, parse_audit_line
from persistence.checks.findings import Finding, read_numbered
from persistence.contexts.tree import EntryTree
from persistence.files import locked, replace_bytes
from persistence.lines import append_lines, held_lines
from persistence.places import Place, PlaceKind
from persistence.records import decode_line, encode_line, parse_log_record
from persistence.versions import recorded_change
from persistence.workspace import Workspace

TORN: Final = "torn_tail"
DANGLING: Final = "context_dangling_parent"
LINE_KINDS: Final[frozenset[PlaceKind]] = frozenset({"log", "context", "ledger", "audit"})


def check_lines(workspace: Workspace, place: Place) -> Iterator[Finding]:
    """What is wrong in a file of lines, each with its line."""
    if place.kind == "context":
        yield from _check_context(workspace, place.name)
        return
    is_sound: dict[PlaceKind, Callable[[bytes], bool]] = {
        "log": lambda line: parse_log_record(line) is not None,
        "audit": lambda line: parse_audit_line(line) is not None,
    }
    sound = is_sound.get(place.kind, _is_object)
    for number, line in read_numbered(workspace, place.name):
        if line.strip() and not sound(line):
            yield _torn_or_bad(place.kind, place.name, number, line)


def _is_object(line: bytes) -> bool:
    return decode_line(line) is not None


def _torn_or_bad(kind: str, name: str, number: int, line: bytes) -> Finding:
    if not line.endswith(b"\n") and decode_line(line) is None:
        return Finding(TORN, name, number, "the last line was cut short; the next append seals it", fixable=True)
    return Finding(f"{kind}_bad_line", name, number, "the line can't be read; it is skipped, and kept as it is", fixable=False)


def _check_context(workspace: Workspace, name: str) -> Iterator[Finding]:
    tree, offset, seen = EntryTree(), 0, dict[str, int]()
    for number, line in read_numbered(workspace, name):
        before = (tree.bad_lines, len(tree.entries))
        if line.strip():
            tree.add(offset, line)
        offset += len(line)
        if not tree.is_supported:
            detail = f"the file is of version {tree.version!r}, newer than this recalld knows; it is left alone"
            yield Finding("context_newer_version", name, number, detail, fixable=False)
            return
        if tree.bad_lines > before[0]:
            yield _torn_or_bad("context", name, number, line)
        elif len(tree.entries) > before[1]:
            yield from _check_entry(name, number, decode_line(line) or {}, seen)


def _check_entry(name: str, number: int, value: dict[str, Any], seen: dict[str, int]) -> Iterator[Finding]:
    parent, entry_id, kept = value.get("parentId"), value.get("id"), value.get("firstKeptEntryId")
    if isinstance(parent, str) and parent not in seen:
        detail = f"the parent {parent[:40]!r} is not in the file above; the entry is read as following the one before it"
        yield Finding(DANGLING, name, number, detail, fixable=True)
    if isinstance(kept, str) and kept not in seen:
        detail = f"the first kept entry {kept[:40]!r} is not in the file above; the compaction is read as keeping none"
        yield Finding("context_dangling_kept", name, number, detail, fixable=False)
    if isinstance(entry_id, str):
        if entry_id in seen:
            detail = f"the id {entry_id[:40]!r} is on line {seen[entry_id]} too; what refers to it means the later one"
            yield Finding("context_duplicate_id", name, number, detail, fixable=False)
        seen[entry_id] = number


def seal(workspace: Workspace, name: str) -> str:
    """Copy a torn tail to quarantine and end it with a newline; it stays as a bad line, the next one starts clean."""
    append_lines(workspace.root, name, lambda _: [b""])
    return "sealed; the cut line is also in quarantine"


def reattach(workspace: Workspace, name: str, *, author: Author) -> str:
    """Write down the parents by which a context is read; the old file is kept as a version."""
    with (
        locked(workspace.root, name, workspace.lock_of(name)) as held,
        held_lines(workspace.root, name) as data,
    ):
        new, count = reattached(data)
        if count:
            with recorded_change(workspace, name, data, new, author=author, action="repair"):
                replace_bytes(workspace.root, name, new, held)
    return f"{count} entries now name the entry that they follow"


def reattached(data: bytes) -> tuple[bytes, int]:
    """The file with each parent that is not there replaced by the entry before, and how many there were."""
    lines, count = data.split(b"\n"), 0
    seen, before = set[str](), None
    for at, line in enumerate(lines):
        value = decode_line(line) if line.strip() else None
        if value is None or not isinstance(value.get("type"), str) or value["type"] == "session":
            continue
        parent = value.get("parentId")
        if isinstance(parent, str) and parent not in seen:
            lines[at], count = encode_line(value | {"parentId": before}).rstrip(b"\n"), count + 1
        if isinstance(value.get("id"), str):
            before = value["id"]
            seen.add(before)
    return b"\n".join(lines), count
