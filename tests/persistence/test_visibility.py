"""What a lane may see of a log: the worked example of the format, and the rules on generated logs."""

from hypothesis import given
from hypothesis import strategies as st

from persistence.records import LogRecord
from persistence.visibility import Boundary, Shown, ThreadMarker, Visible, concerns, root_of, select_visible
from persistence.workspace import ChannelId, Lane, ts_key

C1 = ChannelId("C1")
CHANNEL = Lane(C1)


def thread(root_ts: str) -> Lane:
    return Lane(C1, root_ts)


def said(ts: str, user: str = "amy", root: str | None = None, **more: object) -> LogRecord:
    return LogRecord.model_validate({"ts": ts, "user": user, "threadTs": root, "text": f"{user} at {ts}", **more})


def names(seen: list[Visible]) -> list[str]:
    """Shown messages by ts, markers as marker(root), the boundary as it is called."""
    found = []
    for item in seen:
        match item:
            case Shown(record):
                found.append(record.ts)
            case ThreadMarker(root_ts):
                found.append(f"marker({root_ts})")
            case Boundary():
                found.append("boundary")
    return found


EXAMPLE = [
    said("90.000000", "amy"),
    said("100.000000", "tom"),
    said("110.000000", "sam"),
    said("120.000000", "zoe", "100.000000"),
    said("125.000000", "ivy", "105.000000"),
    said("130.000000", "tom", "100.000000"),
    said("140.000000", "zoe", "100.000000"),
]


def test_the_worked_example_of_the_format() -> None:
    in_thread = select_visible(EXAMPLE, thread("100.000000"), "130.000000")
    assert names(in_thread) == ["90.000000", "boundary", "100.000000", "120.000000"]
    in_channel = select_visible(EXAMPLE, CHANNEL, "120.5")
    assert names(in_channel) == ["90.000000", "100.000000", "marker(100.000000)", "110.000000"]


def test_a_marker_says_whether_the_bot_replied_before_the_current_message() -> None:
    log = [said("1.0"), said("2.0", "tom", "1.0"), said("3.0", "bot", "1.0", isBot=True), said("4.0")]
    assert select_visible(log, CHANNEL, "3.0")[1] == ThreadMarker("1.0", bot_replied=False)
    assert select_visible(log, CHANNEL, "3.5")[1] == ThreadMarker("1.0", bot_replied=True)


def test_a_thread_whose_replies_all_come_later_has_no_marker_yet() -> None:
    assert names(select_visible([said("1.0"), said("5.0", "tom", "1.0")], CHANNEL, "5.0")) == ["1.0"]


def test_ts_compare_as_decimals_not_as_text_or_floats() -> None:
    log = [said("10.000000"), said("9.5"), said("1764500000.0000001"), said("1764500000.0000002")]
    assert names(select_visible(log, CHANNEL, "1764500000.0000002")) == ["9.5", "10.000000", "1764500000.0000001"]


def test_a_reply_to_itself_is_a_root() -> None:
    log = [said("1.0", root="1.0"), said("2.0", root="1.000000"), said("3.0", root="3.000")]
    assert names(select_visible(log, CHANNEL, "9")) == ["1.0", "marker(1.0)", "3.0"]
    assert names(select_visible(log, thread("1.0"), "9")) == ["boundary", "1.0", "2.0"]


def test_an_unusable_thread_ts_counts_as_absent() -> None:
    assert root_of(said("1.0", root="nonsense")) is None
    assert root_of(said("1.0", root="")) is None


def test_a_thread_sees_people_before_its_root_but_not_the_bot() -> None:
    log = [said("1.0"), said("2.0", "bot", isBot=True), said("3.0", "tom"), said("3.5", "bot", "3.0", isBot=True), said("4.0")]
    assert names(select_visible(log, thread("3.0"), "9")) == ["1.0", "boundary", "3.0", "3.5"]


def test_a_thread_on_the_bots_own_message_begins_with_it() -> None:
    log = [said("1.0"), said("2.0", "bot", isBot=True), said("3.0", "tom", "2.0")]
    assert names(select_visible(log, thread("2.0"), "9")) == ["1.0", "boundary", "2.0", "3.0"]


def test_the_root_comes_before_a_reply_that_claims_to_be_older() -> None:
    log = [said("4.0", "tom", "5.0"), said("5.0")]
    assert names(select_visible(log, thread("5.0"), "9")) == ["boundary", "5.0", "4.0"]


def test_the_current_message_is_not_among_what_is_seen_even_if_it_is_the_root() -> None:
    assert names(select_visible([said("1.0"), said("2.0")], thread("2.0"), "2.0")) == ["1.0", "boundary"]


def test_deleted_and_silent_messages_are_seen_by_nobody() -> None:
    log = [said("1.0", deleted=True), said("2.0", "bot", isBot=True, silent=True), said("3.0"), said("4.0", root="1.0")]
    assert names(select_visible(log, CHANNEL, "9")) == ["3.0"]
    assert names(select_visible(log, thread("1.0"), "9")) == ["boundary", "4.0"]


TS = st.integers(1, 60).map(lambda n: f"{n // 2}.{'5' if n % 2 else '000000'}")


@st.composite
def logs(draw: st.DrawFn) -> list[LogRecord]:
    records = {}
    for ts in draw(st.lists(TS, max_size=25, unique=True)):
        root = draw(st.none() | st.sampled_from(["3.000000", "7.000000", "11.5"]))
        bot = draw(st.booleans())
        flags = draw(st.sampled_from([{}, {}, {}, {"deleted": True}, {"silent": True}]))
        records[ts] = said(ts, "bot" if bot else "amy", root, isBot=bot, **flags)
    return draw(st.permutations(list(records.values())))


LANES = st.sampled_from([CHANNEL, thread("3.000000"), thread("7.000000"), thread("11.5")])


@given(logs(), LANES, TS)
def test_no_lane_sees_the_future_or_another_thread_or_anything_twice(log: list[LogRecord], lane: Lane, now: str) -> None:
    seen = select_visible(log, lane, now)
    records = [item.record for item in seen if isinstance(item, Shown)]
    assert all(ts_key(record.ts) < ts_key(now) for record in records)
    assert len(names(seen)) == len(set(names(seen)))
    roots = {root_of(record) for record in records} - {None}
    assert roots <= ({lane.thread_ts} if lane.thread_ts else set())


@given(logs(), LANES, TS)
def test_what_is_seen_is_in_the_order_of_time(log: list[LogRecord], lane: Lane, now: str) -> None:
    seen = select_visible(log, lane, now)
    keys = [ts_key(item.record.ts) for item in seen if isinstance(item, Shown) and item.record.ts != lane.thread_ts]
    if lane.thread_ts is None:
        assert keys == sorted(keys)
        return
    boundary = next(at for at, item in enumerate(seen) if isinstance(item, Boundary))
    before = [ts_key(item.record.ts) for item in seen[:boundary] if isinstance(item, Shown)]
    assert before == sorted(before)
    assert all(key < ts_key(lane.thread_ts) for key in before)
    assert keys[len(before) :] == sorted(keys[len(before) :])


@given(logs(), LANES)
def test_each_message_a_channel_may_ever_show_is_seen_once_its_time_has_come(log: list[LogRecord], lane: Lane) -> None:
    shown = {item.record.ts for item in select_visible(log, lane, "999") if isinstance(item, Shown)}
    assert shown == {each.ts for each in log if concerns(each, lane) and (lane.thread_ts or root_of(each) is None)}


@given(logs(), TS)
def test_a_marker_stands_right_after_its_root_and_only_where_there_are_replies(log: list[LogRecord], now: str) -> None:
    seen = select_visible(log, CHANNEL, now)
    for before, item in zip([None, *seen], seen, strict=False):
        if isinstance(item, ThreadMarker):
            assert isinstance(before, Shown)
            assert before.record.ts == item.root_ts
            replies = [r for r in log if root_of(r) == item.root_ts and ts_key(r.ts) < ts_key(now) and concerns(r, CHANNEL)]
            assert replies
            assert item.bot_replied == any(reply.is_bot for reply in replies)
