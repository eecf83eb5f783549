"""The summary of a team's tree. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from persistence.teams.decisions import Decision
from persistence.teams.log import ENTRY_LIMIT, INDEX_LIMIT, Entry, count_lines

LATEST_DECISIONS: Final = 5


@dataclass(frozen=True, slots=True)
class LogStatus:
    """The size of one log against what compaction keeps; `last_date` is of its newest entry."""

    role: str
    entries: int
    limit: int
    last_date: str | None


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """What an entry of a log left open."""

    role: str
    date: str
    text: str


@dataclass(frozen=True, slots=True)
class TeamStatus:
    """A summary of the tree. `active` are the unfinished runs, newest first; `last_run` is the newest of all."""

    index_lines: int
    index_limit: int
    logs: tuple[LogStatus, ...]
    decisions: tuple[Decision, ...]
    open_questions: tuple[OpenQuestion, ...]
    active_runs: tuple[str, ...]
    last_run: str | None


def summarise(
    index: bytes,
    logs: Mapping[str, Sequence[Entry]],
    *,
    decisions: Sequence[Decision],
    active_runs: Sequence[str],
    last_run: str | None,
) -> TeamStatus:
    """The summary of an index, the entries of each role's log, the latest decisions and the runs."""
    return TeamStatus(
        index_lines=count_lines(index),
        index_limit=INDEX_LIMIT,
        logs=tuple(
            LogStatus(role, len(entries), ENTRY_LIMIT, entries[-1].date if entries else None) for role, entries in logs.items()
        ),
        decisions=tuple(decisions),
        open_questions=tuple(
            OpenQuestion(role, entry.date, entry.next_step)
            for role, entries in logs.items()
            for entry in entries
            if entry.next_step is not None
        ),
        active_runs=tuple(active_runs),
        last_run=last_run,
    )
