"""The agent loop over real stores with a scripted model: what is kept, what is said, how it ends when things go wrong."""

import asyncio
import json

import pytest
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from bot.agent import Assignment, run_agent
from bot.errors import ModelFailedError, TurnTimeoutError
from bot.message import Delta, ToolCalled, ToolReturned
from bot.stores import open_stores
from bot.tool import Bench
from persistence.settings import SettingsStore
from persistence.workspace import Lane, open_workspace, parse_channel_id
from tests.fakes.index import IdleIndexer, NothingFound


@pytest.fixture
def bench(tmp_path):
    workspace = open_workspace(tmp_path)
    stores = open_stores(workspace, SettingsStore(workspace), searcher=NothingFound(), indexer=IdleIndexer())
    return Bench(stores, Lane(parse_channel_id("general")), current_ts="100.000001")


async def run(stream, bench, *, timeout_s=10.0, warn_before_s=1.0):
    kept, events = [], []

    async def keep(message):
        kept.append(message)

    assignment = Assignment(
        model=FunctionModel(stream_function=stream),
        model_name="scripted/model",
        system="the system text",
        history=[],
        prompt=["hello"],
        timeout_s=timeout_s,
        warn_before_s=warn_before_s,
    )
    try:
        outcome = await run_agent(assignment, bench, keep=keep, emit=events.append)
    except (ModelFailedError, TurnTimeoutError, OSError) as err:
        return err, kept, events
    return outcome, kept, events


def call(name, arguments, call_id="c1"):
    return {0: DeltaToolCall(name=name, json_args=json.dumps(arguments), tool_call_id=call_id)}


def returned(messages):
    return [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


async def test_a_tool_is_called_and_its_result_goes_back_to_the_model(bench):
    async def stream(messages, info):
        assert info.instructions == "the system text"
        if not returned(messages):
            yield call("memory_append", {"text": "the port is 8443"})
            return
        yield "noted: "
        yield json.loads(returned(messages)[0].content)["source"]

    outcome, kept, events = await run(stream, bench)
    assert outcome.text == "noted: general/MEMORY.md#L1-L1"
    assert [message.role for message in kept] == ["assistant", "toolResult", "assistant"]
    assert kept[0].stop_reason == "toolUse"
    assert kept[0].provider == "scripted"
    assert [type(event) for event in events] == [ToolCalled, ToolReturned, Delta, Delta]
    assert (bench.stores.workspace.root / "general" / "MEMORY.md").read_text("utf-8") == "- the port is 8443\n"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("memory_read", {"path": "../../etc/passwd"}),
        ("memory_read", {"path": "ops/MEMORY.md"}),
        ("memory_read", {"path": ".recalld/VERSION"}),
        ("memory_read", {"path": "general/log.jsonl"}),
        ("topic_read", {"name": "../x"}),
        ("skill_read", {"name": "no-such-skill"}),
        ("topic_write", {"name": "a]b", "content": "x", "summary": "y"}),
    ],
)
async def test_what_a_tool_may_not_do_is_an_error_for_the_model_and_no_end_of_the_turn(bench, name, arguments):
    (bench.stores.workspace.root / "ops").mkdir()
    (bench.stores.workspace.root / "ops" / "MEMORY.md").write_text("not for general\n", "utf-8")

    async def stream(messages, info):
        if not returned(messages):
            yield call(name, arguments)
        else:
            yield returned(messages)[0].content

    outcome, _, _ = await run(stream, bench)
    assert "error" in json.loads(outcome.text)
    assert "not for general" not in outcome.text


async def test_arguments_of_another_shape_are_sent_back_to_the_model(bench):
    async def stream(messages, info):
        if not returned(messages):
            yield call("memory_append", {"note": 5})
        else:
            yield "sorry"

    outcome, kept, _ = await run(stream, bench)
    assert outcome.text == "sorry"
    assert kept[1].is_error


async def test_a_model_that_breaks_is_a_clear_error_and_what_was_kept_stays(bench):
    async def stream(messages, info):
        if not returned(messages):
            yield call("memory_append", {"text": "kept"})
        else:
            raise OSError("connection reset")
            yield

    err, kept, _ = await run(stream, bench)
    assert isinstance(err, ModelFailedError | OSError)
    assert [message.role for message in kept] == ["assistant", "toolResult"]


async def test_a_turn_that_takes_too_long_ends(bench):
    async def stream(messages, info):
        yield "well, "
        await asyncio.sleep(30)

    err, _, events = await run(stream, bench, timeout_s=0.2)
    assert isinstance(err, TurnTimeoutError)
    assert "run_timeout_s" in str(err)
    assert events == [Delta("well, ")]


async def test_the_model_is_told_before_its_time_is_over(bench):
    seen = []

    async def stream(messages, info):
        seen.append(str(messages[-1].parts))
        if not returned(messages):
            await asyncio.sleep(0.15)
            yield call("topic_list", {})
        else:
            yield "done"

    outcome, _, _ = await run(stream, bench, timeout_s=5, warn_before_s=4.9)
    assert outcome.text == "done"
    assert "time of this turn is nearly over" in seen[-1]
    assert "nearly over" not in seen[0]


async def test_a_model_that_never_stops_calling_tools_is_stopped(bench):
    async def stream(messages, info):
        yield call("topic_list", {}, f"c{len(messages)}")

    err, _, _ = await run(stream, bench, timeout_s=60)
    assert isinstance(err, ModelFailedError)
