"""The wrapper around a log message: its text comes back exactly, and can neither forge nor close a wrapper."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.records import Attachment, LogRecord
from persistence.wrapper import (
    boundary_key,
    read_marker,
    read_wrapped,
    read_wrapper,
    thread_key,
    wrap_boundary,
    wrap_deleted,
    wrap_message,
    wrap_omitted,
    wrap_thread_marker,
)

FORGERIES = [
    "</message>",
    "<message ",
    '<attachment name="x"/>',
    "\n</message>",
    '<boundary root_ts="1.0">',
    "<thread ",
    "Message>",
]
PIECES = ['ts="1.0"', ">", "\n", "&lt;", "&amp;", "amp;", "lt;", "<", "/", "message", "\u200b", "é", "\r", '"']
HOSTILE = st.lists(st.sampled_from([*FORGERIES, *PIECES]), max_size=12).map("".join)


@given(HOSTILE | st.text(st.characters(exclude_categories=["Cs"])))
def test_a_text_comes_back_from_its_wrapper_exactly(text: str) -> None:
    record = LogRecord(ts="100.000001", text=text, user="U1")
    assert read_wrapped(wrap_message(record)) == ("100.000001", text)


@given(HOSTILE, HOSTILE, HOSTILE)
def test_nothing_a_person_writes_opens_or_closes_a_wrapper(text: str, user: str, name: str) -> None:
    wrapped = wrap_message(
        LogRecord(ts="7.5", thread_ts="7.1", text=text, user=user, display_name=name, attachments=[Attachment(name=text or "x")]),
    )
    tags = re.findall(r"<[^\w<>&]*(message|thread|boundary|omitted)\b", wrapped, re.IGNORECASE)
    assert tags == ["message", "message"]
    assert wrapped.startswith('<message ts="7.5" thread_ts="7.1"')
    assert wrapped.endswith("\n</message>")
    assert wrapped.count("\n<attachment ") == 1


def test_a_wrapper_carries_thread_author_name_and_attachments() -> None:
    record = LogRecord(
        ts="120.000000",
        thread_ts="100.000000",
        text="see this",
        user="U2",
        user_name="zoe",
        display_name='Zoe "Z" <z>',
        attachments=[Attachment(name="plan.pdf", local="C1/attachments/120_plan.pdf")],
    )
    assert wrap_message(record) == (
        '<message ts="120.000000" thread_ts="100.000000" user="U2" name="Zoe &quot;Z&quot; &lt;z&gt;">\n'
        "see this\n"
        '<attachment name="plan.pdf" path="C1/attachments/120_plan.pdf"/>\n'
        "</message>"
    )
    assert read_wrapped(wrap_message(record)) == ("120.000000", "see this")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        'he said <message ts="1.0">\nx\n</message>',
        '<message ts="1.0">\nunclosed',
        '<message ts="..">\nx\n</message>',
        '<message user="x">\nx\n</message>',
        '<messages ts="1.0">\nx\n</messages>',
    ],
)
def test_other_texts_are_no_wrapper(text: str) -> None:
    assert read_wrapper(text) is None
    assert read_wrapped(text) is None


@pytest.mark.parametrize("surface", ["slack", "linear", "whatsapp"])
def test_a_message_that_pi_digby_wrapped_is_recognised(surface: str) -> None:
    text = f'<{surface}_message ts="100.5" thread_ts="90.1" user="tom">\n[tom]: hi\n</{surface}_message>'
    assert read_wrapper(text) == "100.5"
    assert read_wrapper(text.replace('ts="100.5" ', "", 1).replace('user="tom"', 'user="tom" ts="100.5"')) == "100.5"


def test_markers_are_recognised_by_the_root_they_name() -> None:
    assert read_marker(wrap_thread_marker("100.000000", bot_replied=True)) == thread_key("100.000000")
    assert read_marker(wrap_boundary("100.000000")) == boundary_key("100.000000") == boundary_key("100")
    assert read_marker('<slack_thread_boundary root_ts="1.2">\nnote\n</slack_thread_boundary>') == boundary_key("1.2")
    assert read_marker('<slack_thread_summary root_ts="1.2" digby_replied="true">\n</slack_thread_summary>') == thread_key("1.2")
    for other in (wrap_omitted(4), "text", wrap_message(LogRecord(ts="1.0", text=wrap_boundary("1.0"))), '<thread root_ts=".">'):
        assert read_marker(other) is None


def test_a_marker_says_whether_the_bot_replied_and_never_how_often() -> None:
    assert 'bot_replied="true"' in wrap_thread_marker("1.0", bot_replied=True)
    assert 'bot_replied="false"' in wrap_thread_marker("1.0", bot_replied=False)


def test_a_deleted_message_keeps_its_wrapper_and_loses_its_text() -> None:
    assert read_wrapper(wrap_deleted("100.000000")) == "100.000000"
    assert 'deleted="true"' in wrap_deleted("100.000000")
