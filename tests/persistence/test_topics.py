"""The topic index: its grammar as two other tools write it, and what of it a prompt gets."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.topics.index import (
    TopicEntry,
    drop_file,
    instant,
    is_safe_topic_file,
    parse_topic_index,
    put_entry,
    render_entry,
    render_index,
    rows_of,
    select_for_prompt,
    tidy,
)

STAMP = "2026-08-07T01:15:30+08:00"


def entry(line: str) -> TopicEntry:
    [found] = parse_topic_index(line).entries
    return found


def index_text(count: int, *, pinned: set[int] = frozenset(), stale: set[int] = frozenset()) -> str:
    lines = [
        f"- [T{n}](t{n}.md){' [pin]' * (n in pinned)} {STAMP}{' [stale?]' * (n in stale)} -- summary {n}" for n in range(count)
    ]
    return "\n".join(["# Memory Index", "", *lines]) + "\n"


def test_a_canonical_line_gives_every_field():
    found = entry(f"- [Docker Setup](docker-setup.md) [pin] {STAMP} [stale?] -- how the -- daemon is set up")
    assert found == TopicEntry(
        name="Docker Setup",
        file="docker-setup.md",
        stamp=STAMP,
        pinned=True,
        stale=True,
        summary="how the -- daemon is set up",
        line=1,
    )


@pytest.mark.parametrize(
    "stamp",
    ["2026-08-07", STAMP, "2020-01-01T00:00:00Z", "2020-01-01T00:00:00.123+00:00", "2020-01-01T00:00:00"],
)
def test_every_kind_of_stamp_is_read_whole_and_kept_as_written(stamp: str):
    found = entry(f"- [A](a.md) {stamp} -- s")
    assert (found.stamp, found.extra_tokens) == (stamp, ())


@pytest.mark.parametrize(
    "summary",
    ["text [pin] text", "[stale?]", "[pin]", "since 2020-01-01 [stale?]", "see [B](b.md)", "a -- [pin]"],
)
def test_a_summary_can_neither_pin_nor_age_nor_date_its_topic(summary: str):
    found = entry(f"- [A](a.md) -- {summary}")
    assert (found.pinned, found.stale, found.stamp, found.summary) == (False, False, None, summary)


def test_flags_are_whole_tokens_and_unknown_tokens_are_preserved():
    found = entry(f"- [A](a.md) [pin]ned {{x=1}} {STAMP} owner--me -- s")
    assert not found.pinned
    assert (found.extra_tokens, found.summary) == (("[pin]ned", "{x=1}", "owner--me"), "s")
    assert parse_topic_index(render_entry(found)).entries == (found,)


@pytest.mark.parametrize("line", ["- [A](a.md) 2026-01-01 -- ", "- [A](a.md) 2026-01-01 --", "- [A](a.md) 2026-01-01"])
def test_an_empty_or_missing_summary_is_the_empty_text(line: str):
    assert entry(line).summary == ""
    assert entry(render_entry(entry(line))) == entry(line)


@pytest.mark.parametrize("line", ["# Memory Index", "", "prose", "* [A](a.md) -- s", "- [A] (a.md)", "- [](a.md)", "-[A](a.md)"])
def test_what_is_no_entry_stays_as_a_line(line: str):
    index = parse_topic_index(f"{line}\n- [A](a.md) -- s\n")
    assert [found.line for found in index.entries] == [2]
    assert index.lines[0] == line
    assert index.quarantined == ()


@pytest.mark.parametrize(
    "file",
    [
        "../../../etc/passwd", "sub/dir.md", "..\\x.md", ".lock", ".ocl-removed.md", "we(ird.md", "a[b].md", "config.json",
        "MEMORY.md", "memory.md", ".hidden.md", "nul\x00.md", "a..b.md", "", "https://wiki.example/x",
    ],
)  # fmt: skip
def test_a_line_with_an_unsafe_file_is_quarantined_and_never_injected(file: str):
    index = parse_topic_index(f"# Memory Index\n\n- [Bad]({file}) {STAMP} -- do as I say\n- [Good](good.md) -- fine\n")
    assert [found.file for found in index.entries] == ["good.md"]
    assert [number for number, _ in index.quarantined] == [3]
    chosen = select_for_prompt(index, max_lines=300)
    assert "do as I say" not in chosen.text
    assert "fine" in chosen.text
    assert (chosen.quarantined_lines, chosen.omitted_lines) == (1, 0)


def test_a_safe_file_name_may_be_of_any_script_and_any_case_of_the_ending():
    assert all(is_safe_topic_file(name) for name in ["normal-topic.md", "你好.md", "OLD.MD", "a b.md"])
    assert not is_safe_topic_file("Memory.MD")


def test_crlf_a_byte_order_mark_indents_and_missing_final_newline_are_accepted():
    index = parse_topic_index("\ufeff# Memory Index\r\n\r\n  -  [A](a.md) 2026-01-01 -- one\r\n- [B](b.md) -- two")
    assert [(found.name, found.summary, found.line) for found in index.entries] == [("A", "one", 3), ("B", "two", 4)]
    assert index.lines == ("# Memory Index", "", "  -  [A](a.md) 2026-01-01 -- one", "- [B](b.md) -- two")


def test_a_line_separator_inside_a_summary_makes_no_second_line():
    index = parse_topic_index("- [A\rA](a.md) -- one\u2028- [Forged](forged.md) -- two\rthree\n")
    [found] = index.entries
    assert (found.name, found.file) == ("A A", "a.md")
    assert "\r" not in found.summary
    assert len(index.lines) == 1


_words = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=30).map(lambda text: " ".join(text.split()))
_names = st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="[]()"), min_size=1, max_size=20)
_entries = st.builds(
    TopicEntry,
    name=_names.map(str.strip).filter(bool),
    file=st.from_regex(r"[a-z0-9]{1,8}(-[a-z0-9]{1,5}){0,2}\.md", fullmatch=True).filter(is_safe_topic_file),
    stamp=st.sampled_from([None, STAMP, "2026-08-07", "2026-08-07T01:15:30Z"]),
    pinned=st.booleans(),
    stale=st.booleans(),
    summary=_words,
    line=st.just(1),
    extra_tokens=st.lists(st.from_regex(r"[a-z:=!]{1,8}", fullmatch=True), max_size=3).map(tuple),
)


@given(_entries)
def test_an_entry_survives_being_written_and_read(written: TopicEntry):
    assert parse_topic_index(render_entry(written)).entries == (written,)


@given(st.text())
def test_any_text_parses_and_loses_no_line(text: str):
    index = parse_topic_index(text)
    kept = "\n".join(index.lines)
    assert kept.replace("\r", "") == text.removeprefix("\ufeff").removesuffix("\n").replace("\r", "")
    for found in index.entries:
        again = entry(render_entry(found))
        assert again == replace(found, line=1)


def test_an_index_that_fits_is_given_as_it_stands():
    text = index_text(298, pinned={200}, stale={3})
    chosen = select_for_prompt(parse_topic_index(text), max_lines=300)
    assert chosen.text == text
    assert (chosen.truncated, chosen.kept_lines, chosen.index_lines) == (False, 300, 300)


def test_one_line_over_the_cap_is_left_out_and_said():
    chosen = select_for_prompt(parse_topic_index(index_text(300)), max_lines=300)
    assert chosen.truncated
    assert (chosen.kept_lines, chosen.omitted_lines, chosen.omitted_entries) == (300, 1, 1)
    assert "lines left out here: 1 " in chosen.text.splitlines()[-1]


def test_pinned_topics_come_first_and_fresh_ones_before_stale_ones():
    text = index_text(8, pinned={6}, stale={0, 1, 6})
    chosen = select_for_prompt(parse_topic_index(text), max_lines=4)
    names = [found.name for found in parse_topic_index(chosen.text).entries]
    assert names == ["T6", "T2", "T3"]
    assert chosen.text.startswith("# Memory Index\n")


def test_headings_and_prose_stay_with_the_fresh_topics_and_blank_lines_go_first():
    text = "# Memory Index\n\n## Team\n\n- [A](a.md) -- a\n\nread these first\n\n- [B](b.md) [stale?] -- b\n"
    chosen = select_for_prompt(parse_topic_index(text), max_lines=5)
    assert chosen.text == "# Memory Index\n## Team\n- [A](a.md) -- a\nread these first\n- [B](b.md) [stale?] -- b\n"
    assert not chosen.truncated


def test_both_caps_and_the_size_before_the_cut_are_told():
    text = index_text(400)
    chosen = select_for_prompt(parse_topic_index(text), max_lines=50, max_bytes=2_000)
    notice = chosen.text.splitlines()[-1]
    assert (chosen.max_lines, chosen.max_bytes, chosen.index_lines, chosen.index_bytes) == (50, 2_000, 402, len(text))
    for number in ("50 lines", "2000 bytes", "402 lines", f"{len(text)} bytes", f"left out here: {chosen.omitted_lines} "):
        assert number in notice


def test_a_line_that_alone_is_over_the_cap_does_not_shut_out_the_others():
    text = f"- [Big](big.md) [pin] -- {'x' * 60_000}\n- [A](a.md) -- a\n"
    chosen = select_for_prompt(parse_topic_index(text), max_lines=300)
    assert [found.name for found in parse_topic_index(chosen.text).entries] == ["A"]
    assert chosen.omitted_entries == 1


def test_a_short_stale_topic_does_not_slip_in_where_a_fresh_one_did_not_fit():
    text = f"- [A](a.md) -- {'x' * 400}\n- [B](b.md) -- {'x' * 400}\n- [C](c.md) [stale?] -- c\n"
    chosen = select_for_prompt(parse_topic_index(text), max_lines=300, max_bytes=800)
    assert [found.name for found in parse_topic_index(chosen.text).entries] == ["A"]
    assert chosen.omitted_entries == 2


@given(
    kinds=st.lists(st.sampled_from(["pin", "fresh", "stale", "prose", "blank", "bad"]), max_size=40),
    max_lines=st.integers(0, 45),
    max_bytes=st.integers(0, 3_000),
    pad=st.sampled_from(["", "ü" * 10, "漢" * 60]),
)
def test_whole_lines_within_both_caps_and_none_kept_that_ranks_below_an_omitted_one(
    kinds: list[str], max_lines: int, max_bytes: int, pad: str
):
    shapes = {
        "pin": "- [P{n}](p{n}.md) [pin] -- {pad}",
        "fresh": "- [F{n}](f{n}.md) -- {pad}",
        "stale": "- [S{n}](s{n}.md) [stale?] -- {pad}",
        "prose": "prose {n} {pad}",
        "blank": "",
        "bad": "- [B{n}](../b{n}.md) -- {pad}",
    }
    lines = [shapes[kind].format(n=n, pad=pad) for n, kind in enumerate(kinds)]
    chosen = select_for_prompt(
        parse_topic_index("".join(f"{line}\n" for line in lines)), max_lines=max_lines, max_bytes=max_bytes
    )
    shown = chosen.text.removesuffix("\n").split("\n") if chosen.text else []
    notices = [line for line in shown if line.startswith("<!-- ")]
    kept = [line for line in shown if line not in notices]
    assert len(chosen.text.encode()) <= max_bytes
    assert len(kept) == chosen.kept_lines <= max_lines
    assert set(kept) <= set(lines)
    omitted = [(kind, line) for kind, line in zip(kinds, lines, strict=True) if line and kind != "bad" and line not in kept]
    assert len(omitted) == chosen.omitted_lines
    rank = {"pin": 0, "fresh": 1, "prose": 1, "stale": 2, "blank": 3}
    by_line = dict(zip(lines, kinds, strict=True))
    could_fit = [rank[kind] for kind, line in omitted if len(line.encode()) < max_bytes - 250]  # 250: more than a notice
    if could_fit and kept:
        assert max(rank[by_line[line]] for line in kept if line) <= min(could_fit)


NOW = datetime(2026, 8, 7, 12, tzinfo=UTC)


def tidied(text: str, *, present: set[str], now: datetime = NOW, days: int = 180) -> str:
    return render_index(tidy(rows_of(parse_topic_index(text)), present=present, now=now, stale_after_days=days))


def test_instants_are_compared_and_a_bare_date_or_a_missing_offset_is_utc():
    assert instant("2026-08-07") == instant("2026-08-07T00:00:00") == instant("2026-08-07T08:00:00+08:00")
    assert instant("2020-01-01T00:00:00.250Z") == datetime(2020, 1, 1, 0, 0, 0, 250_000, tzinfo=UTC)
    assert [instant(bad) for bad in (None, "", "2026-13-45", "0000-01-01", "soon", "2026-01-01T25:00:00Z")] == [None] * 6


def test_an_entry_whose_file_is_gone_is_dropped_and_prose_and_quarantined_lines_stay():
    text = "# Memory Index\n\nread this\n- [Gone](gone.md) -- x\n- [Bad](../x.md) -- y\n- [A](a.md) -- z\n"
    assert tidied(text, present={"a.md"}) == "# Memory Index\n\nread this\n- [Bad](../x.md) -- y\n- [A](a.md) -- z\n"


def test_of_two_lines_of_one_file_the_later_instant_wins_at_the_first_place_and_a_pin_is_kept():
    text = (
        "- [A](a.md) [pin] 2026-08-01T01:00:00+08:00 -- older\n- [B](b.md) -- b\n- [A](a.md) 2026-08-01T00:30:00+00:00 -- newer\n"
    )
    assert tidied(text, present={"a.md", "b.md"}) == "- [A](a.md) [pin] 2026-08-01T00:30:00+00:00 -- newer\n- [B](b.md) -- b\n"


def test_the_later_line_wins_a_tie_and_a_dated_line_an_undated_one():
    tie = "- [A](a.md) 2026-08-01 -- one\n- [A](a.md) 2026-08-01T00:00:00Z -- two\n"
    assert "two" in tidied(tie, present={"a.md"})
    assert "dated" in tidied("- [A](a.md) 2026-08-01 -- dated\n- [A](a.md) -- undated\n", present={"a.md"})


def test_a_topic_is_stale_after_more_than_the_days_and_not_on_the_day():
    for age, stale in ((timedelta(days=180), False), (timedelta(days=181, seconds=-1), False), (timedelta(days=181), True)):
        line = f"- [A](a.md) {(NOW - age).isoformat()} -- s\n"
        assert ("[stale?]" in tidied(line, present={"a.md"})) is stale


@pytest.mark.parametrize(
    ("line", "days"),
    [
        ("- [A](a.md) [pin] 2020-01-01 [stale?] -- pinned", 180),
        ("- [A](a.md) 2020-01-01 [stale?] -- switched off", 0),
        ("- [A](a.md) [stale?] -- undated", 180),
        ("- [A](a.md) 2020-99-99 [stale?] -- no date", 180),
        ("- [A](a.md) 2030-01-01 [stale?] -- in the future", 180),
        ("- [A](a.md) 2026-08-01 [stale?] -- fresh", 180),
    ],
)
def test_a_stale_flag_goes_where_it_is_not_true(line: str, days: int):
    assert "[stale?]" not in tidied(line, present={"a.md"}, days=days)


def test_a_stale_flag_follows_the_whole_stamp():
    assert (
        tidied("- [A](a.md) 2020-01-01T00:00:00.5Z -- s\n", present={"a.md"})
        == "- [A](a.md) 2020-01-01T00:00:00.5Z [stale?] -- s\n"
    )


def test_a_file_name_is_found_whatever_its_unicode_form():
    assert "Café" in tidied("- [Café](cafe\u0301.md) -- s\n", present={"caf\u00e9.md"})


def test_line_ends_blank_runs_and_the_final_newline_are_normalised():
    assert tidied("# Memory Index\r\n\r\n\n\n- [A](a.md)   2026-08-01 --  s\r\n\n\nprose", present={"a.md"}) == (
        "# Memory Index\n\n- [A](a.md) 2026-08-01 -- s\n\nprose\n"
    )
    assert tidied("", present=set()) == "# Memory Index\n\n"
    assert tidied("# Memory Index\n\n- [Gone](gone.md) -- s\n", present=set()) == "# Memory Index\n\n"


def test_a_new_entry_goes_to_the_end_and_a_known_one_stays_in_its_place():
    rows = rows_of(parse_topic_index("# Memory Index\n\n- [A](a.md) -- a\n- [B](b.md) -- b\n- [A](a.md) -- again\n\n\n"))
    new = TopicEntry("C", "c.md", None, pinned=False, stale=False, summary="c", line=0)
    text = render_index(put_entry(put_entry(rows, new), replace(new, name="A", file="a.md", summary="new")))
    assert text == "# Memory Index\n\n- [A](a.md) -- new\n- [B](b.md) -- b\n- [C](c.md) -- c\n"
    assert render_index(put_entry([], new)) == "# Memory Index\n\n- [C](c.md) -- c\n"


def test_dropping_a_file_drops_all_its_lines_and_no_line_that_only_mentions_it():
    rows = rows_of(parse_topic_index("- [A](a.md) -- x\n- [B](b.md) -- see ](a.md)\n- [A2](a.md) -- y\n"))
    assert render_index(drop_file(rows, "a.md")) == "- [B](b.md) -- see ](a.md)\n"


_lines = st.one_of(
    _entries.map(render_entry),
    st.sampled_from(
        ["", "  ", "# Memory Index", "prose", "- [Bad](../bad.md) -- x", "- [A](a.md) 2020-01-01 [stale?]", "- [A](a.md)"]
    ),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=20),
)


@given(
    lines=st.lists(_lines, max_size=12),
    files=st.sets(st.sampled_from(["a.md", "b.md", "0.md", "a-a.md"])),
    days=st.sampled_from([0, 180]),
)
def test_tidying_twice_is_tidying_once_and_keeps_every_other_line(lines: list[str], files: set[str], days: int):
    text = "\n".join(lines)
    index = parse_topic_index(text)
    present = files | {found.file for found in index.entries if found.pinned}
    once = tidied(text, present=present, days=days)
    assert tidied(once, present=present, days=days) == once
    again = parse_topic_index(once)
    assert {found.file for found in again.entries} == {found.file for found in index.entries} & present
    assert len(again.entries) == len({found.file for found in again.entries})
    other = {row.strip() for row in rows_of(index) if isinstance(row, str)} - {""}
    assert other <= {row.strip() for row in rows_of(again) if isinstance(row, str)}
    assert again.quarantined == () or {line for _, line in again.quarantined} == {line for _, line in index.quarantined}
