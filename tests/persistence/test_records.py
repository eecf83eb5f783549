"""The line codec and the shapes on disk: what is written is read back, what another tool wrote keeps its fields and its place."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.records import (
    AssistantMessage,
    Entry,
    LogRecord,
    ToolResultMessage,
    UserMessage,
    decode_line,
    encode_line,
    new_entry_id,
    parse_log_record,
    parse_message,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
OBJECT = st.dictionaries(st.text(max_size=5), JSON, max_size=5)


@given(OBJECT)
def test_an_object_is_one_ascii_line_and_comes_back_the_same(value):
    line = encode_line(value)
    assert line.isascii()
    assert line.index(b"\n") == len(line) - 1
    assert b"\r" not in line
    assert json.dumps(decode_line(line[:-1])) == json.dumps(value)


@given(st.text(st.characters(codec=None)))
def test_half_a_surrogate_pair_becomes_a_replacement_character_on_both_ways(text):
    clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert decode_line(encode_line({"text": text})) == {"text": clean}
    assert decode_line(json.dumps({"text": text}).encode()) == {"text": clean}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [float("-inf")]], ids=str)
def test_a_number_that_json_cannot_hold_is_not_written(value):
    with pytest.raises(ValueError, match="Out of range"):
        encode_line({"x": value})


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[1]",
        b'"text"',
        b"1",
        b"{",
        b'{"a":1}{"b":2}',
        b"{'a':1}",
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":1e999}',
        b'{"a":"\xff"}',
        b'{"a":"line\x01"}',
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=lambda line: ascii(line[:12]),
)
def test_what_is_no_json_object_is_no_line(line: bytes):
    assert decode_line(line) is None
    assert parse_log_record(line) is None


@given(st.binary(max_size=100))
def test_any_bytes_are_a_record_or_none(data):
    record = parse_log_record(data)
    assert record is None or isinstance(record, LogRecord)


def test_a_bom_nul_padding_and_crlf_around_an_object_are_accepted():
    for line in (b'\xef\xbb\xbf{"a":1}', b'{"a":1}\r', b'\x00\x00{"a":1}\x00', b'  {"a":1}\t'):
        assert decode_line(line) == {"a": 1}


# -- log records


def test_a_log_line_keeps_unknown_fields_and_the_names_on_disk():
    line = {
        "date": "2025-11-30T10:53:20.000Z",
        "ts": "1764500000.000100",
        "threadTs": "1764500000.000000",
        "user": "U1",
        "userName": "amy",
        "displayName": "Amy",
        "text": "hi",
        "attachments": [{"name": "a.png", "local": "x/a.png", "mime": "image/png"}],
        "isBot": False,
        "reactions": [{"name": "+1"}],
        "team_id": "T1",
    }
    record = parse_log_record(json.dumps(line).encode())
    assert record is not None
    assert (record.thread_ts, record.user_name, record.attachments[0].local) == ("1764500000.000000", "amy", "x/a.png")
    assert record.to_json() == line


@given(OBJECT, st.from_regex(r"[0-9]{1,10}(\.[0-9]{1,9})?", fullmatch=True))
def test_no_field_of_a_strange_shape_hides_a_message_or_its_other_fields(fields, ts):
    names = [
        "date",
        "threadTs",
        "user",
        "userName",
        "text",
        "attachments",
        "isBot",
        "edited",
        "deleted",
        "id",
        "replyTo",
        "answers",
    ]
    strange = dict(zip(names, fields.values(), strict=False))
    record = parse_log_record(json.dumps({**strange, "ts": ts, "displayName": "Amy", "mine": 1}).encode())
    assert record is not None
    assert (record.ts, record.display_name, record.model_extra["mine"]) == (ts, "Amy", 1)
    assert record.root_ts is None or record.root_ts == record.thread_ts


def test_a_strange_field_does_not_undo_a_deletion_or_an_answer():
    record = parse_log_record(
        b'{"ts":"2.0","user":5,"attachments":"none","deleted":true,"isBot":true,"replyTo":"1.0","answers":["1.0"]}'
    )
    assert (record.deleted, record.is_bot, record.reply_to, record.answers, record.user) == (True, True, "1.0", ["1.0"], None)


@pytest.mark.parametrize("ts", [None, 1764500000.1, 1764500000, "", "soon", "1.0 ", ["1.0"]], ids=repr)
def test_without_a_usable_ts_there_is_no_record(ts):
    assert parse_log_record(json.dumps({"ts": ts, "text": "x"}).encode()) is None


@pytest.mark.parametrize(
    ("thread_ts", "root"),
    [(None, None), ("100.000000", None), ("100", None), ("0100.0", None), ("99.000000", "99.000000"), ("soon", None), (7, None)],
)
def test_a_reply_has_a_root_and_a_root_has_none(thread_ts, root):
    assert parse_log_record(json.dumps({"ts": "100.000000", "threadTs": thread_ts}).encode()).root_ts == root


# -- messages of a context


def test_messages_are_told_apart_by_their_role():
    user = {
        "role": "user",
        "content": [{"type": "text", "text": "hi"}, {"type": "image", "data": "AA==", "mimeType": "image/png"}],
        "timestamp": 1,
    }
    call = {"type": "toolCall", "id": "c1", "name": "search", "arguments": {"query": "x"}}
    assistant = {"role": "assistant", "content": [call], "stopReason": "toolUse", "timestamp": 2, "usage": {"totalTokens": 5}}
    result = {"role": "toolResult", "toolCallId": "c1", "toolName": "search", "content": [], "isError": True, "timestamp": 3}
    assert isinstance(parse_message(user), UserMessage)
    said = parse_message(assistant)
    assert isinstance(said, AssistantMessage)
    assert (said.content[0].arguments, said.usage.total_tokens) == ({"query": "x"}, 5)
    told = parse_message(result)
    assert isinstance(told, ToolResultMessage)
    assert (told.tool_call_id, told.is_error) == ("c1", True)
    assert told.to_json() == result


@pytest.mark.parametrize(
    "value",
    [None, 1, "x", [], {}, {"role": "custom"}, {"role": "user"}, {"role": "user", "content": 5, "timestamp": 1}],
    ids=repr,
)
def test_what_is_no_message_of_these_roles_is_none(value):
    assert parse_message(value) is None


def test_what_belongs_to_the_type_of_an_entry_is_kept():
    line = {
        "type": "compaction",
        "id": "0a1b2c3d",
        "parentId": "ffffffff",
        "timestamp": "t",
        "firstKeptEntryId": "x",
        "details": {"a": [1]},
    }
    entry = Entry.model_validate(line)
    assert (entry.parent_id, entry.field("firstKeptEntryId"), entry.field("none")) == ("ffffffff", "x", None)
    assert entry.to_json() == line


def test_entry_ids_are_8_hex_digits_and_never_taken():
    taken: set[str] = set()
    for _ in range(200):
        entry_id = new_entry_id(taken)
        assert entry_id not in taken
        assert len(entry_id) == 8
        assert set(entry_id) <= set("0123456789abcdef")
        taken.add(entry_id)
