"""Brings into a lane's context what its channel's log has and the lane may see, each message once, at the cost of what is new."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from persistence.context import Context
from persistence.contexts.tree import read_sync_state
from persistence.errors import PersistenceError
from persistence.files import locked, read_bytes, replace_bytes
from persistence.lines import Cursor
from persistence.log import ChannelLog, LogSlice
from persistence.records import LogRecord, Message, Position, SyncState, TextBlock, UserMessage, decode_line, encode_line
from persistence.visibility import Boundary, Shown, ThreadMarker, Visible, concerns, root_of, select_visible
from persistence.workspace import Lane, Workspace, normal_ts, ts_key
from persistence.wrapper import boundary_key, thread_key, wrap_boundary, wrap_message, wrap_omitted, wrap_thread_marker

logger = logging.getLogger(__name__)

_SAVE_EVERY_BYTES: Final = 64 * 1024
# A root that comes after its replies comes soon; where it never comes (the bot joined later), nothing must pile up.
_MAX_WAITING: Final = 200


@dataclass(frozen=True, slots=True)
class Synced:
    """Messages brought, and older ones left in the log because they were more than the limit."""

    added: int
    omitted: int


def sync_log_to_context(log: ChannelLog, context: Context, workspace: Workspace, *, current_ts: str, limit: int = 500) -> Synced:
    """Append to the context, in one durable write, what its lane may see before `current_ts` and does not hold yet.

    At most the newest `limit` messages; the context is told how many older ones stay in the log. How far the log has been
    gone through is remembered, so that the old is not read again; without that memory the context itself tells what it holds.
    """
    news = _find_news(log, context, workspace, current_ts=current_ts, limit=limit)
    context.append(news.messages, settled=news.state if news.synced.omitted else None)
    context.sync_state = _save_when_due(news.state, context, workspace, now=news.synced.omitted > 0)
    return news.synced


def preview_sync(
    log: ChannelLog, context: Context, workspace: Workspace, *, current_ts: str, limit: int = 500
) -> Sequence[Message]:
    """The messages that `sync_log_to_context` would append; changes nothing on disk."""
    return _find_news(log, context, workspace, current_ts=current_ts, limit=limit).messages


@dataclass(frozen=True, slots=True)
class _News:
    """What a sync has to bring, and the state of the log's reading after it."""

    messages: Sequence[Message]
    state: SyncState
    synced: Synced


def _find_news(log: ChannelLog, context: Context, workspace: Workspace, *, current_ts: str, limit: int) -> _News:
    context.refresh()
    state = _load_state(context, workspace)
    found = log.lines_from(Cursor(state.log.offset, state.log.prefix))
    if found.restarted:
        state = SyncState(through=state.through)
    pending = _find_pending(log, found, state, current_ts)
    roots = _find_roots(log, pending, context)
    news = _select_news(pending, roots, context, current_ts)
    omitted = _select_omitted(news, limit)
    state = SyncState(
        log=Position(offset=found.cursor.offset, prefix=found.cursor.prefix),
        through=max(filter(None, [state.through, *(each.ts for each in omitted[-1:])]), key=ts_key, default=None),
        future=_select_future(state, pending, context, current_ts),
        waiting=_select_waiting(state, pending, roots, context.lane, current_ts),
        saved=state.saved,
    )
    brought = _without(news, omitted)
    synced = Synced(sum(isinstance(item, Shown) for item in brought), len(omitted))
    return _News(_to_messages(brought, len(omitted)), state, synced)


def _load_state(context: Context, workspace: Workspace) -> SyncState:
    """What this process remembers, else the newer of what the cache and the context itself say."""
    if context.sync_state is not None:
        return context.sync_state
    cached = _read_cache(context, workspace)
    known = [state for state in (cached, context.settled) if state is not None]
    return max(known, key=lambda state: state.log.offset, default=SyncState())


def _read_cache(context: Context, workspace: Workspace) -> SyncState | None:
    """The saved state, None when it is absent, damaged, or of another context file than the one that is there now."""
    try:
        data = read_bytes(workspace.root, workspace.sync_state(context.lane))
    except PersistenceError as err:
        logger.warning("the sync state of %s is not used: %s", context.name, err)
        return None
    state = read_sync_state(decode_line(data)) if data else None
    if state is None or state.context is None or not context.still_holds(state.context):
        return None
    return state.model_copy(update={"saved": state.log.offset})


def _save_when_due(state: SyncState, context: Context, workspace: Workspace, *, now: bool) -> SyncState:
    """Save the state now and then: an older one is as right as a newer one, it only makes the next start read a little more."""
    if not now and state.log.offset - state.saved < _SAVE_EVERY_BYTES:
        return state
    name = workspace.sync_state(context.lane)
    data = encode_line(state.model_copy(update={"context": context.position}).to_json())
    try:
        with locked(workspace.root, name, workspace.lock_of(name), timeout_s=0) as held:
            replace_bytes(workspace.root, name, data, held)
    except PersistenceError as err:
        logger.warning("the sync state of %s was not saved: %s", context.name, err)
    return state.model_copy(update={"saved": state.log.offset})  # also if saving failed: it is tried again after the next share


def _find_pending(log: ChannelLog, found: LogSlice, state: SyncState, current_ts: str) -> dict[str, LogRecord]:
    """The messages to decide on, merged, by ts: new lines, those whose time has come, and replies whose root has come."""
    lines: dict[str, list[LogRecord]] = {}
    for _, line in found.records:
        if not _is_settled(line, state, restarted=found.restarted):
            lines.setdefault(normal_ts(line.ts), []).append(line)
    is_whole = found.restarted or state.log.offset == 0
    wanted = dict.fromkeys(lines) | dict.fromkeys(ts for ts in state.future if ts_key(ts) < ts_key(current_ts))
    wanted |= dict.fromkeys(reply for root, reply in state.waiting.items() if root in wanted)
    pending: dict[str, LogRecord] = {}
    for ts in wanted:
        is_only_line = is_whole and len(lines.get(ts, ())) == 1
        record = lines[ts][0] if is_only_line else log.get(ts)
        if record is not None:
            pending[ts] = record
    return pending


def _is_settled(record: LogRecord, state: SyncState, *, restarted: bool) -> bool:
    """Whether a line is about a message that was left out on purpose: in a rewritten log by its ts, else only by its changes."""
    if state.through is None or ts_key(record.ts) > ts_key(state.through):
        return False
    return restarted or record.edited is not None or record.deleted is not None


def _find_roots(log: ChannelLog, pending: dict[str, LogRecord], context: Context) -> dict[str, LogRecord]:
    """The roots, where the log has them, of pending replies whose threads have no marker yet."""
    if context.lane.thread_ts is not None:
        return {}
    roots = {}
    for record in pending.values():
        root = root_of(record)
        if root is not None and normal_ts(root) not in roots and thread_key(root) not in context.marked:
            found = pending.get(normal_ts(root)) or log.get(root)
            if found is not None:
                roots[normal_ts(root)] = found
    return roots


def _select_news(
    pending: dict[str, LogRecord],
    roots: dict[str, LogRecord],
    context: Context,
    current_ts: str,
) -> list[Visible]:
    """What the lane may see and the context does not hold; a marker only where its root is held, or comes with it."""
    visible = select_visible((roots | pending).values(), context.lane, current_ts)
    shown = {normal_ts(item.record.ts): item.record for item in visible if isinstance(item, Shown)}
    held = {ts for ts, record in shown.items() if ts in context.synced or (record.is_bot and context.has_assistant)}
    coming = {ts for ts in shown if ts in pending and ts not in held}
    then_held = held | coming
    return [item for item in visible if _is_news(item, context, coming, then_held)]


def _is_news(item: Visible, context: Context, coming: set[str], then_held: set[str]) -> bool:
    match item:
        case Shown(record):
            return normal_ts(record.ts) in coming
        case ThreadMarker(root_ts):
            return normal_ts(root_ts) in then_held and thread_key(root_ts) not in context.marked
        case Boundary(root_ts):
            return boundary_key(root_ts) not in context.marked and context.settled is None


def _select_omitted(news: Sequence[Visible], limit: int) -> list[LogRecord]:
    shown = [item.record for item in news if isinstance(item, Shown)]
    return shown[: max(0, len(shown) - limit)]


def _without(news: Sequence[Visible], omitted: Sequence[LogRecord]) -> list[Visible]:
    gone = {record.ts for record in omitted}
    return [item for item in news if (item.record.ts if isinstance(item, Shown) else item.root_ts) not in gone]


def _select_future(state: SyncState, pending: dict[str, LogRecord], context: Context, current_ts: str) -> list[str]:
    """The ts whose time has not come, the triggering message's own included: its turn may end before it is in the context."""
    now = ts_key(current_ts)
    new = [ts for ts, record in pending.items() if concerns(record, context.lane)]
    return [ts for ts in dict.fromkeys([*state.future, *new]) if ts_key(ts) >= now and ts not in context.synced]


def _select_waiting(
    state: SyncState,
    pending: dict[str, LogRecord],
    roots: dict[str, LogRecord],
    lane: Lane,
    current_ts: str,
) -> dict[str, str]:
    """For each root that is not here yet one reply that will call for its marker: the bot's if there is one."""
    if lane.thread_ts is not None:
        return {}
    now = ts_key(current_ts)
    waiting = {root: reply for root, reply in state.waiting.items() if reply not in pending}
    for ts, record in pending.items():
        root = root_of(record)
        if root is None or ts_key(ts) >= now or not concerns(record, lane):
            continue
        known = roots.get(normal_ts(root))
        if (known is None or ts_key(known.ts) >= now) and (record.is_bot or normal_ts(root) not in waiting):
            waiting[normal_ts(root)] = ts
    newest = sorted(waiting, key=ts_key)[-_MAX_WAITING:]
    return {root: waiting[root] for root in newest}


def _to_messages(items: Sequence[Visible], omitted: int) -> list[Message]:
    messages: list[Message] = []
    if omitted:
        messages.append(_user_message(wrap_omitted(omitted), items[0]))
    return messages + [_user_message(_wrap(item), item) for item in items]


def _wrap(item: Visible) -> str:
    match item:
        case Shown(record):
            return wrap_message(record)
        case ThreadMarker(root_ts, bot_replied):
            return wrap_thread_marker(root_ts, bot_replied=bot_replied)
        case Boundary(root_ts):
            return wrap_boundary(root_ts)


def _user_message(text: str, item: Visible) -> UserMessage:
    ts = item.record.ts if isinstance(item, Shown) else item.root_ts
    return UserMessage(content=[TextBlock(text=text)], timestamp=int(ts_key(ts) * 1000))
