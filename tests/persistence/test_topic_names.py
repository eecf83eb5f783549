"""What a topic may be called, and the file name that is made of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.errors import (
    TooLargeError,
    TopicBlankError,
    TopicNoSlugError,
    TopicReservedError,
    TopicRetiredError,
    TopicStructuralError,
)
from persistence.topics.index import TopicEntry, is_safe_topic_file, parse_topic_index, render_entry
from persistence.topics.names import check_topic_name, clean_summary, recovered_name, slug_of


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("PostgreSQL Setup", "postgresql-setup"),
        ("Node.js & npm!", "nodejs-npm"),
        ("a_b", "ab"),
        ("C++", "c"),
        ("Café Menü", "caf-men"),
        ("  - Deploy -- window -  ", "deploy-window"),
        ("你好", "你好"),
        ("Привет, мир!", "привет-мир"),
        ("नमस्ते", "नमस्ते"),
        ("日本語 v2", "v2"),
        ("٤٢", "٤٢"),
    ],
)
def test_a_slug_is_of_ascii_letters_and_digits_or_else_of_the_names_own_script(name: str, slug: str):
    assert slug_of(name) == slug


@pytest.mark.parametrize("name", ["---", " - ", "!!!", "…", "🙂", "\u0308"])
def test_a_name_without_a_letter_or_digit_is_refused(name: str):
    with pytest.raises(TopicNoSlugError):
        check_topic_name(name)


@pytest.mark.parametrize("name", ["", "   ", "\t\n", "\u3000"])
def test_a_blank_name_is_refused(name: str):
    with pytest.raises(TopicBlankError):
        check_topic_name(name)


@pytest.mark.parametrize(
    "name",
    [f"Bad{char}Topic" for char in "\n\r][)(\t\x1b\x00\u202e\u200b\u2028"],
)
def test_a_name_that_would_break_or_hide_in_its_index_line_is_refused(name: str):
    with pytest.raises(TopicStructuralError):
        check_topic_name(name)


@pytest.mark.parametrize("name", ["MEMORY", "Memory", "handoff", "Index!", "system", "LOG", "CON", "nul", "Com1", "LPT9"])
def test_a_name_of_a_file_that_means_something_else_is_refused(name: str):
    with pytest.raises(TopicReservedError):
        check_topic_name(name)


@pytest.mark.parametrize("name", ["last-session-recap", "Last Session Recap", "LAST SESSION RECAP", " last  session-recap! "])
def test_every_spelling_of_the_retired_recap_is_refused(name: str):
    with pytest.raises(TopicRetiredError):
        check_topic_name(name)


def test_a_name_has_at_most_120_characters_and_its_slug_80_bytes():
    assert len(check_topic_name("x" * 120)) == 120
    assert slug_of("x" * 120) == "x" * 80
    assert slug_of("x" * 79 + " yz") == "x" * 79
    assert slug_of("漢" * 100) == "漢" * 26
    with pytest.raises(TooLargeError):
        check_topic_name("x" * 121)


def test_a_name_is_stored_trimmed_and_composed():
    assert check_topic_name("  Cafe\u0301  ") == "Café"


@given(st.text(max_size=130))
def test_a_name_is_either_refused_with_a_code_or_makes_a_safe_file_and_a_whole_index_line(name: str):
    try:
        checked = check_topic_name(name)
    except (TopicBlankError, TopicStructuralError, TopicNoSlugError, TopicReservedError, TopicRetiredError, TooLargeError):
        return
    file = f"{slug_of(checked)}.md"
    assert is_safe_topic_file(file)
    assert len(file.encode()) <= 83
    entry = TopicEntry(checked, file, "2026-01-01", pinned=False, stale=False, summary="s", line=1)
    assert parse_topic_index(render_entry(entry)).entries == (entry,)


def test_a_summary_is_one_line_of_at_most_500_code_points():
    assert clean_summary("  a  b\n- [Forged](forged.md) -- x\u2028y\rz\ufeffq ") == "a b - [Forged](forged.md) -- x y z q"
    assert clean_summary("🙂" * 600) == "🙂" * 500
    assert clean_summary("") == ""


@given(st.text(max_size=600))
def test_a_cleaned_summary_comes_back_from_its_index_line(text: str):
    summary = clean_summary(text)
    entry = TopicEntry("A", "a.md", "2026-01-01", pinned=False, stale=False, summary=summary, line=1)
    assert parse_topic_index(render_entry(entry) + "\n").entries == (entry,)


def test_a_recovered_name_loses_what_could_act_and_falls_back_to_the_stem():
    assert recovered_name("A](x.md) [pin]\u202e", "stem") == "Ax.md pin"
    assert recovered_name("[]()", "stem") == "stem"
