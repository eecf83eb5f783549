"""The index of a log: added line by line, from its saved form or from scratch, it says the same; and it stays small."""

import hashlib
import json
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistence.logs.index import BEFORE_ALL, NEWEST, Choice, LogIndex, Postings, parse_index, ts_ns, ts_text
from persistence.records import LogRecord

TS = st.integers(1, 12).map(lambda number: f"{number}.{number:06d}")
USERS = st.sampled_from([None, "amy", "tom", "zoé"])
LINES = st.lists(
    st.one_of(
        st.none(),
        st.builds(
            LogRecord,
            ts=TS,
            thread_ts=st.one_of(st.none(), TS, st.just("not a ts")),
            user=USERS,
            deleted=st.sampled_from([None, None, True, False]),
            id=st.sampled_from([None, "k1", "k2"]),
            reply_to=st.one_of(st.none(), TS, st.just("?")),
            answers=st.one_of(st.none(), st.lists(TS, max_size=3)),
            silent=st.sampled_from([None, True, False]),
        ),
    ),
    max_size=25,
)


def build(lines, index: LogIndex | None = None, offset: int = 0) -> LogIndex:
    index = index or LogIndex()
    for number, record in enumerate(lines, offset):
        index.add(number * 100, 50, record)
    return index


def answers_of(index: LogIndex) -> dict:
    """All that an index can be asked."""
    keys = [ts_ns(f"{number}.{number:06d}") for number in range(1, 13)]
    return {
        "counts": (index.lines, index.messages, index.threads, list(index.bad)),
        "spans": [index.spans(key) for key in keys],
        "shown": [index.is_shown(key) for key in keys],
        "replies": [index.replies_to(key) for key in keys],
        "ids": [index.with_id(text) for text in ("k1", "k2", "k3")],
        "newest": [index.newest(through=key) for key in [0, *keys, NEWEST]],
        "pages": [
            list(index.shown(Choice(thread=thread, user=user, oldest_first=first)))
            for thread in [None, *keys]
            for user in (None, "amy", "zoé")
            for first in (True, False)
        ],
    }


def simple_pages(lines) -> tuple[list[int], int]:
    """(visible ts, number of threads) by going through all lines with a dict."""
    state: dict[int, dict] = {}
    roots = set()
    for record in (line for line in lines if line is not None):
        key = ts_ns(record.ts)
        says = state.setdefault(key, {"deleted": False, "silent": False})
        if record.deleted is not None:
            says["deleted"] = record.deleted
        if record.model_extra["silent"] is not None:
            says["silent"] = record.model_extra["silent"]
        if record.root_ts is not None:
            roots.add(ts_ns(record.root_ts))
    return sorted(key for key, says in state.items() if not says["deleted"] and not says["silent"]), len(roots)


@settings(deadline=None)
@given(LINES)
def test_an_index_says_what_the_lines_say(lines):
    index = build(lines)
    shown, threads = simple_pages(lines)
    assert list(index.shown(Choice(oldest_first=True))) == shown
    assert list(index.shown(Choice())) == shown[::-1]
    assert (index.messages, index.threads) == (len(shown), threads)
    for record in (line for line in lines if line is not None):
        spans = index.spans(ts_ns(record.ts))
        assert spans == [(n * 100, 50) for n, line in enumerate(lines) if line is not None and line.ts == record.ts]
        if record.id is not None:
            assert ts_ns(record.ts) in index.with_id(record.id)
        for answered in (record.reply_to, *(record.answers or [])):
            if answered not in (None, "?"):
                assert ts_ns(record.ts) in index.replies_to(ts_ns(answered))


@settings(deadline=None)
@given(LINES, st.integers(0, 25))
def test_an_index_saved_anywhere_and_continued_equals_one_from_scratch(lines, cut):
    saved = parse_index(build(lines[:cut]).to_bytes())
    assert answers_of(build(lines[cut:], saved, offset=len(lines[:cut]))) == answers_of(build(lines))


@settings(deadline=None)
@given(LINES, st.integers(0, 12), st.integers(0, 12))
def test_bounds_are_exclusive(lines, low, high):
    index = build(lines)
    after, before = ts_ns(f"{low}.{low:06d}"), ts_ns(f"{high}.{high:06d}")
    everything = list(index.shown(Choice(oldest_first=True)))
    assert list(index.shown(Choice(after=after, before=before, oldest_first=True))) == [
        k for k in everything if after < k < before
    ]
    assert list(index.shown(Choice(after=BEFORE_ALL, before=before))) == [k for k in reversed(everything) if k < before]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, NEWEST)), max_size=40), st.sets(st.integers(0, 39)))
def test_postings_keep_every_value_of_a_key_in_order_whenever_they_are_sorted(pairs, sorted_after):
    postings = Postings()
    for number, (key, value) in enumerate(pairs):
        postings.add(key, value)
        if number in sorted_after:
            postings.columns()
    for key in range(7):
        assert postings.get(key) == [value for other, value in pairs if other == key]
        assert (key in postings) == any(other == key for other, _ in pairs)


@given(st.from_regex(r"[0-9]{1,10}(\.[0-9]{1,9})?", fullmatch=True), st.from_regex(r"[0-9]{1,10}(\.[0-9]{1,9})?", fullmatch=True))
def test_ts_compare_as_decimals(left, right):
    assert (ts_ns(left) < ts_ns(right)) == (Decimal(left) < Decimal(right))
    assert (ts_ns(left) == ts_ns(right)) == (Decimal(left) == Decimal(right))
    assert 0 <= ts_ns(left) <= NEWEST


@given(st.integers(0, 9_999_999_999_999_999))
def test_a_ts_of_microseconds_reads_back_as_the_same(us):
    assert ts_ns(ts_text(us)) == us * 1000


def test_an_index_takes_about_60_bytes_for_a_line():
    index = build(
        LogRecord(ts=f"{n}.0", thread_ts=f"{n - n % 10}.0", user="amy", id=f"key {n}", reply_to=f"{n - 1}.0")
        for n in range(1, 20_001)
    )
    assert len(index.to_bytes()) / 20_000 < 90


@pytest.mark.parametrize("change", [{"format": 2}, {"order": "middle"}, {"sizes": [8]}, {"sizes": None}, {"counts": 7}])
def test_a_saved_index_of_another_version_or_machine_is_not_used(change):
    _, header, body = build([LogRecord(ts="1.0")]).to_bytes().split(b"\n", 2)
    other = json.dumps(json.loads(header) | change).encode() + b"\n" + body
    assert parse_index(hashlib.sha256(other).hexdigest().encode() + b"\n" + other) is None


@given(st.binary(max_size=200))
def test_any_bytes_in_place_of_a_saved_index_are_survived(data):
    assert parse_index(data) is None


def test_every_changed_byte_of_a_saved_index_is_noticed():
    data = build([LogRecord(ts="1.0", user="amy"), LogRecord(ts="2.0", thread_ts="1.0"), None]).to_bytes()
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 0x10
        assert parse_index(bytes(changed)) is None
    for length in range(len(data)):
        assert parse_index(data[:length]) is None
