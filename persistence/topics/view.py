"""What can be seen of a topic directory without changing it: its index, its topics' texts, searches and its state."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from persistence.errors import NotFoundError, TopicBlankError
from persistence.files import read_bytes, read_text
from persistence.topics.file import TopicFile, marked_as, newer_entry, parse_topic_file
from persistence.topics.folder import SEEN_BYTES, TopicFolder
from persistence.topics.index import TopicEntry, TopicIndex, file_key, instant, parse_topic_index, readable_lines, stamp_of
from persistence.topics.lookup import fits, one_per_file
from persistence.topics.names import key_of, recovered_name

_SKEW: Final = timedelta(minutes=1)
_MATCH_CHARS: Final = 120
_CUT: Final = f"\n<!-- topic cut at {SEEN_BYTES} bytes; read the file for the rest -->\n"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic to read: its text without front matter, at most 51,200 bytes with the cut said; the etag is of the whole file."""

    entry: TopicEntry
    text: str
    etag: str
    truncated: bool


@dataclass(frozen=True, slots=True)
class TopicMatch:
    """A topic that a search found, by its index line or by a line of its body; `indexed` False: only its file is there."""

    kind: Literal["index", "body"]
    name: str
    file: str
    line: str
    indexed: bool


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """What a scope's topics are like, and what does not agree.

    `orphans` are entries without a file, `unindexed` files without a line (removed ones not), `behind` entries older than their
    file; `unmarked` files whose front matter does not say what index and removals say. `ambiguous` are names that several
    topics have, `clock_skew` entries with a stamp in the future, `quarantined` (line, text), `leftovers` temporary files.
    `damaged_lines` of the index are no text.
    """

    topics: int
    pinned: int
    stale: int
    removed: int
    index_missing: bool
    damaged_lines: int
    orphans: tuple[TopicEntry, ...]
    unindexed: tuple[str, ...]
    behind: tuple[TopicEntry, ...]
    unmarked: tuple[str, ...]
    ambiguous: tuple[str, ...]
    clock_skew: tuple[TopicEntry, ...]
    quarantined: tuple[tuple[int, str], ...]
    leftovers: tuple[str, ...]

    @property
    def needs_repair(self) -> bool:
        return bool(self.orphans or self.unindexed or self.behind or self.damaged_lines)


NO_INDEX: Final = TopicIndex((), (), ())


def load_index(folder: TopicFolder) -> TopicIndex | None:
    """The index as it stands; None when there is none. Raises UnsafeObjectError, TooLargeError."""
    file = read_text(folder.home.root, folder.index_name)
    return None if file is None else parse_topic_index(file.text)


def load_topic(folder: TopicFolder, entry: TopicEntry) -> Topic:
    """The text of a listed topic. Raises NotFoundError when its file is gone."""
    file = folder.list_files().files.get(file_key(entry.file), entry.file)
    found = read_text(folder.home.root, folder.name(file))
    if found is None:
        raise file_is_gone(entry)
    text, truncated = _cut(parse_topic_file(found.text).body.lstrip("\n"))
    return Topic(entry, text, found.etag, truncated)


def file_is_gone(entry: TopicEntry) -> NotFoundError:
    return NotFoundError(
        f"the topic {entry.name!r} is listed but its file {entry.file!r} is gone; the next write tidies the index"
    )


def _cut(text: str) -> tuple[str, bool]:
    """Whole lines of a text within what a reader sees, with a notice when there are more."""
    data = text.encode()
    if len(data) <= SEEN_BYTES:
        return text, False
    kept = data[: SEEN_BYTES - len(_CUT.encode())].decode("utf-8", "ignore")
    return (kept.rpartition("\n")[0] or kept) + _CUT, True


def search_topics(folder: TopicFolder, query: str) -> list[TopicMatch]:
    """The topics that a text occurs in. Raises TopicBlankError."""
    wanted = key_of(query.strip())
    if not wanted:
        raise TopicBlankError("say what to look for")
    entries = {file_key(entry.file): entry for entry in one_per_file((load_index(folder) or NO_INDEX).entries)}
    hits = {key: entry for key, entry in entries.items() if fits(entry, query)}
    found = [TopicMatch("index", entry.name, entry.file, entry.summary, indexed=True) for entry in hits.values()]
    removed = {file_key(name) for name in folder.read_removed()} - entries.keys()
    for key, file in folder.list_files().files.items():
        if key not in hits and key not in removed:
            match = _body_match(parse_topic_file(folder.read_start(file) or ""), file, entries.get(key), wanted)
            found += [] if match is None else [match]
    return found


def _body_match(topic: TopicFile, file: str, entry: TopicEntry | None, wanted: str) -> TopicMatch | None:
    line = next((line.strip() for line in topic.body.split("\n") if wanted in key_of(line)), None)
    if line is None or (entry is None and topic.removed_at is not None):
        return None
    if entry is not None:
        return TopicMatch("body", entry.name, entry.file, line[:_MATCH_CHARS], indexed=True)
    return TopicMatch("body", recovered_name(topic.name or "", file[: -len(".md")]), file, line[:_MATCH_CHARS], indexed=False)


def load_status(folder: TopicFolder, now: datetime) -> TopicStatus:
    """What there is and what does not agree; reads the start of every topic, changes nothing."""
    data = read_bytes(folder.home.root, folder.index_name)
    index, listing = load_index(folder) or NO_INDEX, folder.list_files()
    entries = {file_key(entry.file): entry for entry in one_per_file(index.entries)}
    removed = {file_key(name) for name in folder.read_removed()} - entries.keys()
    heads = {key: parse_topic_file(folder.read_start(file) or "") for key, file in listing.files.items()}
    lost = [key for key in heads if key not in entries and key not in removed and heads[key].removed_at is None]
    names = Counter(key_of(entry.name) for entry in entries.values())
    moments = {key: instant(entry.stamp) for key, entry in entries.items()}
    return TopicStatus(
        topics=len(entries),
        pinned=sum(entry.pinned for entry in entries.values()),
        stale=sum(entry.stale for entry in entries.values()),
        removed=len(removed),
        index_missing=data is None,
        damaged_lines=readable_lines(data or b"")[1],
        orphans=tuple(entry for key, entry in entries.items() if key not in heads and folder.status(entry.file) is None),
        unindexed=tuple(listing.files[key] for key in lost),
        behind=tuple(entry for key, entry in entries.items() if key in heads and newer_entry(heads[key], entry) is not None),
        unmarked=tuple(
            listing.files[key] for key in heads if key not in lost and _is_unmarked(heads[key], entries.get(key), now)
        ),
        ambiguous=tuple(dict.fromkeys(entry.name for entry in entries.values() if names[key_of(entry.name)] > 1)),
        clock_skew=tuple(entries[key] for key, moment in moments.items() if moment is not None and moment > now + _SKEW),
        quarantined=index.quarantined,
        leftovers=listing.temps,
    )


def _is_unmarked(topic: TopicFile, entry: TopicEntry | None, now: datetime) -> bool:
    return marked_as(topic, entry, stamp=stamp_of(now)) != topic
