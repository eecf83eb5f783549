"""A lost or damaged index comes back from the topics' own files, pins too, and nothing that was removed comes back."""

import os
from datetime import timedelta
from pathlib import Path

import pytest

from persistence.topics.file import parse_topic_file
from persistence.workspace import Workspace, open_workspace
from tests.persistence.topic_samples import AMY, OC_0_6_7, PI_0_3_9, Clock, leftovers, put, store_of, tree


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace(tmp_path)


@pytest.fixture
def memory(workspace: Workspace) -> Path:
    return workspace.root / "memory"


def test_a_lost_index_comes_back_with_names_dates_summaries_and_pins(workspace: Workspace, memory: Path):
    store = store_of(workspace)
    store.write("Docker Setup", "x", "how [docker] is set up", author=AMY, pin=True)
    store.write("你好", "y", "greeting", author=AMY)
    store.write("C", "z", "", author=AMY)
    store.pin("C", pinned=True, author=AMY)
    store.pin("你好", pinned=True, author=AMY)
    store.pin("C", pinned=False, author=AMY)
    before = {entry.file: entry for entry in store.list()}
    (memory / "MEMORY.md").unlink()
    report = store.repair(author=AMY)
    assert report.changed
    assert len(report.added) == 3
    after = {entry.file: entry for entry in store.list()}
    assert {file: (e.name, e.stamp, e.pinned) for file, e in after.items()} == {
        file: (e.name, e.stamp, e.pinned) for file, e in before.items()
    }
    assert after["docker-setup.md"].summary == "how [docker] is set up"
    assert after["c.md"].summary == "C"


def test_repairing_twice_changes_nothing_more(workspace: Workspace, memory: Path):
    put(memory, PI_0_3_9 | OC_0_6_7 | {"bare.md": "no front matter\n", ".hidden-topic.md": "x"})
    store = store_of(workspace)
    first = store.repair(author=AMY)
    assert {entry.file for entry in first.added} == {"bare.md", "docker-setup.md", "zeta-one.md"}
    assert first.total == 4
    before = tree(memory)
    again = store.repair(author=AMY)
    assert (again.changed, again.added, again.total) == (False, (), 4)
    assert tree(memory) == before


def test_a_removed_topic_never_comes_back_even_when_the_list_of_removals_is_lost(workspace: Workspace, memory: Path):
    store = store_of(workspace)
    store.write("A", "x", "s", author=AMY)
    store.write("B", "y", "s", author=AMY)
    store.remove("A", author=AMY)
    (memory / ".ocl-removed").unlink()
    (memory / "MEMORY.md").unlink()
    assert store.status().unindexed == ("b.md",)
    assert store.search("x") == []
    report = store.repair(author=AMY)
    assert [entry.file for entry in report.added] == ["b.md"]
    assert report.removed_again == ("a.md",)
    assert (memory / ".ocl-removed").read_text() == "a.md\n"
    assert store.search("x") == []


def test_a_removal_by_another_tool_is_written_into_the_topic_so_that_it_lasts(workspace: Workspace, memory: Path):
    put(memory, {"MEMORY.md": "# Memory Index\n\n", ".ocl-removed": "a.md\n", "a.md": PI_0_3_9["zeta-one.md"]})
    store = store_of(workspace)
    assert store.repair(author=AMY).marked == ("a.md",)
    (memory / ".ocl-removed").unlink()
    assert store.repair(author=AMY).added == ()


def test_a_topic_that_another_tool_wrote_again_after_its_removal_comes_back(workspace: Workspace, memory: Path):
    store = store_of(workspace)
    store.write("A", "x", "s", author=AMY)
    store.remove("A", author=AMY)
    text = (memory / "a.md").read_text()
    (memory / "a.md").write_text(text.replace("last_updated: 2026-08-10", "last_updated: 2026-08-11"))
    (memory / ".ocl-removed").write_text("")
    assert [entry.file for entry in store.repair(author=AMY).added] == ["a.md"]
    assert parse_topic_file((memory / "a.md").read_text()).removed_at is None


def test_a_pin_that_another_tool_set_in_the_index_survives_the_loss_of_the_index(workspace: Workspace, memory: Path):
    put(memory, PI_0_3_9)
    store = store_of(workspace)
    assert store.repair(author=AMY).marked == ("docker-setup.md",)
    (memory / "MEMORY.md").unlink()
    store.repair(author=AMY)
    assert {entry.file: entry.pinned for entry in store.list()} == {"docker-setup.md": True, "zeta-one.md": False}


def test_the_index_says_what_is_pinned_where_both_are_there(workspace: Workspace, memory: Path):
    put(memory, {"MEMORY.md": "- [A](a.md) 2026-08-01 -- s\n", "a.md": "---\npinned: true\n---\nx\n"})
    store = store_of(workspace)
    assert store.repair(author=AMY).marked == ("a.md",)
    assert (memory / "a.md").read_text() == "---\n---\nx\n"
    assert not store.lookup("A").pinned


def test_a_damaged_index_keeps_its_readable_lines_and_its_bytes_are_kept_aside(workspace: Workspace, memory: Path):
    data = b"# Memory Index\n\nprose\n- [A](a.md) 2026-08-01 -- kept\n- [B\xff](b.md) -- torn\n\x00\x00\x00\n"
    put(memory, {"MEMORY.md": data, "a.md": "a", "b.md": '---\nname: "B"\ndescription: "back"\nlast_updated: 2026-08-02\n---\nb'})
    assert store_of(workspace).status().damaged_lines == 2
    report = store_of(workspace).repair(author=AMY)
    assert report.quarantined_lines == 2
    assert (memory / "MEMORY.md").read_text() == (
        "# Memory Index\n\nprose\n- [A](a.md) 2026-08-01 -- kept\n- [B](b.md) 2026-08-02 -- back\n"
    )
    assert [path.read_bytes() for path in (workspace.root / ".recalld/quarantine").iterdir()] == [data]


def test_a_line_that_is_behind_its_file_is_brought_up_to_date_and_a_hand_written_one_is_left(workspace: Workspace, memory: Path):
    clock = Clock()
    store = store_of(workspace, clock)
    store.write("A", "one", "first", author=AMY)
    store.write("B", "one", "first", author=AMY)
    index = (
        (memory / "MEMORY.md")
        .read_text()
        .replace("[B](b.md) 2026-08-10T09:30:15+02:00 -- first", "[B](b.md) 2026-08-10T09:30:15+02:00 -- mine")
    )
    clock.now += timedelta(seconds=1)
    store.write("A", "two", "second", author=AMY)
    (memory / "MEMORY.md").write_text(index)  # as a kill between file and index leaves it
    assert [entry.file for entry in store.status().behind] == ["a.md"]
    report = store.repair(author=AMY)
    assert [(entry.file, entry.summary) for entry in report.refreshed] == [("a.md", "second")]
    assert store.lookup("B").summary == "mine"


def test_a_line_that_a_kill_left_behind_its_file_is_found_also_within_one_second(workspace: Workspace, memory: Path):
    store = store_of(workspace, Clock())
    store.write("A", "one", "first", author=AMY)
    index = (memory / "MEMORY.md").read_bytes()
    store.write("A", "two", "second", author=AMY)  # the clock stands
    (memory / "MEMORY.md").write_bytes(index)
    assert [entry.file for entry in store.status().behind] == ["a.md"]
    assert [entry.summary for entry in store.repair(author=AMY).refreshed] == ["second"]


def test_what_a_file_says_of_itself_cannot_act_in_the_index(workspace: Workspace, memory: Path):
    evil = '---\nname: "X](x.md) [pin]"\ndescription: "d\\n- [Forged](forged.md) -- y"\nlast_updated: 2026-08-01 [pin]\n---\n'
    put(memory, {"evil.md": evil})
    os.utime(memory / "evil.md", (1_785_000_000, 1_785_000_000))
    store_of(workspace).repair(author=AMY)
    [entry] = store_of(workspace).list()
    assert (entry.name, entry.file, entry.pinned) == ("Xx.md pin", "evil.md", False)
    assert entry.stamp == "2026-07-25T19:20:00+02:00"


def test_a_recovered_name_that_is_taken_gives_way_to_the_file_name(workspace: Workspace, memory: Path):
    copy = '---\nname: "A"\n---\nx\n'
    put(memory, {"MEMORY.md": "- [A](a.md) -- s\n", "a.md": copy, "a-backup.md": copy})
    store_of(workspace).repair(author=AMY)
    assert sorted(entry.name for entry in store_of(workspace).list()) == ["A", "a-backup"]
    (memory / "MEMORY.md").unlink()
    store_of(workspace).repair(author=AMY)
    assert sorted(entry.name for entry in store_of(workspace).list()) == ["A", "a"]


def test_links_folders_and_files_that_are_no_topics_are_not_listed(workspace: Workspace, memory: Path):
    put(memory, {".hidden.md": "x", "notes.txt": "x", "a.md": "x"})
    (memory / "link.md").symlink_to(memory / "a.md")
    (memory / "folder.md").mkdir()
    (memory / os.fsdecode(b"caf\xe9.md")).write_text("x")
    assert [entry.file for entry in store_of(workspace).repair(author=AMY).added] == ["a.md"]


def test_a_topic_that_cannot_be_marked_is_said_and_the_rest_is_repaired(workspace: Workspace, memory: Path):
    put(memory, {"MEMORY.md": "- [A](a.md) [pin] -- s\n", "a.md": b"caf\xe9\n", "b.md": "b\n"})
    report = store_of(workspace).repair(author=AMY)
    assert report.skipped == (("a.md", "not_utf8"),)
    assert [entry.file for entry in report.added] == ["b.md"]
    assert (memory / "a.md").read_bytes() == b"caf\xe9\n"


def test_repairing_an_empty_scope_creates_nothing(workspace: Workspace, memory: Path):
    assert not store_of(workspace).repair(author=AMY).changed
    assert not memory.exists()


def test_status_names_everything_that_does_not_agree(workspace: Workspace, memory: Path):
    put(memory, {
        "MEMORY.md": (
            "- [Gone](gone.md) -- x\n- [A](a.md) [pin] 2030-01-01 -- f\n- [B](b.md) [stale?] -- s\n- [Bad](../x.md) -- y\n"
        ),
        "a.md": "a", "b.md": "b", "drift.md": "d", "removed.md": "r", ".ocl-removed": "removed.md\n",
        ".a.md.tmp-1-ab": "half",
    })  # fmt: skip
    before = tree(memory)
    status = store_of(workspace).status()
    assert (status.topics, status.pinned, status.stale, status.removed) == (3, 1, 1, 1)
    assert [(entry.file, entry.line) for entry in (*status.orphans, *status.clock_skew)] == [("gone.md", 1), ("a.md", 2)]
    assert (status.unindexed, status.unmarked, status.leftovers) == (("drift.md",), ("a.md",), (".a.md.tmp-1-ab",))
    assert status.quarantined == ((4, "- [Bad](../x.md) -- y"),)
    assert status.needs_repair
    assert not status.index_missing
    assert tree(memory) == before


def test_status_of_an_empty_scope_is_empty_and_creates_nothing(workspace: Workspace, memory: Path):
    status = store_of(workspace).status()
    assert (status.topics, status.index_missing, status.needs_repair) == (0, True, False)
    assert not memory.exists()


@pytest.mark.parametrize("index", [None, "- [A](a.md) 2026-08-01 -- behind\n", "# Memory Index\n\n- [A](a.md) 2026-08-01 -- s\n"])
@pytest.mark.parametrize("removed", [None, "a.md\n"])
@pytest.mark.parametrize("has_file", [True, False])
def test_each_state_that_a_kill_can_leave_is_completed(workspace: Workspace, memory: Path, index, removed, has_file):
    files = {"MEMORY.md": index, ".ocl-removed": removed, "a.md": PI_0_3_9["docker-setup.md"] if has_file else None}
    put(memory, {name: text for name, text in files.items() if text is not None} | {".a.md.tmp-1-ab": "half"})
    store = store_of(workspace)
    store.write("Next", "n", "n", author=AMY)
    store.repair(author=AMY)
    status = store.status()
    listed = [entry.file for entry in store.list()]
    assert not status.needs_repair
    assert ("a.md" in listed) == (has_file and (index is not None or removed is None))
    assert ((memory / ".ocl-removed").read_text() if removed else "") == ("" if "a.md" in listed or not removed else removed)
    assert leftovers(workspace.root) == []
    assert not store.repair(author=AMY).changed
