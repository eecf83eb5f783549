"""One locked change of a topic directory: its files as they are under the lock, and the writes that keep them in agreement."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from persistence.audit import Author
from persistence.errors import NotUtf8Error, TooLargeError
from persistence.files import Held, TextFile, etag_of, locked, read_text
from persistence.topics.file import TopicFile, parse_topic_file, render_topic_file
from persistence.topics.folder import Listing, TopicFolder
from persistence.topics.index import Row, TopicEntry, TopicIndex, file_key, parse_topic_index, render_index, rows_of, tidy
from persistence.topics.lock import LockWaits, directory_locked
from persistence.versions import encode_text, replace_with_version


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What a tidy index depends on besides the files: the time, and the age in days from which a topic is stale (0: never)."""

    now: datetime
    stale_after_days: int


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A topic directory while its lock is held. `removed` is its list of removed topics as read."""

    folder: TopicFolder
    held: Held
    listing: Listing
    index: TopicIndex
    removed: tuple[str, ...]
    author: Author
    wait_s: float

    @property
    def rows(self) -> list[Row]:
        return rows_of(self.index)

    def name_on_disk(self, file: str) -> str:
        """How the disk spells a file name of the index."""
        return self.listing.files.get(file_key(file), file)

    def tidied(self, rows: Sequence[Row], upkeep: Upkeep) -> list[Row]:
        """The rows after maintenance. A file that the listing lacks is opened before its entry goes: listings can be stale."""
        named = {file_key(row.file): row.file for row in rows if isinstance(row, TopicEntry)}
        unlisted = {key for key, file in named.items() if key not in self.listing.files and self.folder.status(file)}
        present = self.listing.files.keys() | unlisted
        return tidy(rows, present=present, now=upkeep.now, stale_after_days=upkeep.stale_after_days)

    def write_index(self, rows: Sequence[Row]) -> None:
        """Replace the index, keeping the version before; an index that says the same already stays as it is."""
        data = encode_text(self.folder.index_name, render_index(rows))
        replace_with_version(self.folder.home, self.folder.index_name, data, self.held, author=self.author)

    def write_removed(self, rows: Sequence[Row], *added: str) -> None:
        """Bring the list of removed topics up to date: with `added`, without what the index lists (a line is stronger)."""
        indexed = {file_key(row.file) for row in rows if isinstance(row, TopicEntry)}
        names = dict.fromkeys(name for name in (*self.removed, *added) if file_key(name) not in indexed)
        if tuple(names) != self.removed:
            self.folder.write_removed(names, self.held)

    @contextmanager
    def topic_locked(self, file: str) -> Iterator[Held]:
        """Hold one topic's own lock too, which is all that an editor of the file takes."""
        name = self.folder.name(file)
        with locked(self.folder.home.root, name, self.folder.home.lock_of(name), timeout_s=self.wait_s) as held:
            yield held.also(self.held.assert_held)

    def read_topic(self, file: str) -> TextFile | None:
        """A topic's text, None when there is none; raises NotUtf8Error for one that must not be rewritten."""
        found = read_text(self.folder.home.root, self.folder.name(file))
        if found is not None and not found.utf8:
            raise not_utf8(self.folder.name(file))
        return found

    def write_topic(self, file: str, topic: TopicFile, held: Held) -> str:
        """Replace a topic's file, keeping the version before; returns its etag."""
        name = self.folder.name(file)
        data = encode_text(name, render_topic_file(topic))
        replace_with_version(self.folder.home, name, data, held, author=self.author)
        return etag_of(data)

    def edit_topic(self, file: str, change: Callable[[TopicFile], TopicFile], held: Held) -> None:
        """Change a topic's front matter where that can be done: a file that is gone, not UTF-8 or too large stays as it is."""
        try:
            found = read_text(self.folder.home.root, self.folder.name(file))
        except TooLargeError:
            return
        if found is not None and found.utf8:
            topic = parse_topic_file(found.text)
            changed = change(topic)
            if changed != topic:
                self.write_topic(file, changed, held)


@contextmanager
def changing(folder: TopicFolder, waits: LockWaits, *, author: Author) -> Iterator[TopicChange]:
    """Lock a topic directory and read it for a change. Raises StoreBusyError, NotUtf8Error, UnsafeObjectError, TooLargeError."""
    with directory_locked(folder, waits) as held:
        listing = folder.list_files()
        folder.sweep(listing)
        found = read_text(folder.home.root, folder.index_name)
        if found is not None and not found.utf8:
            raise not_utf8(folder.index_name)
        index = parse_topic_index("" if found is None else found.text)
        yield TopicChange(folder, held, listing, index, folder.read_removed(), author, waits.own_s)


def not_utf8(name: str) -> NotUtf8Error:
    return NotUtf8Error(f"{name!r} holds bytes that are not UTF-8: repair it by hand, recalld does not rewrite it")
