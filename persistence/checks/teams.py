"""Checks of a team's tree: entries that stop a compaction, an index that is too long, decisions and runs that can't be read."""

from collections.abc import Iterator
from datetime import date

from persistence.checks.findings import Finding
from persistence.errors import PersistenceError
from persistence.files import read_bytes
from persistence.places import Place
from persistence.runs import Runs
from persistence.teams.log import INDEX_LIMIT, count_lines, parse_entries
from persistence.workspace import ChannelId, Workspace


def check_team_file(workspace: Workspace, place: Place) -> Iterator[Finding]:
    """What is wrong with one file of a team's memory."""
    if place.name.endswith("/memory/INDEX.md"):
        lines = count_lines(read_bytes(workspace.root, place.name) or b"")
        if lines > INDEX_LIMIT:
            detail = f"{lines} lines, {INDEX_LIMIT} are allowed: merge some"
            yield Finding("team_index_full", place.name, INDEX_LIMIT + 1, detail, fixable=False)
    elif "/memory/log/" in place.name and place.name.endswith(".md"):
        for entry in parse_entries(read_bytes(workspace.root, place.name) or b""):
            if not _is_day(entry.date):
                detail = f"there is no day {entry.date}: a compaction refuses this log"
                yield Finding("team_bad_date", place.name, entry.line, detail, fixable=False)


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def check_runs(workspace: Workspace, channel: ChannelId | None) -> Iterator[Finding]:
    """The runs of a scope that can only be read, or whose last line was cut short (the next append drops it)."""
    runs = Runs(workspace, channel)
    try:
        ids = runs.ids()
    except PersistenceError as err:
        yield Finding("run_unreadable", workspace.team_runs(channel), None, str(err), fixable=False)
        return
    for run_id in ids:
        path = f"{workspace.team_runs(channel)}/{run_id}.jsonl"
        try:
            report = runs.report(run_id)
        except PersistenceError as err:
            yield Finding("run_unreadable", path, None, str(err), fixable=False)
            continue
        if report.corrupt is not None:
            yield Finding("run_corrupt", path, report.seq + 1, f"the run can only be read: {report.corrupt}", fixable=False)
        elif report.torn_tail:
            yield Finding("run_torn_tail", path, report.seq + 1, "the last event was cut short; it never happened", fixable=False)
