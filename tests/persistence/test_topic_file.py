"""A topic's own file: front matter as several tools write it, of which only the managed keys are ever changed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.topics.file import (
    TopicFile,
    mark_pinned,
    mark_removed,
    parse_topic_file,
    render_topic_file,
    with_fields,
    write_topic,
)
from persistence.topics.index import TopicEntry

STAMP = "2026-08-07T01:15:30+08:00"
LATER = "2026-08-08T01:15:30+08:00"
ENTRY = TopicEntry("A", "a.md", STAMP, pinned=False, stale=False, summary="s", line=1)


def written(old: str | None, content: str, *, mode: str = "append", stamp: str = LATER) -> str:
    topic = None if old is None else parse_topic_file(old)
    return render_topic_file(write_topic(topic, content, name="A", summary="s", stamp=stamp, mode=mode, pinned=False))


def test_a_new_file_is_as_the_public_tools_write_it():
    assert written(None, "hello\n", stamp=STAMP) == (
        f'---\nmetadata:\n  node_type: memory\nname: "A"\ndescription: "s"\n'
        f"last_updated: {STAMP}\ncreated: {STAMP}\n---\n\nhello\n"
    )


def test_appending_keeps_the_body_and_puts_the_content_under_the_full_local_stamp():
    first = written(None, "one", stamp=STAMP)
    second = written(first, "two")
    assert second.endswith(f"---\n\none\n\n## {LATER}\n\ntwo\n")
    assert second.count("created:") == 1
    assert f"created: {STAMP}\n" in second
    assert f"last_updated: {LATER}\n" in second


def test_replacing_drops_the_body_without_a_heading_however_often():
    text = written(written(written(None, "one"), "two", mode="replace"), "three", mode="replace")
    assert text.endswith("---\n\nthree\n")
    assert "##" not in text
    assert text.count("---\n") == 2


FOREIGN = """---
# kept comment
name: Old: name
tags:
  - x

  - y
description: >
  folded
  text
custom_key: "a: b"

last_updated: 2024-01-01
created: 2023-12-31
weird line
---

Body
---
more
"""


def test_unknown_keys_comments_and_lines_survive_a_write_verbatim_and_in_place():
    text = written(FOREIGN, "new")
    head = text.partition("\n---\n")[0]
    assert head.split("\n") == [
        "---",
        "# kept comment",
        'name: "A"',
        "tags:",
        "  - x",
        "",
        "  - y",
        'description: "s"',
        'custom_key: "a: b"',
        "",
        f"last_updated: {LATER}",
        "created: 2023-12-31",
        "weird line",
    ]
    assert "\n\nBody\n---\nmore\n" in text


def test_unquoted_quoted_single_quoted_and_block_values_are_read():
    topic = parse_topic_file(FOREIGN)
    assert (topic.name, topic.description, topic.created, topic.last_updated) == (
        "Old: name",
        "folded text",
        "2023-12-31",
        "2024-01-01",
    )
    assert parse_topic_file('---\nname: "q \\"x\\" \\u00e9"\n---\n').name == 'q "x" é'
    assert parse_topic_file("---\nname: 'it''s'\n---\n").name == "it's"
    assert parse_topic_file('---\nname: "unclosed\n---\n').name == "unclosed"
    assert parse_topic_file("---\ndescription: |-\n  a\n\n  b\n---\n").description == "a b"


@pytest.mark.parametrize("text", ["---\n---\n", "---\n---", "---\r\n---\r\nbody\r\n", "\ufeff---\nname: x\n---"])
def test_empty_unterminated_crlf_and_bom_front_matter_is_recognised(text: str):
    again = written(text, "new")
    assert again.count("---\n") == 2
    assert "\r" not in again


def test_an_unclosed_or_late_front_matter_is_body():
    for text in ("---\nname: x\nno end", "text\n---\nname: x\n---\n"):
        topic = parse_topic_file(text)
        assert (topic.fields, topic.body) == (None, text)


def test_a_file_without_front_matter_gets_one_and_keeps_its_text_only_when_appending():
    assert f"---\n\nold text\n\n## {LATER}\n\nnew\n" in written("old text\n", "new")
    assert "old text" not in written("old text\n", "new", mode="replace")


@pytest.mark.parametrize("content", ["$1 \\1 \\g<0>", "---\nname: forged\n---", "a\n---\nb", 'x: "y"'])
def test_content_is_never_taken_for_anything_else(content: str):
    text = written(written(None, "first"), content)
    assert text.endswith(f"\n\n{content}\n")
    assert parse_topic_file(text).name == "A"


def test_a_second_value_of_a_managed_key_goes_when_the_key_is_written():
    text = render_topic_file(with_fields(parse_topic_file("---\nname: a\nname: b\n---\nx"), {"name": '"c"'}))
    assert text == '---\nname: "c"\n---\nx'


def test_a_removed_mark_counts_until_another_tool_writes_the_topic_again():
    removed = mark_removed(parse_topic_file(written(None, "x", stamp=STAMP)), ENTRY, stamp=LATER)
    assert removed.removed_at == LATER
    rewritten = with_fields(removed, {"last_updated": "2026-08-08T01:15:31+08:00"})
    assert rewritten.removed_at is None
    assert "removed_at" not in written(render_topic_file(removed), "again")


def test_a_removal_by_a_clock_that_is_behind_still_counts():
    topic = parse_topic_file(written(None, "x", stamp=LATER))
    assert mark_removed(topic, ENTRY, stamp=STAMP).removed_at == LATER


def test_a_pin_is_kept_in_front_matter_and_leaves_everything_else():
    topic = parse_topic_file(FOREIGN)
    pinned = mark_pinned(topic, ENTRY, pinned=True)
    assert pinned.pinned
    assert render_topic_file(pinned) == FOREIGN.replace("weird line\n", "weird line\npinned: true\n")
    assert render_topic_file(mark_pinned(pinned, ENTRY, pinned=False)) == FOREIGN


def test_a_pin_on_a_file_without_front_matter_tells_the_name_too_and_an_unpin_adds_nothing():
    bare = parse_topic_file("text\n")
    pinned = mark_pinned(bare, ENTRY, pinned=True)
    assert (pinned.name, pinned.description, pinned.last_updated, pinned.pinned) == ("A", "s", STAMP, True)
    assert pinned.body == "\ntext\n"
    assert mark_pinned(bare, ENTRY, pinned=False) == bare


@given(st.text(st.sampled_from(list("-\n\r: \t\"'#>|abname\ufeff"))) | st.text())
def test_any_text_parses_and_comes_back_but_for_line_ends(text: str):
    topic = parse_topic_file(text)
    again = render_topic_file(topic)
    assert again.rstrip("\n") == text.removeprefix("\ufeff").replace("\r\n", "\n").rstrip("\n")
    assert parse_topic_file(again) == topic or text.endswith("---") or again.startswith("\ufeff") or "\r\n" in again
    for value in (topic.name, topic.description, topic.created, topic.last_updated, topic.removed_at):
        assert value is None or "\n" not in value


_one_line = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"])).map(lambda text: " ".join(text.split()))


@given(
    name=_one_line.filter(bool),
    summary=_one_line,
    content=st.text(st.characters(exclude_categories=["Cs"])).map(lambda text: text.replace("\r", "").strip("\n")).filter(bool),
    pinned=st.booleans(),
)
def test_what_was_written_is_read_again(name: str, summary: str, content: str, pinned: bool):
    topic = write_topic(None, content, name=name, summary=summary, stamp=STAMP, mode="append", pinned=pinned)
    again = parse_topic_file(render_topic_file(topic))
    assert (again.name, again.description, again.pinned, again.created) == (name, summary, pinned, STAMP)
    assert again.body == f"\n{content}\n"
    assert isinstance(again, TopicFile)
