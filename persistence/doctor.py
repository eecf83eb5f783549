"""The doctor: looks at everything on the volume, and puts right what can be put right without losing anything.

What is looked at is in the rooms that end in `_checks`; secrets are `secret_sweep`'s.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from persistence.audit import Author
from persistence.checks.files import (
    check_place,
    check_settings,
    check_skills,
    empty_channels,
    remove_empty_folder,
    remove_empty_log,
    remove_leftover,
    repair_version,
)
from persistence.checks.findings import Finding, Repaired
from persistence.checks.lines import DANGLING, LINE_KINDS, TORN, check_lines, reattach, seal
from persistence.checks.teams import check_runs, check_team_file
from persistence.checks.topics import CODE_PREFIX, check_shared_topics, check_topics, repair_scope
from persistence.document_path import document_channel
from persistence.errors import PersistenceError
from persistence.places import Place, walk_volume
from persistence.workspace import SHARED_TOPICS, Workspace

__all__ = ["Finding", "Repaired", "examine", "repair"]

_DOCTOR: Final = Author("cli", "doctor")


def examine(workspace: Workspace, *, now: datetime | None = None) -> list[Finding]:
    """Everything that is not as it should be, in the order of paths and lines. Changes nothing; reads the whole volume once."""
    moment = now or datetime.now(UTC)
    found = [*empty_channels(workspace), *check_settings(workspace)]
    for place in walk_volume(workspace):
        found += _check_readable(workspace, place)
    found += check_shared_topics(workspace, moment)
    for channel in (None, *workspace.channels()):
        found += check_topics(workspace, channel, moment)
        found += check_skills(workspace, channel)
        found += check_runs(workspace, channel)
    return sorted(found, key=lambda each: (each.path, each.line or 0, each.code))


def _check_file(workspace: Workspace, place: Place) -> Iterator[Finding]:
    yield from check_place(workspace, place)
    if place.is_regular and place.kind in LINE_KINDS:
        yield from check_lines(workspace, place)
    if place.is_regular and place.kind == "team":
        yield from check_team_file(workspace, place)


def _check_readable(workspace: Workspace, place: Place) -> list[Finding]:
    """One file that can't be read hides no other."""
    try:
        return list(_check_file(workspace, place))
    except PersistenceError as err:
        return [Finding("unreadable", place.name, None, str(err), fixable=False)]


def repair(
    workspace: Workspace,
    findings: Sequence[Finding],
    *,
    author: Author = _DOCTOR,
    now: datetime | None = None,
) -> list[Repaired]:
    """Put right what is fixable, each file under its lock; what can't be done now says why and hinders no other repair."""
    moment = now or datetime.now(UTC)
    done: dict[tuple[str, str], tuple[bool, str]] = {}
    repaired = []
    for finding in findings:
        if finding.fixable:
            key = _job_of(finding)
            if key not in done:
                done[key] = _attempt(workspace, finding, moment, author)
            repaired.append(Repaired(finding, *done[key]))
    return repaired


def _job_of(finding: Finding) -> tuple[str, str]:
    """Findings that one repair puts right together have the same key."""
    if finding.code.startswith(CODE_PREFIX):
        shared = finding.path.startswith(f"{SHARED_TOPICS}/")
        return CODE_PREFIX, SHARED_TOPICS if shared else document_channel(finding.path) or ""
    return finding.code, finding.path


def _attempt(workspace: Workspace, finding: Finding, now: datetime, author: Author) -> tuple[bool, str]:
    try:
        return True, _put_right(workspace, finding, now, author)
    except PersistenceError as err:
        return False, str(err)


def _put_right(workspace: Workspace, finding: Finding, now: datetime, author: Author) -> str:
    path = finding.path
    if finding.code.startswith(CODE_PREFIX):
        return repair_scope(workspace, path, now, author=author)
    repairs: dict[str, Callable[[], str]] = {
        TORN: lambda: seal(workspace, path),
        DANGLING: lambda: reattach(workspace, path, author=author),
        "leftover_temp": lambda: remove_leftover(workspace, path, now),
        "empty_log": lambda: remove_empty_log(workspace, path),
        "empty_channel": lambda: remove_empty_folder(workspace, path),
        "version_torn": lambda: repair_version(workspace, path),
        "version_without_bytes": lambda: repair_version(workspace, path),
        "version_without_metadata": lambda: repair_version(workspace, path),
    }
    return repairs[finding.code]()
