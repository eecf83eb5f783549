"""When and where a context is cut, and the gate: without a row in the ledger nothing goes. Real files throughout."""

import ast
import itertools
import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import persistence
from persistence.compaction import (
    Limits,
    archive,
    compact,
    find_pending_handoff,
    find_reason,
    mark_of,
    measure,
    plan_archive,
    plan_compaction,
    resume_span,
)
from persistence.context import Context
from persistence.contexts.messages import estimate_tokens
from persistence.errors import FlushMissingError
from persistence.handoff import HandoffOf, write_consolidation, write_handoff
from persistence.ledger import FlushLedger
from persistence.log import ChannelLog, NewMessage
from persistence.records import AssistantMessage, LogRecord, TextBlock, ToolCallBlock, ToolResultMessage, Usage, UserMessage
from persistence.sync import sync_log_to_context
from persistence.versions import Author
from persistence.workspace import Lane, Workspace, open_workspace, parse_channel_id
from persistence.wrapper import wrap_message
from tests.persistence.test_handoff import NOW

C1 = parse_channel_id("C1")
LANE = Lane(C1)
BIG = 10**9


def nothing(_ts):
    return None


@pytest.fixture
def workspace(tmp_path):
    return open_workspace(tmp_path)


@pytest.fixture
def context(workspace):
    return Context(workspace, LANE)


@pytest.fixture
def ledger(workspace):
    return FlushLedger(workspace, LANE)


def user(text):
    return UserMessage(content=[TextBlock(text=text)], timestamp=1_700_000_000_000)


def assistant(text, *calls, usage=0):
    blocks = [TextBlock(text=text), *(ToolCallBlock(id=call, name="look") for call in calls)]
    return AssistantMessage(content=blocks, timestamp=1_700_000_001_000, usage=Usage(input=usage, output=10))


def result(call, text="found"):
    return ToolResultMessage(tool_call_id=call, tool_name="look", content=[TextBlock(text=text)], timestamp=1_700_000_002_000)


def exchange(number, size=400):
    return [user(f"question {number} " + "q" * size), assistant(f"answer {number} " + "a" * size)]


def fill(context, count=10, size=400):
    for number in range(count):
        context.append(exchange(number, size))
    return context


def plan(context, keep_tokens=500):
    return plan_compaction(context.read_tree(), nothing, keep_tokens=keep_tokens)


def settle(ledger, span, state="flushed", **more):
    row = ledger.record(span.open_row("threshold"))
    return ledger.record(row.model_copy(update={"state": state, "summary": "the summary", **more}))


def texts(context):
    messages = context.build_messages(budget_tokens=BIG, lookup=nothing).messages
    return [block.text for message in messages for block in message.content if isinstance(block, TextBlock)]


def lines(workspace, name):
    return [json.loads(line) for line in (workspace.root / name).read_bytes().splitlines()]


# Deciding


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [(0, None), (80_000, None), (80_001, "threshold"), (99_999, "threshold"), (100_000, "overflow"), (10**9, "overflow")],
)
def test_a_context_is_compacted_before_it_reaches_into_the_reserve(tokens, reason):
    assert find_reason(tokens, Limits(window_tokens=100_000, reserve_tokens=20_000, keep_recent_tokens=20_000)) == reason


def test_a_reserve_that_is_larger_than_the_window_leaves_half_of_it():
    limits = Limits(window_tokens=4_096, reserve_tokens=16_384, keep_recent_tokens=20_000)
    assert limits.threshold_tokens == 2_048
    assert limits.keep_tokens == 1_024
    assert find_reason(2_000, limits) is None


def test_the_size_is_what_the_messages_come_to(context):
    fill(context, 3)
    built = context.build_messages(budget_tokens=BIG, lookup=nothing)
    assert measure(context.read_tree(), nothing) == sum(map(estimate_tokens, built.messages))
    assert measure(context.read_tree(), nothing, system_tokens=100) == built.tokens + 100


def test_what_the_provider_counted_is_believed_when_it_is_more(context):
    context.append([user("q"), assistant("a", usage=50_000)])
    context.append([user("more")])
    assert measure(context.read_tree(), nothing, system_tokens=30_000) == 50_010 + estimate_tokens(user("more"))


def test_what_was_counted_before_a_compaction_says_nothing_after_it(context, ledger):
    fill(context, 5)
    context.append([user("q"), assistant("a", usage=50_000)])
    span = plan(context, 10)
    settle(ledger, span)
    compact(context, ledger, span, summary="short")
    assert measure(context.read_tree(), nothing) < 100


# Cutting


def test_the_cut_is_before_a_user_message_and_keeps_what_fits(context):
    fill(context, 10)
    span = plan(context, 500)
    kept = context.read_tree().ids[span.first_kept_id]
    entry = context.read_tree().entries[kept]
    assert entry.field("message")["role"] == "user"
    tail = [each for each in context.read_tree().entries[kept:] if each.type == "message"]
    assert len(tail) == 4
    assert [item.entry_id for item in span.items] == [each.id for each in context.read_tree().entries[:kept]]


def test_the_newest_exchange_stays_even_if_it_is_too_large(context):
    fill(context, 2, size=4_000)
    span = plan(context, 0)
    assert len(span.items) == 2
    assert context.read_tree().ids[span.first_kept_id] == 2


@pytest.mark.parametrize("messages", [[], [user("only")], exchange(1)])
def test_where_there_is_nothing_older_there_is_nothing_to_cut(context, messages):
    context.append(messages)
    assert plan(context, 0) is None


def test_what_fits_altogether_is_not_cut(context):
    fill(context, 3)
    assert plan(context, BIG) is None


def test_a_tool_call_and_its_result_are_not_parted(context):
    context.append([user("a"), assistant("looking", "c1")])
    context.append([user("something else meanwhile"), result("c1"), assistant("found")])
    context.append([user("b"), assistant("done")])
    span = plan(context, 0)
    assert [type(item.message).__name__ for item in span.items][-1] == "AssistantMessage"
    assert len(span.items) == 5


roles = st.lists(st.sampled_from(["user", "assistant", "call", "result"]), min_size=1, max_size=14)


@settings(max_examples=150, deadline=None)
@given(roles, st.integers(0, 120))
def test_wherever_it_is_cut_calls_keep_their_results_and_a_user_message_comes_first(tmp_path_factory, kinds, keep_tokens):
    context = Context(open_workspace(tmp_path_factory.mktemp("ws")), LANE)
    made, calls = [], []
    for number, kind in enumerate(kinds):
        match kind:
            case "user":
                made.append(user(f"u{number}"))
            case "assistant":
                made.append(assistant(f"a{number}"))
            case "call":
                calls.append(f"c{number}")
                made.append(assistant(f"a{number}", f"c{number}"))
            case _ if calls:
                made.append(result(calls.pop(0)))
            case _:
                pass
    context.append(made)
    span = plan_compaction(context.read_tree(), nothing, keep_tokens=keep_tokens)
    if span is None:
        return
    gone, kept = [item.message for item in span.items], made[len(span.items) :]
    assert gone == made[: len(span.items)]
    assert gone
    assert isinstance(kept[0], UserMessage)
    called = {block.id for message in gone for block in message.content if isinstance(block, ToolCallBlock)}
    assert called.isdisjoint(message.tool_call_id for message in kept if isinstance(message, ToolResultMessage))
    size = sum(map(estimate_tokens, kept))
    newest = next(at for at in range(len(made) - 1, 0, -1) if isinstance(made[at], UserMessage))
    assert size <= keep_tokens or len(span.items) == newest or _parts_a_call(made, newest)


def _parts_a_call(made, at):
    called = {block.id for message in made[:at] for block in message.content if isinstance(block, ToolCallBlock)}
    return not called.isdisjoint(message.tool_call_id for message in made[at:] if isinstance(message, ToolResultMessage))


# The gate


@pytest.mark.parametrize("state", [None, "pending"])
def test_nothing_is_compacted_or_put_away_before_its_flush_is_recorded(context, ledger, workspace, state):
    fill(context)
    for span, act in ((plan(context), compact), (plan_archive(context.read_tree(), nothing), archive)):
        if state:
            ledger.record(span.open_row("overflow"))
        before = (workspace.root / context.name).read_bytes()
        with pytest.raises(FlushMissingError):
            act(context, ledger, span, **({"summary": "s"} if act is compact else {}))
        assert (workspace.root / context.name).read_bytes() == before


def test_the_flush_of_another_span_does_not_open_the_gate(context, ledger):
    fill(context)
    span = plan(context, 500)
    row = settle(ledger, span)
    ledger.record(row.model_copy(update={"last_id": "00000000"}))
    with pytest.raises(FlushMissingError):
        compact(context, ledger, span, summary="s")


@pytest.mark.parametrize("state", ["flushed", "waived"])
def test_a_compaction_puts_the_summary_in_the_place_of_the_span(context, ledger, workspace, state):
    fill(context, 10)
    before = measure(context.read_tree(), nothing)
    span = plan(context, 500)
    settle(ledger, span, state, why="no answer" if state == "waived" else None, notes=3)
    entry_id = compact(context, ledger, span, summary="what was said")
    entry = lines(workspace, context.name)[-1]
    assert (entry["type"], entry["id"], entry["summary"]) == ("compaction", entry_id, "what was said")
    assert (entry["firstKeptEntryId"], entry["tokensBefore"]) == (span.first_kept_id, before)
    assert entry["details"]["flush"] == span.id
    assert entry["details"]["state"] == state
    said = texts(context)
    assert said[0] == "[Summary of the conversation before this point]\nwhat was said"
    assert [text.split()[1] for text in said[1:]] == ["8", "8", "9", "9"]
    assert measure(context.read_tree(), nothing) < before


def test_a_secret_in_a_summary_is_taken_out_and_a_long_one_is_cut(context, ledger):
    fill(context)
    span = plan(context)
    settle(ledger, span)
    compact(context, ledger, span, summary="key AKIAIOSFODNN7EXAMPLZ\n" + "word " * 10_000)
    said = texts(context)[0]
    assert "AKIA" not in said
    assert "[redacted:" in said
    assert len(said.encode()) < 13_000


def test_compacting_again_after_a_crash_changes_nothing(context, ledger, workspace):
    fill(context)
    span = plan(context)
    settle(ledger, span)
    first = compact(context, ledger, span, summary="once")
    before = (workspace.root / context.name).read_bytes()
    assert compact(Context(workspace, LANE), ledger, span, summary="twice") == first
    assert (workspace.root / context.name).read_bytes() == before


def test_of_two_that_compact_the_same_context_the_second_one_steps_back(context, ledger, workspace):
    fill(context)
    mine, theirs = plan(context), plan(Context(workspace, LANE))
    settle(ledger, mine)
    settle(ledger, theirs)
    assert compact(Context(workspace, LANE), ledger, theirs, summary="theirs") is not None
    before = (workspace.root / context.name).read_bytes()
    assert compact(context, ledger, mine, summary="mine") is None
    assert (workspace.root / context.name).read_bytes() == before


def test_a_context_that_was_put_away_meanwhile_is_not_compacted(context, ledger, workspace):
    fill(context)
    span = plan(context)
    settle(ledger, span)
    Context(workspace, LANE).archive()
    assert compact(context, ledger, span, summary="late") is None
    assert texts(context) == []


def test_a_second_compaction_builds_on_the_first(context, ledger):
    fill(context, 6)
    first = plan(context)
    settle(ledger, first)
    compact(context, ledger, first, summary="first summary")
    for number in range(10, 16):
        context.append(exchange(number))
    second = plan(context)
    assert second.summary_before == "first summary"
    assert second.items[0].entry_id == first.first_kept_id
    settle(ledger, second)
    compact(context, ledger, second, summary="second summary")
    said = texts(context)
    assert "second summary" in said[0]
    assert not any("first summary" in text for text in said)


def test_what_a_compaction_took_out_of_sight_is_not_brought_from_the_log_again(context, ledger, workspace):
    log = ChannelLog(workspace, C1)
    for number in range(6):
        log.append(NewMessage(text=f"message {number} " + "x" * 400, user="amy", ts=f"{100 + number}.000000"))
    sync_log_to_context(log, context, workspace, current_ts="200.000000")
    span = plan_compaction(context.read_tree(), log.get, keep_tokens=150)
    settle(ledger, span)
    compact(context, ledger, span, summary="six messages")
    fresh = Context(workspace, LANE)
    assert sync_log_to_context(log, fresh, workspace, current_ts="300.000000").added == 0


def test_only_the_gate_writes_compactions():
    """Every caller in the packages: the gate is worth nothing if there is another way in."""
    root = Path(persistence.__file__).parent.parent
    callers = {
        path.relative_to(root).as_posix()
        for path in [*root.glob("persistence/**/*.py"), *root.glob("bot/**/*.py")]
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "append_compaction"
    }
    assert callers == {"persistence/compaction.py"}


# Resuming


def test_a_run_that_ended_before_the_compaction_is_resumed_with_the_same_span(context, ledger, workspace):
    fill(context)
    span = plan(context, 500)
    row = settle(ledger, span)
    again = Context(workspace, LANE)
    fill(again, 3)
    resumed = resume_span(again.read_tree(), nothing, ledger.last())
    assert (resumed.id, resumed.items, resumed.first_kept_id) == (span.id, span.items, span.first_kept_id)
    compact(again, ledger, resumed, summary=row.summary)
    assert resume_span(again.read_tree(), nothing, ledger.last()) is None


def test_a_span_that_the_context_no_longer_has_is_not_resumed(context, ledger, workspace):
    fill(context)
    settle(ledger, plan(context, 500))
    context.archive()
    fill(context)
    assert resume_span(context.read_tree(), nothing, ledger.last()) is None
    assert resume_span(context.read_tree(), nothing, None) is None


def _compact_until_killed(root, started):
    workspace = open_workspace(root)
    context, ledger = Context(workspace, LANE), FlushLedger(workspace, LANE)
    started.put(1)
    for number in range(10_000):
        context.append(exchange(number, 200))
        tree = context.read_tree()
        span = resume_span(tree, nothing, ledger.last()) or plan_compaction(tree, nothing, keep_tokens=300)
        if span is not None:
            row = ledger.find(span.id) or ledger.record(span.open_row("threshold"))
            if not row.is_settled:
                row = ledger.record(row.model_copy(update={"state": "flushed", "summary": f"up to {span.items[-1].entry_id}"}))
            compact(context, ledger, span, summary=row.summary)


def test_after_a_kill_anywhere_no_compaction_is_without_its_row_and_nothing_is_lost(workspace):
    spawn = multiprocessing.get_context("spawn")
    for number in range(4):
        started = spawn.Queue()
        worker = spawn.Process(target=_compact_until_killed, args=(workspace.root, started))
        worker.start()
        started.get(timeout=60)
        time.sleep(0.15 + 0.11 * number)
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
    tree = Context(workspace, LANE).read_tree()
    rows = {row["id"]: row for row in lines(workspace, Workspace.flush_ledger(LANE))}
    compactions = [entry for entry in tree.entries if entry.type == "compaction"]
    assert len(compactions) > 4
    flushes = [entry.field("details")["flush"] for entry in compactions]
    assert len(set(flushes)) == len(flushes)
    for entry, flush in zip(compactions, flushes, strict=True):
        assert rows[flush]["state"] == "flushed"
        assert entry.field("summary") == f"up to {rows[flush]['lastId']}"
    covered = [(tree.ids[row["firstId"]], tree.ids[row["firstKeptId"]]) for row in (rows[flush] for flush in flushes)]
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(covered))
    assert tree.bad_lines == 0


# The hand-over


def hand_over(workspace, context, span, text="where we were"):
    of = HandoffOf("threshold", mark_of(span, context), 3, NOW, Author("recalld"))
    write_handoff(workspace, C1, [assistant(text)], of=of)
    return of


def test_the_hand_over_is_pending_until_the_bot_has_spoken(context, ledger, workspace):
    fill(context)
    assert find_pending_handoff(workspace, context, ledger) is None
    span = plan(context)
    settle(ledger, span)
    hand_over(workspace, context, span)
    assert find_pending_handoff(workspace, context, ledger) is None
    compact(context, ledger, span, summary="s")
    context.append([user("what now?")])
    assert find_pending_handoff(workspace, Context(workspace, LANE), ledger).text == "- where we were"
    context.append([assistant("this")])
    assert find_pending_handoff(workspace, context, ledger) is None


def test_a_consolidated_section_is_not_given_twice(context, ledger, workspace):
    fill(context)
    span = plan(context)
    settle(ledger, span)
    of = hand_over(workspace, context, span)
    write_consolidation(workspace, C1, "the summary", of=of)
    compact(context, ledger, span, summary="the summary")
    assert find_pending_handoff(workspace, context, ledger) is None


def test_a_lane_is_not_given_the_hand_over_of_another_lane(context, ledger, workspace):
    thread = Lane(C1, "100.000001")
    of_thread = fill(Context(workspace, thread))
    span = plan(of_thread)
    thread_ledger = FlushLedger(workspace, thread)
    settle(thread_ledger, span)
    hand_over(workspace, of_thread, span, "said in the thread")
    compact(of_thread, thread_ledger, span, summary="s")
    fill(context)
    mine = plan(context)
    settle(ledger, mine)
    compact(context, ledger, mine, summary="s")
    assert find_pending_handoff(workspace, context, ledger) is None
    assert find_pending_handoff(workspace, of_thread, thread_ledger).mark.thread_ts == "100.000001"


def test_after_a_context_was_put_away_its_hand_over_is_pending(context, ledger, workspace):
    fill(context)
    span = plan_archive(context.read_tree(), nothing)
    settle(ledger, span)
    hand_over(workspace, context, span)
    kept = archive(context, ledger, span)
    assert (workspace.root / kept).read_bytes().count(b"\n") == 21
    assert texts(context) == []
    assert find_pending_handoff(workspace, context, ledger).text == "- where we were"


# The ledger


def test_the_newest_row_of_a_flush_counts(ledger, context):
    fill(context)
    span = plan(context)
    assert ledger.last() is None
    assert ledger.find(span.id) is None
    ledger.record(span.open_row("manual"))
    done = settle(ledger, span, notes=2)
    assert ledger.find(span.id) == ledger.last() == done
    assert (done.first_id, done.last_id) == (span.items[0].entry_id, span.items[-1].entry_id)


def test_a_torn_or_foreign_row_is_skipped(ledger, context, workspace):
    fill(context)
    row = settle(ledger, plan(context))
    path = workspace.root / Workspace.flush_ledger(LANE)
    with path.open("ab") as file:
        file.write(b'{"id": 5}\n[]\n{"id":"torn')
    assert ledger.last() == row
    ledger.record(row.model_copy(update={"id": "ab"}))
    assert ledger.last().id == "ab"
    assert ledger.find(row.id) == row


def test_the_largest_summary_still_fits_what_is_read_of_the_ledger(ledger, context):
    fill(context)
    span = plan(context)
    for filler in ("é" * 6_144, '"' * 12_288, "語" * 4_096, "\n" * 12_288):
        row = settle(ledger, span, summary=filler)
        assert ledger.find(span.id).summary == filler
        assert ledger.last() == row


def test_a_wrapped_message_is_measured_as_it_is_now(workspace, context):
    record = LogRecord(ts="100.000001", user="amy", text="x" * 4_000)
    context.append([user(wrap_message(record))])
    deleted = record.model_copy(update={"deleted": True, "text": ""})
    assert measure(context.read_tree(), lambda _: deleted) < 100 < measure(context.read_tree(), nothing)
