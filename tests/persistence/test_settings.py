"""settings.json: one locked way to change it, nothing lost that is not ours, every refusal named, a broken file left alone."""

import json
import multiprocessing
import os
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.errors import (
    PreconditionFailedError,
    SettingsBrokenError,
    SettingsInvalidError,
    StoreBusyError,
    StoreFaultError,
    UnsafeObjectError,
)
from persistence.files import etag_of, locked
from persistence.settings import Settings, SettingsStore
from persistence.settings_values import encode_settings, merge_patch, parse_settings
from persistence.workspace import SETTINGS, Workspace, open_workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "w").mkdir()
    return open_workspace(tmp_path / "w")


@pytest.fixture
def store(workspace: Workspace) -> SettingsStore:
    return SettingsStore(workspace)


def write(workspace: Workspace, text: str | bytes, name: str = SETTINGS) -> None:
    (workspace.root / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def content(workspace: Workspace) -> str:
    return (workspace.root / SETTINGS).read_text("utf-8")


def problems_of(store: SettingsStore, patch) -> dict[str, str]:
    with pytest.raises(SettingsInvalidError) as caught:
        store.patch(patch)
    return dict(caught.value.problems)


# -- reading


def test_without_a_file_the_defaults_are_in_force(store: SettingsStore):
    view = store.load()
    assert view.values == Settings()
    assert (view.values.model, view.values.run_timeout_s, view.values.run_timeout_warn_before_s) == ("builtin/recall", 360, 60)
    assert (view.values.compaction.reserve_tokens, view.values.compaction.keep_recent_tokens) == (16384, 20000)
    assert (view.values.recall.limit, view.values.redact_secrets, view.values.shell_tool) == (6, True, False)
    assert set(view.origins.values()) == {"default"}
    assert (view.etag, view.broken, view.diagnostics) == (None, False, ())


def test_the_spellings_of_the_reference_are_read_in_seconds(workspace: Workspace, store: SettingsStore):
    write(
        workspace,
        """{"runTimeout": 600, "runTimeoutWarnBeforeS": 30, "thinkingLevel": "high", "compaction": {"reserveTokens": 1},
        "slack": {"replyBehaviour": {"C1": "thread", "C.2": "channel"}}}""",
    )
    view = store.load()
    assert (view.values.run_timeout_s, view.values.run_timeout_warn_before_s, view.values.thinking_level) == (600, 30, "high")
    assert view.values.compaction.reserve_tokens == 1
    assert view.values.reply_behaviour == {"C1": "thread", "C.2": "channel"}
    assert view.origins["run_timeout_s"] == view.origins["reply_behaviour.C1"] == "file"
    assert view.diagnostics == ()


def test_where_a_file_has_both_spellings_ours_wins(workspace: Workspace, store: SettingsStore):
    write(workspace, '{"run_timeout_s": 100, "runTimeout": 600, "thinkingLevel": "high", "thinking_level": "low"}')
    assert (store.load().values.run_timeout_s, store.load().values.thinking_level) == (100, "low")


def test_layers_lie_over_one_another_key_by_key(workspace: Workspace):
    write(workspace, '{"model": "legacy/a", "runTimeout": 111, "recall": {"limit": 3, "enabled": false}}', "digby.json")
    write(workspace, '{"model": "file/b", "recall": {"limit": 4}}')
    view = SettingsStore(workspace, overrides={"model": "env/c", "shell_tool": True}).load()
    assert (view.values.model, view.values.run_timeout_s, view.values.shell_tool) == ("env/c", 111, True)
    assert (view.values.recall.limit, view.values.recall.enabled) == (4, False)
    names = ("model", "run_timeout_s", "recall.limit", "recall.enabled", "recall.min_score")
    assert [view.origins[name] for name in names] == ["env", "legacy", "file", "legacy", "default"]


def test_a_bad_value_leaves_the_layer_below_in_force_and_is_reported_with_its_line(workspace: Workspace, store: SettingsStore):
    write(workspace, '{"runTimeout": 111, "thinkingLevel": "loud"}', "digby.json")
    write(
        workspace,
        '{\n  "model": "no-slash",\n  "run_timeout_s": true,\n  "recall": {\n    "limit": 1.5,\n    "min_score": 2\n  },\n'
        '  "compaction": [],\n  "slack": {"replyBehaviour": {"C1": "shout", "C2": "thread"}},\n  "timezone": "Mars/Olympus"\n}\n',
    )
    view = store.load()
    assert not view.broken
    assert view.values == Settings(run_timeout_s=111, reply_behaviour={"C2": "thread"})
    assert {(found.key, found.line) for found in view.diagnostics} == {
        ("model", 2),
        ("run_timeout_s", 3),
        ("recall.limit", 5),
        ("recall.min_score", 6),
        ("compaction", 8),
        ("slack.replyBehaviour.C1", 9),
        ("timezone", 10),
        ("thinkingLevel", None),
    }
    assert all(found.reason for found in view.diagnostics)


def test_a_bad_value_from_the_environment_is_reported(workspace: Workspace):
    view = SettingsStore(workspace, overrides={"run_timeout_s": "soon"}).load()
    assert view.values == Settings()
    assert [found.key for found in view.diagnostics] == ["run_timeout_s"]
    assert "environment" in view.diagnostics[0].reason


def test_a_repeated_key_is_reported_with_its_line_and_the_last_counts(workspace: Workspace, store: SettingsStore):
    write(
        workspace,
        '{"model": "a/1",\n "recall": {"limit": 1, "note": "\\"limit\\": {",\n  "limit": 2},\n'
        ' "list": [{"limit": 1}, {"limit": 2}],\n "model": "b/2"}',
    )
    view = store.load()
    assert (view.values.model, view.values.recall.limit, view.broken) == ("b/2", 2, False)
    assert [(found.key, found.line) for found in view.diagnostics] == [("recall.limit", 3), ("model", 5)]


def test_a_bom_and_crlf_are_accepted(workspace: Workspace, store: SettingsStore):
    write(workspace, b'\xef\xbb\xbf{\r\n  "model": "a/b"\r\n}\r\n')
    assert store.load().values.model == "a/b"
    store.patch({"shell_tool": True})
    assert content(workspace) == '{\n  "model": "a/b",\n  "shell_tool": true\n}\n'


def test_an_edit_by_hand_is_seen_at_once_also_with_the_same_size_and_time(workspace: Workspace, store: SettingsStore):
    write(workspace, '{"model": "a/b"}')
    os.utime(workspace.root / SETTINGS, (1, 1))
    assert store.load().values.model == "a/b"
    write(workspace, '{"model": "a/c"}')
    os.utime(workspace.root / SETTINGS, (1, 1))
    assert store.load().values.model == "a/c"
    (workspace.root / SETTINGS).unlink()
    assert store.load().values.model == "builtin/recall"


BROKEN = {
    "empty": b"",
    "cut": b'{\n "model": "a/b"',
    "comment": b"{\n // no\n}",
    "list": b"[]",
    "text": b'"x"',
    "not a number": b'{"x": NaN}',
    "infinite": b'{"x": [-Infinity]}',
    "too large": b'{"recall": {"min_score": 1e999}}',
    "too long": b'{"x": ' + b"9" * 5000 + b"}",
    "too deep": b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "not utf-8": b'{"x": "\xff"}',
    "over the limit": b'{"x": "' + b"y" * 5_000_000 + b'"}',
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_keeps_the_last_good_values_in_force_and_is_never_written(
    workspace: Workspace, store: SettingsStore, kind: str
):
    write(workspace, '{"model": "a/b", "mine": 1}')
    good = store.load()
    write(workspace, BROKEN[kind])
    view = store.load()
    assert (view.broken, view.values, view.origins) == (True, good.values, good.origins)
    assert [found.key for found in view.diagnostics] == [SETTINGS]
    for call in (lambda: store.patch({"shell_tool": True}), lambda: store.update(lambda old: old)):
        with pytest.raises(SettingsBrokenError):
            call()
    assert (workspace.root / SETTINGS).read_bytes() == BROKEN[kind]
    assert SettingsStore(workspace).load().values == Settings()  # a new process knows no better
    write(workspace, '{"model": "c/d"}')
    assert (store.load().broken, store.load().values.model) == (False, "c/d")


def test_the_line_of_the_fault_is_told(workspace: Workspace, store: SettingsStore):
    write(workspace, '{\n  "a": 1,\n  "b": oops\n}')
    assert store.load().diagnostics[0].line == 3
    with pytest.raises(SettingsBrokenError, match="line 3"):
        store.patch({"model": "a/b"})


def test_a_broken_legacy_file_is_reported_and_stands_in_nobodys_way(workspace: Workspace, store: SettingsStore):
    write(workspace, "{", "digby.json")
    view = store.patch({"model": "a/b"})
    assert (view.broken, view.values.model) == (False, "a/b")
    assert [found.key for found in view.diagnostics] == ["digby.json"]


# -- changing


def test_a_patch_keeps_unknown_keys_order_and_layout(workspace: Workspace, store: SettingsStore):
    write(workspace, '{"zeta": {"b": [1, {"c": null}], "a": "ü"}, "model": "a/b", "alpha": 1e3, "recall": {"x": 1, "limit": 3}}')
    store.patch({"recall": {"limit": 9, "enabled": False}, "shell_tool": True})
    assert content(workspace) == (
        '{\n  "zeta": {\n    "b": [\n      1,\n      {\n        "c": null\n      }\n    ],\n    "a": "ü"\n  },\n'
        '  "model": "a/b",\n  "alpha": 1000.0,\n'
        '  "recall": {\n    "x": 1,\n    "limit": 9,\n    "enabled": false\n  },\n  "shell_tool": true\n}\n'
    )


def test_null_in_a_patch_removes_a_key(workspace: Workspace, store: SettingsStore):
    write(workspace, '{"model": "a/b", "mine": {"x": 1, "y": 2}, "recall": {"limit": 3}}')
    view = store.patch({"model": None, "mine": {"x": None}, "recall": None, "absent": None})
    assert json.loads(content(workspace)) == {"mine": {"y": 2}}
    assert view.values == Settings()


def test_what_a_patch_returns_is_in_force_with_the_etag_of_the_file(workspace: Workspace, store: SettingsStore):
    view = store.patch({"model": "a/b", "reply_behaviour": {"C1": "thread"}})
    assert view == store.load() == SettingsStore(workspace).load()
    assert view.etag == etag_of((workspace.root / SETTINGS).read_bytes())
    assert (view.values.model, view.values.reply_behaviour) == ("a/b", {"C1": "thread"})


def test_bad_values_are_refused_all_at_once_with_key_and_reason(workspace: Workspace, store: SettingsStore):
    write(workspace, '{"model": "a/b"}')
    problems = problems_of(
        store,
        {
            "model": "nothing",
            "thinking_level": "loud",
            "run_timeout_s": True,
            "run_timeout_warn_before_s": -1,
            "reply_behaviour": {"C1": "shout", "C2": "thread"},
            "recall": {"limit": "6", "collections": ["memory", "moon"]},
            "compaction": {"enabled": 1},
            "prompt": 5,
            "redact_secrets": "yes",
            "timezone": "../../etc/passwd",
            "shel_tool": True,
        },
    )
    assert set(problems) == {
        "model",
        "thinking_level",
        "run_timeout_s",
        "run_timeout_warn_before_s",
        "reply_behaviour.C1",
        "recall.limit",
        "recall.collections",
        "compaction.enabled",
        "prompt",
        "redact_secrets",
        "timezone",
        "shel_tool",
    }
    assert all(problems.values())
    assert content(workspace) == '{"model": "a/b"}'


@pytest.mark.parametrize("key", ["run_timeout_s", "shell_tool", "timezone", "model"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**4000, 1.5, [], {"a": 1}, ""])
def test_a_value_of_another_kind_is_refused(store: SettingsStore, key: str, value):
    assert set(problems_of(store, {key: value})) <= {key, f"{key}.a"}


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), [1, {"x": float("inf")}]])
def test_a_number_that_json_cannot_hold_is_refused_also_in_keys_of_others(workspace: Workspace, store: SettingsStore, value):
    write(workspace, '{"mine": 1}')
    assert list(problems_of(store, {"mine": value})) in (["mine"], ["mine.x"])
    with pytest.raises(SettingsInvalidError):
        store.update(lambda old: old | {"mine": value})
    assert content(workspace) == '{"mine": 1}'


def test_a_patch_nested_too_deeply_is_refused(store: SettingsStore):
    deep: dict = {}
    for _ in range(100_000):
        deep = {"x": deep}
    problems_of(store, {"recall": deep})


def test_true_is_not_one(workspace: Workspace, store: SettingsStore):
    write(workspace, '{"mine": 1, "shell_tool": 1}')
    assert store.load().values.shell_tool is False
    store.patch({"mine": True})
    assert json.loads(content(workspace))["mine"] is True
    assert set(problems_of(store, {"shell_tool": 1})) == {"shell_tool"}


def test_a_key_that_nothing_reads_is_refused_unless_it_is_there(workspace: Workspace, store: SettingsStore):
    write(workspace, '{"debugThreading": false, "slack": {"other": 1}}')
    store.patch({"debugThreading": True, "slack": {"other": 2, "replyBehaviour": {"C1": "thread"}}, "runTimeout": 99})
    assert json.loads(content(workspace)) == {
        "debugThreading": True,
        "slack": {"other": 2, "replyBehaviour": {"C1": "thread"}},
        "runTimeout": 99,
    }
    assert set(problems_of(store, {"modle": "a/b", "recall": {"limt": 1}, "slack": {"x": 1}})) == {
        "modle",
        "recall.limt",
        "slack.x",
    }


def test_what_was_wrong_before_does_not_stand_in_the_way_of_another_key(workspace: Workspace, store: SettingsStore):
    write(workspace, '{"recall": {"limit": "many"}, "model": "a/b"}')
    assert store.patch({"model": "c/d"}).values.model == "c/d"
    assert set(problems_of(store, {"recall": {"limit": "more"}})) == {"recall.limit"}
    assert store.patch({"recall": {"limit": 7}}).diagnostics == ()


def test_a_patch_of_another_version_than_the_writer_read_is_refused(workspace: Workspace, store: SettingsStore):
    etag = store.patch({"model": "a/b"}).etag
    newer = store.patch({"model": "c/d"}, expected_etag=etag).etag
    with pytest.raises(PreconditionFailedError) as caught:
        store.patch({"model": "e/f"}, expected_etag=etag)
    assert caught.value.etag == newer
    assert store.load().values.model == "c/d"
    (workspace.root / SETTINGS).unlink()
    with pytest.raises(PreconditionFailedError) as caught:
        store.patch({"model": "e/f"}, expected_etag=newer)
    assert caught.value.etag is None


def test_a_change_that_changes_nothing_leaves_the_bytes_alone(workspace: Workspace, store: SettingsStore):
    write(workspace, '{"model":"a/b"}')
    inode = (workspace.root / SETTINGS).stat().st_ino
    store.patch({"model": "a/b"})
    assert (content(workspace), (workspace.root / SETTINGS).stat().st_ino) == ('{"model":"a/b"}', inode)


def test_a_change_may_work_in_place(workspace: Workspace, store: SettingsStore):
    def change(old):
        old["n"] = old.get("n", 0) + 1
        return old

    store.update(change)
    store.update(change)
    assert json.loads(content(workspace)) == {"n": 2}


def test_an_error_of_the_change_leaves_the_file_and_the_lock_free(workspace: Workspace, store: SettingsStore):
    write(workspace, '{"n": 1}')
    with pytest.raises(ZeroDivisionError):
        store.update(lambda old: {"n": old["n"] / 0})
    assert content(workspace) == '{"n": 1}'
    store.patch({"n": 2})


def test_half_a_surrogate_pair_of_another_tool_is_kept(workspace: Workspace, store: SettingsStore):
    write(workspace, '{"mine": "\\ud83d", "model": "\\ud83d/x"}')
    assert [found.key for found in store.load().diagnostics] == ["model"]
    store.patch({"shell_tool": True})
    assert json.loads(content(workspace))["mine"] == "\ud83d"


def test_reset_starts_anew_and_keeps_the_broken_bytes(workspace: Workspace, store: SettingsStore):
    write(workspace, b'{"model": broken \xff')
    view = store.reset()
    assert (view.broken, view.values, view.etag) == (False, Settings(), etag_of(b"{}\n"))
    assert content(workspace) == "{}\n"
    (kept,) = (workspace.root / ".recalld/quarantine").iterdir()
    assert kept.name.startswith("settings.json.")
    assert kept.read_bytes() == b'{"model": broken \xff'
    assert store.patch({"model": "a/b"}).values.model == "a/b"


def test_mode_survives_a_change(workspace: Workspace, store: SettingsStore):
    write(workspace, "{}")
    (workspace.root / SETTINGS).chmod(0o640)
    store.patch({"model": "a/b"})
    assert stat.S_IMODE((workspace.root / SETTINGS).stat().st_mode) == 0o640


def test_a_held_lock_is_busy_and_reading_needs_none(workspace: Workspace, store: SettingsStore):
    write(workspace, '{"model": "a/b"}')
    with locked(workspace.root, SETTINGS, workspace.lock_of(SETTINGS)):
        assert store.load().values.model == "a/b"
        with pytest.raises(StoreBusyError):
            store.patch({"model": "c/d"})
    assert store.patch({"model": "c/d"}).values.model == "c/d"


# -- what stands in its place


def test_a_link_to_a_regular_file_is_followed_and_its_target_is_replaced(
    workspace: Workspace, store: SettingsStore, tmp_path: Path
):
    target = tmp_path / "config/bot.json"
    target.parent.mkdir()
    target.write_text('{"model": "a/b", "mine": 1}')
    (workspace.root / SETTINGS).symlink_to(target)
    assert store.load().values.model == "a/b"
    store.patch({"model": "c/d"})
    assert (workspace.root / SETTINGS).is_symlink()
    assert json.loads(target.read_text()) == {"model": "c/d", "mine": 1}
    assert [path.name for path in target.parent.iterdir()] == ["bot.json"]


def test_a_link_to_nothing_is_an_absent_file(workspace: Workspace, store: SettingsStore, tmp_path: Path):
    (workspace.root / SETTINGS).symlink_to(tmp_path / "none.json")
    assert (store.load().etag, store.load().broken) == (None, False)
    store.patch({"model": "a/b"})
    assert json.loads((tmp_path / "none.json").read_text()) == {"model": "a/b"}
    (workspace.root / SETTINGS).unlink()
    (workspace.root / SETTINGS).symlink_to(tmp_path / "no folder/none.json")
    assert not store.load().broken
    with pytest.raises(StoreFaultError):
        store.patch({"model": "a/b"})


@pytest.mark.parametrize("kind", ["fifo", "folder", "link to fifo", "link to itself"])
def test_what_is_no_regular_file_is_refused_without_waiting(
    workspace: Workspace, store: SettingsStore, tmp_path: Path, kind: str
):
    place = workspace.root / SETTINGS
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "link to fifo":
        os.mkfifo(tmp_path / "fifo")
        place.symlink_to(tmp_path / "fifo")
    else:
        place.symlink_to(place)
    assert (store.load().broken, store.load().values) == (True, Settings())
    for call in (lambda: store.patch({"model": "a/b"}), store.reset):
        with pytest.raises(UnsafeObjectError):
            call()


# -- at once


def _increment(root: Path, count: int) -> None:
    store = SettingsStore(open_workspace(root))
    while count:
        with suppress(StoreBusyError):  # on a crowded machine; nothing was written then, so trying again is right
            store.update(lambda old: old | {"count": int(str(old["count"])) + 1})
            count -= 1


def test_eight_processes_increment_one_number_and_every_moment_is_valid_json(workspace: Workspace, store: SettingsStore):
    store.update(lambda old: old | {"count": 0, "model": "a/b"})
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_increment, args=(workspace.root, 500)) for _ in range(8)]
    for process in writers:
        process.start()
    seen, reads = 0, 0
    while any(process.is_alive() for process in writers):
        count = json.loads((workspace.root / SETTINGS).read_bytes())["count"]
        view = store.load()
        assert not view.broken
        assert view.values.model == "a/b"
        assert count >= seen
        seen, reads = count, reads + 1
        time.sleep(0.001)  # or this process takes one of the writers' processors
    for process in writers:
        process.join()
    assert [process.exitcode for process in writers] == [0] * 8
    assert json.loads(content(workspace)) == {"count": 4000, "model": "a/b"}
    assert reads > 100
    assert [path.name for path in workspace.root.iterdir() if ".tmp-" in path.name] == []


def test_threads_with_one_store_lose_no_change_and_load_meanwhile(workspace: Workspace, store: SettingsStore):
    store.update(lambda old: old | {"count": 0})
    threads = [threading.Thread(target=_increment, args=(workspace.root, 40)) for _ in range(6)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert not store.load().broken
    assert json.loads(content(workspace))["count"] == 240


# -- values


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
OBJECT = st.dictionaries(st.text(max_size=5), JSON, max_size=4)


@given(OBJECT)
def test_what_is_written_is_read_back_in_the_same_order(values):
    parsed = parse_settings(encode_settings(values))
    assert json.dumps(parsed.values) == json.dumps(values)
    assert parsed.repeated == ()


def key_paths(values, above=()) -> set:
    below = [key_paths(value, (*above, name)) for name, value in values.items() if isinstance(value, dict)]
    return {(*above, name) for name in values}.union(*below)


@given(st.recursive(st.just(1), lambda inner: st.dictionaries(st.text(max_size=5), inner, min_size=1, max_size=4), max_leaves=12))
def test_each_key_is_found_on_its_line(values):
    data = encode_settings({"root": values})
    text = data.decode().split("\n")
    parsed = parse_settings(data)
    assert set(parsed.lines) == key_paths({"root": values})
    for path, line in parsed.lines.items():
        assert text[line - 1].startswith("  " * len(path) + json.dumps(path[-1], ensure_ascii=False) + ":")


@given(OBJECT, OBJECT)
def test_a_merge_patch_follows_its_rfc(old, patch):
    merged = merge_patch(old, patch)
    for name in {*old, *patch}:
        if name not in patch:
            assert merged[name] == old[name]
        elif patch[name] is None:
            assert name not in merged
        elif not isinstance(patch[name], dict):
            assert merged[name] == patch[name]
        else:
            assert merged[name] == merge_patch(old.get(name), patch[name])
    assert merge_patch(merged, patch) == merged


@given(OBJECT)
def test_any_object_gives_settings_and_the_refused_keys_have_a_line(values):
    parsed = parse_settings(encode_settings({**values, "run_timeout_s": "soon"}))
    assert parsed.lines[("run_timeout_s",)] >= 2


@given(st.binary(max_size=60))
def test_any_bytes_are_settings_or_a_named_fault(data):
    reason = ""
    try:
        values = parse_settings(data).values
    except ValueError as err:
        values, reason = None, str(err)
    assert isinstance(values, dict) or reason
