"""Repairing a topic directory: the index is derived again from what the topics' own files say, and nothing removed comes back."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from persistence.audit import Author
from persistence.errors import PersistenceError
from persistence.files import etag_of, read_bytes, replace_bytes
from persistence.topics.change import TopicChange, Upkeep
from persistence.topics.file import TopicFile, marked_as, newer_entry, parse_topic_file
from persistence.topics.folder import TopicFolder
from persistence.topics.index import Row, TopicEntry, file_key, instant, parse_topic_index, put_entry, readable_lines, stamp_of
from persistence.topics.lock import LockWaits, directory_locked
from persistence.topics.lookup import one_per_file
from persistence.topics.names import clean_summary, key_of, recovered_name
from persistence.workspace import QUARANTINE


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What a repair found and did. `added` are topics that had no line, `refreshed` those whose line was behind their file.

    `dropped` are lines without a file, `removed_again` files that went back on the list of removed topics, `marked` files whose
    front matter now says what the index says, `quarantined_lines` lines that are no text (kept aside with the whole old index),
    `skipped` (file, reason).
    """

    added: tuple[TopicEntry, ...] = ()
    refreshed: tuple[TopicEntry, ...] = ()
    dropped: tuple[TopicEntry, ...] = ()
    removed_again: tuple[str, ...] = ()
    marked: tuple[str, ...] = ()
    quarantined_lines: int = 0
    skipped: tuple[tuple[str, str], ...] = ()
    total: int = 0

    @property
    def changed(self) -> bool:
        return bool(self.added or self.refreshed or self.dropped or self.removed_again or self.marked or self.quarantined_lines)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The rows to be, and what differs from what was."""

    rows: list[Row]
    added: list[TopicEntry] = field(default_factory=list)
    refreshed: list[TopicEntry] = field(default_factory=list)
    removed_again: list[str] = field(default_factory=list)


def repair_topics(folder: TopicFolder, waits: LockWaits, *, upkeep: Upkeep, author: Author) -> RepairReport:
    """Bring a topic directory into agreement. Raises StoreBusyError, UnsafeObjectError, TooLargeError, and the disk's errors."""
    with _salvaging(folder, waits, author) as (change, bad_lines):
        heads = {key: parse_topic_file(change.folder.read_start(file) or "") for key, file in change.listing.files.items()}
        plan = _plan(change, heads, upkeep)
        rows = change.tidied(plan.rows, upkeep)
        change.write_removed(rows, *plan.removed_again)
        if rows or change.listing.files:
            change.write_index(rows)
        marked, skipped = _mark_files(change, rows, heads, upkeep)
        entries = [row for row in rows if isinstance(row, TopicEntry)]
        there = {file_key(entry.file) for entry in entries}
        return RepairReport(
            added=tuple(plan.added),
            refreshed=tuple(plan.refreshed),
            dropped=tuple(entry for entry in one_per_file(change.index.entries) if file_key(entry.file) not in there),
            removed_again=tuple(plan.removed_again),
            marked=tuple(marked),
            quarantined_lines=bad_lines,
            skipped=tuple(skipped),
            total=len(entries),
        )


@contextmanager
def _salvaging(folder: TopicFolder, waits: LockWaits, author: Author) -> Iterator[tuple[TopicChange, int]]:
    """Lock and read the directory as for any change, but read a damaged index too: its bytes are kept aside first."""
    with directory_locked(folder, waits) as held:
        listing = folder.list_files()
        folder.sweep(listing)
        data = read_bytes(folder.home.root, folder.index_name) or b""
        text, bad_lines = readable_lines(data)
        if bad_lines:
            aside = f"{QUARANTINE}/topic-index-{etag_of(data)[:16]}"
            replace_bytes(folder.home.root, aside, data, held)
        index = parse_topic_index(text)
        yield TopicChange(folder, held, listing, index, folder.read_removed(), author, waits.own_s), bad_lines


def _plan(change: TopicChange, heads: dict[str, TopicFile], upkeep: Upkeep) -> _Plan:
    plan = _Plan(change.rows)
    for entry in one_per_file(change.index.entries):
        topic = heads.get(file_key(entry.file))
        if topic is not None and (newer := newer_entry(topic, entry)) is not None:
            plan.rows[:] = put_entry(plan.rows, newer)
            plan.refreshed.append(newer)
    indexed = {file_key(entry.file) for entry in change.index.entries}
    removed = {file_key(name) for name in change.removed}
    names = {key_of(entry.name) for entry in change.index.entries}
    for key, file in change.listing.files.items():
        if key in indexed or key in removed:
            continue
        if heads[key].removed_at is not None:
            plan.removed_again.append(file)
            continue
        entry = _recovered(heads[key], file, names, _mtime(change.folder, file, upkeep.now))
        names.add(key_of(entry.name))
        plan.rows[:] = put_entry(plan.rows, entry)
        plan.added.append(entry)
    return plan


def _mtime(folder: TopicFolder, file: str, now: datetime) -> datetime:
    status = folder.status(file)
    return now if status is None else datetime.fromtimestamp(status.st_mtime, UTC).astimezone(now.tzinfo)


def _recovered(topic: TopicFile, file: str, names: set[str], mtime: datetime) -> TopicEntry:
    """A line for a file that has none. A name that another topic has already gives way to the file's own."""
    stem = file[: -len(".md")]
    name = recovered_name(topic.name or "", stem)
    stamps = [stamp for stamp in (topic.last_updated, topic.created) if instant(stamp) is not None]
    return TopicEntry(
        name=stem if key_of(name) in names else name,
        file=file,
        stamp=stamps[0] if stamps else stamp_of(mtime),
        pinned=topic.pinned,
        stale=False,
        summary=clean_summary(topic.description or name),
        line=0,
    )


def _mark_files(
    change: TopicChange, rows: Sequence[Row], heads: dict[str, TopicFile], upkeep: Upkeep
) -> tuple[list[str], list[tuple[str, str]]]:
    """Make the front matter say what index and list of removed topics say, so that both can be rebuilt from it."""
    entries = {file_key(row.file): row for row in rows if isinstance(row, TopicEntry)}
    marked: list[str] = []
    skipped: list[tuple[str, str]] = []
    for key, topic in heads.items():
        file, entry = change.listing.files[key], entries.get(key)
        mark = partial(marked_as, entry=entry, stamp=stamp_of(upkeep.now))
        if mark(topic) == topic:
            continue
        try:
            with change.topic_locked(file) as held:
                change.read_topic(file)
                change.edit_topic(file, mark, held)
            marked.append(file)
        except PersistenceError as err:
            skipped.append((file, err.code))
    return marked, skipped
