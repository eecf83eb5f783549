"""Makes room in a lane's context: first its oldest part is flushed into memory, then the gate in `persistence.compaction` opens.

Every way to a compaction leads through here: on request, over the threshold, over the window, and when a context is put away.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal
from zoneinfo import ZoneInfo

import structlog

from bot.consolidation import Answer, MemoryJob, ask_for_flush, consolidate, make_portions
from bot.errors import ModelFailedError, TurnTimeoutError
from persistence.compaction import (
    Span,
    archive,
    compact,
    find_reason,
    mark_of,
    measure,
    plan_archive,
    plan_compaction,
    resume_span,
)
from persistence.errors import PersistenceError
from persistence.handoff import (
    CompactionReason,
    HandoffOf,
    HandoffStatus,
    cap_section,
    decide_after_compaction,
    read_handoff,
    write_consolidation,
    write_handoff,
)
from persistence.ledger import FlushLedger, FlushRow
from persistence.secrets import redact
from persistence.transcript import Portion, quote_span
from persistence.versions import Author

MAX_ATTEMPTS: Final = 2
_MAX_PASSES: Final = 3
_SUMMARY_BYTES: Final = 12_000
_NEXT_STEP: Final = re.compile(r"^[\s>*_#-]*next step[*_]*:[*_\s]*(?P<step>.*?)[\s*_]*$", re.IGNORECASE | re.MULTILINE)
_NOTHING: Final = re.compile(r"(?:none|nothing|no|n/a|-)?\W*\Z", re.IGNORECASE)
_INTERRUPTED: Final = "recalld was stopped while the model was asked"
logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """What was done. `status` "nothing": there was nothing to make room with; "superseded": somebody else was faster.

    `flush` and `why` are the ledger's; `notes` counts what the flush wrote. `kept_as` is where an archived context lies. `after`
    is what follows: "resume" means that there is unfinished work to go on with.
    """

    status: Literal["compacted", "archived", "nothing", "superseded"]
    reason: CompactionReason
    id: str | None = None
    flush: Literal["flushed", "waived"] | None = None
    why: str | None = None
    notes: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    kept_as: str | None = None
    handoff: HandoffStatus | Literal["failed"] | None = None
    after: Literal["consolidate", "resume", "none"] = "none"


async def compact_if_due(job: MemoryJob, *, system_tokens: int, incoming_tokens: int) -> CompactionReport | None:
    """Before a turn: compact until its request fits the window with the reserve; the last report, None when it fits already.

    With `compaction.enabled` false nothing is done. Call it after the sync and with no lock held. Raises the archive's errors.
    """
    report = None
    for _ in range(_MAX_PASSES if job.settings.compaction.enabled else 0):
        tokens = incoming_tokens + await asyncio.to_thread(_measure, job, system_tokens)
        if (reason := find_reason(tokens, job.limits)) is None:
            return report
        done = await flush_and_compact(job, reason=reason)
        if done.status != "compacted":
            return report or done
        report = done
    return report


async def flush_and_compact(job: MemoryJob, *, reason: CompactionReason) -> CompactionReport:
    """Flush the oldest part of a lane's context into memory, write the hand-over, put a summary in its place.

    Only with no turn of the lane running. A run that was killed goes on where it was. Raises the archive's errors.
    """
    ledger = FlushLedger(job.stores.workspace, job.lane)
    span = await asyncio.to_thread(_find_span, job, ledger, reason)
    if span is None:
        return CompactionReport("nothing", reason)
    row = await flush_span(job, ledger, span, reason=reason)
    report = await asyncio.to_thread(_make_room, job, ledger, span, row)
    if report.after == "consolidate" and report.status == "compacted" and row.summary:
        answer = await _consolidate_quietly(job, row.summary)
        return replace(report, notes=report.notes + answer.notes)
    return report


async def flush_and_archive(job: MemoryJob) -> CompactionReport:
    """Flush all that a lane's context holds, write the hand-over, put the context away and start afresh. As above."""
    ledger = FlushLedger(job.stores.workspace, job.lane)
    span = await asyncio.to_thread(_find_archive_span, job, ledger)
    if span is None:
        return CompactionReport("archived", "manual", kept_as=await asyncio.to_thread(job.context.archive))
    row = await flush_span(job, ledger, span, reason="manual")
    handoff = await asyncio.to_thread(_hand_over, job, span, row)
    kept_as = await asyncio.to_thread(archive, job.context, ledger, span)
    return replace(_report_of("archived", span, row), kept_as=kept_as, handoff=handoff)


def _measure(job: MemoryJob, system_tokens: int = 0) -> int:
    return measure(job.context.read_tree(), job.changes, system_tokens=system_tokens)


def _find_span(job: MemoryJob, ledger: FlushLedger, reason: CompactionReason) -> Span | None:
    """The span of a run that did not come to its end, else a new one; where it must be, also of what would be kept otherwise."""
    tree, lookup = job.context.read_tree(), job.lookup
    span = resume_span(tree, lookup, ledger.last()) or plan_compaction(tree, lookup, keep_tokens=job.limits.keep_tokens)
    return plan_compaction(tree, lookup, keep_tokens=0) if span is None and reason != "threshold" else span


def _find_archive_span(job: MemoryJob, ledger: FlushLedger) -> Span | None:
    span, row = plan_archive(job.context.read_tree(), job.lookup), ledger.last()
    return replace(span, id=row.id) if span is not None and row is not None and span.is_that_of(row) else span


async def flush_span(job: MemoryJob, ledger: FlushLedger, span: Span, *, reason: CompactionReason) -> FlushRow:
    """Bring a span's flush to its end, flushed or waived, each step durably in the ledger; returns the last row.

    A model that fails is asked once more for the same portion, then the rest is waived with the reason. Without a language model
    there is nothing to extract: what was to be remembered is in memory already, so the summary is a list of quotes.
    """
    row = await asyncio.to_thread(ledger.find, span.id)
    if row is None:
        row = await asyncio.to_thread(ledger.record, span.open_row(reason))
    if row.is_settled:
        return row
    if not job.chosen.is_language_model:
        return await asyncio.to_thread(ledger.record, _quoted(job, span, row).model_copy(update={"state": "flushed"}))
    for portion in _left_to_ask(make_portions(job, span.items), row):
        row = await _flush_portion(job, ledger, portion, row, before=row.summary or span.summary_before)
        if row.through != portion.last_id:
            waived = {"state": "waived", "why": row.why or _INTERRUPTED}
            return await asyncio.to_thread(ledger.record, _quoted(job, span, row).model_copy(update=waived))
    return await asyncio.to_thread(ledger.record, row.model_copy(update={"state": "flushed"}))


def _left_to_ask(portions: Sequence[Portion], row: FlushRow) -> Sequence[Portion]:
    asked = next((place for place, portion in enumerate(portions, start=1) if portion.last_id == row.through), 0)
    return portions[asked:]


async def _flush_portion(job: MemoryJob, ledger: FlushLedger, portion: Portion, row: FlushRow, *, before: str) -> FlushRow:
    """Ask for one portion, again after a failure; an attempt is in the ledger before it begins, so that a kill counts too."""
    while row.attempts < MAX_ATTEMPTS:
        row = await asyncio.to_thread(ledger.record, row.model_copy(update={"attempts": row.attempts + 1}))
        try:
            answer = await ask_for_flush(job, portion, summary_so_far=before)
        except (ModelFailedError, TurnTimeoutError) as err:
            logger.warning("flush_failed", channel=job.lane.channel, attempt=row.attempts, reason=str(err))
            row = row.model_copy(update={"why": " ".join(redact(str(err)).split())[:500]})
            continue
        done = {
            "through": portion.last_id,
            "summary": cap_section(redact(answer.text)) or before,
            "notes": row.notes + answer.notes,
            "attempts": 0,
            "why": None,
        }
        return await asyncio.to_thread(ledger.record, row.model_copy(update=done))
    return row


def _quoted(job: MemoryJob, span: Span, row: FlushRow) -> FlushRow:
    """The row with the part of the span that no model summarised added as quotes."""
    ids = [item.entry_id for item in span.items]
    rest = span.items[ids.index(row.through) + 1 :] if row.through in ids else span.items
    summary = quote_span(rest, job.lookup, before=row.summary or span.summary_before, limit_bytes=_SUMMARY_BYTES)
    return row.model_copy(update={"summary": summary})


def _make_room(job: MemoryJob, ledger: FlushLedger, span: Span, row: FlushRow) -> CompactionReport:
    """Hand over, then compact: a kill between the two leaves a section that the next run writes anew."""
    handoff = _hand_over(job, span, row)
    entry_id = compact(job.context, ledger, span, summary=row.summary)
    section = read_handoff(job.stores.workspace, job.lane.channel, compaction_id=span.id) if handoff == "written" else None
    return replace(
        _report_of("superseded" if entry_id is None else "compacted", span, row),
        tokens_after=_measure(job),
        handoff=handoff,
        after=decide_after_compaction(job.rules, reason=row.reason, handoff=section),
    )


def _report_of(status: Literal["compacted", "archived", "superseded"], span: Span, row: FlushRow) -> CompactionReport:
    return CompactionReport(
        status,
        row.reason,
        id=span.id,
        flush="waived" if row.state == "waived" else "flushed",
        why=row.why,
        notes=row.notes,
        tokens_before=span.tokens_before,
    )


def _hand_over(job: MemoryJob, span: Span, row: FlushRow) -> HandoffStatus | Literal["failed"]:
    """Write the section of this compaction. A file that can't be written must not stand in the way of every turn."""
    compaction = HandoffOf(
        reason=row.reason,
        mark=mark_of(span, job.context),
        keep=job.rules.handoff_keep,
        now=datetime.now(ZoneInfo(job.settings.timezone)),
        author=Author("recalld", reason=f"hand-over ({row.reason})"),
    )
    workspace, channel = job.stores.workspace, job.lane.channel
    try:
        if job.rules.consolidate_on_compact and row.reason == "threshold":
            return write_consolidation(workspace, channel, row.summary, of=compaction)
        return write_handoff(workspace, channel, span.newest, of=compaction, next_step=find_next_step(row.summary))
    except PersistenceError:
        logger.warning("handoff_failed", channel=channel, exc_info=True)
        return "failed"


def find_next_step(summary: str) -> str | None:
    """What a summary says is to be done next: "" for nothing, None when it doesn't say."""
    steps = [match["step"].strip() for match in _NEXT_STEP.finditer(summary)]
    if not steps:
        return None
    return "" if _NOTHING.fullmatch(steps[-1]) else steps[-1]


async def _consolidate_quietly(job: MemoryJob, summary: str) -> Answer:
    try:
        return await consolidate(job, summary=summary)
    except (ModelFailedError, TurnTimeoutError) as err:
        logger.warning("consolidation_failed", channel=job.lane.channel, reason=str(err))
        return Answer("", 0)
