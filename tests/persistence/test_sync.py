"""Bringing a log into a context: each visible message once, in order, at the cost of what is new."""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistence.context import Context
from persistence.lines import Cursor
from persistence.log import ChannelLog, LogSlice, NewMessage
from persistence.records import AssistantMessage, Entry, TextBlock, UserMessage, encode_line
from persistence.sync import Synced, preview_sync, sync_log_to_context
from persistence.visibility import Shown, select_visible
from persistence.workspace import ChannelId, Lane, Workspace, normal_ts, open_workspace, ts_key
from persistence.wrapper import boundary_key, read_wrapper, thread_key, wrap_message

C1 = ChannelId("C1")
LANE = Lane(C1)
END = "9999999999"


class WatchedLog(ChannelLog):
    """A real log that notes how many lines each reading gave."""

    def __init__(self, workspace: Workspace, channel: ChannelId) -> None:
        super().__init__(workspace, channel)
        self.read: list[int] = []

    def lines_from(self, cursor: Cursor) -> LogSlice:
        found = super().lines_from(cursor)
        self.read.append(len(found.records))
        return found


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace(tmp_path)


@pytest.fixture
def log(workspace: Workspace) -> WatchedLog:
    return WatchedLog(workspace, C1)


def say(log: ChannelLog, ts: str, text: str = "", **more: Any) -> None:
    log.append(NewMessage(text=text or f"text {ts}", user=more.pop("user", "amy"), ts=ts, **more))


def write(workspace: Workspace, *lines: dict[str, Any], channel: ChannelId = C1) -> None:
    """Append lines to the log as another program might."""
    path = workspace.root / Workspace.log(channel)
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        file.write(b"".join(map(encode_line, lines)))


def sync(log: ChannelLog, context: Context, workspace: Workspace, current_ts: str = END, **more: int) -> Synced:
    return sync_log_to_context(log, context, workspace, current_ts=current_ts, **more)


def entry_texts(entries: list[Entry]) -> list[str]:
    found = []
    for entry in entries:
        message = entry.field("message")
        if isinstance(message, dict):
            found += [block["text"] for block in message["content"] if block["type"] == "text"]
    return found


def held(context: Context) -> list[str]:
    """The ts of wrapped messages in file order, twice where they are there twice."""
    texts = entry_texts(context.entries(after=None, limit=10**6))
    return [ts for text in texts if (ts := read_wrapper(text)) is not None]


def answer(context: Context) -> None:
    context.append([AssistantMessage(content=[TextBlock(text="answer")], timestamp=1)])


def ask(log: ChannelLog, context: Context, ts: str) -> None:
    """What a turn does with its triggering message."""
    record = log.get(ts)
    assert record is not None
    context.append([UserMessage(content=[TextBlock(text=wrap_message(record)), TextBlock(text="[recalled]")], timestamp=1)])


# --- what is brought ------------------------------------------------------------------------------------------------------


def test_the_worked_example_of_the_format(workspace: Workspace, log: WatchedLog) -> None:
    for ts, user, root in [
        ("90.000000", "amy", None),
        ("100.000000", "tom", None),
        ("110.000000", "sam", None),
        ("120.000000", "zoe", "100.000000"),
        ("125.000000", "ivy", "105.000000"),
        ("130.000000", "tom", "100.000000"),
        ("140.000000", "zoe", "100.000000"),
    ]:
        say(log, ts, user=user, thread_ts=root)
    in_thread, in_channel = Context(workspace, Lane(C1, "100.000000")), Context(workspace, LANE)
    assert sync(log, in_thread, workspace, "130.000000") == Synced(added=3, omitted=0)
    assert sync(log, in_channel, workspace, "120.500000") == Synced(added=3, omitted=0)
    tags = [text.split(">")[0] for text in entry_texts(in_thread.entries(after=None, limit=99))]
    assert tags == [
        '<message ts="90.000000" user="amy"',
        '<boundary root_ts="100.000000"',
        '<message ts="100.000000" user="tom"',
        '<message ts="120.000000" thread_ts="100.000000" user="zoe"',
    ]
    tags = [text.split(">")[0] for text in entry_texts(in_channel.entries(after=None, limit=99))]
    assert tags == [
        '<message ts="90.000000" user="amy"',
        '<message ts="100.000000" user="tom"',
        '<thread root_ts="100.000000" bot_replied="false"',
        '<message ts="110.000000" user="sam"',
    ]


def test_a_channel_without_log_gives_an_empty_channel_lane_and_a_boundary_to_a_thread(
    workspace: Workspace, log: WatchedLog
) -> None:
    assert sync(log, Context(workspace, LANE), workspace) == Synced(0, 0)
    assert not (workspace.root / "C1").exists()
    in_thread = Context(workspace, Lane(C1, "5.0"))
    assert sync(log, in_thread, workspace) == Synced(0, 0)
    assert in_thread.marked == {boundary_key("5.0")}


def test_two_equal_texts_in_a_row_are_both_kept(workspace: Workspace, log: WatchedLog) -> None:
    say(log, "1.000000", "yes")
    say(log, "2.000000", "yes")
    context = Context(workspace, LANE)
    sync(log, context, workspace)
    say(log, "3.000000", "yes")
    sync(log, context, workspace)
    assert held(context) == ["1.000000", "2.000000", "3.000000"]


def test_the_triggering_message_comes_from_its_turn_and_is_not_brought_again(workspace: Workspace, log: WatchedLog) -> None:
    context = Context(workspace, LANE)
    say(log, "1.000000")
    say(log, "2.000000")
    sync(log, context, workspace, "2.000000")
    ask(log, context, "2.000000")
    answer(context)
    say(log, "3.000000")
    assert sync(log, context, workspace, "3.000000") == Synced(0, 0)
    assert held(context) == ["1.000000", "2.000000"]


def test_a_triggering_message_whose_turn_died_is_brought_by_the_next(workspace: Workspace, log: WatchedLog) -> None:
    context = Context(workspace, LANE)
    say(log, "1.000000")
    sync(log, context, workspace, "1.000000")
    say(log, "2.000000")
    assert sync(log, context, workspace, "2.000000") == Synced(1, 0)
    assert held(context) == ["1.000000"]


def test_what_was_not_visible_yet_is_brought_when_its_time_has_come(workspace: Workspace, log: WatchedLog) -> None:
    context = Context(workspace, LANE)
    for ts in ("1.000000", "5.000000", "9.000000"):
        say(log, ts)
    say(log, "6.000000", thread_ts="5.000000")
    sync(log, context, workspace, "2.000000")
    assert held(context) == ["1.000000"]
    sync(log, context, workspace, "6.000000")
    assert held(context) == ["1.000000", "5.000000"]
    assert context.marked == frozenset()
    sync(log, context, workspace)
    assert held(context) == ["1.000000", "5.000000", "9.000000"]
    assert context.marked == {thread_key("5.000000")}


def test_a_message_that_was_logged_late_is_not_lost(workspace: Workspace, log: WatchedLog) -> None:
    context = Context(workspace, LANE)
    say(log, "5.000000")
    sync(log, context, workspace)
    say(log, "3.000000")
    assert sync(log, context, workspace) == Synced(1, 0)
    assert held(context) == ["5.000000", "3.000000"]


def test_the_bots_own_lines_are_brought_only_into_a_context_without_its_messages(workspace: Workspace, log: WatchedLog) -> None:
    say(log, "1.000000")
    say(log, "2.000000", user="bot", is_bot=True)
    fresh, used = Context(workspace, LANE), Context(workspace, Lane(C1, "2.000000"))
    answer(used)
    sync(log, fresh, workspace)
    sync(log, used, workspace)
    assert held(fresh) == ["1.000000", "2.000000"]
    assert held(used) == ["1.000000"]
    answer(fresh)
    say(log, "3.000000", user="bot", is_bot=True)
    assert sync(log, fresh, workspace) == Synced(0, 0)


def test_a_thread_marker_is_given_once(workspace: Workspace, log: WatchedLog) -> None:
    context = Context(workspace, LANE)
    say(log, "1.000000")
    say(log, "2.000000", thread_ts="1.000000")
    sync(log, context, workspace)
    say(log, "3.000000", thread_ts="1.000000", user="bot", is_bot=True)
    sync(log, context, workspace)
    texts = entry_texts(context.entries(after=None, limit=99))
    assert [text for text in texts if text.startswith("<thread")] == [texts[1]]
    assert 'bot_replied="false"' in texts[1]


def test_a_marker_waits_for_a_root_that_comes_after_its_replies(workspace: Workspace, log: WatchedLog) -> None:
    context = Context(workspace, LANE)
    say(log, "2.000000", thread_ts="1.000000")
    say(log, "3.000000", thread_ts="1.000000", user="bot", is_bot=True)
    sync(log, context, workspace)
    assert context.marked == frozenset()
    say(log, "1.000000")
    sync(log, context, workspace)
    texts = entry_texts(context.entries(after=None, limit=99))
    assert [text.split()[0] for text in texts] == ["<message", "<thread"]
    assert 'bot_replied="true"' in texts[1]


def test_replies_to_roots_that_never_come_do_not_pile_up(workspace: Workspace, log: WatchedLog) -> None:
    context = Context(workspace, LANE)
    lines = [{"ts": f"{5000 + n}.0", "threadTs": f"{n}.0", "text": "re", "user": "U"} for n in range(1, 1000)]
    write(workspace, *lines)
    sync(log, context, workspace)
    assert context.sync_state is not None
    assert len(context.sync_state.waiting) == 200


def test_one_message_spelled_with_another_ts_is_one_message(workspace: Workspace, log: WatchedLog) -> None:
    context = Context(workspace, LANE)
    write(workspace, {"ts": "5.5", "text": "hi", "user": "U"})
    sync(log, context, workspace)
    write(workspace, {"ts": "5.500000", "text": "hi", "user": "U", "userName": "una"})
    assert sync(log, context, workspace) == Synced(0, 0)


def test_an_edited_message_is_brought_with_its_new_text_and_a_deleted_one_never(workspace: Workspace, log: WatchedLog) -> None:
    for ts in ("1.000000", "2.000000", "3.000000"):
        say(log, ts)
    log.edit("1.000000", "better")
    log.delete("2.000000")
    context = Context(workspace, LANE)
    sync(log, context, workspace)
    texts = entry_texts(context.entries(after=None, limit=99))
    assert [text.splitlines()[1] for text in texts] == ["better", "text 3.000000"]
    log.edit("3.000000", "changed")
    assert sync(log, context, workspace) == Synced(0, 0)


def test_a_silent_reply_is_brought_into_no_context(workspace: Workspace, log: WatchedLog) -> None:
    say(log, "1.000000")
    log.append(NewMessage(text="[SILENT]", user="bot", is_bot=True, ts="2.000000", extra={"silent": True}))
    context = Context(workspace, LANE)
    sync(log, context, workspace)
    assert held(context) == ["1.000000"]


def test_what_a_pi_digby_context_holds_is_not_brought_again(workspace: Workspace, log: WatchedLog) -> None:
    say(log, "1.000000")
    say(log, "2.000000")
    context = Context(workspace, LANE)
    old = '<slack_message ts="1.000000" user="amy">\n[amy]: text 1.000000\n</slack_message>'
    context.append([UserMessage(content=[TextBlock(text=old)], timestamp=1)])
    assert sync(log, context, workspace) == Synced(1, 0)


# --- a limit and its memory -----------------------------------------------------------------------------------------------


def test_a_first_sync_brings_the_newest_and_says_how_many_stay_in_the_log(workspace: Workspace, log: WatchedLog) -> None:
    for n in range(1, 31):
        say(log, f"{n}.000000")
    say(log, "30.5", thread_ts="3.000000")
    context = Context(workspace, LANE)
    assert sync(log, context, workspace, limit=10) == Synced(added=10, omitted=20)
    assert held(context) == [f"{n}.000000" for n in range(21, 31)]
    first = entry_texts(context.entries(after=None, limit=1))[0]
    assert "20 older messages" in first
    assert "log.jsonl" in first
    assert context.marked == frozenset()


@pytest.mark.parametrize("lose", ["nothing", "memory", "memory and cache"])
def test_what_was_left_out_stays_out_and_what_comes_later_comes(workspace: Workspace, log: WatchedLog, lose: str) -> None:
    context = Context(workspace, LANE)
    for n in range(1, 31):
        say(log, f"{n}.000000")
    say(log, "50.000000")
    sync(log, context, workspace, "40.000000", limit=10)
    if lose != "nothing":
        context = Context(workspace, LANE)
    if lose == "memory and cache":
        (workspace.root / Workspace.sync_state(LANE)).unlink()
    log.edit("5.000000", "changed")
    say(log, "4.500000", "late")
    say(log, "51.000000")
    assert sync(log, context, workspace, limit=10) == Synced(3, 0)
    assert held(context)[10:] == ["4.500000", "50.000000", "51.000000"]


def test_a_fresh_context_after_archiving_begins_from_then_on(workspace: Workspace, log: WatchedLog) -> None:
    context = Context(workspace, LANE, clock=lambda: 100.0)
    for ts in ("1.000000", "2.000000"):
        say(log, ts)
    sync(log, context, workspace)
    context.archive()
    log.edit("1.000000", "changed")
    say(log, "3.000000", "back-filled later")
    say(log, "101.000000", thread_ts="2.000000")
    for each in (context, Context(workspace, LANE)):
        sync(log, each, workspace)
        assert held(each) == ["3.000000"]
        assert each.marked == frozenset()


def test_a_log_that_was_rewritten_does_not_bring_back_what_was_before_the_fresh_start(
    workspace: Workspace, log: WatchedLog
) -> None:
    context = Context(workspace, LANE, clock=lambda: 100.0)
    for n in range(1, 6):
        say(log, f"{n}.000000")
    context.archive()
    path = workspace.root / Workspace.log(C1)
    kept = path.read_bytes().split(b"\n")[2:]
    path.write_bytes(b"\n".join(kept))
    write(workspace, {"ts": "102.000000", "text": "new", "user": "U"})
    for each in (context, Context(workspace, LANE)):
        sync(log, each, workspace)
        assert held(each) == ["102.000000"]


# --- what it remembers ----------------------------------------------------------------------------------------------------


def fill(workspace: Workspace, count: int, start: int = 1) -> None:
    lines = [{"ts": f"{n}.000000", "text": "x" * 200, "user": "U"} for n in range(start, start + count)]
    write(workspace, *lines)


def test_a_later_sync_reads_only_what_is_new(workspace: Workspace, log: WatchedLog) -> None:
    fill(workspace, 500)
    context = Context(workspace, LANE)
    sync(log, context, workspace)
    say(log, "1000.000000")
    assert sync(log, context, workspace) == Synced(1, 0)
    assert log.read == [500, 1]


def test_another_process_goes_on_from_the_saved_state(workspace: Workspace, log: WatchedLog) -> None:
    fill(workspace, 500)
    sync(log, Context(workspace, LANE), workspace)
    assert (workspace.root / Workspace.sync_state(LANE)).is_file()
    say(log, "1000.000000")
    assert sync(log, Context(workspace, LANE), workspace) == Synced(1, 0)
    assert log.read == [500, 1]


@pytest.mark.parametrize("damage", [b"", b"{", b'{"log":4}', b'{"log":{"offset":99999999,"prefix":"x"}}', b"\xff\xfe", b"[]"])
def test_a_damaged_state_is_derived_again_from_the_context(workspace: Workspace, log: WatchedLog, damage: bytes) -> None:
    fill(workspace, 500)
    sync(log, Context(workspace, LANE), workspace)
    (workspace.root / Workspace.sync_state(LANE)).write_bytes(damage)
    say(log, "1000.000000")
    context = Context(workspace, LANE)
    assert sync(log, context, workspace) == Synced(1, 0)
    assert len(held(context)) == 501


def test_a_context_restored_from_an_older_copy_gets_what_it_lacks(workspace: Workspace, log: WatchedLog) -> None:
    path = workspace.root / Workspace.context(LANE)
    fill(workspace, 200)
    sync(log, Context(workspace, LANE), workspace)
    older = path.read_bytes()
    fill(workspace, 300, start=1001)
    context = Context(workspace, LANE)
    sync(log, context, workspace)
    path.write_bytes(older)
    for each in (context, Context(workspace, LANE)):
        sync(log, each, workspace)
        assert len(held(each)) == len(set(held(each))) == 500


def test_a_context_file_that_was_removed_is_filled_again(workspace: Workspace, log: WatchedLog) -> None:
    fill(workspace, 500)
    context = Context(workspace, LANE)
    sync(log, context, workspace)
    (workspace.root / Workspace.context(LANE)).unlink()
    assert sync(log, context, workspace) == Synced(500, 0)


def test_a_preview_gives_what_a_sync_would_append_and_writes_nothing(workspace: Workspace, log: WatchedLog) -> None:
    fill(workspace, 600)
    context = Context(workspace, LANE)
    before = {path: path.read_bytes() for path in workspace.root.rglob("*") if path.is_file()}
    previewed = preview_sync(log, context, workspace, current_ts=END)
    assert {path: path.read_bytes() for path in workspace.root.rglob("*") if path.is_file()} == before
    assert sync(log, context, workspace) == Synced(500, 100)
    appended = [entry.field("message") for entry in context.entries(after=None, limit=999) if entry.type == "message"]
    assert [message.to_json() for message in previewed] == appended


def test_what_was_decided_before_stays_decided_when_a_batch_of_older_messages_is_cut(
    workspace: Workspace, log: WatchedLog
) -> None:
    context = Context(workspace, LANE, clock=lambda: 5000.0)
    write(workspace, {"ts": "4000.0", "text": "before the fresh start", "user": "U"})
    context.archive()
    fill(workspace, 30)
    assert sync(log, context, workspace, limit=10) == Synced(10, 20)
    write(workspace, {"ts": "4000.0", "text": "edited", "edited": "now"})
    for each in (context, Context(workspace, LANE)):
        assert sync(log, each, workspace) == Synced(0, 0)


def test_the_cost_of_a_first_sync_grows_with_the_log_and_no_faster(workspace: Workspace) -> None:
    costs = []
    for name, count in (("small", 3_000), ("large", 18_000)):
        channel = ChannelId(name)
        lines = [{"ts": f"{n}.000000", "text": "x", "user": "U"} for n in range(1, count + 1)]
        write(workspace, *lines, channel=channel)
        start = time.process_time()
        sync(ChannelLog(workspace, channel), Context(workspace, Lane(channel)), workspace)
        costs.append(time.process_time() - start)
    assert costs[1] < 15 * costs[0]  # six times the lines; a quadratic step made it thirty


def test_one_sync_is_one_durable_append(workspace: Workspace, log: WatchedLog) -> None:
    fill(workspace, 50)
    context = Context(workspace, LANE)
    sync(log, context, workspace)
    stamps = {entry.timestamp for entry in context.entries(after=None, limit=99)}
    assert len(stamps) == 1


# --- any log, any number of steps -----------------------------------------------------------------------------------------

ROOTS = ["7.000000", "12.000000", "20.000000"]


@st.composite
def log_lines(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Raw lines in any order: threads, the bot, edits, deletions, duplicates; what changes a message follows it."""
    lines: list[dict[str, Any]] = []
    for number in draw(st.lists(st.integers(1, 40), max_size=25, unique=True)):
        ts = f"{number}.000000"
        line: dict[str, Any] = {"ts": ts, "user": "U", "text": draw(st.sampled_from(["yes", "no", f"text {ts}"]))}
        root = draw(st.sampled_from([None, None, *ROOTS]))
        if root is not None:
            line["threadTs"] = root
        if draw(st.integers(0, 3)) == 0:
            line |= {"user": "bot", "isBot": True}
        lines.append(line)
        for _ in range(draw(st.integers(0, 1))):
            kind = draw(st.sampled_from(["edit", "delete", "again"]))
            change = {"edit": {"ts": ts, "text": "edited", "edited": "now"}, "delete": {"ts": ts, "deleted": True}}.get(
                kind, line
            )
            lines.insert(draw(st.integers(lines.index(line) + 1, len(lines))), change)
    return lines


def snapshot(context: Context, log: ChannelLog) -> tuple[set[str], set[str]]:
    """(ts held, markers held), without what has been deleted since it was brought."""
    records = {ts: log.get(ts) for ts in context.synced}
    alive = {ts for ts, record in records.items() if record is not None and not record.deleted}
    return alive, {key for key in context.marked if key.partition(":")[2] in alive or key.startswith("boundary")}


def shown_ts(log: ChannelLog, lines: list[dict[str, Any]], lane: Lane, now: str) -> list[str]:
    records = [record for ts in {line["ts"] for line in lines} if (record := log.get(ts)) is not None]
    return [normal_ts(item.record.ts) for item in select_visible(records, lane, now) if isinstance(item, Shown)]


@given(
    lines=log_lines(),
    cuts=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 42), st.sampled_from(["keep", "restart", "lose"])), max_size=5),
    root=st.sampled_from([None, *ROOTS]),
    has_assistant=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_many_steps_come_to_the_same_as_one_and_nothing_is_lost_or_doubled(
    lines: list[dict[str, Any]],
    cuts: list[tuple[int, int, str]],
    root: str | None,
    has_assistant: bool,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        workspace = open_workspace(Path(folder))
        log, context = sync_in_steps(workspace, Lane(C1, root), lines, cuts, has_assistant=has_assistant)
        other_log, other = sync_at_once(workspace, Lane(ChannelId("C2"), root), lines, has_assistant=has_assistant)
        assert len(held(context)) == len(set(held(context)))
        alive, markers = snapshot(context, log)
        expected_alive, expected_markers = snapshot(other, other_log)
        assert alive == expected_alive
        bots = {line["ts"] for line in lines if line.get("isBot")}
        assert alive == set(shown_ts(log, lines, context.lane, "43.000000")) - (bots if has_assistant else set())
        assert markers >= expected_markers
        assert all(has_lost_its_replies(key, lines) for key in markers - expected_markers)


def sync_in_steps(
    workspace: Workspace,
    lane: Lane,
    lines: list[dict[str, Any]],
    cuts: list[tuple[int, int, str]],
    *,
    has_assistant: bool,
) -> tuple[ChannelLog, Context]:
    """Write the log piece by piece with a sync after each, now and then by a new process or without the saved state."""
    log, context, done = ChannelLog(workspace, C1), Context(workspace, lane), 0
    if has_assistant:
        answer(context)
    for cut, now, loss in [*sorted(cuts), (len(lines), 43, "lose"), (len(lines), 43, "keep")]:
        write(workspace, *lines[done:cut])
        done = max(done, min(cut, len(lines)))
        if loss != "keep":
            context = Context(workspace, lane)
        if loss == "lose":
            (workspace.root / Workspace.sync_state(lane)).unlink(missing_ok=True)
        before = len(held(context))
        sync(log, context, workspace, f"{now}.000000")
        brought = held(context)[before:]
        assert all(ts_key(ts) < now for ts in brought)
        assert brought == [ts for ts in shown_ts(log, lines[:done], lane, f"{now}.000000") if ts in brought]
    return log, context


def sync_at_once(
    workspace: Workspace,
    lane: Lane,
    lines: list[dict[str, Any]],
    *,
    has_assistant: bool,
) -> tuple[ChannelLog, Context]:
    write(workspace, *lines, channel=lane.channel)
    log, context = ChannelLog(workspace, lane.channel), Context(workspace, lane)
    if has_assistant:
        answer(context)
    sync(log, context, workspace, "43.000000")
    return log, context


def has_lost_its_replies(key: str, lines: list[dict[str, Any]]) -> bool:
    """Whether every reply that called for a marker was deleted: the marker may have been given before that."""
    replies = {line["ts"] for line in lines if thread_key(line.get("threadTs", "0")) == key and line["ts"] != line["threadTs"]}
    return replies <= {line["ts"] for line in lines if line.get("deleted")}


def test_the_state_file_is_plain_json_that_names_both_positions(workspace: Workspace, log: WatchedLog) -> None:
    fill(workspace, 500)
    context = Context(workspace, LANE)
    sync(log, context, workspace)
    state = json.loads((workspace.root / Workspace.sync_state(LANE)).read_text())
    assert state["log"]["offset"] == (workspace.root / Workspace.log(C1)).stat().st_size
    assert state["context"]["offset"] == (workspace.root / Workspace.context(LANE)).stat().st_size
