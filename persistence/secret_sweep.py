"""Looks for secrets in what is on the volume already, and takes them out of logs, contexts and what recalld keeps for itself.

In memory, skills and settings a person must take them out: there it is only said where they are.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Final

from persistence.audit import Author
from persistence.checks.findings import Finding, Repaired, read_numbered
from persistence.errors import PersistenceError
from persistence.files import MAX_TEXT_BYTES, read_bytes
from persistence.forgetting.scrub import Scrub, scrub_place
from persistence.places import Place, PlaceKind, kind_of, walk_volume
from persistence.records import decode_line
from persistence.redaction import redact_fields
from persistence.secrets import find_secrets, line_of, redact
from persistence.workspace import Workspace

SECRET: Final = "secret"  # noqa: S105 - the code of a finding
_TAKEN_OUT: Final[frozenset[PlaceKind]] = frozenset({"log", "context", "ledger", "last_prompt", "version", "quarantine"})
_LINES: Final[frozenset[PlaceKind]] = frozenset({"log", "context", "ledger", "run", "audit"})
_NOT_LOOKED_AT: Final[frozenset[PlaceKind]] = frozenset({"cache", "state"})
_DOCTOR: Final = Author("cli", "secrets taken out by the doctor")


def sweep_secrets(workspace: Workspace) -> list[Finding]:
    """What looks like a secret anywhere on the volume, by file and line and kind, never the value. Changes nothing.

    Left out are caches, and files over 4 MiB that are neither logs nor contexts nor kept by recalld.
    """
    found: list[Finding] = []
    for place in walk_volume(workspace):
        if place.is_regular and place.kind not in _NOT_LOOKED_AT:
            try:
                found += _sweep(workspace, place)
            except PersistenceError as err:
                found.append(Finding("unreadable", place.name, None, str(err), fixable=False))
    return found


def _sweep(workspace: Workspace, place: Place) -> Iterator[Finding]:
    fixable = place.kind in _TAKEN_OUT
    if place.kind in _LINES or (fixable and _holds_lines(workspace, place.name)):
        hits = _in_lines(workspace, place.name)
    elif fixable or place.size_bytes <= MAX_TEXT_BYTES:
        hits = _in_text(read_bytes(workspace.root, place.name, limit=place.size_bytes + MAX_TEXT_BYTES) or b"")
    else:
        return
    for line, kind in hits:
        advice = "the doctor can take it out" if fixable else "take it out by hand, and make a new one where it came from"
        yield Finding(SECRET, place.name, line, f"{kind}: {advice}", fixable=fixable)


def _holds_lines(workspace: Workspace, name: str) -> bool:
    with closing(read_numbered(workspace, name)) as lines:
        return any(decode_line(line) is not None for _, line in islice(lines, 1))


def _in_text(data: bytes) -> Iterator[tuple[int, str]]:
    text = data.decode("utf-8", "surrogateescape")
    for finding in find_secrets(text):
        yield line_of(text, finding), finding.kind


def _in_lines(workspace: Workspace, name: str) -> Iterator[tuple[int, str]]:
    for number, line in read_numbered(workspace, name):
        kinds: list[str] = []

        def look(text: str, kinds: list[str] = kinds) -> str:
            kinds += [finding.kind for finding in find_secrets(text)]
            return text

        value = decode_line(line)
        if value is None:
            look(line.decode("utf-8", "surrogateescape"))
        else:
            redact_fields(value, look)
        for kind in kinds:
            yield number, kind


def take_secrets_out(workspace: Workspace, findings: Sequence[Finding], *, author: Author = _DOCTOR) -> list[Repaired]:
    """Redact what `sweep_secrets` found where that is allowed, each file under its lock; the old bytes are kept nowhere."""
    scrub = Scrub(redact, lambda value: redact_fields(value, redact), "redact", author)
    done: dict[str, tuple[bool, str]] = {}
    repaired = []
    for finding in findings:
        if finding.fixable and finding.code == SECRET:
            if finding.path not in done:
                done[finding.path] = _take_out(workspace, finding.path, scrub)
            repaired.append(Repaired(finding, *done[finding.path]))
    return repaired


def _take_out(workspace: Workspace, name: str, scrub: Scrub) -> tuple[bool, str]:
    try:
        scrub_place(workspace, Place(kind_of(name), name, is_regular=True, size_bytes=0, mtime_s=0.0), scrub)
    except PersistenceError as err:
        return False, str(err)
    return True, "taken out"
