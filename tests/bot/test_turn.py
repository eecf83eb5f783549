"""What a turn leaves behind when it is stopped in the middle, and how its replies cite."""

import asyncio
import threading

import pytest

from bot.message import Citation, Passage
from bot.reply import find_citations, reply_of
from bot.turn import in_thread
from persistence.records import LogRecord


async def test_a_stopped_caller_waits_for_its_thread():
    began, go_on, done = threading.Event(), threading.Event(), []

    def work():
        began.set()
        go_on.wait(10)
        done.append(True)

    task = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(began.wait, 10)
    task.cancel()
    await asyncio.sleep(0.05)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [True]


def test_only_places_that_the_model_was_shown_are_citations():
    seen = [Passage("ops/MEMORY.md", 2, 5, 0.9, "…")]
    text = "See ops/MEMORY.md#L3-L4, (ops/MEMORY.md#L5), ops/MEMORY.md#L5-L9 and made/up.md#L1-L1; ops/MEMORY.md#L3-L4 again."
    assert find_citations(text, seen) == (Citation("ops/MEMORY.md", 3, 4), Citation("ops/MEMORY.md", 5, 5))


def test_a_reply_is_read_back_as_it_was_given():
    line = {
        "ts": "5.000001",
        "user": "bot",
        "isBot": True,
        "text": "yes",
        "model": "builtin/recall",
        "usage": {"input": 3, "output": 2},
        "stopReason": "stop",
        "citations": [{"path": "a.md", "startLine": 1, "endLine": 2}],
    }
    reply = reply_of(LogRecord.model_validate(line))
    assert (reply.ts, reply.text, reply.silent, reply.stop_reason) == ("5.000001", "yes", False, "stop")
    assert reply.citations == (Citation("a.md", 1, 2),)
    assert (reply.usage.input, reply.usage.output) == (3, 2)


def test_a_silent_reply_has_no_ts():
    assert reply_of(LogRecord.model_validate({"ts": "5.0", "text": "", "silent": True})).ts is None
