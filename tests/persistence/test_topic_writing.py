"""Writing, removing and pinning topics: index, files and list of removed topics always say the same."""

import os
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from persistence.errors import (
    AmbiguousError,
    BodyInvalidError,
    NotFoundError,
    NotUtf8Error,
    PersistenceError,
    PinnedError,
    PreconditionFailedError,
    RollbackFailedError,
    SecretDetectedError,
    TooLargeError,
    TopicBlankError,
    TopicReservedError,
    TopicRetiredError,
    UnsafeObjectError,
)
from persistence.files import MAX_TEXT_BYTES, locked
from persistence.topic_store import TopicStore
from persistence.topics.file import parse_topic_file
from persistence.topics.folder import TopicFolder
from persistence.topics.index import parse_topic_index
from persistence.versions import list_versions
from persistence.workspace import Workspace, open_workspace, parse_channel_id
from tests.persistence.topic_samples import AMY, OC_0_6_2, OC_0_6_7, PI_0_3_9, Clock, leftovers, put, store_of, tree

OPS = parse_channel_id("ops")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace(tmp_path)


@pytest.fixture
def memory(workspace: Workspace) -> Path:
    return workspace.root / "memory"


def lines(memory: Path) -> list[str]:
    return [line for line in (memory / "MEMORY.md").read_text().split("\n") if line.startswith("- ")]


def test_a_new_topic_is_a_file_and_a_canonical_line_with_a_whole_stamp(workspace: Workspace, memory: Path):
    written = store_of(workspace).write("Docker Setup", "compose v2", "how docker is set up", author=AMY)
    assert (written.created, written.file) == (True, "docker-setup.md")
    assert (memory / "MEMORY.md").read_text() == (
        "# Memory Index\n\n- [Docker Setup](docker-setup.md) 2026-08-10T09:30:15+02:00 -- how docker is set up\n"
    )
    topic = parse_topic_file((memory / "docker-setup.md").read_text())
    assert (topic.name, topic.created, topic.last_updated) == ("Docker Setup", written.entry.stamp, written.entry.stamp)
    assert written.entry == store_of(workspace).lookup("Docker Setup")
    assert leftovers(workspace.root) == []


def test_each_scope_has_its_own_topics(workspace: Workspace):
    store_of(workspace).write("A", "global", "g", author=AMY)
    store_of(workspace, channel=OPS).write("A", "channel", "c", author=AMY)
    assert [entry.summary for entry in store_of(workspace).list()] == ["g"]
    assert "channel" in store_of(workspace, channel=OPS).read("A").text
    assert (workspace.root / "ops/memory/a.md").is_file()


def test_writing_again_appends_and_replacing_replaces_with_the_description_of_now(workspace: Workspace, memory: Path):
    clock = Clock()
    store = store_of(workspace, clock)
    store.write("A", "one", "first", author=AMY)
    clock.now += timedelta(days=1)
    again = store.write("a", "two", "second", author=AMY)
    assert (again.created, again.file, again.entry.summary) == (False, "a.md", "second")
    assert "one" in store.read("A").text
    assert "## 2026-08-11T09:30:15+02:00\n\ntwo\n" in store.read("A").text
    store.write("A", "three", "third", author=AMY, mode="replace")
    assert store.read("A").text == "three\n"
    topic = parse_topic_file((memory / "a.md").read_text())
    assert (topic.description, topic.created) == ("third", "2026-08-10T09:30:15+02:00")
    assert lines(memory) == ["- [A](a.md) 2026-08-11T09:30:16+02:00 -- third"]  # later than the line that it replaces


def test_a_write_can_pin_and_never_unpins(workspace: Workspace, memory: Path):
    store = store_of(workspace)
    assert store.write("A", "x", "s", author=AMY, pin=True).entry.pinned
    assert store.write("A", "y", "s", author=AMY, pin=False).entry.pinned
    assert "- [A](a.md) [pin] " in (memory / "MEMORY.md").read_text()
    assert "\npinned: true\n" in (memory / "a.md").read_text()


def test_names_that_slug_alike_get_files_of_their_own_and_keep_them(workspace: Workspace, memory: Path):
    store = store_of(workspace)
    assert store.write("Slug Collision!", "one", "s", author=AMY).file == "slug-collision.md"
    assert store.write("Slug Collision", "two", "s", author=AMY).file == "slug-collision-2.md"
    assert store.write("slug collision!", "three", "s", author=AMY).file == "slug-collision.md"
    assert not (memory / "slug-collision-3.md").exists()
    assert "two" not in (memory / "slug-collision.md").read_text()


def test_a_listed_topic_is_also_written_by_its_file_name(workspace: Workspace):
    store = store_of(workspace)
    store.write("Docker Setup", "one", "s", author=AMY)
    written = store.write("docker-setup.md", "two", "t", author=AMY)
    assert (written.file, written.entry.name, written.created) == ("docker-setup.md", "Docker Setup", False)


def test_a_part_of_a_name_makes_a_new_topic(workspace: Workspace):
    store = store_of(workspace)
    store.write("Zeta One", "one", "s", author=AMY)
    assert store.write("Zeta", "two", "s", author=AMY).file == "zeta.md"


def test_an_unlisted_file_is_used_again_only_by_the_topic_that_it_names(workspace: Workspace, memory: Path):
    put(memory, {"owneraudit.md": '---\nname: "Owner+Audit"\n---\n\nold\n', "plain.md": "no front matter\n"})
    store = store_of(workspace)
    before = (memory / "owneraudit.md").read_bytes()
    assert store.write("OwnerAudit", "new", "s", author=AMY).file == "owneraudit-2.md"
    assert (memory / "owneraudit.md").read_bytes() == before
    assert store.write("owner+audit", "more", "s", author=AMY).file == "owneraudit.md"
    assert "old" in store.read("owner+audit").text
    assert store.write("Plain", "x", "s", author=AMY).file == "plain-2.md"


def test_a_line_whose_file_is_gone_keeps_its_file_name_from_another_topic(workspace: Workspace, memory: Path):
    put(memory, {"MEMORY.md": "- [Other](a.md) -- its file may come back\n"})
    assert store_of(workspace).write("A", "x", "s", author=AMY).file == "a-2.md"


def test_a_removed_topics_file_is_left_alone_by_another_name_and_its_removal_stays(workspace: Workspace, memory: Path):
    store = store_of(workspace)
    store.write("Owner+Audit", "old", "s", author=AMY)
    store.remove("Owner+Audit", author=AMY)
    before = (memory / "owneraudit.md").read_bytes()
    assert store.write("OwnerAudit", "new", "s", author=AMY).file == "owneraudit-2.md"
    assert (memory / "owneraudit.md").read_bytes() == before
    assert (memory / ".ocl-removed").read_text() == "owneraudit.md\n"


def test_a_file_name_that_differs_only_by_case_is_taken(workspace: Workspace, memory: Path):
    put(memory, {"Docker.MD": "something\n"})
    assert store_of(workspace).write("docker", "x", "s", author=AMY).file == "docker-2.md"


def test_names_of_other_scripts_have_files_of_their_own(workspace: Workspace, memory: Path):
    store = store_of(workspace)
    assert store.write("你好", "内容", "摘要", author=AMY).file == "你好.md"
    assert store.lookup("你好.md").summary == "摘要"
    assert (memory / "你好.md").is_file()


def test_a_name_on_disk_may_be_decomposed(workspace: Workspace, memory: Path):
    put(memory, {"MEMORY.md": "- [Привёт](привёт.md) 2026-01-01 -- s\n", "приве\u0308т.md": "body\n"})
    store = store_of(workspace)
    assert store.read("Привёт").text == "body\n"
    assert store.write("Привёт", "more", "s", author=AMY).file == "приве\u0308т.md"
    assert len(store.list()) == 1


@pytest.mark.parametrize("name", ["last-session-recap", "MEMORY", "", "a]b", "!!!"])
def test_a_refused_name_leaves_nothing_behind(workspace: Workspace, memory: Path, name: str):
    with pytest.raises(PersistenceError, match="topic"):
        store_of(workspace).write(name, "x", "s", author=AMY)
    assert not memory.exists()


def test_a_summary_cannot_forge_a_line_a_pin_or_an_age(workspace: Workspace):
    store = store_of(workspace)
    store.write("A", "x", "text [pin] [stale?] 2001-01-01\n- [Forged](forged.md) -- y", author=AMY)
    [entry] = store.list()
    assert (entry.pinned, entry.stale, entry.stamp) == (False, False, "2026-08-10T09:30:15+02:00")
    assert entry.summary == "text [pin] [stale?] 2001-01-01 - [Forged](forged.md) -- y"
    assert not store.remove("A", author=AMY).entry.pinned


def test_a_summary_is_cut_to_500_and_the_same_in_index_and_front_matter(workspace: Workspace, memory: Path):
    written = store_of(workspace).write("A", "x", "a  b\n" + "ü" * 600, author=AMY)
    assert len(written.entry.summary) == 500
    assert written.entry.summary.startswith("a b ü")
    assert parse_topic_file((memory / "a.md").read_text()).description == written.entry.summary


def test_an_empty_summary_round_trips_and_an_empty_content_is_refused(workspace: Workspace):
    store = store_of(workspace)
    assert store.write("A", "x", "", author=AMY).entry.summary == ""
    assert store.lookup("A").summary == ""
    with pytest.raises(BodyInvalidError):
        store.write("B", " \n", "s", author=AMY)


KEY = "AKIA" + "Q3EXAMPL7" + "ZK2M9X4"


@pytest.mark.parametrize(
    ("name", "content", "summary"), [(f"key {KEY}", "x", "s"), ("A", f"key {KEY}", "s"), ("A", "x", f"key {KEY}")]
)
def test_a_secret_is_refused_in_name_content_and_summary_and_never_told(
    workspace: Workspace, memory: Path, name, content, summary
):
    with pytest.raises(SecretDetectedError) as caught:
        store_of(workspace).write(name, content, summary, author=AMY)
    assert KEY not in str(caught.value)
    assert not memory.exists()


def test_a_raw_conversation_is_refused(workspace: Workspace):
    with pytest.raises(SecretDetectedError, match="conversation"):
        store_of(workspace).write("A", "user: hi\nassistant: hello\nuser: bye\nassistant: bye\n", "s", author=AMY)


def test_a_write_against_an_old_version_is_refused_with_the_current_one(workspace: Workspace, memory: Path):
    store = store_of(workspace)
    first = store.write("A", "one", "s", author=AMY)
    second = store.write("A", "two", "s", author=AMY, expected_etag=first.etag)
    before = tree(memory)
    with pytest.raises(PreconditionFailedError) as caught:
        store.write("A", "three", "s", author=AMY, expected_etag=first.etag)
    assert caught.value.etag == second.etag == store.read("A").etag
    assert "+three" in caught.value.diff
    with pytest.raises(PreconditionFailedError):
        store.write("B", "three", "s", author=AMY, expected_etag=first.etag)
    assert tree(memory) == before


def test_a_topic_that_would_be_too_large_is_refused(workspace: Workspace, memory: Path):
    store = store_of(workspace)
    store.write("A", "x", "s", author=AMY)
    before = tree(memory)
    with pytest.raises(TooLargeError):
        store.write("A", "y " * (MAX_TEXT_BYTES // 2), "s", author=AMY)
    assert tree(memory) == before


def test_every_write_keeps_the_version_before(workspace: Workspace):
    store = store_of(workspace)
    store.write("A", "one", "s", author=AMY)
    store.write("A", "two", "s", author=AMY)
    [version] = list_versions(workspace, "memory/a.md")
    assert (version.by, version.reason) == ("user:amy", "a test")


# removing and pinning


def test_removing_takes_the_line_keeps_the_file_and_remembers(workspace: Workspace, memory: Path):
    store = store_of(workspace)
    store.write("A", "x", "s", author=AMY)
    store.write("B", "y", "s", author=AMY)
    removed = store.remove("a.md", author=AMY)
    assert (removed.entry.name, removed.file_kept) == ("A", True)
    assert [entry.name for entry in store.list()] == ["B"]
    assert "x" in (memory / "a.md").read_text()
    assert (memory / ".ocl-removed").read_text() == "a.md\n"
    with pytest.raises(NotFoundError):
        store.remove("A", author=AMY)


def test_removing_the_last_topic_leaves_an_empty_index(workspace: Workspace, memory: Path):
    store = store_of(workspace)
    store.write("A", "x", "s", author=AMY)
    store.remove("A", author=AMY)
    assert (memory / "MEMORY.md").read_text() == "# Memory Index\n\n"


def test_writing_a_removed_topic_brings_it_back_with_its_file(workspace: Workspace, memory: Path):
    store = store_of(workspace)
    store.write("A", "one", "s", author=AMY)
    store.remove("A", author=AMY)
    written = store.write("A", "two", "s", author=AMY)
    assert (written.file, written.created) == ("a.md", False)
    assert (memory / ".ocl-removed").read_bytes() == b""
    assert parse_topic_file((memory / "a.md").read_text()).removed_at is None
    assert "one" in store.read("A").text


def test_removing_takes_every_line_of_the_file(workspace: Workspace, memory: Path):
    put(
        memory,
        {
            "MEMORY.md": "- [A](a.md) 2025-01-01 -- old\n- [A](a.md) 2026-01-01 -- new\n- [B](b.md) -- b\n",
            "a.md": "a",
            "b.md": "b",
        },
    )
    assert store_of(workspace).remove("A", author=AMY).entry.summary == "new"
    assert lines(memory) == ["- [B](b.md) -- b"]


def test_a_pinned_topic_is_not_removed_whichever_of_its_lines_has_the_pin(workspace: Workspace, memory: Path):
    put(memory, {"MEMORY.md": "- [A](a.md) [pin] 2025-01-01 -- old\n- [A](a.md) 2026-01-01 -- new\n", "a.md": "a"})
    before = tree(memory)
    with pytest.raises(PinnedError, match="unpin"):
        store_of(workspace).remove("A", author=AMY)
    assert tree(memory) == before


def test_a_topic_that_was_pinned_meanwhile_is_not_removed(workspace: Workspace, memory: Path):
    mine, other = store_of(workspace), store_of(workspace)
    mine.write("A", "x", "s", author=AMY)
    listed = mine.list()[0]
    other.pin("A", pinned=True, author=AMY)
    with pytest.raises(PinnedError):
        mine.remove(listed.file, author=AMY)
    assert not (memory / ".ocl-removed").exists()


def test_a_removal_that_cannot_be_remembered_removes_nothing(workspace: Workspace, memory: Path):
    store = store_of(workspace)
    store.write("A", "x", "s", author=AMY)
    (memory / ".ocl-removed").mkdir()
    with pytest.raises(UnsafeObjectError):
        store.remove("A", author=AMY)
    assert [entry.name for entry in store.list()] == ["A"]


def test_pinning_and_unpinning_change_the_line_and_the_file_and_tell_both_lines(workspace: Workspace, memory: Path):
    store = store_of(workspace)
    store.write("A", "x", "s", author=AMY)
    pinned = store.pin("A", pinned=True, author=AMY)
    assert (pinned.before.pinned, pinned.after.pinned, pinned.changed) == (False, True, True)
    assert parse_topic_file((memory / "a.md").read_text()).pinned
    assert store.pin("A", pinned=True, author=AMY).changed is False
    assert store.pin("A", pinned=False, author=AMY).after.pinned is False
    assert store.pin("A", pinned=False, author=AMY).changed is False
    assert not parse_topic_file((memory / "a.md").read_text()).pinned
    assert parse_topic_file((memory / "a.md").read_text()).last_updated == "2026-08-10T09:30:15+02:00"


def test_pinning_a_stale_topic_takes_the_flag_and_unpinning_it_ages_again(workspace: Workspace, memory: Path):
    put(memory, {"MEMORY.md": "- [A](a.md) 2020-01-01 [stale?] -- s\n", "a.md": "a"})
    store = store_of(workspace)
    assert not store.pin("A", pinned=True, author=AMY).after.stale
    assert store.pin("A", pinned=False, author=AMY).after.stale


def test_unpinning_takes_the_pin_of_every_line_of_the_file(workspace: Workspace, memory: Path):
    put(memory, {"MEMORY.md": "- [A](a.md) [pin] 2025-01-01 -- old\n- [A](a.md) 2026-08-01 -- new\n", "a.md": "a"})
    assert not store_of(workspace).pin("A", pinned=False, author=AMY).after.pinned
    assert lines(memory) == ["- [A](a.md) 2026-08-01 -- new"]


def test_pinning_a_topic_whose_file_is_gone_says_so(workspace: Workspace, memory: Path):
    put(memory, {"MEMORY.md": "- [A](a.md) -- s\n"})
    with pytest.raises(NotFoundError, match="gone"):
        store_of(workspace).pin("A", pinned=True, author=AMY)


def test_a_blank_name_names_no_topic_even_if_there_is_only_one(workspace: Workspace):
    store = store_of(workspace)
    store.write("A", "x", "s", author=AMY)
    for act in (store.lookup, lambda name: store.remove(name, author=AMY), lambda name: store.pin(name, pinned=True, author=AMY)):
        with pytest.raises(TopicBlankError):
            act("  ")


# maintenance


def test_each_write_remove_and_pin_tidies_the_index_and_no_read_does(workspace: Workspace, memory: Path):
    text = "# Memory Index\n\n- [Gone](gone.md) -- x\n- [Old](old.md) 2020-01-01 -- o\n- [A](a.md) -- a\n- [B](b.md) -- b\n"
    for number, act in enumerate([
        lambda store: store.write("C", "c", "c", author=AMY),
        lambda store: store.remove("B", author=AMY),
        lambda store: store.pin("A", pinned=True, author=AMY),
    ]):  # fmt: skip
        shutil.rmtree(memory, ignore_errors=True)
        put(memory, {"MEMORY.md": text, "old.md": "o", "a.md": "a", "b.md": "b"})
        store = store_of(workspace)
        assert [len(store.list()), len(store.search("o")), store.status().topics, store.read("A").text] == [4, 1 + 1, 4, "a"]
        assert (memory / "MEMORY.md").read_text() == text
        act(store)
        kept = lines(memory)
        assert not any("gone.md" in line for line in kept), number
        assert "- [Old](old.md) 2020-01-01 [stale?] -- o" in kept


def test_rewriting_a_stale_topic_takes_the_flag_and_zero_days_flag_nothing(workspace: Workspace, memory: Path):
    put(
        memory,
        {"MEMORY.md": "- [A](a.md) 2020-01-01 [stale?] -- a\n- [B](b.md) 2020-01-01 [stale?] -- b\n", "a.md": "a", "b.md": "b"},
    )
    assert not store_of(workspace).write("A", "x", "a", author=AMY).entry.stale
    assert [entry.stale for entry in store_of(workspace).list()] == [False, True]
    store_of(workspace, stale_after_days=0).write("A", "y", "a", author=AMY)
    assert "[stale?]" not in (memory / "MEMORY.md").read_text()


def test_an_unsafe_line_stays_in_the_file_and_is_never_acted_on(workspace: Workspace, memory: Path):
    bad = "- [Passwd](../../../../etc/passwd) 2026-01-01 -- x"
    put(memory, {"MEMORY.md": f"# Memory Index\n\n{bad}\n- [Paren Entry](we(ird).md) -- y\n"})
    store = store_of(workspace)
    with pytest.raises(UnsafeObjectError, match="nothing was changed"):
        store.remove("Passwd", author=AMY)
    with pytest.raises((UnsafeObjectError, NotFoundError)):
        store.remove("Paren Entry", author=AMY)
    store.write("A", "x", "s", author=AMY)
    assert bad in lines(memory)
    assert [line for _, line in store.status().quarantined] == [bad, "- [Paren Entry](we(ird).md) -- y"]
    assert [entry.name for entry in store.list()] == ["A"]


@pytest.mark.parametrize("sample", [PI_0_3_9, OC_0_6_2, OC_0_6_7])
def test_trees_of_the_public_tools_load_and_keep_what_is_unknown_when_written(tmp_path: Path, sample: dict[str, str]):
    memory = put(tmp_path / "memory", sample)
    store = store_of(open_workspace(tmp_path))
    listed = store.list()
    name = listed[0].name
    store.write(name, "more", "new summary", author=AMY)
    entry = store.pin(name, pinned=True, author=AMY).after if not listed[0].pinned else store.lookup(name)
    assert (entry.pinned, entry.summary, entry.file) == (True, "new summary", listed[0].file)
    managed = ("name:", "description:", "last_updated:", "pinned:")
    old, new = sample[entry.file].replace("\r\n", "\n"), (memory / entry.file).read_text()
    kept = [line for line in old.split("\n") if not line.startswith(managed)]
    found = iter(new.split("\n"))
    assert all(line in found for line in kept if line), "every other line is there, in its order"
    index = (memory / "MEMORY.md").read_text()
    for line in sample["MEMORY.md"].replace("\r\n", "\n").split("\n"):
        assert line.startswith("- ") or line in index.split("\n")
    assert {(e.name, e.file) for e in listed} == {(e.name, e.file) for e in parse_topic_index(index).entries}
    assert [e.extra_tokens for e in listed] == [e.extra_tokens for e in store.list()]
    for file, text in sample.items():
        if file not in (entry.file, "MEMORY.md", ".ocl-removed"):
            assert (memory / file).read_bytes() == text.encode()


def test_a_list_of_removed_topics_with_crlf_still_counts(tmp_path: Path):
    memory = put(tmp_path / "memory", OC_0_6_7)
    store = store_of(open_workspace(tmp_path))
    assert store.status().removed == 1
    store.write("Other", "x", "s", author=AMY)
    assert "gone-topic.md" in (memory / ".ocl-removed").read_text()
    assert store.repair(author=AMY).added == ()


# what is ambiguous, unsafe or damaged


def test_two_topics_of_one_name_are_told_apart_only_by_file(workspace: Workspace, memory: Path):
    put(memory, {"MEMORY.md": "- [Dup](a.md) -- a\n- [dup](b.md) -- b\n", "a.md": "a", "b.md": "b"})
    store = store_of(workspace)
    before = tree(memory)
    for act in (
        lambda: store.write("DUP", "x", "s", author=AMY),
        lambda: store.remove("Dup", author=AMY),
        lambda: store.pin("dup", pinned=True, author=AMY),
        lambda: store.read("Dup"),
    ):
        with pytest.raises(AmbiguousError) as caught:
            act()
        assert caught.value.candidates == (("Dup", "a.md"), ("dup", "b.md"))
    assert tree(memory) == before
    assert store.status().ambiguous == ("Dup", "dup")
    assert store.pin("b.md", pinned=True, author=AMY).after.name == "dup"
    assert store.write("a.md", "x", "s", author=AMY).entry.name == "Dup"


@pytest.mark.parametrize("kind", ["link", "dangling", "folder", "fifo"])
@pytest.mark.timeout(10)
def test_a_topic_that_is_no_regular_file_is_refused_and_what_it_points_to_unchanged(
    workspace: Workspace, memory: Path, kind: str
):
    outside = workspace.root / "outside.md"
    outside.write_text("mine\n")
    memory.mkdir()
    target = memory / "a.md"
    if kind == "folder":
        target.mkdir()
    elif kind == "fifo":
        os.mkfifo(target)
    else:
        target.symlink_to(outside if kind == "link" else workspace.root / "nowhere.md")
    store = store_of(workspace)
    with pytest.raises(UnsafeObjectError):
        store.write("A", "x", "s", author=AMY)
    assert outside.read_text() == "mine\n"
    assert not (workspace.root / "nowhere.md").exists()
    assert store.search("mine") == []
    assert store.repair(author=AMY).added == ()
    put(memory, {"MEMORY.md": "- [A](a.md) -- s\n"})
    with pytest.raises((UnsafeObjectError, NotFoundError)):
        store.read("A")
    with pytest.raises(UnsafeObjectError):
        store.write("A", "x", "s", author=AMY)


@pytest.mark.parametrize("kind", ["link", "fifo"])
@pytest.mark.timeout(10)
def test_an_index_that_is_no_regular_file_is_refused_at_once(workspace: Workspace, memory: Path, kind: str):
    memory.mkdir()
    if kind == "fifo":
        os.mkfifo(memory / "MEMORY.md")
    else:
        (workspace.root / "elsewhere").write_text("- [A](a.md) -- s\n")
        (memory / "MEMORY.md").symlink_to(workspace.root / "elsewhere")
    store = store_of(workspace)
    for act in (store.list, lambda: store.write("A", "x", "s", author=AMY), lambda: store.repair(author=AMY)):
        with pytest.raises(UnsafeObjectError):
            act()
    assert not (memory / "a.md").exists()


def test_a_file_that_is_not_utf8_is_never_rewritten_but_can_be_listed_pinned_and_removed(workspace: Workspace, memory: Path):
    put(memory, {"MEMORY.md": "- [A](a.md) -- s\n", "a.md": b"caf\xe9\n"})
    store = store_of(workspace)
    for mode in ("append", "replace"):
        with pytest.raises(NotUtf8Error):
            store.write("A", "x", "s", author=AMY, mode=mode)
    assert store.read("A").text == "caf\ufffd\n"
    assert store.pin("A", pinned=True, author=AMY).after.pinned
    store.pin("A", pinned=False, author=AMY)
    store.remove("A", author=AMY)
    assert (memory / "a.md").read_bytes() == b"caf\xe9\n"


def test_a_topic_that_is_too_large_to_rewrite_can_still_be_pinned_and_removed(workspace: Workspace, memory: Path):
    put(memory, {"MEMORY.md": "- [A](a.md) -- s\n", "a.md": b"x" * (MAX_TEXT_BYTES + 1)})
    store = store_of(workspace)
    with pytest.raises(TooLargeError):
        store.write("A", "x", "s", author=AMY)
    store.pin("A", pinned=True, author=AMY)
    store.pin("A", pinned=False, author=AMY)
    store.remove("A", author=AMY)
    assert store.list() == []
    assert (memory / "a.md").stat().st_size == MAX_TEXT_BYTES + 1


def test_an_index_that_is_not_utf8_is_not_rewritten_by_a_write(workspace: Workspace, memory: Path):
    put(memory, {"MEMORY.md": b"# Memory Index\n\n- [Caf\xe9](cafe.md) -- s\n"})
    with pytest.raises(NotUtf8Error):
        store_of(workspace).write("A", "x", "s", author=AMY)
    assert not (memory / "a.md").exists()


# taking back


def break_versions_of(workspace: Workspace, name: str) -> None:
    """Make replacing that file fail for real: its versions cannot be kept."""
    folder = workspace.root / workspace.version(name, "")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("in the way")


def test_a_write_that_cannot_publish_the_index_takes_the_topic_back(workspace: Workspace, memory: Path):
    store = store_of(workspace)
    store.write("A", "one", "s", author=AMY)
    store.write("B", "one", "s", author=AMY)
    store.remove("B", author=AMY)
    break_versions_of(workspace, "memory/MEMORY.md")
    before = {name: data for name, (data, _) in tree(memory).items()}
    inode = (memory / "a.md").stat().st_ino
    for act in (
        lambda: store.write("A", "two", "t", author=AMY),
        lambda: store.write("New", "two", "t", author=AMY),
        lambda: store.write("B", "two", "t", author=AMY),
        lambda: store.remove("A", author=AMY),
        lambda: store.pin("A", pinned=True, author=AMY),
    ):
        with pytest.raises(PersistenceError) as caught:
            act()
        assert caught.value.code == "unsafe_object"
        assert leftovers(memory) == []
        assert (memory / "a.md").stat().st_ino == inode, "it is the old file itself: going back needs no space"
        assert {name: data for name, (data, _) in tree(memory).items()} == before


def test_a_topic_that_cannot_be_marked_brings_its_line_back(workspace: Workspace, memory: Path):
    store = store_of(workspace)
    store.write("A", "one", "s", author=AMY)
    break_versions_of(workspace, "memory/a.md")
    before = {name: data for name, (data, _) in tree(memory).items()}
    for act in (lambda: store.remove("A", author=AMY), lambda: store.pin("A", pinned=True, author=AMY)):
        with pytest.raises(UnsafeObjectError):
            act()
        after = {name: data for name, (data, _) in tree(memory).items()}
        assert {**after, ".ocl-removed": b""} == {**before, ".ocl-removed": b""}
        assert after.get(".ocl-removed", b"") == b""


def test_a_change_that_cannot_be_taken_back_names_the_files_to_look_at(workspace: Workspace, memory: Path):
    put(memory, {"a.md": "old\n", "MEMORY.md": "index\n"})
    folder = TopicFolder.of(workspace, None)

    def change_and_break() -> None:
        with locked(workspace.root, "x", workspace.lock_of("x")) as held, folder.all_or_nothing(("a.md", "MEMORY.md"), held):
            put(memory, {"new": "half\n"})
            (memory / "new").replace(memory / "MEMORY.md")
            (memory / "a.md").unlink()
            (memory / "a.md").mkdir()
            raise OSError("the disk")

    with pytest.raises(RollbackFailedError, match=r"memory/a\.md") as caught:
        change_and_break()
    assert caught.value.names == ("memory/a.md",)
    assert (memory / "MEMORY.md").read_text() == "index\n"


def test_what_a_killed_writer_left_is_swept_by_the_next_write_and_a_living_editors_file_is_not(
    workspace: Workspace, memory: Path
):
    put(memory, {
        ".MEMORY.md.tmp-12-abc": "x", "docker.md.tmp-999-zz9": "x", ".a.md.tmp-1-f": "x",
        ".edited.md.tmp-1-f": "alive", "notes.tmp": "mine",
    })  # fmt: skip
    with locked(workspace.root, "memory/edited.md", workspace.lock_of("memory/edited.md")):
        store_of(workspace).write("A", "x", "s", author=AMY)
        assert sorted(path.name for path in memory.iterdir() if "tmp" in path.name) == [".edited.md.tmp-1-f", "notes.tmp"]
    store_of(workspace).pin("A", pinned=True, author=AMY)
    assert leftovers(workspace.root) == []


def test_an_editor_of_the_file_alone_and_a_write_wait_for_each_other(workspace: Workspace):
    store = store_of(workspace)
    store.write("A", "x", "s", author=AMY)
    with locked(workspace.root, "memory/a.md", workspace.lock_of("memory/a.md")), pytest.raises(PersistenceError) as caught:
        store.write("A", "y", "s", author=AMY)
    assert caught.value.code == "store_busy"


# against a model

_names = st.sampled_from(["A", "a", "B b", "B-b", "B_b", "你好", "Zeta"])
_ops = st.one_of(
    st.tuples(st.just("write"), _names, st.sampled_from(["append", "replace"]), st.booleans()),
    st.tuples(st.just("remove"), _names),
    st.tuples(st.just("pin"), _names, st.booleans()),
)


class Model:
    """What a scope's topics should be: by folded name the pin and the contents of those listed, the contents of those removed."""

    def __init__(self) -> None:
        self.listed: dict[str, tuple[bool, list[str]]] = {}
        self.gone: dict[str, list[str]] = {}

    def apply(self, store: TopicStore, op: tuple, number: int) -> None:
        key, text = op[1].casefold(), f"content-{number}"
        if op[0] == "write":
            pinned, old = self.listed.get(key, (False, self.gone.pop(key, [])))
            self.listed[key] = (pinned or op[3], [*old, text] if op[2] == "append" else [text])
            store.write(op[1], text, f"summary {number}", author=AMY, mode=op[2], pin=op[3])
        elif key not in self.listed:
            assert not any(entry.name.casefold() == key for entry in store.list())
        elif op[0] == "pin":
            self.listed[key] = (op[2], self.listed[key][1])
            store.pin(op[1], pinned=op[2], author=AMY)
        elif self.listed[key][0]:
            with pytest.raises(PinnedError):
                store.remove(op[1], author=AMY)
        else:
            self.gone[key] = self.listed.pop(key)[1]
            store.remove(op[1], author=AMY)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_ops, max_size=14))
def test_index_files_and_removals_are_what_a_simple_model_says(tmp_path_factory: pytest.TempPathFactory, ops: list[tuple]):
    root = tmp_path_factory.mktemp("model")
    store, model = store_of(open_workspace(root)), Model()
    for number, op in enumerate(ops):
        model.apply(store, op, number)
    entries = {entry.name.casefold(): entry for entry in store.list()}
    assert {key: entry.pinned for key, entry in entries.items()} == {key: pinned for key, (pinned, _) in model.listed.items()}
    for key, (_, contents) in model.listed.items():
        text = store.read(entries[key].file).text
        assert [line for line in text.split("\n") if line.startswith("content-")] == contents
    files = {path.name for path in (root / "memory").glob("*.md")} - {"MEMORY.md"}
    removed = (root / "memory/.ocl-removed").read_text().split() if model.gone else []
    assert files == {entry.file for entry in entries.values()} | set(removed)
    assert len(removed) == len(model.gone)
    assert not store.repair(author=AMY).changed


def test_the_refusals_have_the_codes_of_the_contract():
    assert [
        error.code for error in (TopicBlankError, TopicReservedError, TopicRetiredError, PinnedError, RollbackFailedError)
    ] == [
        "topic_blank",
        "topic_reserved",
        "topic_retired",
        "pinned",
        "rollback_failed",
    ]


def test_a_first_write_that_fails_leaves_nothing_to_look_at(tmp_path):
    workspace = open_workspace(tmp_path)
    (tmp_path / ".recalld" / "audit.jsonl").mkdir()  # no line of the audit can be written, so nothing is changed
    with pytest.raises(UnsafeObjectError):
        TopicStore(workspace, None).write("First", "text", "summary", author=AMY)
    assert not (tmp_path / "memory" / "first.md").exists()
