"""The topics of a scope on disk: writing, removing, pinning, finding and reading them. What an index line means is in `topics`.

The index, the topics' files and the list of removed topics always change together under the directory's lock.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from persistence.audit import Author
from persistence.errors import BodyInvalidError, PinnedError, SecretDetectedError, UnsafeObjectError
from persistence.files import MAX_TEXT_BYTES, TextFile
from persistence.secrets import is_transcript, refuse_secrets
from persistence.topics.change import TopicChange, Upkeep, changing
from persistence.topics.file import Mode, mark_pinned, mark_removed, parse_topic_file, render_topic_file, write_topic
from persistence.topics.folder import INDEX_FILE, REMOVED_FILE, TopicFolder
from persistence.topics.index import TopicEntry, TopicIndex, drop_file, file_key, next_stamp, put_entry, stamp_of
from persistence.topics.lock import LockWaits
from persistence.topics.lookup import ambiguous, exact_matches, find_topic, fits, one_per_file
from persistence.topics.names import check_topic_name, clean_summary, key_of, slug_of
from persistence.topics.repair import RepairReport, repair_topics
from persistence.topics.view import (
    NO_INDEX,
    Topic,
    TopicMatch,
    TopicStatus,
    file_is_gone,
    load_index,
    load_status,
    load_topic,
    search_topics,
)
from persistence.versions import changed_meanwhile
from persistence.workspace import ChannelId, Workspace

__all__ = [
    "Pinned",
    "Removed",
    "RepairReport",
    "Topic",
    "TopicMatch",
    "TopicStatus",
    "TopicStore",
    "Written",
    "read_topic_index",
]


@dataclass(frozen=True, slots=True)
class Written:
    """A topic as it is after a write. `created`: its file did not exist; `file` is its name in the topic directory."""

    created: bool
    file: str
    entry: TopicEntry
    etag: str


@dataclass(frozen=True, slots=True)
class Removed:
    """The topic that is no longer listed. `file_kept`: its file is still there."""

    entry: TopicEntry
    file_kept: bool


@dataclass(frozen=True, slots=True)
class Pinned:
    """A topic's entry before and after; `changed` False when there was nothing to do."""

    before: TopicEntry
    after: TopicEntry
    changed: bool


def _local_now() -> datetime:
    return datetime.now(UTC).astimezone()


class TopicStore:
    """Owns the topic directory of one scope, or a shared one. Holds no state: safe for threads, processes and hosts."""

    def __init__(
        self,
        workspace: Workspace,
        channel: ChannelId | None,
        *,
        shared: Path | None = None,
        stale_after_days: int = 180,
        waits: LockWaits = LockWaits(),  # noqa: B008 - immutable
        clock: Callable[[], datetime] = _local_now,
    ) -> None:
        """Take the scope (`channel` None: global), or the shared directory that stands in for the global one.

        Opens nothing yet. `clock` gives the local time with its offset.
        """
        self.folder = TopicFolder.of(workspace, channel) if shared is None else TopicFolder(Workspace(shared), "", shared=True)
        self._stale_after_days = stale_after_days
        self._waits = waits
        self._clock = clock

    def write(
        self,
        name: str,
        content: str,
        summary: str,
        *,
        author: Author,
        pin: bool = False,
        mode: Mode = "append",
        expected_etag: str | None = None,
    ) -> Written:
        """Write a topic, named by its name or (when it is listed) its file name; a write can add a pin, never take one.

        Durable when it returns; on an error everything is as it was. Raises the Topic…Error of a name that is refused,
        AmbiguousError, SecretDetectedError, PreconditionFailedError, BodyInvalidError, TooLargeError, NotUtf8Error,
        UnsafeObjectError, StoreBusyError, StorageFullError, StoreFaultError, RollbackFailedError.
        """
        title, line = check_topic_name(name), clean_summary(summary)
        _check_texts(title, line, content)
        upkeep = self._upkeep()
        with changing(self.folder, self._waits, author=author) as change:
            target = _target(change, title)
            entry = replace(target, stamp=next_stamp(target.stamp, upkeep.now), summary=line, pinned=target.pinned or pin)
            return _write(change, entry, content, mode=mode, expected_etag=expected_etag, upkeep=upkeep)

    def remove(self, name: str, *, author: Author) -> Removed:
        """Take a topic out of the index and remember that it was removed; its file stays. Raises PinnedError, as `lookup`."""
        upkeep = self._upkeep()
        with changing(self.folder, self._waits, author=author) as change:
            entry = find_topic(change.index, name)
            if entry.pinned:
                raise PinnedError(f"the topic {entry.name!r} is pinned: unpin it first, nothing was changed")
            rows = change.tidied(drop_file(change.rows, entry.file), upkeep)
            file = change.name_on_disk(entry.file)
            with change.topic_locked(file) as held, self.folder.all_or_nothing((file, INDEX_FILE, REMOVED_FILE), held):
                change.write_removed(rows, file)  # first: a topic that is half removed can still be found
                change.write_index(rows)
                change.edit_topic(file, lambda topic: mark_removed(topic, entry, stamp=stamp_of(upkeep.now)), held)
            return Removed(entry, file_kept=self.folder.status(file) is not None)

    def pin(self, name: str, *, pinned: bool, author: Author) -> Pinned:
        """Pin or unpin a topic. Raises as `lookup`, and NotFoundError when the topic's file is gone."""
        upkeep = self._upkeep()
        with changing(self.folder, self._waits, author=author) as change:
            before = find_topic(change.index, name)
            file = change.name_on_disk(before.file)
            if before.pinned == pinned:
                return Pinned(before, before, changed=False)
            if self.folder.status(file) is None:
                raise file_is_gone(before)
            rows = change.tidied(put_entry(change.rows, replace(before, pinned=pinned)), upkeep)
            with change.topic_locked(file) as held, self.folder.all_or_nothing((file, INDEX_FILE, REMOVED_FILE), held):
                change.write_index(rows)
                change.write_removed(rows)
                change.edit_topic(file, lambda topic: mark_pinned(topic, before, pinned=pinned), held)
            return Pinned(before, _entry_of(rows, before.file), changed=True)

    def index(self) -> TopicIndex | None:
        """The index as it stands, for a prompt; None when there is none. Raises UnsafeObjectError, TooLargeError."""
        return load_index(self.folder)

    def lookup(self, name: str) -> TopicEntry:
        """The topic that a text means: an exact name or file name, else the only one it is a part of.

        Raises TopicBlankError, NotFoundError, AmbiguousError, UnsafeObjectError.
        """
        return find_topic(load_index(self.folder) or NO_INDEX, name)

    def read(self, name: str) -> Topic:
        """A topic's text. Raises as `lookup`, and NotFoundError when its file is gone."""
        return load_topic(self.folder, self.lookup(name))

    def search(self, query: str) -> list[TopicMatch]:
        """The topics that a text occurs in, in any case: by their index line, then by the start of their file.

        A topic is found once; a removed one never. Raises TopicBlankError.
        """
        return search_topics(self.folder, query)

    def repair(self, *, author: Author) -> RepairReport:
        """Make index, files and list of removed topics agree again, whatever was lost. A second run changes nothing."""
        return repair_topics(self.folder, self._waits, upkeep=self._upkeep(), author=author)

    def status(self) -> TopicStatus:
        """What there is and what does not agree; reads, changes nothing."""
        return load_status(self.folder, self._clock())

    def list(self, *, query: str | None = None, pinned: bool | None = None, stale: bool | None = None) -> list[TopicEntry]:
        """The topics in the order of the index, those that fit all of what is asked; changes nothing on disk."""
        return [
            entry
            for entry in one_per_file((load_index(self.folder) or NO_INDEX).entries)
            if (query is None or fits(entry, query)) and pinned in (None, entry.pinned) and stale in (None, entry.stale)
        ]

    def _upkeep(self) -> Upkeep:
        return Upkeep(self._clock(), self._stale_after_days)


def read_topic_index(workspace: Workspace, channel: ChannelId | None) -> TopicIndex | None:
    """The index of the global topics (`channel` None) or of a channel's; None when there is none. Changes nothing.

    Entries whose file is gone are listed too: only a write tidies the index. Raises UnsafeObjectError, TooLargeError.
    """
    return load_index(TopicFolder.of(workspace, channel))


def _check_texts(title: str, summary: str, content: str) -> None:
    if not content.strip():
        raise BodyInvalidError("the topic has no content: write what is to be remembered")
    for text, where in ((title, "the topic's name"), (summary, "the summary"), (content, "the content")):
        refuse_secrets(text, where=where)
    if is_transcript(content):
        raise SecretDetectedError(
            "the content is a raw conversation: nothing was written, write down the facts that it leaves",
            kind="transcript",
            offset=0,
        )


def _target(change: TopicChange, title: str) -> TopicEntry:
    """The entry that a write is about: the listed topic of that name or file, else a new one with a file of its own."""
    found = exact_matches(change.index.entries, title)
    if len(found) > 1:
        raise ambiguous(title, found)
    if found:
        return replace(found[0], name=title) if key_of(found[0].name) == key_of(title) else found[0]
    return _new_entry(change, title)


def _new_entry(change: TopicChange, title: str) -> TopicEntry:
    """An entry with the first free file name; an unlisted file is free only to the topic that its front matter names."""
    slug, listing = slug_of(title), change.listing
    indexed = {file_key(entry.file).casefold() for entry in change.index.entries}
    on_disk = {key.casefold(): file for key, file in listing.files.items()}
    if file_key(f"{slug}.md").casefold() in listing.unsafe:
        raise UnsafeObjectError(f"{change.folder.name(slug + '.md')!r} is no regular file: nothing was written")
    number = 1
    while True:
        file = f"{slug}.md" if number == 1 else f"{slug}-{number}.md"
        number += 1
        key = file_key(file).casefold()
        if key in indexed or (key in listing.taken and key not in on_disk):
            continue
        text = change.folder.read_start(on_disk.get(key, file))
        topic = None if text is None else parse_topic_file(text)
        if topic is None or key_of(topic.name or "") == key_of(title):
            pinned = topic is not None and topic.pinned and topic.removed_at is None
            return TopicEntry(title, on_disk.get(key, file), None, pinned, stale=False, summary="", line=0)


def _write(
    change: TopicChange, entry: TopicEntry, content: str, *, mode: Mode, expected_etag: str | None, upkeep: Upkeep
) -> Written:
    file = change.name_on_disk(entry.file)
    with change.topic_locked(file) as held:
        old = change.read_topic(file)
        topic = write_topic(
            None if old is None else parse_topic_file(old.text),
            content,
            name=entry.name,
            summary=entry.summary,
            stamp=entry.stamp or stamp_of(upkeep.now),
            mode=mode,
            pinned=entry.pinned,
        )
        _check_etag(change.folder.name(file), old, expected_etag, render_topic_file(topic))
        with change.folder.all_or_nothing((file, INDEX_FILE, REMOVED_FILE), held):
            etag = change.write_topic(file, topic, held)
            rows = change.tidied(put_entry(change.rows, entry), upkeep)
            change.write_index(rows)
            change.write_removed(rows)
    return Written(old is None, file, _entry_of(rows, entry.file), etag)


def _check_etag(name: str, old: TextFile | None, expected: str | None, wanted: str) -> None:
    if expected is not None and (old is None or old.etag != expected):
        raise changed_meanwhile(name, old, wanted[:MAX_TEXT_BYTES])


def _entry_of(rows: list[str | TopicEntry], file: str) -> TopicEntry:
    """A file's entry as the written index has it, with its line."""
    return next(
        replace(row, line=number)
        for number, row in enumerate(rows, start=1)
        if isinstance(row, TopicEntry) and file_key(row.file) == file_key(file)
    )
