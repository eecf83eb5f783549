"""Decides which messages of a log a lane may see (formats: volume.md, "Visibility"). Pure; bringing them is `sync`'s."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from persistence.records import LogRecord
from persistence.workspace import Lane, is_ts, ts_key


@dataclass(frozen=True, slots=True)
class Shown:
    """A message that the lane may see."""

    record: LogRecord


@dataclass(frozen=True, slots=True)
class ThreadMarker:
    """Stands after a top-level message that has replies; the replies themselves are another lane's."""

    root_ts: str
    bot_replied: bool


@dataclass(frozen=True, slots=True)
class Boundary:
    """Stands between what the channel said before a thread and the thread."""

    root_ts: str


Visible = Shown | ThreadMarker | Boundary


def root_of(record: LogRecord) -> str | None:
    """The root's ts of a reply; None for top-level messages, for roots, and where the thread ts on disk is unusable."""
    root = record.thread_ts
    return None if root is None or not is_ts(root) or ts_key(root) == ts_key(record.ts) else root


def select_visible(records: Iterable[LogRecord], lane: Lane, current_ts: str) -> list[Visible]:
    """What `lane` may see before the triggering message `current_ts`, oldest first.

    `records` are merged (each ts once), in any order. Deleted and silent messages are seen by no lane. A thread lane always
    gets its boundary, also when nothing stands before it.
    """
    now = ts_key(current_ts)
    past = sorted((each for each in records if not is_hidden(each) and ts_key(each.ts) < now), key=_order)
    return _select_for_channel(past) if lane.thread_ts is None else _select_for_thread(past, lane.thread_ts)


def _order(record: LogRecord) -> tuple[Decimal, str]:
    return ts_key(record.ts), record.ts


def _select_for_channel(past: list[LogRecord]) -> list[Visible]:
    replied: dict[Decimal, bool] = {}
    for record in past:
        if (root := root_of(record)) is not None:
            replied[ts_key(root)] = replied.get(ts_key(root), False) or record.is_bot
    seen: list[Visible] = []
    for record in past:
        if root_of(record) is None:
            seen.append(Shown(record))
            if (bot_replied := replied.get(ts_key(record.ts))) is not None:
                seen.append(ThreadMarker(record.ts, bot_replied))
    return seen


def _select_for_thread(past: list[LogRecord], root_ts: str) -> list[Visible]:
    before = [each for each in past if is_before_thread(each, root_ts)]
    thread = [each for each in past if is_in_thread(each, root_ts)]
    thread.sort(key=lambda each: root_of(each) is not None)  # stable: the root first, also before a reply that claims to be older
    return [*map(Shown, before), Boundary(root_ts), *map(Shown, thread)]


def is_before_thread(record: LogRecord, root_ts: str) -> bool:
    """Whether the record is what a person said in the channel before the thread's root."""
    return root_of(record) is None and not record.is_bot and ts_key(record.ts) < ts_key(root_ts)


def is_in_thread(record: LogRecord, root_ts: str) -> bool:
    """Whether the record is the thread's root or one of its replies."""
    return ts_key(root_of(record) or record.ts) == ts_key(root_ts)


def is_hidden(record: LogRecord) -> bool:
    """Whether nobody sees the message: it was deleted, or the bot chose to stay silent."""
    return record.deleted is True or (record.model_extra or {}).get("silent") is True


def concerns(record: LogRecord, lane: Lane) -> bool:
    """Whether the lane may see the message, or a marker for it, once its time has come."""
    root = lane.thread_ts
    return not is_hidden(record) and (root is None or is_before_thread(record, root) or is_in_thread(record, root))
