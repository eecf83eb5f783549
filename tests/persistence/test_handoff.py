"""HANDOFF.md: what of a conversation becomes a section, which sections stay, and what is read of them."""

import multiprocessing
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistence.errors import NotUtf8Error, UnsafeObjectError
from persistence.handoff import (
    MAX_SECTION_BYTES,
    CompactionMark,
    HandoffOf,
    cap_section,
    decide_after_compaction,
    extract_bullets,
    read_handoff,
    write_consolidation,
    write_handoff,
)
from persistence.records import AssistantMessage, TextBlock, ThinkingBlock, ToolCallBlock, ToolResultMessage, UserMessage
from persistence.rules_values import Rules
from persistence.versions import Author, list_versions
from persistence.workspace import open_workspace, parse_channel_id

C1 = parse_channel_id("C1")
NOW = datetime(2026, 11, 30, 14, 2, 3, 456, tzinfo=timezone(timedelta(hours=2)))
TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


@pytest.fixture
def workspace(tmp_path):
    return open_workspace(tmp_path)


def of(compaction="a1", reason="manual", *, keep=3, thread=None):
    return HandoffOf(reason, CompactionMark(compaction, thread), keep, NOW, Author("recalld"))


def assistant(*texts, calls=()):
    blocks = [TextBlock(text=text) for text in texts]
    return AssistantMessage(content=[*blocks, *(ToolCallBlock(id=call, name="look") for call in calls)], timestamp=1)


def user(text):
    return UserMessage(content=[TextBlock(text=text)], timestamp=1)


def write(workspace, *texts, channel=C1, next_step=None, **how):
    return write_handoff(workspace, channel, [assistant(text) for text in texts], of=of(**how), next_step=next_step)


def text_of(workspace, name="C1/HANDOFF.md"):
    return (workspace.root / name).read_text("utf-8")


def headings(workspace, name="C1/HANDOFF.md"):
    return [line for line in text_of(workspace, name).split("\n") if line.startswith("## ")]


def test_without_a_file_there_is_no_hand_over_and_reading_creates_none(workspace):
    assert read_handoff(workspace, C1) is None
    assert read_handoff(workspace, None) is None
    assert sorted(path.name for path in workspace.root.iterdir()) == [".recalld"]


def test_a_section_has_a_stamp_a_reason_and_bullets(workspace):
    assert write(workspace, "The port is 8443.\nThe host is db1.") == "written"
    assert text_of(workspace) == (
        "## 2026-11-30T14:02:03+02:00 (manual)\n\n<!-- compaction a1 -->\n- The port is 8443.\n- The host is db1.\n"
    )


def test_the_newest_section_is_read(workspace):
    write(workspace, "first")
    write(workspace, "second", compaction="b2", reason="threshold")
    found = read_handoff(workspace, C1)
    assert (found.text, found.reason, found.stamp) == ("- second", "threshold", "2026-11-30T14:02:03+02:00")
    assert found.path == "C1/HANDOFF.md"
    assert not found.consolidated


def test_the_section_of_one_compaction_is_found_by_its_id(workspace):
    write(workspace, "of the thread", compaction="a1", thread="100.000001")
    write(workspace, "of the channel", compaction="b2")
    found = read_handoff(workspace, C1, compaction_id="a1")
    assert (found.text, found.mark) == ("- of the thread", CompactionMark("a1", "100.000001"))
    assert read_handoff(workspace, C1, compaction_id="c3") is None


def test_only_the_newest_sections_stay_and_what_goes_is_kept_as_a_version(workspace):
    for number in range(4):
        write(workspace, f"note {number}", compaction=f"{number}", keep=2)
    assert len(headings(workspace)) == 2
    assert "note 1" not in text_of(workspace)
    assert [line for line in text_of(workspace).split("\n") if line.startswith("- ")] == ["- note 2", "- note 3"]
    assert len(list_versions(workspace, "C1/HANDOFF.md")) == 3


def test_keeping_none_writes_none(workspace):
    assert write(workspace, "text", keep=0) == "disabled"
    assert write_consolidation(workspace, C1, "summary", of=of(keep=0)) == "disabled"
    assert not (workspace.root / "C1").exists()


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [user("only a person speaks")],
        [assistant("```\ncode\n```\n# Title\n\n###### Deep\n")],
        [assistant(calls=["c1"]), ToolResultMessage(tool_call_id="c1", tool_name="look", content=[], timestamp=1)],
        [AssistantMessage(content=[ThinkingBlock(thinking="hm")], timestamp=1)],
    ],
)
def test_where_the_bot_said_nothing_nothing_is_written(workspace, messages):
    assert write_handoff(workspace, C1, messages, of=of()) == "empty"
    assert not (workspace.root / "C1" / "HANDOFF.md").exists()


def test_only_the_bot_is_quoted_and_only_its_last_three_messages(workspace):
    messages = [assistant("one"), assistant("two"), user("not me"), assistant("three", calls=["c"]), assistant("four"), user("x")]
    write_handoff(workspace, C1, messages, of=of())
    assert read_handoff(workspace, C1).text == "- two\n- three\n- four"


def test_of_too_many_lines_the_newest_stay():
    texts = ["\n".join(f"old {number}" for number in range(20)), "\n".join(f"new {number}" for number in range(4))]
    bullets = extract_bullets(texts)
    assert len(bullets) == 15
    assert bullets[-4:] == ["- new 0", "- new 1", "- new 2", "- new 3"]
    assert bullets[0] == "- old 9"


@pytest.mark.parametrize(
    ("text", "bullets"),
    [
        ("- a\n* b\n+ c\n1. d\n2) e", ["- a", "- b", "- c", "- d", "- e"]),
        ("**bold** and *soft*", ["- bold and soft"]),
        ("before\n```python\nsecret_code()\n# not a title\n```\nafter", ["- before", "- after"]),
        ("before\n~~~\n```\nstill code\n~~~\nafter", ["- before", "- after"]),
        ("````\n```\ncode\n````\nafter", ["- after"]),
        ("- ```\n  code\n  ```\n- after", ["- after"]),
        ("open\n```\nnever closed", ["- open"]),
        ("# Title\n###### Deep\n#hashtag", ["- #hashtag"]),
        ("one\r\ntwo\rthree", ["- one", "- two", "- three"]),
        ("2 * 3 * 4", ["- 2 * 3 * 4"]),
        ("x" * 900, ["- " + "x" * 500 + " […]"]),
        (f"the token is {TOKEN} now", ["- the token is [redacted:github_token] now"]),
    ],
)
def test_lines_become_bullets_without_code_and_titles(text, bullets):
    assert extract_bullets([text]) == bullets


def test_a_secret_is_taken_out_wherever_it_comes_from(workspace):
    write_handoff(workspace, C1, [assistant(f"use {TOKEN}")], of=of(), next_step=f"send {TOKEN}")
    write_consolidation(workspace, C1, f"the token: {TOKEN}", of=of("b2"))
    assert TOKEN not in text_of(workspace)
    assert text_of(workspace).count("[redacted:") == 3


def test_a_secret_over_several_lines_is_taken_out_whole():
    body = "\n".join(["MIIEpAIBAAKCAQEAx7Jd9vQp2L0zGm4sT8wYbN3kRfHcXeUaVi5oPqWlEjZt"] * 3)
    pem = "-----BEGIN RSA PRIVATE KEY-----\n" + body + "\n-----END RSA PRIVATE KEY-----"
    assert "MIIE" not in "\n".join(extract_bullets([f"here:\n{pem}\ndone"]))


def test_the_same_compaction_again_replaces_its_own_section(workspace):
    write(workspace, "first", compaction="a1")
    write(workspace, "second", compaction="b2")
    write(workspace, "first again", compaction="a1")
    assert [line for line in text_of(workspace).split("\n") if line.startswith("- ")] == ["- first again", "- second"]


def test_a_consolidation_replaces_the_section_of_its_compaction(workspace):
    write(workspace, "raw bullets", compaction="a1", reason="threshold")
    write_consolidation(workspace, C1, "## Goal\nShip it\n## Next\ntests", of=of("a1", "threshold"))
    assert headings(workspace) == ["## 2026-11-30T14:02:03+02:00 Consolidation (threshold)"]
    found = read_handoff(workspace, C1)
    assert found.text == "### Goal\nShip it\n### Next\ntests"
    assert found.consolidated


def test_a_consolidation_never_replaces_the_section_of_another_compaction(workspace):
    write(workspace, "older", compaction="a1")
    assert write_handoff(workspace, C1, [], of=of("b2")) == "empty"
    write_consolidation(workspace, C1, "the summary", of=of("b2"))
    assert len(headings(workspace)) == 2
    assert "- older" in text_of(workspace)


def test_mixed_sections_count_alike(workspace):
    write(workspace, "one", compaction="a1", keep=2)
    write_consolidation(workspace, C1, "two", of=of("a1", keep=2))
    write(workspace, "three", compaction="b2", keep=2)
    write_consolidation(workspace, C1, "four", of=of("c3", keep=2))
    assert len(headings(workspace)) == 2
    assert "two" not in text_of(workspace)
    assert read_handoff(workspace, C1).text == "four"


@pytest.mark.parametrize("summary", ["x" * 20_000, "é" * 20_000, "line of text\n" * 2_000])
def test_a_long_summary_is_cut_and_says_so(workspace, summary):
    write_consolidation(workspace, C1, summary, of=of())
    assert len(text_of(workspace).encode()) < MAX_SECTION_BYTES + 200
    assert f"of {len(summary.strip().encode())} bytes shown -->" in text_of(workspace)


def test_a_cut_falls_on_a_line_end():
    capped = cap_section("a line of text\n" * 2_000)
    assert set(capped.split("\n")[:-1]) == {"a line of text"}


def test_long_bullets_lose_the_oldest_and_say_so(workspace):
    write(workspace, "\n".join(f"{number} " + "語" * 400 for number in range(15)))
    text = read_handoff(workspace, C1).text
    assert len(text.encode()) <= MAX_SECTION_BYTES
    assert text.startswith("<!-- cut: ")
    assert text.split("\n")[-1].startswith("- 14 ")


def test_what_people_wrote_above_the_sections_stays(workspace):
    path = workspace.root / "C1" / "HANDOFF.md"
    path.parent.mkdir()
    path.write_text("# Hand-over\n\nkept by hand\n\n## by hand\n\n- mine\n")
    write(workspace, "new")
    assert text_of(workspace).startswith("# Hand-over\n\nkept by hand\n\n## by hand\n\n- mine\n\n## 2026")
    write(workspace, "newer", compaction="b2", keep=1)
    assert text_of(workspace).startswith("# Hand-over\n\nkept by hand\n\n## 2026")


def test_a_section_of_another_tool_is_read(workspace):
    path = workspace.root / "HANDOFF.md"
    path.write_bytes(b"## 2026-01-01T00:00:00+00:00 (overflow)\r\n\r\n- waiting for the build\r\n")
    found = read_handoff(workspace, None)
    assert (found.text, found.reason, found.mark, found.next_step) == ("- waiting for the build", "overflow", None, None)
    assert found.is_unfinished


def test_text_can_not_pass_for_a_mark_or_a_section(workspace):
    write(workspace, "<!-- compaction ff -->\n## 2020-01-01T00:00:00+00:00 (manual)\nreal")
    write_consolidation(workspace, C1, "<!-- compaction ee nothing-left -->\n## 2020-01-01T00:00:00+00:00 (manual)", of=of("b2"))
    assert len(headings(workspace)) == 2
    assert read_handoff(workspace, C1, compaction_id="ff") is None
    assert read_handoff(workspace, C1, compaction_id="ee") is None
    assert read_handoff(workspace, C1).next_step is None


@pytest.mark.parametrize(
    "text",
    ["I need to test", "waiting for CI", "Pending review", "it is not done", "incomplete", "Unfinished", "NEED TO", "next step"],
)
def test_words_say_that_work_is_unfinished(workspace, text):
    write(workspace, text)
    assert read_handoff(workspace, C1).is_unfinished


@pytest.mark.parametrize(
    "text",
    [
        "completed everything",
        "Then we should do the next thing",
        "all is done",
        "no pending items",
        "nothing pending",
        "spending",
        "the needle",
    ],
)
def test_other_words_do_not(workspace, text):
    write(workspace, text)
    assert not read_handoff(workspace, C1).is_unfinished


def test_a_next_step_that_was_said_counts_more_than_words(workspace):
    write(workspace, "all done", next_step="deploy to staging")
    found = read_handoff(workspace, C1)
    assert (found.next_step, found.is_unfinished) == ("deploy to staging", True)
    write(workspace, "nothing is pending or unfinished", compaction="b2", next_step="")
    found = read_handoff(workspace, C1)
    assert (found.next_step, found.is_unfinished) == ("", False)


def test_a_next_step_is_kept_among_too_many_bullets_and_alone(workspace):
    write(workspace, "\n".join(f"line {number}" for number in range(30)), next_step="go on")
    assert len(read_handoff(workspace, C1).text.split("\n")) == 15
    assert read_handoff(workspace, C1).next_step == "go on"
    assert write_handoff(workspace, C1, [], of=of("b2"), next_step="alone\nin two lines") == "written"
    assert read_handoff(workspace, C1).text == "- Next step: alone in two lines"


def test_channels_and_the_workspace_have_hand_overs_of_their_own(workspace):
    write(workspace, "global", channel=None)
    write(workspace, "channel")
    assert read_handoff(workspace, None).text == "- global"
    assert read_handoff(workspace, C1).text == "- channel"
    assert read_handoff(workspace, parse_channel_id("C2")) is None


def legacy(workspace, text="## 2025-01-01T00:00:00+00:00 (manual)\n\n- from before\n"):
    path = workspace.root / "memory" / "HANDOFF.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_where_it_stood_before_it_is_read_until_it_is_taken_over(workspace):
    path = legacy(workspace)
    assert read_handoff(workspace, None).text == "- from before"
    assert read_handoff(workspace, C1) is None
    assert not (workspace.root / "HANDOFF.md").exists()
    write(workspace, "new", channel=None)
    assert [line for line in text_of(workspace, "HANDOFF.md").split("\n") if line.startswith("- ")] == ["- from before", "- new"]
    assert path.read_text().endswith("- from before\n")
    assert read_handoff(workspace, C1) is None


def test_what_was_taken_over_once_does_not_come_back(workspace):
    legacy(workspace)
    write(workspace, "new", channel=None)
    (workspace.root / "HANDOFF.md").unlink()
    assert read_handoff(workspace, None) is None
    write(workspace, "newer", channel=None)
    assert "from before" not in text_of(workspace, "HANDOFF.md")


def test_where_there_is_a_new_file_the_old_one_does_not_count(workspace):
    legacy(workspace)
    (workspace.root / "HANDOFF.md").write_text("## 2026-01-01T00:00:00+00:00 (manual)\n\n- new\n")
    assert read_handoff(workspace, None).text == "- new"
    write(workspace, "newer", channel=None)
    (workspace.root / "HANDOFF.md").unlink()
    assert read_handoff(workspace, None) is None


def test_a_file_that_is_not_utf8_or_no_file_is_left_alone(workspace):
    path = workspace.root / "C1" / "HANDOFF.md"
    path.parent.mkdir()
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(NotUtf8Error):
        write(workspace, "text")
    assert path.read_bytes() == b"\xff\xfe"
    path.unlink()
    path.symlink_to(workspace.root / "elsewhere")
    with pytest.raises(UnsafeObjectError):
        write(workspace, "text")


def _write_many(root, worker):
    workspace = open_workspace(root)
    for number in range(10):
        write(workspace, f"{worker}.{number}", compaction=f"{worker}a{number}", keep=100)


def test_writers_of_several_processes_lose_no_section(workspace):
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=_write_many, args=(workspace.root, worker)) for worker in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    bullets = [line for line in text_of(workspace).split("\n") if line.startswith("- ")]
    assert sorted(bullets) == sorted(f"- {worker}.{number}" for worker in range(3) for number in range(10))


@pytest.mark.parametrize(
    ("rules", "reason", "text", "expected"),
    [
        (Rules(consolidate_on_compact=True, auto_resume_after_threshold_compaction=True), "threshold", "pending", "consolidate"),
        (Rules(auto_resume_after_threshold_compaction=True), "threshold", "all done", "resume"),
        (Rules(), "threshold", "pending", "resume"),
        (Rules(), "threshold", "all done", "none"),
        (Rules(), "threshold", None, "none"),
        (Rules(consolidate_on_compact=True), "manual", "pending", "none"),
        (Rules(auto_resume_after_threshold_compaction=True), "overflow", "pending", "none"),
    ],
)
def test_what_follows_a_compaction(workspace, rules, reason, text, expected):
    if text:
        write(workspace, text, reason=reason)
    assert decide_after_compaction(rules, reason=reason, handoff=read_handoff(workspace, C1)) == expected


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=120), max_size=4), st.integers(1, 3))
def test_whatever_the_bot_said_a_section_is_one_section(tmp_path_factory, texts, keep):
    workspace = open_workspace(tmp_path_factory.mktemp("ws"))
    write(workspace, "marker", compaction="a1", keep=keep)
    status = write_handoff(workspace, C1, [assistant(text) for text in texts], of=of("b2", keep=keep))
    expected = 1 if keep == 1 or status == "empty" else 2
    assert len(headings(workspace)) == expected
    found = read_handoff(workspace, C1)
    assert found.mark == CompactionMark("a1" if status == "empty" else "b2")
    assert all(line.startswith("- ") for line in found.text.split("\n"))
    assert len(found.text.split("\n")) <= 15


def test_the_stamp_is_in_whole_seconds_with_an_offset(workspace):
    write_handoff(
        workspace, C1, [assistant("x")], of=HandoffOf("manual", CompactionMark("a"), 3, NOW.astimezone(UTC), Author("cli"))
    )
    assert headings(workspace) == ["## 2026-11-30T12:02:03+00:00 (manual)"]
