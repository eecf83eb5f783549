"""When a context is compacted, where it is cut, and the gate: nothing goes before its flush into memory is in the ledger.

Asking a model for the flush and the summary is the bot's business.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from persistence.context import Context
from persistence.contexts.messages import Lookup, estimate_tokens, map_entry, map_summary
from persistence.contexts.tree import EntryTree
from persistence.errors import FlushMissingError
from persistence.handoff import CompactionMark, CompactionReason, Handoff, cap_section, read_handoff
from persistence.ledger import FlushLedger, FlushRow
from persistence.records import AssistantMessage, Message, ToolCallBlock, ToolResultMessage, UserMessage
from persistence.secrets import redact
from persistence.workspace import Workspace

_RECENT: Final = 20


@dataclass(frozen=True, slots=True)
class Limits:
    """A model's window, what of it stays free for the answer, and how much of the newest is kept; all in tokens."""

    window_tokens: int
    reserve_tokens: int
    keep_recent_tokens: int

    @property
    def threshold_tokens(self) -> int:
        """Above this a context is compacted. A reserve that is too large for the window takes half of it at most."""
        return max(self.window_tokens - self.reserve_tokens, self.window_tokens // 2)

    @property
    def keep_tokens(self) -> int:
        """What is kept: never so much that the next turn would compact again."""
        return min(self.keep_recent_tokens, self.threshold_tokens // 2)


@dataclass(frozen=True, slots=True)
class SpanItem:
    """A message of a span, and its entry."""

    entry_id: str
    message: Message


@dataclass(frozen=True, slots=True)
class Span:
    """What leaves the model's view, oldest first. `id` names its flush, `previous` the compaction that it begins after.

    `first_kept_id` is the entry that stays first (None: the whole context goes). `summary_before` is what that earlier
    compaction said, `newest` are the last messages of the whole context, for the hand-over.
    """

    id: str
    previous: str | None
    items: tuple[SpanItem, ...]
    first_kept_id: str | None
    tokens_before: int
    summary_before: str
    newest: tuple[Message, ...]

    def open_row(self, reason: CompactionReason) -> FlushRow:
        """The row that says that the flush of this span is pending."""
        return FlushRow(
            id=self.id,
            kind="archive" if self.first_kept_id is None else "compact",
            reason=reason,
            previous=self.previous,
            first_id=self.items[0].entry_id,
            last_id=self.items[-1].entry_id,
            first_kept_id=self.first_kept_id,
        )

    def is_that_of(self, row: FlushRow) -> bool:
        """Whether a row of the ledger is about this very span."""
        ours = (self.items[0].entry_id, self.items[-1].entry_id, self.first_kept_id, self.previous)
        return (row.first_id, row.last_id, row.first_kept_id, row.previous) == ours


def measure(tree: EntryTree, lookup: Lookup, *, system_tokens: int = 0) -> int:
    """Tokens that a request with this context would have: as estimated, or as the provider last counted it, if that is more."""
    estimated = system_tokens + (estimate_tokens(map_summary(tree.compaction)) if tree.compaction is not None else 0)
    counted, after = 0, 0
    compacted_at = tree.ids[tree.compaction.id] if tree.compaction is not None else -1
    for at in tree.walk_back():
        message = map_entry(tree.entries[at], lookup)
        if message is None:
            continue
        if not counted and at > compacted_at and isinstance(message, AssistantMessage):
            usage = message.usage
            counted = usage.input + usage.cache_read + usage.cache_write + usage.output
        size = estimate_tokens(message)
        estimated += size
        after += 0 if counted else size
    return max(estimated, counted + after if counted else 0)


def find_reason(tokens: int, limits: Limits) -> CompactionReason | None:
    """Why a context of this size must be compacted before the next request, None when it need not be."""
    if tokens >= limits.window_tokens:
        return "overflow"
    return "threshold" if tokens > limits.threshold_tokens else None


def plan_compaction(tree: EntryTree, lookup: Lookup, *, keep_tokens: int) -> Span | None:
    """Cut before a user message so that at most `keep_tokens` stay, or just the newest exchange when that alone is larger.

    None when nothing older than what stays is there. A tool call and its result are never parted.
    """
    path = _read_path(tree, lookup)
    cut = _find_cut([message for _, message in path], keep_tokens)
    return _make_span(tree, lookup, path, cut=cut) if cut else None


def plan_archive(tree: EntryTree, lookup: Lookup) -> Span | None:
    """The whole context as a span, None when it holds no message."""
    path = _read_path(tree, lookup)
    return _make_span(tree, lookup, path, cut=len(path)) if path else None


def resume_span(tree: EntryTree, lookup: Lookup, row: FlushRow | None) -> Span | None:
    """The span of an earlier run that ended between flush and compaction, if the context still has it as it was."""
    if row is None or row.previous != _compaction_id(tree):
        return None
    path = _read_path(tree, lookup)
    cut = next((place for place, (at, _) in enumerate(path) if tree.entries[at].id == row.first_kept_id), 0)
    span = _make_span(tree, lookup, path, cut=cut, span_id=row.id) if cut else None
    return span if span is not None and span.is_that_of(row) else None


def _compaction_id(tree: EntryTree) -> str | None:
    return None if tree.compaction is None else tree.compaction.id


def _read_path(tree: EntryTree, lookup: Lookup) -> list[tuple[int, Message]]:
    """(position, message) of what the model sees after the last summary, oldest first."""
    found = [(at, message) for at in tree.walk_back() if (message := map_entry(tree.entries[at], lookup)) is not None]
    return found[::-1]


def _find_cut(messages: Sequence[Message], keep_tokens: int) -> int:
    """The place of the first message that stays; 0 when there is no place to cut."""
    if sum(map(estimate_tokens, messages)) <= keep_tokens:
        return 0
    cut = kept = 0
    results: set[str] = set()  # of calls that lie further back
    for place in range(len(messages) - 1, 0, -1):
        message = messages[place]
        kept += estimate_tokens(message)
        if cut and kept > keep_tokens:
            break
        match message:
            case ToolResultMessage():
                results.add(message.tool_call_id)
            case AssistantMessage():
                results -= {block.id for block in message.content if isinstance(block, ToolCallBlock)}
            case UserMessage() if not results:
                cut = place
            case _:
                pass
    return cut


def _make_span(
    tree: EntryTree, lookup: Lookup, path: Sequence[tuple[int, Message]], *, cut: int, span_id: str | None = None
) -> Span:
    return Span(
        id=span_id or secrets.token_hex(8),
        previous=_compaction_id(tree),
        items=tuple(SpanItem(tree.entries[at].id, message) for at, message in path[:cut]),
        first_kept_id=tree.entries[path[cut][0]].id if cut < len(path) else None,
        tokens_before=measure(tree, lookup),
        summary_before="" if tree.compaction is None else str(tree.compaction.field("summary") or ""),
        newest=tuple(message for _, message in path[-_RECENT:]),
    )


def compact(context: Context, ledger: FlushLedger, span: Span, *, summary: str) -> str | None:
    """Put `summary` (secrets taken out, capped) in the place of a span, durably; returns the id of the compaction's entry.

    Doing it again after a crash changes nothing. None when the context was compacted or put away by somebody else meanwhile.
    Raises FlushMissingError unless the ledger has this very span as flushed or waived; nothing is written then.
    """
    row = _settled_row(ledger, span)
    if (done := _find_compaction(context.read_tree(), span.id)) is not None:
        return done
    return context.append_compaction(
        cap_section(redact(summary)),
        first_kept_id=span.first_kept_id or "",
        tokens_before=span.tokens_before,
        details={"flush": span.id, "state": row.state, "why": row.why, "notes": row.notes, "reason": row.reason},
        is_wanted=lambda tree: _compaction_id(tree) == span.previous and span.first_kept_id in tree.ids,
    )


def archive(context: Context, ledger: FlushLedger, span: Span) -> str | None:
    """Put the whole context away and start afresh; returns where it is kept. Raises FlushMissingError as `compact`."""
    _settled_row(ledger, span)
    return context.archive()


def _settled_row(ledger: FlushLedger, span: Span) -> FlushRow:
    row = ledger.find(span.id)
    if row is None or not row.is_settled or not span.is_that_of(row):
        raise FlushMissingError(f"the flush of span {span.id!r} is neither recorded nor waived: flush it first")
    return row


def _find_compaction(tree: EntryTree, flush_id: str) -> str | None:
    entry = tree.compaction
    return entry.id if entry is not None and flush_of(tree) == flush_id else None


def flush_of(tree: EntryTree) -> str | None:
    """The flush that the last compaction of a context rests on; None for one of another tool."""
    details = None if tree.compaction is None else tree.compaction.field("details")
    found = details.get("flush") if isinstance(details, dict) else None
    return found if isinstance(found, str) else None


def find_pending_handoff(workspace: Workspace, context: Context, ledger: FlushLedger) -> Handoff | None:
    """The hand-over that the next turn of a lane is to be given: until the bot has said something after the compaction.

    None when the section is the very summary that the context begins with.
    """
    tree = context.read_tree()
    start = -1 if tree.compaction is None else tree.ids[tree.compaction.id]
    if any(_is_assistant(tree, at) for at in range(len(tree.entries) - 1, start, -1)):
        return None
    flush_id = flush_of(tree) if tree.compaction is not None else _archived(ledger)
    found = None if flush_id is None else read_handoff(workspace, context.lane.channel, compaction_id=flush_id)
    return None if found is None or found.consolidated else found


def _is_assistant(tree: EntryTree, at: int) -> bool:
    message = tree.entries[at].field("message")
    return isinstance(message, dict) and message.get("role") == "assistant"


def _archived(ledger: FlushLedger) -> str | None:
    row = ledger.last()
    return row.id if row is not None and row.kind == "archive" and row.is_settled else None


def mark_of(span: Span, context: Context) -> CompactionMark:
    """What a hand-over section of this span's compaction is known by."""
    return CompactionMark(span.id, context.lane.thread_ts)
