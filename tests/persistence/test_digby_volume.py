"""A volume that a pi-digby bot wrote opens with nothing lost, and stays byte for byte what it was but for what a turn appends."""

import json
from pathlib import Path

import pytest

from persistence.context import Context
from persistence.log import ChannelLog, NewMessage
from persistence.records import (
    AssistantMessage,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultMessage,
    UserMessage,
)
from persistence.settings import SettingsStore
from persistence.skills import load_skills
from persistence.sync import Synced, sync_log_to_context
from persistence.workspace import ChannelId, Lane, Workspace, open_workspace
from persistence.wrapper import wrap_message
from tests.persistence.digby import CHANNEL, LINEAR, ROOT_TS, TORN_CONTEXT, TORN_LOG, make_digby_volume

TEAM, ISSUE = ChannelId(CHANNEL), ChannelId(LINEAR)
NOW = 1_764_500_000.0
TS = "1764500000.000000"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    make_digby_volume(tmp_path)
    return open_workspace(tmp_path)


def files(workspace: Workspace) -> dict[str, bytes]:
    """Every file but the machine's own."""
    found = {path.relative_to(workspace.root).as_posix(): path for path in workspace.root.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if not name.startswith(".recalld/")}


def take_turn(workspace: Workspace, lane: Lane) -> Synced:
    """What one turn writes: the message, what the log has for the context, the model's messages, the reply."""
    log, context = ChannelLog(workspace, lane.channel, clock=lambda: NOW), Context(workspace, lane, clock=lambda: NOW)
    asked = log.append(NewMessage(text="and now?", user="U1", ts=TS, thread_ts=lane.thread_ts)).record
    synced = sync_log_to_context(log, context, workspace, current_ts=asked.ts)
    context.append([UserMessage(content=[TextBlock(text=wrap_message(asked))], timestamp=1)])
    context.append([AssistantMessage(content=[TextBlock(text="now")], timestamp=2)])
    log.append(NewMessage(text="now", user="bot", is_bot=True, thread_ts=lane.thread_ts, reply_to=asked.ts))
    return synced


def test_its_channels_are_found(workspace: Workspace) -> None:
    assert list(workspace.channels()) == [CHANNEL, LINEAR]


def test_every_message_of_its_logs_is_read_with_unknown_fields_and_bad_lines_are_counted(workspace: Workspace) -> None:
    log = ChannelLog(workspace, TEAM)
    texts = [record.text for record in log.page(limit=99)]
    expected = ["hällo 👋 team", "hello", "when do we deploy?", "line\u2028separator", "on Tuesdays", "in another thread"]
    assert texts == [*expected, "thanks", "thanks"]
    assert log.stats().bad_lines == 2
    reply = log.get("1700000110.000100")
    assert reply is not None
    assert (reply.model_extra or {})["blocks"] == {"a": [None, 1.5]}
    assert reply.root_ts == ROOT_TS
    assert [record.text for record in ChannelLog(workspace, ISSUE).page(limit=99)] == ["please look at this issue", "done"]


def test_every_entry_of_its_contexts_is_read(workspace: Workspace) -> None:
    context = Context(workspace, Lane(TEAM))
    entries = context.entries(after=None, limit=99)
    assert [entry.id for entry in entries] == [f"{n:08x}" for n in range(1, 11)]
    assert entries[4].field("payload") == {"of": "the future"}
    assert context.bad_lines == 1
    assert context.has_assistant
    assert len(Context(workspace, Lane(TEAM, ROOT_TS)).entries(after=None, limit=99)) == 2
    assert [entry.type for entry in Context(workspace, Lane(ISSUE)).entries(after=None, limit=99)] == ["message"]


def test_a_model_gets_the_summary_the_kept_entries_and_a_result_for_each_call(workspace: Workspace) -> None:
    log = ChannelLog(workspace, TEAM)
    messages: list[Message] = Context(workspace, Lane(TEAM)).build_messages(budget_tokens=10_000, lookup=log.get).messages
    kinds = [type(message).__name__ for message in messages]
    assert kinds == [
        "UserMessage",
        "UserMessage",
        "AssistantMessage",
        "ToolResultMessage",
        "AssistantMessage",
        "ToolResultMessage",
    ]
    summary, _, first, found, second, made = messages
    assert isinstance(summary, UserMessage)
    assert summary.content == [TextBlock(text="[Summary of the conversation before this point]\nThey said hello.")]
    assert isinstance(first, AssistantMessage)
    assert isinstance(first.content[0], ThinkingBlock)
    assert (first.content[0].model_extra or {})["thinkingSignature"] == "sig=="
    assert first.content[1] == ToolCallBlock(id="call_1", name="bash", arguments={"cmd": "ls", "n": None})
    assert (first.model, first.usage.total_tokens, (first.usage.model_extra or {})["tier"]) == ("claude", 16, "x")
    assert isinstance(found, ToolResultMessage)
    assert not found.is_error
    assert isinstance(second, AssistantMessage)
    assert isinstance(made, ToolResultMessage)
    assert (made.tool_call_id, made.is_error) == ("call_2", True)


def test_its_skills_are_found_and_a_broken_one_hides_no_sibling(workspace: Workspace) -> None:
    skills = load_skills(workspace, TEAM)
    assert [skill.name for skill in skills.items] == ["deploy"]
    assert [problem.path for problem in skills.problems] == ["skills/broken/SKILL.md"]


def test_its_settings_are_read_in_its_own_spelling(workspace: Workspace) -> None:
    values = SettingsStore(workspace).load().values
    assert values.model == "anthropic/claude"
    assert values.reply_behaviour == {CHANNEL: "thread"}


@pytest.mark.parametrize("lane", [Lane(TEAM), Lane(TEAM, ROOT_TS)], ids=["channel", "thread"])
def test_a_turn_only_appends(workspace: Workspace, lane: Lane) -> None:
    before = files(workspace)
    take_turn(workspace, lane)
    after = files(workspace)
    written = {Workspace.log(TEAM), Workspace.context(lane)}
    assert after.keys() == before.keys()
    assert {name for name in before if after[name] != before[name]} == written
    for name in written:
        assert after[name].startswith(before[name])
        assert len(after[name]) > len(before[name])


def test_reading_writes_nothing(workspace: Workspace) -> None:
    before = files(workspace)
    for lane in (Lane(TEAM), Lane(TEAM, ROOT_TS), Lane(ISSUE)):
        log = ChannelLog(workspace, lane.channel)
        log.page(limit=99)
        Context(workspace, lane).build_messages(budget_tokens=10_000, lookup=log.get)
    assert files(workspace) == before


def test_a_turn_brings_what_the_channels_context_lacks(workspace: Workspace) -> None:
    assert take_turn(workspace, Lane(TEAM)) == Synced(added=3, omitted=0)
    lines = [json.loads(line) for line in files(workspace)[Workspace.context(Lane(TEAM))].split(b"\n")[13:-1]]
    texts = [line["message"]["content"][0]["text"] for line in lines]
    assert [text.split(' user="')[0].split(" bot_replied")[0] for text in texts] == [
        '<thread root_ts="1700000010.000100"',
        '<message ts="1700000100.000100"',
        '<thread root_ts="1700000100.000100"',
        '<message ts="1700000140.000100"',
        '<message ts="1700000150.000100"',
        f'<message ts="{TS}"',
        "now",
    ]
    assert lines[0]["parentId"] == "0000000a"


def test_torn_tails_are_kept_in_place_and_aside(workspace: Workspace) -> None:
    take_turn(workspace, Lane(TEAM))
    after = files(workspace)
    assert f"{TORN_LOG}\n".encode() in after[Workspace.log(TEAM)]
    assert f"{TORN_CONTEXT}\n".encode() in after[Workspace.context(Lane(TEAM))]
    aside = {path.read_text() for path in (workspace.root / ".recalld/quarantine").iterdir()}
    assert aside == {TORN_LOG, TORN_CONTEXT}


def test_a_context_of_version_1_is_migrated_by_the_first_turn_with_its_bytes_kept(workspace: Workspace) -> None:
    name = Workspace.context(Lane(ISSUE))
    before = files(workspace)[name]
    take_turn(workspace, Lane(ISSUE))
    kept = [
        path.read_bytes()
        for path in (workspace.root / ".recalld/versions").rglob("*")
        if path.is_file() and path.suffix != ".json"
    ]
    assert kept == [before]
    texts = [entry.field("message")["content"] for entry in Context(workspace, Lane(ISSUE)).entries(after=None, limit=2)]
    assert texts[0] == "from version 1"
