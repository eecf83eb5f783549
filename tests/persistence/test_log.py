"""A channel's log: what is acknowledged is there, once and in order, whoever else appends; what is read is the merged truth."""

import json
import os
import re
import tempfile
import time
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistence.errors import (
    BodyInvalidError,
    MessageConflictError,
    NotFoundError,
    StoreFaultError,
    TooLargeError,
    TsFutureError,
    UnsafeObjectError,
)
from persistence.files import locked
from persistence.lines import Cursor
from persistence.log import ChannelLog, NewMessage
from persistence.records import Attachment
from persistence.workspace import Workspace, open_workspace, parse_channel_id

OPS = parse_channel_id("ops")
NOW = 1_764_500_000.0


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace(tmp_path)


@pytest.fixture
def log(workspace: Workspace) -> ChannelLog:
    return ChannelLog(workspace, OPS, clock=lambda: NOW)


def path_of(workspace: Workspace) -> Path:
    return workspace.root / "ops/log.jsonl"


def raw_lines(workspace: Workspace) -> list[bytes]:
    return path_of(workspace).read_bytes().split(b"\n")[:-1]


def write_log(workspace: Workspace, data: bytes) -> None:
    path_of(workspace).parent.mkdir(exist_ok=True)
    path_of(workspace).write_bytes(data)


def texts(log: ChannelLog, **choice) -> list[str]:
    return [record.text for record in log.page(**choice)]


# -- the line on disk


def test_a_message_is_one_ascii_line_with_the_names_that_other_tools_know(workspace: Workspace, log: ChannelLog):
    log.append(
        NewMessage(
            "grüß\u2028dich\n",
            "U1",
            user_name="amy",
            display_name="Amy A",
            thread_ts="1764400000.000100",
            attachments=(Attachment(name="a.png", local="ops/attachments/a.png"),),
            extra={"metadata": {"source": "test"}},
        ),
    )
    data = path_of(workspace).read_bytes()
    assert data.isascii()
    assert data.endswith(b"\n")
    assert data.count(b"\n") == 1
    assert json.loads(data) == {
        "date": "2025-11-30T10:53:20.000Z",
        "ts": "1764500000.000000",
        "threadTs": "1764400000.000100",
        "user": "U1",
        "userName": "amy",
        "displayName": "Amy A",
        "text": "grüß\u2028dich\n",
        "attachments": [{"name": "a.png", "local": "ops/attachments/a.png"}],
        "isBot": False,
        "metadata": {"source": "test"},
    }


def test_extra_fields_never_replace_those_of_the_message(workspace: Workspace, log: ChannelLog):
    log.append(NewMessage("true text", "U1", extra={"text": "forged", "ts": "1.0", "user": "bot", "date": "never"}))
    line = json.loads(path_of(workspace).read_bytes())
    assert (line["text"], line["ts"], line["user"], line["date"]) == (
        "true text",
        "1764500000.000000",
        "U1",
        "2025-11-30T10:53:20.000Z",
    )


def test_the_date_of_a_message_from_the_past_is_its_own(workspace: Workspace, log: ChannelLog):
    log.append(NewMessage("old", "U1", ts="90.000000"))
    assert json.loads(path_of(workspace).read_bytes())["date"] == "1970-01-01T00:01:30.000Z"


def test_a_root_carries_no_thread_ts(workspace: Workspace, log: ChannelLog):
    log.append(NewMessage("root", "U1", ts="100.5", thread_ts="100.500000"))
    assert "threadTs" not in json.loads(path_of(workspace).read_bytes())


def test_the_first_message_makes_the_channel(workspace: Workspace, log: ChannelLog):
    assert list(workspace.channels()) == []
    log.append(NewMessage("hi", "U1"))
    assert list(workspace.channels()) == [OPS]


@pytest.mark.parametrize("text", ["\ud800 half a pair", "nul \x00 inside", "\u2028\u2029\x85", '}{\\"', "👩‍👩‍👧"])
def test_any_text_comes_back_in_one_line(workspace: Workspace, log: ChannelLog, text: str):
    record = log.append(NewMessage(text, "U1")).record
    assert record.text == text.replace("\ud800", "\ufffd")
    assert log.get(record.ts) == record
    assert len(raw_lines(workspace)) == 1
    assert log.append(NewMessage(text, "U1", ts=record.ts)).replayed


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"deep": float("-inf")}])
def test_a_value_that_json_cannot_hold_is_refused(workspace: Workspace, log: ChannelLog, value):
    with pytest.raises(BodyInvalidError):
        log.append(NewMessage("hi", "U1", extra={"metadata": value}))
    assert not path_of(workspace).exists()


def test_nesting_beyond_json_is_refused(log: ChannelLog):
    nested: list = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(BodyInvalidError):
        log.append(NewMessage("hi", "U1", extra={"metadata": nested}))


def test_a_line_that_no_reader_could_take_is_refused(log: ChannelLog):
    with pytest.raises(TooLargeError):
        log.append(NewMessage("x" * 17 * 1024 * 1024, "U1"))


@pytest.mark.parametrize("bad", ["", "1,5", "-1", "1e9", "1.", "nan", "99999999999", "1.0000000001", "1\n", "\u0661"])
def test_a_malformed_ts_is_refused_everywhere(log: ChannelLog, bad: str):
    log.append(NewMessage("hi", "U1"))
    for call in (
        lambda: log.append(NewMessage("x", "U1", ts=bad)),
        lambda: log.append(NewMessage("x", "U1", thread_ts=bad)),
        lambda: log.append(NewMessage("x", "U1", reply_to=bad)),
        lambda: log.append(NewMessage("x", "U1", answers=(bad,))),
        lambda: log.edit(bad, "x"),
        lambda: log.delete(bad),
        lambda: log.get(bad),
        lambda: log.reply_to(bad),
        lambda: log.page(before=bad),
        lambda: log.page(after=bad),
        lambda: log.page(thread_ts=bad),
    ):
        with pytest.raises(BodyInvalidError):
            call()
    assert texts(log) == ["hi"]


# -- ts


def test_assigned_ts_rise_though_the_clock_stands_or_goes_back(workspace: Workspace):
    moments = iter([NOW, NOW, NOW - 3600, NOW + 1])
    log = ChannelLog(workspace, OPS, clock=lambda: next(moments))
    assert [log.append(NewMessage("same", "U1")).record.ts for _ in range(4)] == [
        "1764500000.000000",
        "1764500000.000001",
        "1764500000.000002",
        "1764500001.000000",
    ]


def test_an_assigned_ts_comes_after_what_another_writer_logged(workspace: Workspace, log: ChannelLog):
    log.append(NewMessage("first", "U1"))
    with path_of(workspace).open("ab") as file:
        file.write(b'{"ts":"1764500100.000000","user":"U2","text":"from elsewhere"}\n')
    assert log.append(NewMessage("last", "U1")).record.ts == "1764500100.000001"


def test_a_line_from_a_far_future_does_not_drag_later_messages_with_it(workspace: Workspace, log: ChannelLog):
    write_log(workspace, b'{"ts":"9999999999.999999","text":"a unit was mistaken"}\n')
    assert log.append(NewMessage("now", "U1")).record.ts == "1764500000.000000"


def test_a_client_ts_may_be_300_s_ahead_and_no_more(log: ChannelLog):
    assert log.append(NewMessage("ahead", "U1", ts="1764500300.000000")).record.ts == "1764500300.000000"
    with pytest.raises(TsFutureError):
        log.append(NewMessage("too far", "U1", ts="1764500300.000001"))


def test_a_refused_message_makes_no_channel(workspace: Workspace, log: ChannelLog):
    with pytest.raises(TsFutureError):
        log.append(NewMessage("too far", "U1", ts="1764600000.000000"))
    with pytest.raises(NotFoundError):
        log.edit("1.0", "x")
    with pytest.raises(NotFoundError):
        log.delete("1.0")
    assert not path_of(workspace).parent.exists()


# -- retries


def test_the_same_ts_and_text_again_is_a_replay(workspace: Workspace, log: ChannelLog):
    first = log.append(NewMessage("hi", "U1", ts="100.000000"))
    again = log.append(NewMessage("hi", "U1", ts="100.000000"))
    assert (first.replayed, again.replayed) == (False, True)
    assert again.record == first.record
    assert len(raw_lines(workspace)) == 1


def test_another_spelling_of_a_ts_is_the_same_ts(workspace: Workspace, log: ChannelLog):
    log.append(NewMessage("hi", "U1", ts="100.500000"))
    assert log.append(NewMessage("hi", "U1", ts="100.5")).replayed
    assert log.get("0100.50").text == "hi"
    assert len(raw_lines(workspace)) == 1


def test_the_same_ts_with_another_text_is_a_conflict(workspace: Workspace, log: ChannelLog):
    log.append(NewMessage("hi", "U1", ts="100.000000"))
    with pytest.raises(MessageConflictError):
        log.append(NewMessage("ho", "U1", ts="100.000000"))
    assert len(raw_lines(workspace)) == 1


def test_a_retry_after_an_edit_is_a_replay_with_the_first_and_with_the_new_text(log: ChannelLog):
    log.append(NewMessage("first", "U1", ts="100.000000"))
    log.edit("100.000000", "second")
    log.edit("100.000000", "third")
    for text in ("first", "third"):
        again = log.append(NewMessage(text, "U1", ts="100.000000"))
        assert again.replayed
        assert again.record.text == "third"
    with pytest.raises(MessageConflictError):
        log.append(NewMessage("second", "U1", ts="100.000000"))


def test_a_retry_after_a_delete_does_not_bring_the_message_back(log: ChannelLog):
    log.append(NewMessage("gone", "U1", ts="100.000000"))
    log.delete("100.000000")
    assert log.append(NewMessage("gone", "U1", ts="100.000000")).replayed
    assert texts(log) == []


def test_an_idempotency_key_names_one_message_for_good(workspace: Workspace, log: ChannelLog):
    first = log.append(NewMessage("hi", "U1", id="key-1"))
    again = ChannelLog(workspace, OPS, clock=lambda: NOW + 99).append(NewMessage("hi", "U1", id="key-1"))
    assert again.replayed
    assert again.record.ts == first.record.ts
    with pytest.raises(MessageConflictError):
        log.append(NewMessage("other", "U1", id="key-1"))
    log.edit(first.record.ts, "edited")
    assert log.append(NewMessage("hi", "U1", id="key-1")).record.text == "edited"
    assert not log.append(NewMessage("hi", "U1", id="key-2")).replayed


def test_two_messages_of_equal_text_are_two_messages(log: ChannelLog):
    log.append(NewMessage("yes", "U1"))
    log.append(NewMessage("yes", "U1"))
    assert texts(log) == ["yes", "yes"]


def test_a_retry_of_a_message_that_another_process_logged_is_a_replay(workspace: Workspace, log: ChannelLog):
    log.append(NewMessage("mine", "U1"))
    ChannelLog(workspace, OPS, clock=lambda: NOW).append(NewMessage("theirs", "U2", id="k", ts="100.0"))
    assert log.append(NewMessage("theirs", "U2", id="k", ts="100.0")).replayed


# -- edits, deletes, merging


def test_an_edit_appends_a_whole_line_and_leaves_the_old_one(workspace: Workspace, log: ChannelLog):
    log.append(NewMessage("first", "U1", ts="100.000000", thread_ts="90.000000", id="k", extra={"metadata": 1}))
    edited = log.edit("100.000000", "second")
    old, new = (json.loads(line) for line in raw_lines(workspace))
    assert old["text"] == "first"
    assert new == old | {"text": "second", "edited": "2025-11-30T10:53:20.000Z"}
    assert log.get("100.000000") == edited


def test_an_edit_may_empty_a_text_but_a_poorer_copy_may_not(workspace: Workspace, log: ChannelLog):
    log.append(NewMessage("words", "U1", ts="100.000000", user_name="amy"))
    with path_of(workspace).open("ab") as file:
        file.write(b'{"ts":"100.000000","text":"","user":"U1"}\n')
    assert (log.get("100.000000").text, log.get("100.000000").user_name) == ("words", "amy")
    log.edit("100.000000", "")
    assert log.get("100.000000").text == ""


def test_the_same_edit_again_appends_nothing(workspace: Workspace, log: ChannelLog):
    log.append(NewMessage("first", "U1", ts="100.000000"))
    assert log.edit("100.000000", "second") == log.edit("100.000000", "second")
    assert len(raw_lines(workspace)) == 2


def test_a_deleted_message_is_hidden_and_its_text_is_not_written_again(workspace: Workspace, log: ChannelLog):
    log.append(NewMessage("secret", "U1", ts="100.000000", thread_ts="90.000000", id="k", extra={"metadata": "secret"}))
    log.append(NewMessage("other", "U1", ts="101.000000"))
    deleted = log.delete("100.000000")
    assert (deleted.deleted, deleted.text, deleted.thread_ts, deleted.id) == (True, "", "90.000000", "k")
    assert log.get("100.000000") == deleted
    assert texts(log) == ["other"]
    assert b"secret" not in raw_lines(workspace)[-1]
    assert log.stats().messages == 1


def test_what_is_not_there_or_deleted_can_be_neither_edited_nor_deleted(log: ChannelLog):
    log.append(NewMessage("x", "U1", ts="100.000000"))
    log.delete("100.000000")
    for ts in ("100.000000", "101.000000"):
        with pytest.raises(NotFoundError):
            log.edit(ts, "y")
        with pytest.raises(NotFoundError):
            log.delete(ts)
    assert log.get("101.000000") is None


def test_a_deletion_by_another_tool_hides_the_text_everywhere(workspace: Workspace, log: ChannelLog):
    write_log(workspace, b'{"ts":"1.0","text":"secret"}\n{"ts":"1.0","deleted":true}\n')
    assert log.get("1.0").text == ""
    assert texts(log) == []


def test_a_silent_reply_is_found_as_the_answer_but_not_shown(log: ChannelLog):
    log.append(NewMessage("hm", "U1", ts="100.000000"))
    log.append(NewMessage("[SILENT]", "bot", is_bot=True, reply_to="100.000000", extra={"silent": True}))
    assert texts(log) == ["hm"]
    assert log.reply_to("100.000000").text == "[SILENT]"
    assert log.stats().messages == 1


def test_messages_answered_together_share_their_reply(log: ChannelLog):
    for ts in ("100.000000", "101.000000", "102.000000"):
        log.append(NewMessage("q", "U1", ts=ts))
    log.append(NewMessage("both", "bot", is_bot=True, reply_to="101.000000", answers=("100.000000", "101.000000")))
    assert [log.reply_to(ts) and log.reply_to(ts).text for ts in ("100.000000", "101.000000", "102.000000")] == [
        "both",
        "both",
        None,
    ]


def test_a_persons_line_is_no_reply_of_the_bot(log: ChannelLog):
    log.append(NewMessage("q", "U1", ts="100.000000"))
    log.append(NewMessage("me too", "U2", reply_to="100.000000"))
    assert log.reply_to("100.000000") is None


# -- paging


@pytest.fixture
def talk(log: ChannelLog) -> ChannelLog:
    """The worked example of the format page, logged out of order."""
    for ts, user, thread in [
        ("90.000000", "amy", None),
        ("110.000000", "sam", None),
        ("100.000000", "tom", None),
        ("120.000000", "zoe", "100.000000"),
        ("125.000000", "ivy", "105.000000"),
        ("140.000000", "zoe", "100.000000"),
        ("130.000000", "tom", "100.000000"),
    ]:
        log.append(NewMessage(f"{user} {ts[:-7]}", user, ts=ts, thread_ts=thread))
    return log


def test_a_page_is_the_newest_messages_newest_last(talk: ChannelLog):
    assert texts(talk, limit=3) == ["ivy 125", "tom 130", "zoe 140"]
    assert texts(talk, limit=3, newest_first=True) == ["zoe 140", "tom 130", "ivy 125"]
    assert texts(talk, limit=0) == []


def test_before_and_after_are_exclusive(talk: ChannelLog):
    assert texts(talk, before="125.000000", limit=2) == ["sam 110", "zoe 120"]
    assert texts(talk, after="100.000000", before="125.0") == ["sam 110", "zoe 120"]
    assert texts(talk, after="125.000000") == ["tom 130", "zoe 140"]


def test_with_after_alone_one_pages_forward_without_a_gap(talk: ChannelLog):
    seen, after = [], "0"
    while page := talk.page(after=after, limit=2):
        seen += [record.text for record in page]
        after = page[-1].ts
    assert seen == texts(talk)
    assert texts(talk, after="0", limit=2, newest_first=True) == ["tom 100", "amy 90"]


def test_a_thread_is_its_root_and_its_replies(talk: ChannelLog):
    assert texts(talk, thread_ts="100.000000") == ["tom 100", "zoe 120", "tom 130", "zoe 140"]
    assert texts(talk, thread_ts="100.000000", user="zoe", limit=1) == ["zoe 140"]
    assert texts(talk, thread_ts="100.000000", after="100.000000", limit=1) == ["zoe 120"]
    assert texts(talk, thread_ts="100.000000", before="130.000000", limit=1) == ["zoe 120"]
    assert texts(talk, thread_ts="105.000000") == ["ivy 125"]
    assert texts(talk, thread_ts="90.000000") == ["amy 90"]


def test_a_page_of_a_user_holds_that_user_only(talk: ChannelLog):
    assert texts(talk, user="tom") == ["tom 100", "tom 130"]
    assert texts(talk, user="nobody") == []


def test_counts_are_of_what_is_visible(talk: ChannelLog):
    talk.delete("140.000000")
    stats = talk.stats()
    assert (stats.messages, stats.threads, stats.last_ts, stats.bad_lines) == (6, 2, "130.000000", 0)


def test_an_absent_log_is_an_empty_one(workspace: Workspace, log: ChannelLog):
    assert log.page() == []
    assert log.get("1.0") is None
    assert log.reply_to("1.0") is None
    assert log.lines_from(Cursor()).records == []
    assert (log.stats().messages, log.stats().last_ts, log.stats().size_bytes) == (0, None, 0)
    assert not path_of(workspace).parent.exists()


# -- damage


BAD = [
    b"not json",
    b'["a list"]',
    b'{"text":"no ts"}',
    b'{"ts":1764500000.1,"text":"a number"}',
    b'{"ts":"yesterday"}',
    b'{"ts":"1.0","text":NaN}',
    b"\xff\xfe\x00",
    b"[" * 100_000,
]


def test_bad_lines_are_skipped_counted_and_never_deleted(workspace: Workspace, log: ChannelLog):
    good = [b'{"ts":"%d.0","text":"good %d"}' % (number, number) for number in range(1, 10)]
    data = b"".join(line + b"\n" + bad + b"\n" for line, bad in zip(good, [*BAD, b"{"], strict=True))
    write_log(workspace, data)
    assert texts(log) == [f"good {number}" for number in range(1, 10)]
    stats = log.stats()
    assert stats.bad_lines == 9
    assert [data[offset:].split(b"\n")[0][:20] for offset in stats.bad_offsets] == [bad[:20] for bad in [*BAD, b"{"]]
    log.append(NewMessage("next", "U1"))
    assert path_of(workspace).read_bytes().startswith(data)


def test_lines_of_other_tools_keep_their_place_and_their_fields(workspace: Workspace, log: ChannelLog):
    write_log(
        workspace,
        b'\xef\xbb\xbf{"ts":"1.0","text":"bom","reactions":["+1"]}\r\n\n{"ts":"2.0","text":"odd","attachments":"none","isBot":true}\n',
    )
    first, second = log.page()
    assert (first.text, first.model_extra) == ("bom", {"reactions": ["+1"]})
    assert (second.text, second.is_bot) == ("odd", True)
    assert log.edit("1.0", "new").model_extra == {"reactions": ["+1"]}


def test_a_torn_last_line_is_kept_out_of_the_history_and_kept_aside(workspace: Workspace, log: ChannelLog):
    torn = b'{"ts":"2.0","text":"to'
    write_log(workspace, b'{"ts":"1.0","text":"whole"}\n' + torn)
    assert texts(log) == ["whole"]
    log.append(NewMessage("next", "U1"))
    assert texts(log) == ["whole", "next"]
    assert log.stats().bad_lines == 1
    assert path_of(workspace).read_bytes().split(b"\n")[1] == torn
    (aside,) = (workspace.root / ".recalld/quarantine").iterdir()
    assert aside.read_bytes() == torn
    assert re.fullmatch(r"ops%2Flog\.jsonl\.28\.[0-9a-f]{16}", aside.name)


def test_a_complete_last_line_without_its_lf_is_a_record(workspace: Workspace, log: ChannelLog):
    write_log(workspace, b'{"ts":"1.0","text":"whole"}')
    assert texts(log) == ["whole"]
    log.append(NewMessage("next", "U1"))
    assert texts(log) == ["whole", "next"]
    assert log.stats().bad_lines == 0
    assert list((workspace.root / ".recalld/quarantine").iterdir()) == []


def test_a_log_rewritten_by_hand_is_read_again(workspace: Workspace, log: ChannelLog):
    for number in range(50):
        log.append(NewMessage(f"message {number}", "U1", ts=f"{100 + number}.000000"))
    assert len(log.page()) == 50
    kept = raw_lines(workspace)[20:30]
    path_of(workspace).write_bytes(b"\n".join(kept) + b"\n")
    assert texts(log) == [f"message {number}" for number in range(20, 30)]
    assert log.get("100.000000") is None
    assert log.stats().messages == 10
    path_of(workspace).unlink()
    assert texts(log) == []


def test_a_log_shifted_by_hand_in_its_middle_is_read_again(workspace: Workspace, log: ChannelLog):
    """Its start, its length and its end are as before, so that no cursor can tell."""
    for number in range(100):
        log.append(NewMessage(f"message {number:03}", "U1", ts=f"{100 + number}.000000"))
    assert log.get("150.000000").text == "message 050"
    data = path_of(workspace).read_bytes()
    changed = data.replace(b"message 050", b"message fifty").replace(b"message 060", b"message 6")
    assert len(changed) == len(data)
    path_of(workspace).write_bytes(changed)
    assert log.get("155.000000").text == "message 055"
    assert texts(log, limit=100)[50:61] == ["message fifty", *(f"message {number:03}" for number in range(51, 60)), "message 6"]


def test_a_cursor_of_the_sync_sees_each_line_once_in_file_order(workspace: Workspace, log: ChannelLog):
    log.append(NewMessage("one", "U1", ts="2.0"))
    first = log.lines_from(Cursor())
    log.append(NewMessage("two", "U1", ts="1.0"))
    log.edit("2.0", "uno")
    second = log.lines_from(first.cursor)
    assert [record.text for _, record in first.records + second.records] == ["one", "two", "uno"]
    for offset, record in first.records + second.records:
        assert json.loads(path_of(workspace).read_bytes()[offset:].split(b"\n")[0])["ts"] == record.ts
    assert log.lines_from(second.cursor).records == []
    assert not second.restarted
    path_of(workspace).write_bytes(path_of(workspace).read_bytes().replace(b"one", b"eins"))
    assert log.lines_from(second.cursor).restarted


# -- what is not followed


def test_a_log_that_is_no_regular_file_is_refused_without_waiting(workspace: Workspace, log: ChannelLog, tmp_path: Path):
    outside = tmp_path / "outside.jsonl"
    outside.write_bytes(b'{"ts":"1.0","text":"outside"}\n')
    folder = path_of(workspace).parent
    folder.mkdir()
    for make in (
        lambda: path_of(workspace).symlink_to(outside),
        lambda: os.mkfifo(path_of(workspace)),
        lambda: path_of(workspace).mkdir(),
    ):
        make()
        for call in (lambda: log.append(NewMessage("x", "U1")), log.page, lambda: log.lines_from(Cursor())):
            with pytest.raises(UnsafeObjectError):
                call()
        path_of(workspace).rmdir() if path_of(workspace).is_dir() else path_of(workspace).unlink()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(UnsafeObjectError):
        log.append(NewMessage("x", "U1"))
    assert outside.read_bytes() == b'{"ts":"1.0","text":"outside"}\n'


def test_a_channel_folder_that_is_a_file_is_refused(workspace: Workspace, log: ChannelLog):
    (workspace.root / "ops").write_text("a file")
    with pytest.raises(UnsafeObjectError):
        log.append(NewMessage("x", "U1"))
    assert (workspace.root / "ops").read_text() == "a file"


def test_a_vanished_workspace_is_a_fault_of_the_store(tmp_path: Path):
    (tmp_path / "w").mkdir()
    workspace = open_workspace(tmp_path / "w")
    (tmp_path / "w").rename(tmp_path / "gone")
    with pytest.raises(StoreFaultError):
        ChannelLog(workspace, OPS).append(NewMessage("x", "U1"))


# -- the saved index


def test_a_restart_reads_a_long_log_from_its_saved_index(workspace: Workspace):
    write_log(workspace, b"".join(b'{"ts":"%d.0","user":"U%d","text":"message %d"}\n' % (i, i % 7, i) for i in range(1, 5001)))
    stats = ChannelLog(workspace, OPS).stats()
    saved = workspace.root / ".recalld/cache/log/ops.index"
    assert saved.exists()
    reader = ChannelLog(workspace, OPS)
    before = _bytes_read()
    assert reader.stats() == stats
    assert texts(reader, user="U3", limit=2) == ["message 4987", "message 4994"]
    read = _bytes_read() - before
    assert read - saved.stat().st_size < path_of(workspace).stat().st_size / 10


def _bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split("\n")[0])


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_saved_index_is_made_anew(workspace: Workspace, damage: bytes | None):
    write_log(workspace, b"".join(b'{"ts":"%d.0","text":"message %d"}\n' % (i, i) for i in range(1, 3001)))
    stats = ChannelLog(workspace, OPS).stats()
    saved = workspace.root / ".recalld/cache/log/ops.index"
    data = bytearray(saved.read_bytes())
    data[len(data) // 2] ^= 1
    saved.write_bytes(bytes(data) if damage is None else damage)
    assert ChannelLog(workspace, OPS).stats() == stats


def test_a_saved_index_of_another_log_is_not_used(workspace: Workspace):
    write_log(workspace, b"".join(b'{"ts":"%d.0","text":"old %d"}\n' % (i, i) for i in range(1, 3001)))
    ChannelLog(workspace, OPS).stats()
    write_log(workspace, b"".join(b'{"ts":"%d.0","text":"new %d"}\n' % (i, i) for i in range(5001, 9001)))
    log = ChannelLog(workspace, OPS)
    assert (log.stats().messages, log.get("17.0"), log.get("5017.0").text) == (4000, None, "new 5017")


def test_an_index_that_cannot_be_saved_stops_nobody(workspace: Workspace):
    (workspace.root / ".recalld/cache/log").write_text("a file where the folder should be")
    write_log(workspace, b"".join(b'{"ts":"%d.0","text":"message %d"}\n' % (i, i) for i in range(1, 3001)))
    log = ChannelLog(workspace, OPS)
    assert log.append(NewMessage("next", "U1")).record.text == "next"
    assert log.stats().messages == 3001


def test_an_index_that_another_process_is_saving_is_not_waited_for(workspace: Workspace):
    write_log(workspace, b"".join(b'{"ts":"%d.0","text":"message %d"}\n' % (i, i) for i in range(1, 3001)))
    name = workspace.log_index(OPS)
    with locked(workspace.root, name, workspace.lock_of(name)):
        started = time.monotonic()
        assert ChannelLog(workspace, OPS).stats().messages == 3000
        assert time.monotonic() - started < 2
    assert not (workspace.root / name).exists()


def test_an_append_reads_no_more_of_a_long_log_than_of_a_short_one(workspace: Workspace):
    def cost(lines: int) -> int:
        channel = parse_channel_id(f"c{lines}")
        (workspace.root / channel).mkdir()
        (workspace.root / channel / "log.jsonl").write_bytes(
            b"".join(b'{"ts":"%d.0","user":"U","text":"%s"}\n' % (i, b"x" * 100) for i in range(1, lines)),
        )
        log = ChannelLog(workspace, channel)
        log.append(NewMessage("warm", "U1"))
        before = _bytes_read()
        for _ in range(20):
            log.append(NewMessage("next", "U1"))
        return (_bytes_read() - before) // 20

    assert cost(20_000) < cost(1000) * 1.2


# -- generated histories against a simple model


_TS = st.integers(1, 6).map(lambda number: f"{number}.000000")
_OPERATION = st.one_of(
    st.tuples(st.just("append"), _TS, st.sampled_from(["a", "b", ""]), st.one_of(st.none(), _TS)),
    st.tuples(st.just("edit"), _TS, st.sampled_from(["a", "b", ""])),
    st.tuples(st.just("delete"), _TS),
    st.tuples(
        st.just("foreign"),
        st.sampled_from([b"junk\n", b'{"ts":"3.0","text":"f","x":1}\n', b'{"ts":"9.5"}\n', b"\n", b'{"ts":"8.0","te']),
    ),
    st.tuples(st.just("reopen")),
)


class Model:
    """What a log must say after each operation, as a dict of messages. `torn`: its last line has no end yet."""

    def __init__(self) -> None:
        self.messages: dict[Decimal, dict] = {}
        self.torn = False

    def append(self, ts: str, text: str, thread: str | None) -> str:
        found = self.messages.get(Decimal(ts))
        if found is not None:
            return "replayed" if text in (found["text"], found["first"]) else "conflict"
        self.torn = False
        root = None if thread is None or Decimal(thread) == Decimal(ts) else thread
        self.messages[Decimal(ts)] = {"text": text, "first": text, "thread": root, "deleted": False, "x": None}
        return "appended"

    def change(self, ts: str, **fields) -> str:
        found = self.messages.get(Decimal(ts))
        if found is None or found["deleted"]:
            return "unknown"
        self.torn &= found == found | fields
        found |= fields
        return "changed"

    def foreign(self, line: bytes) -> None:
        joined, self.torn = self.torn, not line.endswith(b"\n")
        if joined or self.torn or not line.startswith(b"{"):
            return
        value = json.loads(line)
        fresh = {"text": value.get("text", ""), "first": value.get("text", ""), "thread": None, "deleted": False, "x": None}
        found = self.messages.setdefault(Decimal(value["ts"]), fresh)
        found["x"] = value.get("x", found["x"])
        if not found["deleted"]:
            found["text"] = value.get("text") or found["text"]


def _outcome(call, *args) -> str:
    try:
        result = call(*args)
    except MessageConflictError:
        return "conflict"
    except NotFoundError:
        return "unknown"
    return "changed" if not hasattr(result, "replayed") else "replayed" if result.replayed else "appended"


def _apply(operation: tuple, log: ChannelLog, model: Model, path: Path) -> ChannelLog:
    match operation:
        case ("append", ts, text, thread):
            message = NewMessage(text, "U1", ts=ts, thread_ts=thread)
            assert _outcome(log.append, message) == model.append(ts, text, thread)
        case ("edit", ts, text):
            assert _outcome(log.edit, ts, text) == model.change(ts, text=text)
        case ("delete", ts):
            assert _outcome(log.delete, ts) == model.change(ts, text="", deleted=True)
        case ("foreign", line):
            path.parent.mkdir(exist_ok=True)
            with path.open("ab") as file:
                file.write(line)
            model.foreign(line)
        case _:
            return ChannelLog(Workspace(path.parents[1]), OPS, clock=lambda: NOW)
    return log


@settings(max_examples=120, deadline=None)
@given(st.lists(_OPERATION, max_size=15))
def test_a_log_says_what_a_simple_model_says(operations):
    with tempfile.TemporaryDirectory() as folder:
        workspace = open_workspace(Path(folder))
        log, model = ChannelLog(workspace, OPS, clock=lambda: NOW), Model()
        for operation in operations:
            log = _apply(operation, log, model, path_of(workspace))
        shown = sorted((ts, m["text"], m["thread"], m["x"]) for ts, m in model.messages.items() if not m["deleted"])
        for reader in (log, ChannelLog(workspace, OPS)):
            page = reader.page(limit=100)
            assert [(Decimal(r.ts), r.text, r.root_ts, (r.model_extra or {}).get("x")) for r in page] == shown
            assert reader.stats().messages == len(shown)


def test_the_changes_of_a_log_are_those_of_edited_and_deleted_messages(tmp_path):
    log = ChannelLog(open_workspace(tmp_path), parse_channel_id("general"))
    plain, edited, deleted = (log.append(NewMessage(text=text, user="amy")).record.ts for text in ("a", "b", "c"))
    log.edit(edited, "b, but better")
    log.delete(deleted)
    look_up = log.changes()
    assert look_up(plain) is None
    assert look_up("1.000000") is None
    assert look_up(edited).text == "b, but better"
    assert look_up(deleted).deleted
