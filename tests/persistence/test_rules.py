"""memory.jsonc: what is read of it, what a fault in it can't do, and how it comes to be there."""

import json
import multiprocessing
import os
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistence.errors import UnsafeObjectError
from persistence.rules import RulesStore, render_rules
from persistence.rules_values import BUILT_IN, DEFAULT_TEXT, Broken, Rules, parse_rules
from persistence.workspace import open_workspace


@pytest.fixture
def workspace(tmp_path):
    return open_workspace(tmp_path)


def put(workspace, text, name="memory.jsonc"):
    path = workspace.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def load(workspace, text=None):
    if text is not None:
        put(workspace, text)
    return RulesStore(workspace).load()


def said(view):
    return [(item.key, item.line) for item in view.diagnostics]


def read(text, good=BUILT_IN):
    parsed = parse_rules(text.encode(), good)
    assert not isinstance(parsed, Broken), parsed
    return parsed


def test_without_a_file_the_built_in_rules_hold_and_reading_creates_nothing(workspace):
    before = sorted(workspace.root.iterdir())
    view = load(workspace)
    assert (view.rules, view.diagnostics, view.etag, view.broken) == (BUILT_IN, (), None, False)
    assert sorted(workspace.root.iterdir()) == before
    limits = (view.rules.max_lines, view.rules.stale_after_days, view.rules.inject_every_n_turns, view.rules.handoff_keep)
    assert limits == (300, 180, 5, 3)
    assert not view.rules.shared_dir
    assert len(view.rules.always_ask) == 3


def test_ensure_writes_the_defaults_as_a_file_that_says_the_same(workspace):
    view = RulesStore(workspace).ensure()
    assert (workspace.root / "memory.jsonc").read_text() == DEFAULT_TEXT
    assert (view.rules, view.diagnostics, view.path, view.broken) == (BUILT_IN, (), "memory.jsonc", False)


def test_ensure_leaves_a_file_alone_that_is_there(workspace):
    path = put(workspace, '{"max_lines": 234}')
    assert RulesStore(workspace).ensure().rules.max_lines == 234
    assert path.read_text() == '{"max_lines": 234}'


@pytest.mark.parametrize(
    ("key", "given_value", "in_force"),
    [
        ("max_lines", 10, 50),
        ("max_lines", 9999, 1000),
        ("max_lines", 50, 50),
        ("stale_after_days", 0, 0),
        ("stale_after_days", -1, 0),
        ("inject_every_n_turns", 0, 1),
        ("handoff_keep", 0, 0),
        ("handoff_keep", -3, 0),
    ],
)
def test_a_number_out_of_range_is_brought_into_it_and_reported(key, given_value, in_force):
    parsed = read(json.dumps({key: given_value}))
    assert getattr(parsed.rules, key) == in_force
    assert [item.key for item in parsed.diagnostics] == ([] if given_value == in_force else [key])


@pytest.mark.parametrize("value", ['"300"', "true", "null", "0.4", "3.0", "1e999", "-Infinity", "NaN", "[]", "{}"])
@pytest.mark.parametrize(
    ("key", "default"), [("max_lines", 300), ("stale_after_days", 180), ("inject_every_n_turns", 5), ("handoff_keep", 3)]
)
def test_what_is_no_whole_number_is_reported_and_the_default_holds(key, default, value):
    parsed = read(f'{{\n  "{key}": {value}\n}}')
    assert getattr(parsed.rules, key) == default
    assert [(item.key, item.line) for item in parsed.diagnostics] == [(key, 2)]


@pytest.mark.parametrize("value", ['"true"', "1", "null", "[]"])
def test_a_switch_is_switched_by_true_and_false_alone(value):
    assert not read(f'{{"shared_dir": {value}}}').rules.shared_dir
    assert read(f'{{"shared_dir": {value}}}', Rules(shared_dir=True)).rules.shared_dir
    assert not read(f'{{"consolidate_on_compact": {value}}}').rules.consolidate_on_compact
    assert read('{"shared_dir": true}').rules.shared_dir


@pytest.mark.parametrize(
    "text",
    [
        '// first\n{ // here\n  "max_lines": 250 // there\n}\n// last',
        '/* block\n comment */ { "max_lines": /* in */ 250 }',
        '{ "max_lines": 250, }',
        '\ufeff{ "max_lines": 250 }',
        '{\r\n  "max_lines": 250\r\n}\r\n',
        "{ max_lines: 250 }",
        "{ 'max_lines': 250 }",
    ],
)
def test_comments_trailing_commas_a_bom_and_crlf_are_fine(text):
    parsed = read(text)
    assert (parsed.rules.max_lines, parsed.diagnostics) == (250, ())


@pytest.mark.parametrize(
    "rule", ["see https://example.org/a//b", "glob */ inside /* too", "literal ,] and ,}", 'a \\"quoted\\" one']
)
def test_what_looks_like_a_comment_in_a_text_is_text(rule):
    parsed = read(f'{{ /* c */ "always_ask": ["{rule}",], "handoff_keep": 2, // end\n}}')
    assert parsed.rules.always_ask == (rule.replace("\\", ""),)
    assert parsed.rules.handoff_keep == 2


def test_a_comment_does_not_join_what_stands_around_it():
    assert isinstance(parse_rules(b'{"max_lines": 1/* gap */2}', BUILT_IN), Broken)


def test_lists_keep_their_order_and_a_missing_one_is_empty():
    rules = read('{"always_persist": ["b", "a"], "never_persist": []}').rules
    assert (rules.always_persist, rules.never_persist, rules.always_ask) == (("b", "a"), (), ())


def test_an_escaped_character_is_one_character_and_half_of_one_is_replaced():
    assert read(r'{"always_ask": ["\ud83d\ude00", "half \ud83d"]}').rules.always_ask == ("😀", "half \ufffd")


def test_what_is_no_text_is_left_out_of_a_list_and_reported():
    parsed = read('{\n"always_ask": ["keys", 5, "", null]}')
    assert parsed.rules.always_ask == ("keys",)
    assert [(item.key, item.line) for item in parsed.diagnostics] == [("always_ask", 2)] * 3


def test_a_repeated_key_is_reported_with_its_line_and_the_last_one_counts():
    parsed = read('{\n"max_lines": 100,\n/* "max_lines": 7, */\n"max_lines": 200\n}')
    assert parsed.rules.max_lines == 200
    assert [(item.key, item.line) for item in parsed.diagnostics] == [("max_lines", 4)]


def test_the_same_key_deeper_down_is_no_repetition():
    assert [item.key for item in read('{"x": {"max_lines": 1}, "max_lines": 200}').diagnostics] == ["x"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{\n"max_lines": 100,\n"handoff_keep" 3\n}', 3),
        ("", None),
        ("[]", None),
        ("null", None),
        ("5", None),
        ('"text"', None),
        ('{"a": ' * 40 + "1" + "}" * 40, None),
        (b'{"always_ask": ["\xff"]}', None),
        ("/*" * 20_000, 1),
        ('{"a": "' + "x" * 70_000 + '"}', None),
    ],
)
def test_a_broken_file_is_reported_with_its_line_and_drops_no_rule_of_privacy(workspace, text, line):
    started = time.monotonic()
    view = load(workspace, text)
    assert view.broken
    assert view.rules == BUILT_IN
    assert said(view) == [("memory.jsonc", line)]
    assert time.monotonic() - started < 10


def test_what_was_in_force_stays_when_the_file_breaks(workspace):
    store = RulesStore(workspace)
    put(workspace, '{"shared_dir": true, "always_ask": ["salaries"], "max_lines": 77}')
    good = store.load().rules
    put(workspace, '{"shared_dir": true, "always_ask": ["salaries"')
    assert store.load().broken
    assert store.load().rules == good
    put(workspace, '{"shared_dir": false}')
    assert not store.load().rules.shared_dir


def test_what_was_in_force_stays_over_a_restart_with_a_broken_file(workspace):
    good = load(workspace, '{"shared_dir": true, "always_ask": ["salaries"]}').rules
    view = load(workspace, "{")
    assert view.broken
    assert view.rules == good


@pytest.mark.parametrize(
    "typo",
    [
        '{"share_dir": false, "alway_ask": [], "never_persists": []}',
        '{"shared_dir": "no", "always_ask": "nothing", "never_persist": null}',
        '{"sharedDir": false, "alwaysAsk": [], "neverPersist": []}',
    ],
)
def test_a_typo_switches_no_directory_and_drops_no_rule_of_privacy(workspace, typo):
    store = RulesStore(workspace)
    put(workspace, '{"shared_dir": true, "always_ask": ["salaries"], "never_persist": ["names"]}')
    good = store.load().rules
    put(workspace, typo)
    view = store.load()
    assert view.rules == replace(good, always_persist=())
    assert len(view.diagnostics) == 3
    assert not view.broken


def test_an_unknown_key_is_ignored_and_reported_with_the_one_that_is_meant():
    parsed = read('{"max_line": 100, "colour": "red"}')
    assert parsed.rules.max_lines == 300
    assert "max_lines" in parsed.diagnostics[0].reason
    assert parsed.diagnostics[1].key == "colour"


def test_a_change_of_the_file_is_seen_at_the_next_load(workspace):
    store = RulesStore(workspace)
    path = put(workspace, '{"max_lines": 100}')
    first = store.load()
    path.write_text('{"max_lines": 200}')
    os.utime(path, ns=(1, 1))
    second = store.load()
    assert (first.rules.max_lines, second.rules.max_lines) == (100, 200)
    assert first.etag != second.etag


def test_an_unchanged_file_is_not_parsed_again(workspace):
    store = RulesStore(workspace)
    put(workspace, json.dumps({"always_ask": ["x" * 60] * 400}))
    started = time.monotonic()
    first = store.load()
    parsing = time.monotonic() - started
    started = time.monotonic()
    assert store.load() is first
    assert time.monotonic() - started < parsing / 5


def test_the_file_may_be_a_link_to_a_regular_file(workspace, tmp_path_factory):
    target = tmp_path_factory.mktemp("config") / "rules.jsonc"
    target.write_text('{"max_lines": 123}')
    (workspace.root / "memory.jsonc").symlink_to(target)
    assert load(workspace).rules.max_lines == 123


@pytest.mark.parametrize("kind", ["fifo", "folder", "dangling", "gone folder", "link to fifo"])
def test_what_is_no_regular_file_breaks_the_rules_at_once_and_is_left_alone(workspace, kind):
    path = workspace.root / "memory.jsonc"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "dangling":
            path.symlink_to(workspace.root / "nowhere.jsonc")
        case "gone folder":
            path.symlink_to("/nowhere/at/all.jsonc")
        case _:
            os.mkfifo(workspace.root / "pipe")
            path.symlink_to(workspace.root / "pipe")
    started = time.monotonic()
    view = load(workspace)
    assert view.broken
    assert view.rules == BUILT_IN
    assert time.monotonic() - started < 2
    assert RulesStore(workspace).ensure().broken


def test_an_older_versions_file_holds_until_there_is_a_new_one(workspace):
    put(workspace, '{"max_lines": 123}', "memory/RULES.jsonc")
    view = load(workspace)
    assert (view.rules.max_lines, view.path) == (123, "memory/RULES.jsonc")
    assert not (workspace.root / "memory.jsonc").exists()
    assert load(workspace, '{"max_lines": 200}').rules.max_lines == 200


def test_ensure_takes_an_older_versions_file_over_and_keeps_it_with_one_backup(workspace):
    data = b'\xef\xbb\xbf{"max_lines": 123} // \xc3\xa9\r\n'
    old = put(workspace, data, "memory/RULES.jsonc")
    assert RulesStore(workspace).ensure().rules.max_lines == 123
    backup = old.with_name("RULES.jsonc.bak")
    assert [path.read_bytes() for path in (workspace.root / "memory.jsonc", backup, old)] == [data] * 3
    old.write_text("{}")
    (workspace.root / "memory.jsonc").unlink()
    RulesStore(workspace).ensure()
    assert backup.read_bytes() == data
    assert (workspace.root / "memory.jsonc").read_text() == "{}"


def test_an_older_file_and_its_backup_stay_as_they_are_when_nothing_can_be_published(workspace):
    old = put(workspace, '{"max_lines": 123}', "memory/RULES.jsonc")
    backup = put(workspace, "earlier", "memory/RULES.jsonc.bak")
    (workspace.root / "memory.jsonc").symlink_to(workspace.root / "nowhere")
    assert RulesStore(workspace).ensure().broken
    assert (old.read_text(), backup.read_text()) == ('{"max_lines": 123}', "earlier")


def test_an_older_file_that_is_no_regular_file_is_not_taken_over(workspace):
    (workspace.root / "memory").mkdir()
    os.mkfifo(workspace.root / "memory" / "RULES.jsonc")
    with pytest.raises(UnsafeObjectError):
        RulesStore(workspace).ensure()
    assert not (workspace.root / "memory.jsonc").exists()


def _ensure_with(root, legacy, ready, barrier):
    workspace = open_workspace(root)
    ready.put(1)
    barrier.wait()
    for _ in range(50):
        RulesStore(workspace).ensure()


def test_of_racing_creators_one_wins_and_the_file_is_whole(workspace):
    put(workspace, '{"max_lines": 234}', "memory/RULES.jsonc")
    spawn = multiprocessing.get_context("spawn")
    ready, barrier = spawn.Queue(), spawn.Barrier(4)
    workers = [spawn.Process(target=_ensure_with, args=(workspace.root, None, ready, barrier)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for _ in workers:
        ready.get(timeout=60)
    barrier.wait()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert (workspace.root / "memory.jsonc").read_text() == '{"max_lines": 234}'
    assert not list(workspace.root.glob("**/.*.tmp-*"))


def test_only_the_three_lists_are_given_to_the_bot():
    rules = Rules(("keep\nthis",), ("drop",), (), max_lines=987, stale_after_days=654, handoff_keep=321)
    text = render_rules(rules)
    assert text == "### Never write down\n- drop\n\n### Always write down\n- keep this"
    assert render_rules(Rules()) == ""
    everything = render_rules(BUILT_IN)
    assert everything.count("### ") == 3
    assert not any(number in everything for number in ("300", "180"))


def test_rules_of_privacy_come_before_those_that_a_short_prompt_may_lose():
    lines = render_rules(BUILT_IN).split("\n")
    assert lines.index("### Ask before") < lines.index("### Always write down")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from([*Rules.__dataclass_fields__, "unknown"])


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(keys, json_values, max_size=6), st.booleans())
def test_any_values_make_sound_rules(values, shared):
    good = replace(BUILT_IN, shared_dir=shared)
    rules = read(json.dumps(values), good).rules
    assert 50 <= rules.max_lines <= 1000
    assert rules.inject_every_n_turns >= 1
    assert min(rules.stale_after_days, rules.handoff_keep) >= 0
    assert not any(isinstance(value, bool) for value in (rules.max_lines, rules.stale_after_days, rules.handoff_keep))
    wanted = values.get("shared_dir", False)
    assert rules.shared_dir is (wanted if isinstance(wanted, bool) else shared)
    for name in ("always_persist", "never_persist", "always_ask"):
        value = values.get(name, [])
        sound = tuple(item for item in value if isinstance(item, str) and item.strip()) if isinstance(value, list) else None
        assert getattr(rules, name) == (getattr(good, name) if sound is None else sound)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200) | st.text("{}[]\",:/*\\\n' amax_lines1", max_size=80).map(str.encode))
def test_any_bytes_are_rules_or_a_reason(data):
    parsed = parse_rules(data, BUILT_IN)
    assert parsed.reason if isinstance(parsed, Broken) else isinstance(parsed.rules, Rules)
