"""Compaction of a team's logs and index: what overflows goes to the archive, repetitions go; nothing is lost if it is killed.

When it may happen, and under which lock, is `team`'s.
"""

from dataclasses import dataclass

from persistence.files import Held, locked, read_bytes
from persistence.lines import held_lines
from persistence.teams.log import (
    ENTRY_LIMIT,
    INDEX_LIMIT,
    EntryDateError,
    add_batch,
    count_lines,
    parse_entries,
    split_overflow,
    without_duplicates,
)
from persistence.versions import MAX_KEPT_BYTES, Author, replace_with_version
from persistence.workspace import Workspace


@dataclass(frozen=True, slots=True)
class LogCompaction:
    """What became of one log, in entries. `refused` says why it was left as it is, `line` (1-based) where."""

    kept: int
    archived: int
    refused: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class IndexCompaction:
    """The index, in lines. `over` is how many unique ones there are when that is too many (else 0): it was left as it is."""

    before: int
    after: int
    over: int = 0


@dataclass(frozen=True, slots=True)
class Compaction:
    """What became of each role's log, and of the index (None: it was not asked for)."""

    roles: dict[str, LogCompaction]
    index: IndexCompaction | None

    @property
    def complete(self) -> bool:
        """Whether nothing is left for a person to settle."""
        return not any(each.refused for each in self.roles.values()) and not (self.index and self.index.over)


def compact_log(workspace: Workspace, folder: str, role: str, held: Held, *, author: Author) -> LogCompaction:
    """Move the overflow of a log to the archive files of its months. Who appends meanwhile waits and loses nothing.

    The archive is durable before the log is rewritten; a repetition after a crash in between adds nothing twice.
    """
    name = f"{folder}/log/{role}.md"
    with held_lines(workspace.root, name) as log:
        try:
            overflow = split_overflow(log)
        except EntryDateError as err:
            return LogCompaction(len(parse_entries(log)), 0, str(err), err.line)
        for month, lines in overflow.moved.items():
            archive = f"{folder}/archive/{role}-{month}.md"
            old = read_bytes(workspace.root, archive, limit=MAX_KEPT_BYTES) or b""
            new = add_batch(old, lines, title=f"Archive: {role} {month}")
            replace_with_version(workspace, archive, new, held, author=author)
        if overflow.moved:
            replace_with_version(workspace, name, overflow.kept, held, author=author)
    archived = sum(len(lines) for lines in overflow.moved.values())
    return LogCompaction(min(len(parse_entries(overflow.kept)), ENTRY_LIMIT), archived)


def compact_index(workspace: Workspace, name: str, *, author: Author) -> IndexCompaction:
    """Take repeated entries out of the index, but only if it is within its limit then."""
    with locked(workspace.root, name, workspace.lock_of(name)) as held:
        data = read_bytes(workspace.root, name)
        if data is None:
            return IndexCompaction(0, 0)
        unique = without_duplicates(data)
        before, after = count_lines(data), count_lines(unique)
        if after > INDEX_LIMIT:
            return IndexCompaction(before, before, over=after)
        replace_with_version(workspace, name, unique, held, author=author)
        return IndexCompaction(before, after)
