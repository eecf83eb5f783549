"""`context.jsonl` of one lane: durable appending and incremental reading of entries, and replacing the file whole.

The order of entries is `context_tree`'s, what a model gets of them `context_messages`'s, what the log adds `sync`'s.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import Any

from pydantic import JsonValue

from persistence.contexts.messages import Lookup, ModelMessages, build_model_messages, cap_tool_result
from persistence.contexts.migration import migrate
from persistence.contexts.tree import EntryTree, new_header
from persistence.errors import ContextUnsupportedError, NotFoundError, StoreBusyError
from persistence.files import locked, replace_bytes
from persistence.lines import Cursor, Tail, append_lines, find_end, held_lines, read_lines
from persistence.records import (
    SYNC_ENTRY,
    Entry,
    Message,
    Position,
    SyncState,
    ToolResultMessage,
    encode_line,
    new_entry_id,
    parse_message,
)
from persistence.redaction import Redact, redact_fields
from persistence.secrets import redact as redact_text
from persistence.versions import Author, recorded_change
from persistence.workspace import Lane, Workspace


class Context:
    """One lane's context file, read incrementally. For one thread at a time: work in a lane is serial.

    Where a file of a newer version has the usual name, that one is left untouched and the lane's context lives beside it
    (`context.v3.jsonl`); `newer_version` reports it.
    """

    def __init__(
        self,
        workspace: Workspace,
        lane: Lane,
        *,
        clock: Callable[[], float] = time.time,
        redact: Redact = redact_text,
    ) -> None:
        """Open no file yet; `clock` gives seconds since the epoch, `redact` takes secrets out of what is appended."""
        self.lane = lane
        self.newer_version: object = None
        self.sync_state: SyncState | None = None
        """What `sync` remembers between two turns of this process."""
        self._workspace = workspace
        self._root = workspace.root
        self._log_name = workspace.log(lane.channel)
        self._name = workspace.context(lane)
        self._name_beside = workspace.context_beside(lane)
        self._clock = clock
        self._redact = redact
        self._tree = EntryTree()
        self._cursor = Cursor()

    def refresh(self) -> None:
        """Read what is new on disk.

        Raises ContextUnsupportedError when the file beside one of a newer version is of a newer version too.
        """
        found = read_lines(self._root, self._name, self._cursor)
        if found.restarted:
            self._forget()
        for offset, line in found.lines:
            self._tree.add(offset, line)
        self._cursor = found.cursor
        if not self._tree.is_supported:
            self._step_aside()

    def _forget(self) -> None:
        self._tree, self._cursor, self.sync_state = EntryTree(), Cursor(), None

    def _step_aside(self) -> None:
        version, name = self._tree.version, self._name
        self._forget()
        if name == self._name_beside:
            raise ContextUnsupportedError(
                f"{name!r} is of version {version!r}, newer than this recalld knows: start the newer one, or move the file away",
            )
        self.newer_version, self._name = version, self._name_beside
        self.refresh()

    @property
    def name(self) -> str:
        """The file that is read and written, relative to the workspace."""
        return self._name

    @property
    def synced(self) -> AbstractSet[str]:
        """The ts (`normal_ts`) of the log messages that the context holds, by their wrapper's id, never by their text."""
        return self._tree.synced

    @property
    def marked(self) -> AbstractSet[str]:
        """The keys of the thread markers and boundaries that the context holds (`wrapper.thread_key`, `boundary_key`)."""
        return self._tree.marked

    @property
    def has_assistant(self) -> bool:
        """Whether the bot's own messages are here, so that its log lines need not be brought."""
        return self._tree.has_assistant

    @property
    def settled(self) -> SyncState | None:
        """The last decision in the file about what of the log is not to be brought any more."""
        return self._tree.settled

    @property
    def bad_lines(self) -> int:
        """How many lines could not be read; they stay where they are."""
        return self._tree.bad_lines

    @property
    def position(self) -> Position:
        """How far the file has been read."""
        return Position(offset=self._cursor.offset, prefix=self._cursor.prefix)

    def still_holds(self, position: Position) -> bool:
        """Whether the file has only grown since it was read up to `position`."""
        cursor = Cursor(position.offset, position.prefix)
        return position.offset == 0 or not read_lines(self._root, self._name, cursor).restarted

    def append(self, messages: Sequence[Message], *, settled: SyncState | None = None) -> list[str]:
        """Append messages durably, each the child of the one before, and return their entry ids.

        With `settled` an entry that holds this decision comes last. A tool result's text is cut to 51,200 bytes. A file of an
        older version is migrated first. Raises StoreBusyError, StorageFullError, StoreFaultError, ContextUnsupportedError.
        """
        bodies: list[dict[str, Any]] = [{"type": "message", "message": _to_disk(message, self._redact)} for message in messages]
        if settled is not None:
            bodies.append(_sync_entry(settled))
        return self._append(bodies)[: len(messages)]

    def append_compaction(
        self,
        summary: str,
        *,
        first_kept_id: str,
        tokens_before: int,
        details: Mapping[str, JsonValue],
        is_wanted: Callable[[EntryTree], bool],
    ) -> str | None:
        """Append a compaction durably and return its entry id; None when, with the file locked, it turns out to be unwanted.

        For `compaction.compact` alone, which sees to it that what the summary replaces was flushed into memory before.
        Raises as `append`.
        """
        body = {
            "type": "compaction",
            "summary": summary,
            "firstKeptEntryId": first_kept_id,
            "tokensBefore": tokens_before,
            "details": dict(details),
        }
        return next(iter(self._append([body], is_wanted)), None)

    def read_tree(self) -> EntryTree:
        """The entries as they are on disk now. Not to be changed, and good until the next call of this context."""
        self.refresh()
        return self._tree

    def _append(self, bodies: Sequence[dict[str, Any]], is_wanted: Callable[[EntryTree], bool] | None = None) -> list[str]:
        if not bodies:
            return []
        self.refresh()
        if self._tree.is_outdated:
            self._replace(lambda data: migrate(data, self._header()), Author("recalld", "migrated to version 3"))
            self.refresh()
        ids: list[str] = []
        name = self._name

        def build(tail: Tail) -> list[bytes]:
            if tail.size_bytes != self._cursor.offset:
                self.refresh()
            if self._name != name or self._tree.is_outdated:
                raise StoreBusyError(f"{name!r} was replaced by another program meanwhile: nothing was written, try again")
            if is_wanted is not None and not is_wanted(self._tree):
                return []
            header = [] if self._tree.has_header else [encode_line(self._header())]
            return header + self._chain(bodies, ids)

        append_lines(self._root, name, build)
        self.refresh()
        return ids

    def _chain(self, bodies: Sequence[dict[str, Any]], ids: list[str]) -> list[bytes]:
        """The lines of new entries from the leaf on; their ids are added to `ids`."""
        parent, timestamp, taken = self._tree.leaf_id, self._timestamp(), set[str]()
        lines = []
        for body in bodies:
            while (entry_id := new_entry_id(self._tree.ids)) in taken:
                pass
            taken.add(entry_id)
            ids.append(entry_id)
            lines.append(encode_line({"type": "", "id": entry_id, "parentId": parent, "timestamp": timestamp} | body))
            parent = entry_id
        return lines

    def _header(self) -> dict[str, Any]:
        return new_header(self._timestamp(), str(self._root / self.lane.channel))

    def _timestamp(self) -> str:
        return datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def build_messages(self, *, budget_tokens: int, lookup: Lookup) -> ModelMessages:
        """The model's messages (see `context_messages.build_model_messages`); costs what is returned, not what the file holds."""
        self.refresh()
        return build_model_messages(self._tree, budget_tokens=budget_tokens, lookup=lookup)

    def entries(self, *, after: str | None, limit: int) -> list[Entry]:
        """Up to `limit` entries in file order, those behind the entry `after`; raises NotFoundError for an unknown id."""
        self.refresh()
        if after is not None and after not in self._tree.ids:
            raise NotFoundError(f"there is no entry {after!r} in this context: list it from the start")
        start = 0 if after is None else self._tree.ids[after] + 1
        return self._tree.entries[start : start + limit]

    def archive(self) -> str | None:
        """Start afresh from now on: nothing that is in the log by now will be brought into the context again.

        Returns the name under which the old file is kept, None when there was none.
        """
        self.refresh()
        end = find_end(self._root, self._log_name)
        log = Position(offset=end.offset, prefix=end.prefix)
        settled = SyncState(log=log, through=f"{self._clock():.6f}")

        def start_afresh(_: bytes) -> bytes:
            self._tree = EntryTree()
            return b"".join([encode_line(self._header()), *self._chain([_sync_entry(settled)], [])])

        kept = self._replace(start_afresh, Author("recalld", "put away, started afresh"))
        self._forget()
        self.refresh()
        return kept

    def _replace(self, change: Callable[[bytes], bytes], author: Author) -> str | None:
        """Replace the file by what `change` makes of its bytes, and keep these among the versions; returns their name there."""
        with (
            locked(self._root, self._name, Workspace.lock_of(self._name)) as held,
            held_lines(self._root, self._name) as data,
        ):
            new = change(data)
            with recorded_change(self._workspace, self._name, data or None, new, author=author) as version_id:
                replace_bytes(self._root, self._name, new, held)
        return None if version_id is None else Workspace.version(self._name, version_id)


def _to_disk(message: Message, redact: Redact) -> dict[str, Any]:
    clean = parse_message(redact_fields(message.to_json(), redact)) or message  # before the cut, which could halve a secret
    return (cap_tool_result(clean) if isinstance(clean, ToolResultMessage) else clean).to_json()


def _sync_entry(settled: SyncState) -> dict[str, Any]:
    return {"type": "custom", "customType": SYNC_ENTRY, "data": settled.to_json()}
