"""A lane's context file: what is appended stays, what is read of it, and what a model is given."""

import json
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistence.context import Context
from persistence.contexts.messages import MAX_TOOL_RESULT_BYTES, ModelMessages, build_model_messages, estimate_tokens
from persistence.contexts.tree import EntryTree
from persistence.errors import ContextUnsupportedError, NotFoundError, UnsafeObjectError
from persistence.records import (
    AssistantMessage,
    LogRecord,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultMessage,
    Usage,
    UserMessage,
    encode_line,
)
from persistence.workspace import ChannelId, Lane, Workspace, open_workspace
from persistence.wrapper import wrap_message

C1 = ChannelId("C1")
LANE = Lane(C1)
BIG = 1_000_000
STAMP = "2025-01-01T00:00:00.000Z"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace(tmp_path)


def nothing(_ts: str) -> None:
    return None


def user(text: str) -> UserMessage:
    return UserMessage(content=[TextBlock(text=text)], timestamp=1)


def assistant(text: str = "", *calls: str) -> AssistantMessage:
    blocks = [*([TextBlock(text=text)] if text else []), *(ToolCallBlock(id=call, name="look") for call in calls)]
    return AssistantMessage(content=blocks, timestamp=2, provider="p", model="m")


def result(call: str, text: str = "found") -> ToolResultMessage:
    return ToolResultMessage(tool_call_id=call, tool_name="look", content=[TextBlock(text=text)], timestamp=3)


def path_of(workspace: Workspace, lane: Lane = LANE) -> Path:
    return workspace.root / Workspace.context(lane)


def put(workspace: Workspace, lines: Sequence[dict[str, Any] | bytes], *, version: int | None = 3) -> Path:
    """Write a context file: dicts as JSON lines, bytes as they are (with a newline)."""
    path = path_of(workspace)
    path.parent.mkdir(parents=True, exist_ok=True)
    header = [] if version is None else [{"type": "session", "version": version, "id": "s", "timestamp": STAMP, "cwd": "/"}]
    path.write_bytes(b"".join(each + b"\n" if isinstance(each, bytes) else encode_line(each) for each in [*header, *lines]))
    return path


def entry(entry_id: str, parent: str | None, kind: str = "message", **more: object) -> dict[str, Any]:
    return {"type": kind, "id": entry_id, "parentId": parent, "timestamp": STAMP, **more}


def user_entry(entry_id: str, parent: str | None, text: str) -> dict[str, Any]:
    return entry(entry_id, parent, message={"role": "user", "content": text, "timestamp": 1})


def chain(*texts: str) -> list[dict[str, Any]]:
    """User messages, each the child of the one before; ids are a0, a1, ..."""
    return [user_entry(f"a{at}", f"a{at - 1}" if at else None, text) for at, text in enumerate(texts)]


def texts(built: ModelMessages | Sequence[Message]) -> list[str]:
    messages = built.messages if isinstance(built, ModelMessages) else built
    return [
        message.content
        if isinstance(message.content, str)
        else "|".join(block.text for block in message.content if isinstance(block, TextBlock))
        for message in messages
    ]


def build(workspace: Workspace, budget: int = BIG, lookup: Any = nothing) -> ModelMessages:
    return Context(workspace, LANE).build_messages(budget_tokens=budget, lookup=lookup)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line.strip()]


# --- appending ------------------------------------------------------------------------------------------------------------


def test_a_new_file_begins_with_a_session_header_and_chains_its_entries(workspace: Workspace) -> None:
    context = Context(workspace, LANE, clock=lambda: 1764500000.25)
    first = context.append([user("hi"), assistant("hello")])
    second = context.append([user("more")])
    header, *entries = lines_of(path_of(workspace))
    assert header["type"] == "session"
    assert header["version"] == 3
    assert header["timestamp"] == "2025-11-30T10:53:20.250Z"
    assert [each["id"] for each in entries] == first + second
    assert [each["parentId"] for each in entries] == [None, *first, *second][:3]
    assert all(len(each["id"]) == 8 and int(each["id"], 16) >= 0 for each in entries)
    assert entries[0]["message"] == {"role": "user", "content": [{"type": "text", "text": "hi"}], "timestamp": 1}


def test_appending_nothing_makes_no_file(workspace: Workspace) -> None:
    assert Context(workspace, LANE).append([]) == []
    assert not path_of(workspace).exists()


def test_a_thread_lane_has_a_file_of_its_own(workspace: Workspace) -> None:
    Context(workspace, Lane(C1, "100.000000")).append([user("hi")])
    assert (workspace.root / "C1/threads/100.000000/context.jsonl").is_file()
    assert not path_of(workspace).exists()


def test_old_bytes_stay_and_a_torn_tail_is_sealed_before_the_next_entry(workspace: Workspace) -> None:
    path = put(workspace, chain("one"))
    torn = path.read_bytes() + b'{"type":"message","id":"torn'
    path.write_bytes(torn)
    ids = Context(workspace, LANE).append([user("two")])
    assert path.read_bytes().startswith(torn + b"\n")
    assert json.loads(path.read_bytes().split(b"\n")[-2])["parentId"] == "a0"
    assert texts(build(workspace)) == ["one", "two"]
    assert Context(workspace, LANE).entries(after="a0", limit=9)[0].id == ids[0]
    assert list((workspace.root / ".recalld/quarantine").iterdir())


def test_an_entry_that_only_lacks_its_newline_counts(workspace: Workspace) -> None:
    path = put(workspace, chain("one", "two"))
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    Context(workspace, LANE).append([user("three")])
    assert texts(build(workspace)) == ["one", "two", "three"]


def test_a_file_that_holds_only_a_torn_header_gets_a_header_of_its_own(workspace: Workspace) -> None:
    path = path_of(workspace)
    path.parent.mkdir()
    path.write_bytes(b'{"type":"sess')
    Context(workspace, LANE).append([user("one")])
    assert [json.loads(line)["type"] for line in path.read_bytes().split(b"\n")[1:-1]] == ["session", "message"]
    assert texts(build(workspace)) == ["one"]


def test_what_another_context_of_the_lane_appended_is_the_next_ones_parent(workspace: Workspace) -> None:
    mine, theirs = Context(workspace, LANE), Context(workspace, LANE)
    mine.append([user("one")])
    their_ids = theirs.append([user("x" * 200_000)])  # a line longer than the tail that an append reads
    mine.append([user("three")])
    assert lines_of(path_of(workspace))[-1]["parentId"] == their_ids[-1]


def _append_many(root: str, start: Any, count: int) -> None:
    context = Context(Workspace(Path(root)), LANE)
    start.wait()
    for _ in range(count):
        context.append([user("one"), assistant("two")])


def test_processes_that_append_at_once_make_one_chain(workspace: Workspace) -> None:
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(3)
    processes = [spawn.Process(target=_append_many, args=(str(workspace.root), start, 20)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    headers = [each for each in lines_of(path_of(workspace)) if each["type"] == "session"]
    entries = lines_of(path_of(workspace))[1:]
    assert len(headers) == 1
    assert len(entries) == 120
    assert [each["parentId"] for each in entries] == [None, *(each["id"] for each in entries[:-1])]


def test_a_tool_result_is_cut_to_51200_bytes_and_says_so(workspace: Workspace) -> None:
    long = "é" * 40_000
    Context(workspace, LANE).append([assistant("", "c1"), result("c1", long), assistant("", "c2"), result("c2", "x" * 51_200)])
    stored = [each["message"]["content"] for each in lines_of(path_of(workspace))[1:] if each["message"]["role"] == "toolResult"]
    text = stored[0][0]["text"]
    assert len(text.encode()) <= MAX_TOOL_RESULT_BYTES == 51_200
    assert len(text.encode()) > 51_000
    assert text.splitlines()[-1].startswith("[cut: ")
    assert text.splitlines()[-1].endswith(" of 80000 bytes shown]")
    assert stored[1] == [{"type": "text", "text": "x" * 51_200}]


def test_the_texts_of_one_tool_result_are_cut_together(workspace: Workspace) -> None:
    message = result("c1")
    message.content = [TextBlock(text="line\n" * 8_000), TextBlock(text="more\n" * 8_000)]
    Context(workspace, LANE).append([assistant("", "c1"), message])
    content = lines_of(path_of(workspace))[-1]["message"]["content"]
    assert sum(len(block["text"].encode()) for block in content) <= 51_200
    assert "[cut: " in content[-1]["text"]


def test_values_that_json_cannot_hold_are_stored_as_null(workspace: Workspace) -> None:
    message = AssistantMessage(
        content=[ToolCallBlock(id="c", name="n", arguments={"x": float("nan"), "y": "\ud800"})], timestamp=1
    )
    Context(workspace, LANE).append([message])
    assert lines_of(path_of(workspace))[-1]["message"]["content"][0]["arguments"] == {"x": None, "y": "\ufffd"}


def test_a_context_behind_a_link_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    path_of(workspace).parent.mkdir()
    path_of(workspace).symlink_to(tmp_path / "elsewhere.jsonl")
    with pytest.raises(UnsafeObjectError):
        Context(workspace, LANE).append([user("hi")])
    assert not (tmp_path / "elsewhere.jsonl").exists()


# --- reading --------------------------------------------------------------------------------------------------------------


def test_a_missing_file_is_an_empty_context(workspace: Workspace) -> None:
    context = Context(workspace, LANE)
    assert context.entries(after=None, limit=10) == []
    assert context.build_messages(budget_tokens=BIG, lookup=nothing) == ModelMessages([], 0, 0)
    assert not context.has_assistant


def test_messages_come_back_with_model_usage_and_thinking(workspace: Workspace) -> None:
    message = AssistantMessage(
        content=[ThinkingBlock.model_validate({"thinking": "hm", "thinkingSignature": "sig"}), TextBlock(text="hello")],
        api="anthropic-messages",
        provider="anthropic",
        model="claude",
        usage=Usage(input=10, output=5, cache_read=3, total_tokens=18),
        timestamp=2,
    )
    Context(workspace, LANE).append([user("hi"), message])
    assert build(workspace).messages == [user("hi"), message]


def test_what_is_recognised_is_the_wrapper_not_the_text(workspace: Workspace) -> None:
    context = Context(workspace, LANE)
    context.append([user(wrap_message(LogRecord(ts="100.5", text="same"))), user("same"), user('say <message ts="7.0">')])
    two = [
        TextBlock(text=wrap_message(LogRecord(ts="101.0", text="a"))),
        TextBlock(text=wrap_message(LogRecord(ts="102.0", text="b"))),
    ]
    context.append([UserMessage(content=two, timestamp=1)])
    assert context.synced == {"100.500000", "101.000000", "102.000000"}
    assert Context(workspace, LANE).synced == frozenset()
    again = Context(workspace, LANE)
    again.refresh()
    assert again.synced == context.synced


def test_only_an_assistants_message_makes_a_context_one_that_has_the_bots_lines(workspace: Workspace) -> None:
    context = Context(workspace, LANE)
    context.append([user("hi")])
    assert not context.has_assistant
    context.append([assistant("hello")])
    assert context.has_assistant


def test_entries_page_in_file_order_with_unknown_types_and_fields(workspace: Workspace) -> None:
    put(
        workspace,
        [*chain("one", "two"), entry("zz", "a1", "of_the_future", payload={"deep": [1]}), user_entry("a2", "zz", "three")],
    )
    context = Context(workspace, LANE)
    assert [each.id for each in context.entries(after=None, limit=2)] == ["a0", "a1"]
    rest = context.entries(after="a1", limit=9)
    assert [each.id for each in rest] == ["zz", "a2"]
    assert rest[0].field("payload") == {"deep": [1]}
    assert texts(build(workspace)) == ["one", "two", "three"]
    with pytest.raises(NotFoundError):
        context.entries(after="nope", limit=9)


def test_a_reader_follows_a_file_that_was_replaced(workspace: Workspace) -> None:
    put(workspace, chain("one", "two"))
    context = Context(workspace, LANE)
    context.refresh()
    put(workspace, chain("other"))
    assert texts(context.build_messages(budget_tokens=BIG, lookup=nothing)) == ["other"]
    path_of(workspace).unlink()
    assert context.build_messages(budget_tokens=BIG, lookup=nothing).messages == []


def test_a_branch_that_was_left_is_not_given_to_the_model(workspace: Workspace) -> None:
    put(workspace, [*chain("one", "left"), user_entry("b1", "a0", "taken"), user_entry("b2", "b1", "on")])
    assert texts(build(workspace)) == ["one", "taken", "on"]


@pytest.mark.parametrize("parent", ["gone", "b0", "b1", 5])
def test_a_parent_that_is_unknown_or_comes_later_is_taken_to_be_the_line_before(workspace: Workspace, parent: Any) -> None:
    put(workspace, [*chain("one", "two"), b"not json", user_entry("b0", parent, "three"), user_entry("b1", "b0", "four")])
    context = Context(workspace, LANE)
    assert texts(context.build_messages(budget_tokens=BIG, lookup=nothing)) == ["one", "two", "three", "four"]
    assert context.bad_lines == 1


def test_an_id_that_is_there_twice_loops_nowhere_and_loses_nothing(workspace: Workspace) -> None:
    put(workspace, [user_entry("a", None, "one"), user_entry("a", "a", "two"), user_entry("b", "a", "three")])
    assert texts(build(workspace)) == ["one", "two", "three"]
    assert len(Context(workspace, LANE).entries(after=None, limit=9)) == 3


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.sampled_from(["a", "b", "c", "user", "assistant", "text", "toolCall"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "text", "role", "content"]), inner, max_size=3)
    ),
    max_leaves=5,
)
IDS = st.sampled_from(["a", "b", "c", "d", None, 7, ""])
KINDS = st.sampled_from(["message", "compaction", "custom", "custom_message", "branch_summary", "session", "label", "?", 3, None])
ENTRIES = st.fixed_dictionaries(
    {"type": KINDS},
    optional={
        "id": IDS,
        "parentId": IDS,
        "timestamp": st.sampled_from([STAMP, "", 4]),
        "message": st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "assistant", "toolResult", "bashExecution", "custom", "hookMessage", "x", None])},
            optional={
                "content": JUNK | st.just([{"type": "text", "text": "t"}, {"type": "toolCall", "id": "c", "name": "n"}]),
                "timestamp": st.sampled_from([1, 1.5, "x", None]),
                "toolCallId": st.sampled_from(["c", 1]),
                "toolName": st.just("n"),
                "usage": JUNK,
                "stopReason": JUNK,
            },
        ),
        "summary": JUNK,
        "content": JUNK,
        "customType": st.sampled_from(["recalld.sync", "x"]),
        "data": JUNK,
        "firstKeptEntryId": IDS,
        "firstKeptEntryIndex": st.integers(-3, 9) | st.booleans(),
    },
)


@given(st.lists(ENTRIES.map(encode_line) | st.binary(max_size=12), max_size=14), st.integers(0, 400))
@settings(max_examples=300)
def test_no_file_content_whatever_makes_reading_fail_or_loop(lines: list[bytes], budget: int) -> None:
    tree = EntryTree()
    for at, line in enumerate(lines):
        tree.add(at * 100, line)
    built = build_model_messages(tree, budget_tokens=budget, lookup=nothing)
    assert built.omitted >= 0
    assert len(list(tree.walk_back())) <= len(tree.entries)


# --- what the model is given ----------------------------------------------------------------------------------------------


def compaction(entry_id: str, parent: str, summary: str, **more: object) -> dict[str, Any]:
    return entry(entry_id, parent, "compaction", summary=summary, tokensBefore=5, **more)


def test_after_a_compaction_come_its_summary_the_kept_entries_and_what_follows(workspace: Workspace) -> None:
    lines = [*chain("one", "two", "three"), compaction("c", "a2", "so far", firstKeptEntryId="a2"), user_entry("a3", "c", "four")]
    put(workspace, lines)
    built = build(workspace)
    assert texts(built) == ["[Summary of the conversation before this point]\nso far", "three", "four"]
    assert built.omitted == 0


def test_of_several_compactions_the_last_counts(workspace: Workspace) -> None:
    lines = [
        *chain("one", "two"),
        compaction("c", "a1", "first", firstKeptEntryId="a1"),
        user_entry("a2", "c", "three"),
        compaction("d", "a2", "second", firstKeptEntryId="a1"),
        user_entry("a3", "d", "four"),
    ]
    put(workspace, lines)
    assert [text.splitlines()[-1] for text in texts(build(workspace))] == ["second", "two", "three", "four"]


@pytest.mark.parametrize("kept", ["unknown", "left", None])
def test_a_compaction_whose_first_kept_entry_is_not_on_its_branch_keeps_none(workspace: Workspace, kept: str | None) -> None:
    lines = [*chain("one"), user_entry("left", "a0", "left"), user_entry("b", "a0", "taken")]
    put(workspace, [*lines, compaction("c", "b", "so far", firstKeptEntryId=kept), user_entry("d", "c", "on")])
    assert [text.splitlines()[-1] for text in texts(build(workspace))] == ["so far", "on"]


def test_other_roles_and_entries_are_mapped_to_text_and_state_is_left_out(workspace: Workspace) -> None:
    run = {"role": "bashExecution", "command": "ls", "output": "a.txt", "exitCode": 0, "cancelled": False, "timestamp": 1}
    lines = [
        entry("e1", None, "session_info", name="n"),
        entry("e2", "e1", "model_change", provider="p", modelId="m"),
        entry("e3", "e2", "thinking_level_change", thinkingLevel="high"),
        entry("e4", "e3", "custom", customType="state", data={"secret": 1}),
        entry("e5", "e4", "label", targetId="e1", label="x"),
        entry("e6", "e5", "custom_message", customType="note", content="from an extension", display=True),
        entry("e7", "e6", "branch_summary", fromId="e1", summary="went elsewhere"),
        entry("e8", "e7", message=run),
        entry("e9", "e8", message=run | {"command": "hidden", "excludeFromContext": True}),
        entry("f1", "e9", message={"role": "custom", "content": [{"type": "text", "text": "custom text"}], "timestamp": 1}),
        entry("f2", "f1", message={"role": "branchSummary", "summary": "branch text", "timestamp": 1}),
        entry("f3", "f2", message={"role": "compactionSummary", "summary": "compacted text", "timestamp": 1}),
        entry("f4", "f3", message={"role": "of_the_future", "content": "?"}),
    ]
    put(workspace, lines)
    built = build(workspace)
    assert all(isinstance(message, UserMessage) for message in built.messages)
    assert texts(built) == [
        "from an extension",
        "[Summary of another branch of this conversation]\nwent elsewhere",
        "[A command was run: exit code 0]\n$ ls\na.txt",
        "custom text",
        "[Summary of another branch of this conversation]\nbranch text",
        "[Summary of the conversation before this point]\ncompacted text",
    ]


def test_a_call_without_result_gets_an_error_result_and_a_result_without_call_is_left_out(workspace: Workspace) -> None:
    context = Context(workspace, LANE)
    context.append([user("hi"), assistant("", "c1", "c2"), result("c1"), result("stray"), user("still there?")])
    built = build(workspace).messages
    assert [type(message).__name__ for message in built[1:4]] == ["AssistantMessage", "ToolResultMessage", "ToolResultMessage"]
    made = built[3]
    assert isinstance(made, ToolResultMessage)
    assert (made.tool_call_id, made.tool_name, made.is_error) == ("c2", "look", True)
    assert "before this call was finished" in texts([made])[0]
    assert texts(built)[-1] == "still there?"
    assert len(context.entries(after=None, limit=9)) == 5


def test_a_result_that_comes_after_a_message_in_between_is_put_behind_its_call(workspace: Workspace) -> None:
    Context(workspace, LANE).append([user("hi"), assistant("", "c1"), user("meanwhile"), result("c1", "late")])
    assert texts(build(workspace)) == ["hi", "", "late", "meanwhile"]


def test_a_call_id_that_is_used_again_gets_the_result_that_follows_it(workspace: Workspace) -> None:
    messages = [
        user("a"),
        assistant("", "c"),
        result("c", "first"),
        assistant("", "c"),
        result("c", "second"),
        assistant("", "c"),
    ]
    Context(workspace, LANE).append(messages)
    found = [text for text, message in zip(texts(build(workspace)), build(workspace).messages, strict=True)]
    assert found[2] == "first"
    assert found[4] == "second"
    assert found[6].startswith("No result")


def test_an_answer_that_was_cut_off_before_its_first_word_is_left_out(workspace: Workspace) -> None:
    aborted = AssistantMessage(content=[], stop_reason="aborted", timestamp=1)
    Context(workspace, LANE).append([user("hi"), aborted, user("again")])
    assert texts(build(workspace)) == ["hi", "again"]


def test_a_message_with_a_block_of_an_unknown_kind_keeps_its_other_blocks(workspace: Workspace) -> None:
    blocks = [{"type": "text", "text": "seen"}, {"type": "hologram", "data": 1}, {"type": "toolCall", "id": "c", "name": "look"}]
    odd = {"role": "assistant", "content": blocks, "usage": "unknown", "stopReason": "new", "timestamp": 1}
    put(workspace, [entry("a", None, message=odd), entry("b", "a", message=result("c").to_json())])
    assert texts(build(workspace)) == ["seen", "found"]


def test_edits_and_deletions_are_applied_to_what_the_model_is_given_not_to_the_file(workspace: Workspace) -> None:
    first, second, third = (LogRecord(ts=f"{n}.000000", text=f"text {n}", user="U") for n in (1, 2, 3))
    Context(workspace, LANE).append([user(wrap_message(each)) for each in (first, second, third)])
    before = path_of(workspace).read_bytes()
    now = {
        "1.000000": first.model_copy(update={"text": "better", "edited": STAMP}),
        "2.000000": second.model_copy(update={"text": "", "deleted": True}),
        "3.000000": third.model_copy(update={"user_name": "known since"}),
    }
    given_texts = texts(build(workspace, lookup=now.get))
    assert given_texts == [
        '<message ts="1.000000" user="U">\nbetter\n</message>',
        '<message ts="2.000000" deleted="true">\n\n</message>',
        wrap_message(third),
    ]
    assert path_of(workspace).read_bytes() == before


# --- never too large ------------------------------------------------------------------------------------------------------


def test_the_newest_that_fit_are_given_from_a_user_message_on_and_the_rest_is_counted(workspace: Workspace) -> None:
    context = Context(workspace, LANE)
    for turn in range(50):
        context.append([user(f"question {turn} " + "x" * 400), assistant("", "c"), result("c", "y" * 400), assistant("done")])
    built = build(workspace, budget=1500)
    assert 0 < built.tokens <= 1500
    assert built.omitted + len(built.messages) - 1 == 200
    assert f"{built.omitted} older messages" in texts(built)[0]
    assert isinstance(built.messages[1], UserMessage)
    assert texts(built)[-4].startswith("question 49 ")
    assert built.omitted % 4 == 0
    assert built.tokens > 1000


def test_nothing_is_said_to_be_left_out_when_everything_fits(workspace: Workspace) -> None:
    Context(workspace, LANE).append([user("one"), assistant("two")])
    built = build(workspace)
    assert texts(built) == ["one", "two"]
    assert built.tokens == sum(map(estimate_tokens, built.messages))


def test_what_a_compaction_summed_up_is_not_counted_as_left_out(workspace: Workspace) -> None:
    lines = [*chain(*["x" * 400] * 20), compaction("c", "a19", "so far", firstKeptEntryId="a10")]
    put(workspace, [*lines, *[user_entry(f"b{n}", f"b{n - 1}" if n else "c", "y" * 400) for n in range(10)]])
    built = build(workspace, budget=800)
    assert built.omitted == 20 - (len(built.messages) - 1)
    assert texts(built)[0].startswith("[Summary of the conversation before this point]\nso far|[")
    assert f"{built.omitted} older" in texts(built)[0]


def test_a_newest_exchange_that_is_too_large_by_itself_is_cut_and_says_so(workspace: Workspace) -> None:
    calls = [f"c{n}" for n in range(8)]
    messages = [
        user("what do they say?"),
        assistant("", *calls),
        *[result(call, "z" * 50_000) for call in calls],
        assistant("all z"),
    ]
    Context(workspace, LANE).append([user("before"), *messages])
    built = build(workspace, budget=10_000)
    assert built.tokens <= 10_000
    assert built.omitted == 1
    assert texts(built)[1] == "what do they say?"
    assert [message.tool_call_id for message in built.messages if isinstance(message, ToolResultMessage)] == calls
    assert all("[cut: " in text for text in texts(built)[3:-1])


def test_a_single_message_larger_than_the_budget_is_cut_and_stays_wrapped(workspace: Workspace) -> None:
    Context(workspace, LANE).append([user(wrap_message(LogRecord(ts="5.0", text="w" * 40_000)))])
    built = build(workspace, budget=500)
    assert built.tokens <= 500
    assert texts(built)[0].startswith('<message ts="5.0">\nwww')
    assert texts(built)[0].endswith(" of 40030 bytes shown]\n</message>")


def test_a_summary_larger_than_half_the_budget_is_cut(workspace: Workspace) -> None:
    put(workspace, [*chain("one"), compaction("c", "a0", "s" * 50_000, firstKeptEntryId="a0"), user_entry("a1", "c", "two")])
    built = build(workspace, budget=1000)
    assert built.tokens <= 1000
    assert "[cut: " in texts(built)[0]
    assert texts(built)[-1] == "two"


MESSAGES = st.one_of(
    st.integers(0, 900).map(lambda n: user("u" * n + "?")),
    st.integers(0, 900).map(lambda n: assistant("a" * n)),
    st.lists(st.sampled_from(["c1", "c2", "c3"]), max_size=3, unique=True).map(lambda calls: assistant("", *calls)),
    st.tuples(st.sampled_from(["c1", "c2", "c3"]), st.integers(0, 900)).map(lambda pair: result(pair[0], "r" * pair[1])),
)


@given(st.lists(MESSAGES, max_size=30), st.integers(150, 3000), st.integers(0, 30))
@settings(max_examples=200)
def test_whatever_the_history_the_messages_fit_and_each_call_has_its_result(
    messages: list[Message],
    budget: int,
    compacted: int,
) -> None:
    tree = EntryTree()
    for at, message in enumerate(messages):
        if at == compacted:
            tree.add(at, encode_line(compaction("k", f"e{at - 1}", "s" * 300, firstKeptEntryId=f"e{at // 2}")))
        parent = "k" if at == compacted and at else f"e{at - 1}" if at else None
        tree.add(at, encode_line(entry(f"e{at}", parent, message=message.to_json())))
    built = build_model_messages(tree, budget_tokens=budget, lookup=nothing)
    assert built.tokens <= budget
    if built.omitted:
        assert isinstance(built.messages[0], UserMessage)
        assert f"{built.omitted} older messages" in texts(built)[0]
    waiting: list[str] = []
    for message in built.messages:
        if isinstance(message, ToolResultMessage):
            assert waiting.pop(0) == message.tool_call_id
        else:
            assert waiting == []
        if isinstance(message, AssistantMessage):
            waiting = [block.id for block in message.content if isinstance(block, ToolCallBlock)]
    assert waiting == []


# --- versions -------------------------------------------------------------------------------------------------------------


def version_1() -> list[dict[str, Any] | bytes]:
    return [
        {"type": "message", "timestamp": STAMP, "message": {"role": "user", "content": "one", "timestamp": 1}, "mine": {"a": 1}},
        b"{broken",
        {"type": "message", "timestamp": STAMP, "message": {"role": "user", "content": "two", "timestamp": 1}},
        {"type": "compaction", "timestamp": STAMP, "summary": "so far", "firstKeptEntryIndex": 2, "tokensBefore": 5},
        {"type": "message", "timestamp": STAMP, "message": {"role": "hookMessage", "content": "three", "timestamp": 1}},
    ]


@pytest.mark.parametrize("header", [1, None])
def test_version_1_is_read_and_migrated_on_the_next_write_with_the_original_kept(
    workspace: Workspace, header: int | None
) -> None:
    lines = version_1()
    lines[3] |= {"firstKeptEntryIndex": 2 if header else 1}  # the index counts the header
    path = put(workspace, lines, version=header)
    original = path.read_bytes()
    expected = ["[Summary of the conversation before this point]\nso far", "two", "three"]
    assert texts(build(workspace)) == expected
    assert path.read_bytes() == original
    ids_before = [each.id for each in Context(workspace, LANE).entries(after=None, limit=9)]

    Context(workspace, LANE).append([user("four")])
    assert texts(build(workspace)) == [*expected, "four"]
    written = path.read_bytes().split(b"\n")
    assert json.loads(written[0])["version"] == 3
    assert written[2] == b"{broken"
    values = lines_of_good(path)
    assert [each["id"] for each in values[1:-1]] == ids_before
    assert [each["parentId"] for each in values[1:]] == [None, *(each["id"] for each in values[1:-1])]
    assert values[1]["mine"] == {"a": 1}
    assert values[3]["firstKeptEntryId"] == values[2]["id"]
    assert "firstKeptEntryIndex" not in values[3]
    assert values[4]["message"]["role"] == "custom"
    assert [kept.read_bytes() for kept in versions(workspace)] == [original]

    Context(workspace, LANE).append([user("five")])
    assert len(versions(workspace)) == 1


def lines_of_good(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line.strip() and line != b"{broken"]


def versions(workspace: Workspace) -> list[Path]:
    return sorted(each for each in (workspace.root / ".recalld/versions").rglob("*") if each.is_file() and each.suffix != ".json")


def test_version_2_is_migrated_and_lines_that_need_no_change_keep_their_bytes(workspace: Workspace) -> None:
    spaced = (
        b'{"type": "message",  "id": "a0", "parentId": null, "timestamp": "'
        + STAMP.encode()
        + b'", "message": {"role":"user","content":"one"}}'
    )
    hook = entry(
        "a1", "a0", message={"role": "hookMessage", "customType": "x", "content": "two", "display": True, "timestamp": 1}
    )
    path = put(workspace, [spaced, hook, entry("zz", "nowhere", "odd", keep=[None])], version=2)
    before = path.read_bytes().split(b"\n")
    assert texts(build(workspace)) == ["one", "two"]
    Context(workspace, LANE).append([user("three")])
    after = path.read_bytes().split(b"\n")
    assert after[1] == before[1]
    assert after[3] == before[3]
    assert json.loads(after[2]) == hook | {"message": hook["message"] | {"role": "custom"}}
    assert json.loads(after[0]) == json.loads(before[0]) | {"version": 3}
    assert texts(build(workspace)) == ["one", "two", "three"]


def test_a_file_that_lost_its_header_gets_one_and_keeps_its_branches(workspace: Workspace) -> None:
    lines = [*chain("one", "left"), user_entry("b", "a0", "taken")]
    path = put(workspace, [b'{"type":"session","vers', *lines], version=None)
    before = path.read_bytes()
    Context(workspace, LANE).append([user("on")])
    assert before in path.read_bytes()
    assert texts(build(workspace)) == ["one", "taken", "on"]


@pytest.mark.parametrize("version", [4, 99, "3", True, None, 2.5])
def test_a_newer_or_unknown_version_is_left_untouched_and_a_fresh_context_starts_beside_it(
    workspace: Workspace, version: Any
) -> None:
    path = put(workspace, [{"type": "session", "version": version, "id": "s"}, {"type": "blob"}], version=None)
    before = path.read_bytes()
    context = Context(workspace, LANE)
    context.refresh()
    assert context.newer_version == version
    assert context.name == "C1/context.v3.jsonl"
    context.append([user("hi")])
    again = Context(workspace, LANE)
    assert texts(again.build_messages(budget_tokens=BIG, lookup=nothing)) == ["hi"]
    assert path.read_bytes() == before
    assert context.archive() is not None
    assert path.read_bytes() == before


def test_a_context_beside_that_is_newer_too_is_refused_with_its_code(workspace: Workspace) -> None:
    put(workspace, [], version=4)
    beside = workspace.root / "C1/context.v3.jsonl"
    beside.write_text('{"type":"session","version":5,"id":"s"}\n')
    with pytest.raises(ContextUnsupportedError) as refused:
        Context(workspace, LANE).append([user("hi")])
    assert refused.value.code == "context_unsupported"
    assert beside.read_text() == '{"type":"session","version":5,"id":"s"}\n'


# --- archiving ------------------------------------------------------------------------------------------------------------


def test_archiving_keeps_the_old_file_whole_and_starts_a_fresh_one(workspace: Workspace) -> None:
    context = Context(workspace, LANE)
    context.append([user(wrap_message(LogRecord(ts="1.0", text="old"))), assistant("old answer")])
    before = path_of(workspace).read_bytes()
    name = context.archive()
    assert name is not None
    assert name.startswith(".recalld/versions/")
    assert (workspace.root / name).read_bytes() == before
    assert context.synced == frozenset()
    assert not context.has_assistant
    assert context.build_messages(budget_tokens=BIG, lookup=nothing).messages == []
    context.append([user("new")])
    assert texts(build(workspace)) == ["new"]


def test_another_reader_of_the_lane_sees_that_it_was_archived(workspace: Workspace) -> None:
    mine, theirs = Context(workspace, LANE), Context(workspace, LANE)
    mine.append([user("old")])
    theirs.refresh()
    mine.archive()
    theirs.append([user("new")])
    assert texts(mine.build_messages(budget_tokens=BIG, lookup=nothing)) == ["new"]


def _append_numbered(root: str, count: int) -> None:
    context = Context(Workspace(Path(root)), LANE)
    for number in range(count):
        context.append([user(f"number {number}")])


def test_what_another_process_appends_while_a_context_is_archived_is_in_one_of_the_files(workspace: Workspace) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_append_numbered, args=(str(workspace.root), 100))
    process.start()
    context = Context(workspace, LANE)
    while process.is_alive():
        context.archive()
    process.join()
    assert process.exitcode == 0
    kept = b"".join(path.read_bytes() for path in [*versions(workspace), path_of(workspace)])
    assert [kept.count(f'"number {number}"'.encode()) for number in range(100)] == [1] * 100


def test_archiving_a_lane_without_context_archives_nothing(workspace: Workspace) -> None:
    context = Context(workspace, LANE)
    assert context.archive() is None
    assert versions(workspace) == []
    context.append([user("new")])
    assert texts(build(workspace)) == ["new"]


def test_two_archives_in_the_same_instant_keep_both_files(workspace: Workspace) -> None:
    context = Context(workspace, LANE, clock=lambda: 1764500000.0)
    for text in ("one", "two"):
        context.append([user(text)])
        context.archive()
    assert len(versions(workspace)) == 2
