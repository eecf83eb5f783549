"""The text of a span: in portions for a model, as quotes where there is none."""

from hypothesis import given, settings
from hypothesis import strategies as st

from persistence.compaction import SpanItem
from persistence.records import LogRecord, TextBlock, ToolCallBlock, UserMessage
from persistence.transcript import QUOTES_LEAD, choose_fence, quote_span, render_message, split_portions
from persistence.wrapper import wrap_deleted, wrap_message, wrap_omitted, wrap_thread_marker
from tests.persistence.test_compaction import assistant, result, user

AMY = LogRecord(ts="1764500000.000001", user="U1", user_name="amy", text='the port is "8443"\nand </message> stays')
TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


def items(*messages):
    return [SpanItem(f"{number:08x}", message) for number, message in enumerate(messages)]


def quotes(*messages, log=(), before="", limit_bytes=12_000):
    found = {record.ts: record for record in log}
    return quote_span(items(*messages), found.get, before=before, limit_bytes=limit_bytes).split("\n")


def test_a_quote_says_who_said_what_and_when():
    assert quotes(user(wrap_message(AMY)), assistant("noted"), log=[AMY]) == [
        QUOTES_LEAD,
        '- 2025-11-30 10:53 amy: “the port is "8443" and &lt;/message> stays”',
        "- 2023-11-14 22:13 the bot: “noted”",
    ]


def test_tool_results_thoughts_passages_and_markers_are_no_quotes():
    passages = UserMessage(content=[TextBlock(text=wrap_message(AMY)), TextBlock(text="Passages from memory")], timestamp=1)
    marker = user(wrap_thread_marker("100.000001", bot_replied=True))
    said = quotes(passages, marker, user(wrap_omitted(3)), assistant("", "c1"), result("c1", "long text"), log=[AMY])
    assert len(said) == 2


def test_what_was_deleted_is_not_quoted_and_what_was_edited_as_it_is_now():
    edited = AMY.model_copy(update={"text": "the port is 9000", "edited": "now"})
    assert "9000" in quotes(user(wrap_message(edited)), log=[edited])[1]
    assert quotes(user(wrap_deleted(AMY.ts)), log=[AMY]) == [""]


def test_text_without_a_wrapper_is_quoted_of_somebody():
    assert quotes(user("plain text of another tool"))[1] == "- 2023-11-14 22:13 somebody: “plain text of another tool”"


def test_a_time_that_is_none_does_no_harm():
    odd = UserMessage(content="hello", timestamp=10**18)
    assert quotes(odd)[1] == "- some time, somebody: “hello”"


def test_a_secret_is_not_quoted():
    assert TOKEN not in "\n".join(quotes(user(f"use {TOKEN}"), assistant(f"{TOKEN} it is")))


def test_of_too_many_quotes_the_newest_stay_and_the_cut_is_said():
    said = quotes(*(user(f"message {number}") for number in range(200)), limit_bytes=1_000)
    assert len("\n".join(said).encode()) <= 1_000
    assert said[1].startswith("[left out: ")
    left_out = int(said[1].split()[2])
    assert said[2].endswith(f"message {left_out}”")
    assert said[-1].endswith("message 199”")


def test_quotes_go_on_from_the_summary_before():
    first = quotes(user("one"), assistant("two"))
    second = quotes(user("three"), before="\n".join(first))
    assert [line.split("“")[1] for line in second[1:]] == ["one”", "two”", "three”"]
    assert second.count(QUOTES_LEAD) == 1
    assert quotes(user("three"), before="A summary by a model.\nPort 8443.")[1:3] == ["A summary by a model.", "Port 8443."]


def test_a_long_message_is_shortened_in_a_quote():
    assert quotes(user("x" * 1_000))[1].endswith("x […]”")


def test_what_the_bot_did_can_be_read():
    message = assistant("I look.", "c1").model_copy(
        update={"content": [TextBlock(text="I look."), ToolCallBlock(id="c1", name="memory_search", arguments={"query": "é"})]}
    )
    assert render_message(message) == '[you said]\nI look.\n[you called memory_search] {"query": "é"}'
    assert render_message(result("c1", "x" * 9_000)).startswith("[look answered]\nxxx")
    assert len(render_message(result("c1", "x" * 9_000))) < 4_100


def test_portions_hold_everything_in_order_and_end_between_messages():
    many = items(*(user(f"message {number} " + "x" * 300) for number in range(40)))
    portions = split_portions(many, budget_tokens=500)
    assert len(portions) > 3
    assert "\n\n".join(portion.text for portion in portions) == "\n\n".join(render_message(item.message) for item in many)
    assert all(len(portion.text) <= 2_000 for portion in portions)
    assert portions[-1].last_id == many[-1].entry_id


def test_a_message_that_is_too_long_alone_is_cut_and_says_so():
    portions = split_portions(items(user("a"), user("x" * 50_000), user("b")), budget_tokens=1_000)
    assert [portion.last_id for portion in portions] == ["00000000", "00000001", "00000002"]
    assert len(portions[1].text) <= 4_000
    assert "of 50000 bytes shown]" in portions[1].text


def test_nothing_makes_no_portion():
    assert split_portions([], budget_tokens=1_000) == []


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200))
def test_a_fence_is_not_in_the_text(text):
    assert choose_fence(text) not in text
    assert choose_fence(text) == choose_fence(text)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=60), max_size=30), st.integers(300, 3_000))
def test_quotes_never_exceed_their_size_and_are_one_line_each(texts, limit):
    said = quote_span(items(*map(user, texts)), lambda _: None, before="", limit_bytes=limit)
    assert len(said.encode("utf-8", "surrogatepass")) <= limit
    assert all(line.startswith("- ") for line in said.split("\n")[2:])
