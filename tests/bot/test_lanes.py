"""Lanes over real logs: order, batching, idempotence, stopping, limits. The turn itself is scripted here."""

import asyncio

import pytest

from bot.errors import LaneFullError, ModelFailedError
from bot.lanes import Lanes
from bot.message import Accepted, IncomingMessage, Replied, Reply, TokenUsage, Turn
from bot.stores import open_stores
from persistence.errors import MessageConflictError
from persistence.log import NewMessage
from persistence.settings import SettingsStore
from persistence.workspace import open_workspace, parse_channel_id
from tests.fakes.index import IdleIndexer, NothingFound

CHANNEL = parse_channel_id("general")


@pytest.fixture
def stores(tmp_path):
    workspace = open_workspace(tmp_path)
    return open_stores(workspace, SettingsStore(workspace), searcher=NothingFound(), indexer=IdleIndexer())


class ScriptedTurns:
    """Turns that answer with what they were asked, log it, and wait while `gate` is closed."""

    def __init__(self, stores):
        self.stores = stores
        self.gate = asyncio.Event()
        self.gate.set()
        self.batches = []
        self.running = 0
        self.most_running = 0
        self.fail_with = None

    async def __call__(self, lane, records, emit):
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.batches.append([record.text for record in records])
        try:
            await self.gate.wait()
            if self.fail_with is not None:
                raise self.fail_with
            return self.reply(lane, records)
        finally:
            self.running -= 1

    def reply(self, lane, records):
        text = "+".join(record.text for record in records)
        line = self.stores.log(lane.channel).append(
            NewMessage(
                text=text,
                user="bot",
                is_bot=True,
                thread_ts=lane.thread_ts,
                reply_to=records[-1].ts,
                answers=tuple(record.ts for record in records),
            ),
        )
        reply = Reply(line.record.ts, text, silent=False, citations=(), model="scripted", usage=TokenUsage(), stop_reason="stop")
        return Replied(reply, Turn("t", 0, 0, compacted=False, recall=(), timings_ms={}))


@pytest.fixture
def turns(stores):
    return ScriptedTurns(stores)


@pytest.fixture
def lanes(stores, turns):
    return Lanes(stores, turns, limit=5)


def message(text, **fields):
    return IncomingMessage(channel=CHANNEL, text=text, user="amy", **fields)


def texts(stores):
    return [record.text for record in stores.log(CHANNEL).page(limit=100)]


async def settle(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_message_is_in_the_log_before_its_turn_runs(stores, turns, lanes):
    turns.gate.clear()
    heard = []
    task = asyncio.create_task(lanes.submit(message("one"), heard.append))
    await settle(lambda: turns.running == 1)
    assert texts(stores) == ["one"]
    assert isinstance(heard[0], Accepted)
    turns.gate.set()
    assert (await task).reply.text == "one"


async def test_messages_of_a_busy_lane_are_logged_at_once_and_answered_together(stores, turns, lanes):
    turns.gate.clear()
    tasks = [asyncio.create_task(lanes.submit(message("first")))]
    await settle(lambda: turns.running == 1)
    for text in ("second", "third"):
        tasks.append(asyncio.create_task(lanes.submit(message(text))))
        await settle(lambda text=text: text in texts(stores))
    turns.gate.set()
    answers = await asyncio.gather(*tasks)
    assert turns.batches == [["first"], ["second", "third"]]
    assert [answer.reply.text for answer in answers] == ["first", "second+third", "second+third"]


async def test_a_lane_is_serial_and_lanes_run_side_by_side(turns, lanes):
    turns.gate.clear()
    tasks = [asyncio.create_task(lanes.submit(message("x", thread_ts=f"{number}.0"))) for number in range(1, 4)]
    tasks += [asyncio.create_task(lanes.submit(message("y"))) for _ in range(3)]
    await settle(lambda: turns.running == 4)
    turns.gate.set()
    await asyncio.gather(*tasks)
    assert turns.most_running == 4


async def test_a_retry_gets_the_same_reply_and_appends_nothing(stores, lanes):
    first = await lanes.submit(message("hello", ts="100.000001"))
    again = await lanes.submit(message("hello", ts="100.000001"))
    assert again.replayed
    assert (again.reply.ts, again.reply.text) == (first.reply.ts, first.reply.text)
    assert len(texts(stores)) == 2


async def test_a_retry_of_a_key_gets_the_same_reply(stores, lanes):
    await lanes.submit(message("hello", key="k-1"))
    assert (await lanes.submit(message("hello", key="k-1"))).replayed
    assert len(texts(stores)) == 2


async def test_a_retry_while_the_turn_runs_waits_for_that_turn(stores, turns, lanes):
    turns.gate.clear()
    first = asyncio.create_task(lanes.submit(message("hello", ts="100.000001")))
    await settle(lambda: turns.running == 1)
    again = asyncio.create_task(lanes.submit(message("hello", ts="100.000001")))
    await asyncio.sleep(0.05)
    turns.gate.set()
    assert (await first).reply.ts == (await again).reply.ts
    assert len(turns.batches) == 1


async def test_a_retry_of_a_message_whose_turn_never_ended_gets_a_turn(stores, turns, lanes):
    stores.log(CHANNEL).append(NewMessage(text="hello", user="amy", ts="100.000001"))
    answered = await lanes.submit(message("hello", ts="100.000001"))
    assert answered.reply.text == "hello"
    assert turns.batches == [["hello"]]


async def test_another_text_under_the_same_ts_is_a_conflict(lanes):
    await lanes.submit(message("hello", ts="100.000001"))
    with pytest.raises(MessageConflictError):
        await lanes.submit(message("other", ts="100.000001"))


async def test_two_equal_texts_are_two_messages(stores, lanes):
    await lanes.submit(message("yes"))
    await lanes.submit(message("yes"))
    assert [text for text in texts(stores) if text == "yes"] == ["yes"] * 4  # two messages, two replies


async def test_a_full_lane_refuses_before_it_writes(stores, turns, lanes):
    turns.gate.clear()
    tasks = [asyncio.create_task(lanes.submit(message("running")))]
    await settle(lambda: turns.running == 1)
    tasks += [asyncio.create_task(lanes.submit(message(f"waiting {number}"))) for number in range(5)]
    await settle(lambda: len(texts(stores)) == 6)
    with pytest.raises(LaneFullError):
        await lanes.submit(message("one too many"))
    assert "one too many" not in texts(stores)
    turns.gate.set()
    await asyncio.gather(*tasks)
    assert lanes.busy == 0


async def test_a_caller_that_goes_away_does_not_stop_the_turn(stores, turns, lanes):
    turns.gate.clear()
    task = asyncio.create_task(lanes.submit(message("hello")))
    await settle(lambda: turns.running == 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    turns.gate.set()
    await settle(lambda: len(texts(stores)) == 2)


async def test_a_failed_turn_is_everyone_s_error_and_the_lane_goes_on(turns, lanes):
    turns.fail_with = ModelFailedError("no")
    with pytest.raises(ModelFailedError):
        await lanes.submit(message("hello"))
    turns.fail_with = None
    assert (await lanes.submit(message("again"))).reply.text == "again"


async def test_an_unforeseen_error_ends_the_turn_visibly(turns, lanes, capsys):
    turns.fail_with = ZeroDivisionError("oops")
    with pytest.raises(ModelFailedError, match="ZeroDivisionError"):
        await lanes.submit(message("hello"))
    assert (await asyncio.wait_for(asyncio.gather(lanes.submit(message("x")), return_exceptions=True), 5))[0] is not None


async def test_a_stopped_turn_ends_with_a_visible_reply(stores, turns, lanes):
    turns.gate.clear()
    task = asyncio.create_task(lanes.submit(message("hello")))
    await settle(lambda: turns.running == 1)
    assert await lanes.stop(message("").lane)
    answered = await task
    assert (answered.reply.text, answered.reply.stop_reason) == ("Stopped.", "aborted")
    assert texts(stores) == ["hello", "Stopped."]


async def test_stopping_an_idle_lane_is_no_error(lanes):
    assert not await lanes.stop(message("").lane)


async def test_closing_lets_running_turns_end(stores, turns, lanes):
    turns.gate.clear()
    task = asyncio.create_task(lanes.submit(message("hello")))
    await settle(lambda: turns.running == 1)
    closing = asyncio.create_task(lanes.close(5))
    await asyncio.sleep(0.02)
    turns.gate.set()
    await closing
    assert (await task).reply.text == "hello"


async def test_closing_stops_what_takes_too_long_and_keeps_the_message(stores, turns, lanes):
    turns.gate.clear()
    task = asyncio.create_task(lanes.submit(message("hello")))
    await settle(lambda: turns.running == 1)
    await lanes.close(0.05)
    with pytest.raises(ModelFailedError):
        await task
    assert texts(stores) == ["hello"]


async def test_work_on_a_context_waits_for_the_lane_s_turn(turns, lanes):
    turns.gate.clear()
    order = []
    task = asyncio.create_task(lanes.submit(message("hello")))
    await settle(lambda: turns.running == 1)

    async def note():
        order.append("alone")

    alone = asyncio.create_task(lanes.run_alone(message("").lane, note))
    await asyncio.sleep(0.05)
    assert order == []
    turns.gate.set()
    await asyncio.gather(task, alone)
    assert order == ["alone"]
    assert lanes.busy == 0
