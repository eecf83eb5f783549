"""The entries of a context file as a tree of branches. Values only: what a model is given of it is `context_messages`'s."""

import uuid
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any, Final

from pydantic import ValidationError

from persistence.records import CONTEXT_VERSION, SYNC_ENTRY, Entry, SyncState, decode_line
from persistence.workspace import normal_ts
from persistence.wrapper import read_marker, read_wrapper

_FOR_MODEL: Final = frozenset({"custom_message", "branch_summary"})
_ROLES_FOR_MODEL: Final = frozenset(
    {"user", "assistant", "toolResult", "bashExecution", "custom", "hookMessage", "branchSummary", "compactionSummary"},
)


class EntryTree:
    """What was read of a context file so far. Adding a line costs the same however many there are.

    A parent always lies before its child, so no walk can go round in circles: a parent that is unknown where its child stands
    (its line is bad, or comes later) is taken to be the line before.
    """

    def __init__(self) -> None:
        """Start with nothing read."""
        self.has_header = False
        self.version: object = CONTEXT_VERSION
        self.entries: list[Entry] = []
        self.bad_lines = 0
        self.has_assistant = False
        self.settled: SyncState | None = None
        self._synced: set[str] = set()
        self._marked: set[str] = set()
        self._by_id: dict[str, int] = {}
        self._parents: list[int] = []
        self._shown: list[int] = []  # messages for the model from the root down to each entry
        self._compactions: list[int] = []  # the last compaction on the way to each entry, -1 without one
        self._kept: dict[int, int] = {}  # the first entry that a compaction keeps (itself: none)
        self._lines: list[int] = []  # version 1 counts lines, the header included

    @property
    def is_supported(self) -> bool:
        return isinstance(self.version, int) and not isinstance(self.version, bool) and 1 <= self.version <= CONTEXT_VERSION

    @property
    def is_outdated(self) -> bool:
        """Whether the file is of an older version and must be migrated before anything is written to it."""
        return self.version != CONTEXT_VERSION

    @property
    def synced(self) -> AbstractSet[str]:
        """The ts (`normal_ts`) of the log messages that the context holds."""
        return self._synced

    @property
    def marked(self) -> AbstractSet[str]:
        """The keys of the markers that the context holds."""
        return self._marked

    @property
    def ids(self) -> dict[str, int]:
        """Positions by entry id (the later one where an id is there twice)."""
        return self._by_id

    @property
    def leaf_id(self) -> str | None:
        """The id that the next entry has as its parent."""
        return self.entries[-1].id if self.entries else None

    def parent_id(self, at: int) -> str | None:
        """The id of an entry's parent, None for a root."""
        parent = self._parents[at]
        return self.entries[parent].id if parent >= 0 else None

    def first_kept_id(self, at: int) -> str:
        """The id of the first entry that the compaction at position `at` keeps (its own: it keeps none)."""
        return self.entries[self._kept.get(at, at)].id

    def add(self, offset: int, line: bytes) -> None:
        """Take the next line of the file, which begins at byte `offset`."""
        value = decode_line(line)
        if value is None or not isinstance(value.get("type"), str):
            self.bad_lines += 1
        elif value["type"] == "session":
            self._add_header(value)
        else:
            self._add_entry(read_entry(value, offset), value)

    def _add_header(self, value: dict[str, Any]) -> None:
        if not self._lines:
            self.has_header = True
            self.version = value.get("version", 1)
        self._lines.append(-1)

    def _add_entry(self, entry: Entry, value: dict[str, Any]) -> None:
        if not self._lines:
            self.version = 1  # a file without header
        at = len(self.entries)
        parent = self._find_parent(value)
        self._lines.append(at)
        self.entries.append(entry)
        self._parents.append(parent)
        self._shown.append(self._shown_up_to(parent) + is_for_model(entry))
        is_compaction = entry.type == "compaction" and isinstance(entry.field("summary"), str)
        self._compactions.append(at if is_compaction else self._compactions[parent] if parent >= 0 else -1)
        if is_compaction:
            self._kept[at] = self._find_first_kept(at, entry)
        self._by_id[entry.id] = at
        self._note_content(entry)

    def _find_parent(self, value: dict[str, Any]) -> int:
        if "parentId" in value and value["parentId"] is None:
            return -1
        parent_id = value.get("parentId")
        before = len(self.entries) - 1
        return self._by_id.get(parent_id, before) if isinstance(parent_id, str) else before

    def _find_first_kept(self, at: int, entry: Entry) -> int:
        """The position of the first kept entry, or the compaction's own where that one is not on its branch."""
        wanted, line = entry.field("firstKeptEntryId"), entry.field("firstKeptEntryIndex")
        first = self._by_id.get(wanted, -1) if isinstance(wanted, str) else -1
        if first < 0 and isinstance(line, int) and 0 <= line < len(self._lines):
            first = self._lines[line]
        above = self._parents[at]
        while above > first:
            above = self._parents[above]
        return first if first >= 0 and above == first else at

    def _note_content(self, entry: Entry) -> None:
        if entry.type == "custom" and entry.field("customType") == SYNC_ENTRY:
            self.settled = read_sync_state(entry.field("data")) or self.settled
        message = entry.field("message")
        if entry.type != "message" or not isinstance(message, dict):
            return
        self.has_assistant = self.has_assistant or message.get("role") == "assistant"
        if message.get("role") == "user":
            for text in texts_of(message.get("content")):
                if (ts := read_wrapper(text)) is not None:
                    self._synced.add(normal_ts(ts))
                elif (key := read_marker(text)) is not None:
                    self._marked.add(key)

    def _shown_up_to(self, at: int) -> int:
        return self._shown[at] if at >= 0 else 0

    @property
    def compaction(self) -> Entry | None:
        """The last compaction on the way to the leaf."""
        at = self._compactions[-1] if self._compactions else -1
        return self.entries[at] if at >= 0 else None

    def walk_back(self) -> Iterator[int]:
        """Positions from the leaf back to the first entry that the last compaction keeps, or to the root."""
        at = len(self.entries) - 1
        compaction = self._compactions[at] if at >= 0 else -1
        first = self._kept.get(compaction, 0)
        while at >= first:
            if at != compaction:
                yield at
            at = self._parents[at]

    def count_older(self, at: int | None) -> int:
        """How many messages for the model `walk_back` gives after (that is: older than) position `at`; all of them for None."""
        leaf = len(self.entries) - 1
        if leaf < 0:
            return 0
        compaction = self._compactions[leaf]
        before = self._shown_up_to(self._parents[self._kept[compaction]]) if compaction >= 0 else 0
        return max(0, self._shown_up_to(leaf if at is None else self._parents[at]) - before)


def new_header(timestamp: str, cwd: str) -> dict[str, Any]:
    """The first line of a new file."""
    return {"type": "session", "version": CONTEXT_VERSION, "id": str(uuid.uuid4()), "timestamp": timestamp, "cwd": cwd}


def read_entry(value: dict[str, Any], offset: int) -> Entry:
    """The entry of a line; one without id (version 1, or another tool's) gets one from its offset, the same at each reading."""
    known = {
        "id": value["id"] if isinstance(value.get("id"), str) and value["id"] else f"{offset:08x}",
        "parentId": value["parentId"] if isinstance(value.get("parentId"), str) else None,
        "timestamp": value["timestamp"] if isinstance(value.get("timestamp"), str) else "",
    }
    return Entry.model_validate(value | known)


def read_sync_state(value: object) -> SyncState | None:
    """The typed state of an entry or of the cache file, None when it is malformed."""
    try:
        return SyncState.model_validate(value)
    except ValidationError:
        return None


def texts_of(content: object) -> Iterator[str]:
    """The texts of a message's content as it is on disk: one text, or the text blocks."""
    if isinstance(content, str):
        yield content
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
            yield block["text"]


def is_for_model(entry: Entry) -> bool:
    """Whether the entry counts as a message of the conversation that a model sees."""
    if entry.type != "message":
        return entry.type in _FOR_MODEL
    message = entry.field("message")
    role = message.get("role") if isinstance(message, dict) else None
    return role in _ROLES_FOR_MODEL and message.get("excludeFromContext") is not True
