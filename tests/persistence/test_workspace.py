"""Channel ids, ts and the opening of a workspace: what is refused before any path is built, and what a start says."""

import os
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.errors import BodyInvalidError, ChannelInvalidError, WorkspaceUnusableError
from persistence.workspace import Lane, Workspace, is_ts, normal_ts, open_workspace, parse_channel_id, parse_ts, ts_key


@pytest.mark.parametrize(
    "text",
    ["a", "C0123ABC", "linear:4f5e-1", "0", "a.b", "x_y-z", "A" * 128, "memory.1", "skills-2", "a."],
)
def test_a_channel_id_of_a_real_volume_is_accepted(text: str):
    assert parse_channel_id(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "../x",
        "..",
        ".",
        "a..b",
        ".recalld",
        ".git",
        "-a",
        "_a",
        ":a",
        "a/b",
        "a\\b",
        "/a",
        "a\x00",
        "a\n",
        "\na",
        "a b",
        "a\t",
        "ä",
        "ａ",
        "a\u202e",
        "\ud800",
        "x" * 129,
        "x" * 200,
        "x" * 1_000_000,
        *(
            name
            for folder in ("memory", "skills", "events", "attachments", "threads", "scratch")
            for name in (folder, folder.upper())
        ),
        "Memory",
    ],
    ids=lambda text: ascii(text[:20]) + str(len(text)),
)
def test_anything_else_is_no_channel_id(text: str):
    with pytest.raises(ChannelInvalidError) as caught:
        parse_channel_id(text)
    assert caught.value.code == "channel_invalid"
    assert len(str(caught.value)) < 1000


@given(st.text(max_size=140))
def test_an_accepted_channel_id_is_one_safe_part_of_a_path(text):
    try:
        channel = parse_channel_id(text)
    except ChannelInvalidError:
        return
    assert Path(channel).parts == (channel,)
    assert not channel.startswith(".")
    assert len(os.fsencode(channel)) <= 128
    assert Workspace.log(channel) == f"{channel}/log.jsonl"


@pytest.mark.parametrize("text", ["0", "1764500000.000100", "1764500000", "9999999999.999999999", "007.5"])
def test_seconds_and_micros_are_a_ts(text: str):
    assert parse_ts(text) == text
    assert is_ts(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "1 ",
        "1\n",
        "+1",
        "-1",
        "1.",
        ".5",
        "1e5",
        "1_0",
        "0x1",
        "nan",
        "inf",
        "1.0000000001",
        "17645000000",
        "١",
        "1" * 5000,
    ],
)
def test_anything_else_is_no_ts(text: str):
    with pytest.raises(BodyInvalidError):
        parse_ts(text)
    assert not is_ts(text)


@pytest.mark.parametrize("value", [None, 1, 1.5, True, [], {}, b"1"], ids=ascii)
def test_a_value_of_another_kind_is_no_ts(value):
    assert not is_ts(value)


@given(st.from_regex(r"[0-9]{1,10}(\.[0-9]{1,9})?", fullmatch=True))
def test_the_normal_spelling_of_a_ts_is_the_same_moment(text):
    assert ts_key(normal_ts(text)) == ts_key(text) == Decimal(text)
    assert normal_ts(normal_ts(text)) == normal_ts(text)
    assert is_ts(normal_ts(text))


def test_ts_compare_as_decimals_not_as_text_or_floats():
    assert ts_key("9.5") < ts_key("10.25")
    assert ts_key("1764500000.000000001") != ts_key("1764500000.000000002")
    assert float("1764500000.000000001") == float("1764500000.000000002")


def test_a_thread_ts_becomes_a_path_only_when_it_is_a_ts():
    channel = parse_channel_id("ops")
    assert Workspace.context(Lane(channel, "100.000000")) == "ops/threads/100.000000/context.jsonl"
    for bad in ("../../x", "1/2", ""):
        for name in (Workspace.context, Workspace.sync_state):
            with pytest.raises(BodyInvalidError):
                name(Lane(channel, bad))


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12),
        min_size=1,
        max_size=3,
    )
)
def test_each_file_has_one_lock_beside_no_other(parts):
    name = "/".join(parts)
    lock = Workspace.lock_of(name)
    assert lock.startswith(".recalld/locks/")
    assert lock.count("/") == 2
    assert len(os.fsencode(lock.rpartition("/")[2])) < 250
    assert Workspace.lock_of(name + "x") != lock


# -- the volume


def test_channels_are_the_real_folders_that_hold_something_of_a_channel(tmp_path: Path):
    workspace = open_workspace(tmp_path)
    for name in ("a-log", "b-memory", "c-context", "linear:d", "empty", "memory", "skills", ".hidden", "no channel", "e-topics"):
        (tmp_path / name).mkdir()
        if name not in ("empty", "e-topics"):
            sign = {"b-memory": "MEMORY.md", "c-context": "context.jsonl"}.get(name, "log.jsonl")
            (tmp_path / name / sign).write_text("")
    (tmp_path / "e-topics/memory").mkdir()
    (tmp_path / "a-file").write_text("")
    (tmp_path / "linked").symlink_to(tmp_path / "a-log")
    found = list(workspace.channels())
    assert found == ["a-log", "b-memory", "c-context", "e-topics", "linear:d"]
    assert all(workspace.has_channel(channel) for channel in found)
    for name in ("empty", "linked", "a-file", "none"):
        assert not workspace.has_channel(parse_channel_id(name))


def test_a_folder_is_made_ready_once_and_opened_again(tmp_path: Path):
    (tmp_path / "MEMORY.md").write_text("notes")
    first = open_workspace(tmp_path)
    (tmp_path / ".recalld/cache/x").write_text("kept")
    assert open_workspace(tmp_path) == first
    assert (tmp_path / ".recalld/VERSION").read_text() == "1\n"
    assert (tmp_path / ".recalld/cache/x").read_text() == "kept"
    assert (tmp_path / "MEMORY.md").read_text() == "notes"


def test_the_root_itself_may_be_a_link(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert open_workspace(tmp_path / "link").root == (tmp_path / "real").resolve()


def unusable(path: Path) -> str:
    with pytest.raises(WorkspaceUnusableError) as caught:
        open_workspace(path)
    return str(caught.value)


def test_a_missing_folder_is_named_with_what_to_do_and_not_made(tmp_path: Path):
    message = unusable(tmp_path / "none")
    assert "does not exist" in message
    assert "mount" in message
    assert not (tmp_path / "none").exists()


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    assert "not a folder" in unusable(tmp_path / "file")
    assert "can't be used" in unusable(tmp_path / "file/below")


@pytest.mark.parametrize("name", [".recalld", ".recalld/locks", ".recalld/cache"])
def test_a_file_in_place_of_the_state_is_named_and_left(tmp_path: Path, name: str):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("theirs")
    assert "can't be used" in unusable(tmp_path)
    assert (tmp_path / name).read_text() == "theirs"


def test_a_link_in_place_of_the_state_is_refused(tmp_path: Path):
    (tmp_path / "w").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "w/.recalld").symlink_to(tmp_path / "elsewhere")
    assert "is a link" in unusable(tmp_path / "w")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named():
    """/sys refuses new folders to everybody, root included."""
    assert "can't be used" in unusable(Path("/sys"))


@pytest.mark.parametrize("version", [b"2\n", b"", b"\xff\xfe", b"1.1"])
def test_a_workspace_of_another_layout_is_left_alone(tmp_path: Path, version: bytes):
    open_workspace(tmp_path)
    (tmp_path / ".recalld/VERSION").write_bytes(version)
    assert "layout version" in unusable(tmp_path)
    assert (tmp_path / ".recalld/VERSION").read_bytes() == version


def test_processes_that_start_at_once_on_a_new_volume_all_can_use_it(tmp_path: Path):
    with ThreadPoolExecutor(8) as pool:
        for number in range(60):
            (tmp_path / str(number)).mkdir()
            list(pool.map(open_workspace, [tmp_path / str(number)] * 8))
            found = sorted(path.name for path in (tmp_path / str(number) / ".recalld").iterdir())
            assert found == ["VERSION", "cache", "index", "locks", "quarantine"]


def test_no_path_at_all_is_named(tmp_path: Path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path / "loop", Path("a\0b")):
        assert unusable(path)
