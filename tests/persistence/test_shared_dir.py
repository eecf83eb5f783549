"""Carrying topics over into a shared directory: on request, once, and nothing that was there is changed."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.errors import BodyInvalidError, PersistenceError, StoreBusyError, UnsafeObjectError
from persistence.files import locked
from persistence.shared_dir import MergePlan, merge, plan_merge, shared_directory
from persistence.topic_store import TopicStore
from persistence.topics.index import TopicEntry, parse_topic_index
from persistence.topics.merge import Side, plan_steps
from persistence.workspace import Workspace, open_workspace
from tests.persistence.topic_samples import AMY, leftovers, put, tree

DOCKER = "- [Docker](docker.md) [pin] 2025-01-01 [stale?] x:1 -- compose"
FOREIGN = "- [Foreign](foreign.md)   2026-01-01   --  theirs"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace(tmp_path)


@pytest.fixture
def local(workspace: Workspace) -> Path:
    return put(workspace.root / "memory", {"MEMORY.md": f"# Memory Index\n\n{DOCKER}\n", "docker.md": b"local \xff bytes\n"})


@pytest.fixture
def shared(workspace: Workspace) -> Path:
    return workspace.root / ".agents/memory"


def actions(plan: MergePlan) -> list[tuple[str, str]]:
    return [(step.action, step.target) for step in plan.steps]


def index_lines(folder: Path) -> list[str]:
    return [line for line in (folder / "MEMORY.md").read_text().split("\n") if line]


def test_each_listed_topic_is_copied_as_it_is_with_its_line_and_the_local_side_stays(
    workspace: Workspace, local: Path, shared: Path
):
    put(local, {"MEMORY.md": f"# Memory Index\n\n{DOCKER}\n- [Gone](gone.md) -- orphan\n", "unlisted.md": "u"})
    put(workspace.root, {"HANDOFF.md": "h"})
    before = tree(local)
    done = merge(workspace, shared, author=AMY)
    assert (actions(done), done.merged) == ([("copy", "docker.md"), ("orphan", "")], True)
    assert index_lines(shared) == ["# Memory Index", DOCKER]
    assert (shared / "docker.md").read_bytes() == b"local \xff bytes\n"
    assert sorted(path.name for path in shared.iterdir() if path.name != ".recalld") == ["MEMORY.md", "docker.md"]
    assert {name: value for name, value in tree(local).items() if name != ".shared-dir-migrated"} == before


def test_what_is_shared_already_stays_byte_for_byte(workspace: Workspace, local: Path, shared: Path):
    put(shared, {"MEMORY.md": f"# Memory Index\n{FOREIGN}\nprose\n\n\n", "foreign.md": "f", "docker.md": "another text\n"})
    done = merge(workspace, shared, author=AMY)
    assert actions(done) == [("rename", "docker-opim.md")]
    assert index_lines(shared) == ["# Memory Index", FOREIGN, "prose", DOCKER.replace("docker.md", "docker-opim.md")]
    assert (shared / "docker.md").read_text() == "another text\n"
    assert (shared / "docker-opim.md").read_bytes() == (local / "docker.md").read_bytes()


def test_an_identical_file_is_not_copied_and_gets_its_line_if_that_is_missing(workspace: Workspace, local: Path, shared: Path):
    put(shared, {"docker.md": (local / "docker.md").read_bytes()})
    assert actions(plan_merge(workspace, shared)) == [("add_line", "docker.md")]
    put(shared, {"MEMORY.md": "- [Docker](docker.md) -- theirs\n"})
    before = (shared / "MEMORY.md").read_bytes()
    assert actions(merge(workspace, shared, author=AMY)) == [("identical", "docker.md")]
    assert (shared / "MEMORY.md").read_bytes() == before


def test_taken_suffixes_are_counted_up_and_a_suffix_of_choice_is_used(workspace: Workspace, local: Path, shared: Path):
    put(shared, {"docker.md": "1", "docker-opim.md": "2", "DOCKER-oclm.md": "3"})
    assert actions(plan_merge(workspace, shared)) == [("rename", "docker-opim-2.md")]
    assert actions(plan_merge(workspace, shared, suffix="-oclm")) == [("rename", "docker-oclm-2.md")]
    put(shared, {"docker-opim-2.md": (local / "docker.md").read_bytes()})
    assert actions(plan_merge(workspace, shared)) == [("add_line", "docker-opim-2.md")]


@pytest.mark.parametrize("side", ["local", "shared"])
def test_a_topic_that_was_removed_on_either_side_is_not_carried_over(workspace: Workspace, local: Path, shared: Path, side: str):
    put(local if side == "local" else shared, {".ocl-removed": "docker.md\r\n"})
    assert actions(merge(workspace, shared, author=AMY)) == [("removed", "")]
    assert index_lines(shared) == ["# Memory Index"]
    assert not (shared / "docker.md").exists()


def test_a_removed_destination_is_not_revived_under_its_suffix(workspace: Workspace, local: Path, shared: Path):
    put(shared, {"docker.md": "another", ".ocl-removed": "docker-opim.md\n"})
    assert actions(plan_merge(workspace, shared)) == [("removed", "")]


def test_a_shared_topic_of_the_same_display_name_is_pointed_out(workspace: Workspace, local: Path, shared: Path):
    put(shared, {"MEMORY.md": "- [DOCKER](theirs.md) -- x\n", "theirs.md": "t"})
    [step] = plan_merge(workspace, shared).steps
    assert (step.action, step.target, step.same_name) == ("copy", "docker.md", "theirs.md")


def test_a_line_without_a_file_in_the_shared_index_is_not_given_our_text(workspace: Workspace, local: Path, shared: Path):
    put(shared, {"MEMORY.md": "- [Other](docker.md) -- its file is gone\n"})
    assert actions(plan_merge(workspace, shared)) == [("rename", "docker-opim.md")]


def test_a_plan_creates_nothing_and_takes_no_lock(workspace: Workspace, local: Path, shared: Path):
    before = tree(workspace.root)
    with locked(workspace.root, "memory/MEMORY.md", workspace.lock_of("memory/MEMORY.md")):
        assert actions(plan_merge(workspace, shared)) == [("copy", "docker.md")]
    assert tree(workspace.root) == before
    assert not shared.exists()


def test_a_merge_is_done_once_and_what_is_written_later_stays_local(workspace: Workspace, local: Path, shared: Path):
    merge(workspace, shared, author=AMY)
    said = json.loads((local / ".shared-dir-migrated").read_text())
    assert (said["version"], said["counts"]) == (1, {"copy": 1})
    assert said["time"]
    assert said["host"]
    assert len(said["source_index"]) == 64
    TopicStore(workspace, None).write("Later", "x", "s", author=AMY)
    before = tree(shared)
    again = merge(workspace, shared, author=AMY)
    assert (again.already, again.steps, again.merged) == (True, (), False)
    assert plan_merge(workspace, shared).already
    assert tree(shared) == before


def test_an_empty_sentinel_of_another_tool_is_honoured(workspace: Workspace, local: Path, shared: Path):
    put(local, {".shared-dir-migrated": ""})
    assert merge(workspace, shared, author=AMY).already
    assert not shared.exists()


def test_without_a_local_index_nothing_is_done_and_it_may_still_happen(workspace: Workspace, shared: Path):
    assert merge(workspace, shared, author=AMY).no_index
    assert not (workspace.root / "memory/.shared-dir-migrated").exists()
    put(workspace.root / "memory", {"MEMORY.md": f"{DOCKER}\n", "docker.md": "d"})
    assert actions(merge(workspace, shared, author=AMY)) == [("copy", "docker.md")]


@pytest.mark.parametrize("which", ["local", "shared", "tool"])
def test_a_busy_directory_means_no_copy_and_no_sentinel_and_a_later_merge_succeeds(
    workspace: Workspace, local: Path, shared: Path, which
):
    shared.mkdir(parents=True)
    started = time.monotonic()
    if which == "tool":
        put(shared, {".lock": f"{os.getpid()}\t1\tabc"})
        with pytest.raises(StoreBusyError):
            merge(workspace, shared, author=AMY)
        (shared / ".lock").unlink()
    else:
        root, name = (workspace.root, "memory/MEMORY.md") if which == "local" else (shared, "MEMORY.md")
        with locked(root, name, workspace.lock_of(name)), pytest.raises(StoreBusyError):
            merge(workspace, shared, author=AMY)
    assert time.monotonic() - started < 3, "the local lock is not held for as long as a write waits for a shared one"
    assert not (local / ".shared-dir-migrated").exists()
    assert not (shared / "docker.md").exists()
    assert merge(workspace, shared, author=AMY).merged


def test_a_merge_that_broke_off_is_finished_by_the_next(workspace: Workspace, local: Path, shared: Path):
    put(local, {"MEMORY.md": f"{DOCKER}\n- [B](b.md) -- b\n", "b.md": "b"})
    blocked = shared / ".recalld/versions"
    put(shared, {"MEMORY.md": f"{FOREIGN}\n", "foreign.md": "f"})
    put(blocked.parent, {"versions": "in the way"})  # the index has bytes to keep, so it can't be replaced
    with pytest.raises(PersistenceError):
        merge(workspace, shared, author=AMY)
    assert not (local / ".shared-dir-migrated").exists()
    assert index_lines(shared) == [FOREIGN]
    assert (shared / "b.md").exists()
    put(shared, {".ocl-removed": "b.md\n"})
    blocked.unlink()
    assert actions(merge(workspace, shared, author=AMY)) == [("add_line", "docker.md"), ("removed", "")]
    assert index_lines(shared) == [FOREIGN, DOCKER]


def test_a_file_that_cannot_be_read_is_said_and_keeps_the_merge_open(workspace: Workspace, local: Path, shared: Path):
    with (local / "docker.md").open("wb") as file:
        file.truncate(5 * 1024 * 1024)
    done = merge(workspace, shared, author=AMY)
    assert (actions(done), done.merged) == ([("unreadable", "")], False)
    (local / "docker.md").write_text("small again\n")
    assert merge(workspace, shared, author=AMY).merged
    assert (shared / "docker.md").read_text() == "small again\n"


def test_a_linked_topic_is_not_carried_over(workspace: Workspace, local: Path, shared: Path):
    (local / "docker.md").unlink()
    (local / "docker.md").symlink_to(workspace.root / ".recalld/VERSION")
    assert actions(plan_merge(workspace, shared)) == [("orphan", "")]


def test_the_shared_directory_is_in_the_workspace_or_elsewhere_and_never_behind_a_link(workspace: Workspace, tmp_path_factory):
    assert shared_directory(workspace) == workspace.root / ".agents/memory"
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    assert shared_directory(workspace, elsewhere) == elsewhere
    (workspace.root / ".agents").symlink_to(elsewhere)
    with pytest.raises(UnsafeObjectError):
        shared_directory(workspace)


def test_merging_a_directory_with_itself_is_refused(workspace: Workspace, local: Path):
    with pytest.raises(BodyInvalidError):
        merge(workspace, local, author=AMY)


def test_a_removal_in_the_shared_directory_is_remembered_there_and_a_write_clears_it(
    workspace: Workspace, local: Path, shared: Path
):
    merge(workspace, shared, author=AMY)
    store = TopicStore(workspace, None, shared=shared)
    store.write("New", "x", "s", author=AMY)
    store.remove("New", author=AMY)
    assert (shared / ".ocl-removed").read_text() == "new.md\n"
    assert (shared / "new.md").is_file()
    store.write("New", "y", "s", author=AMY)
    assert (shared / ".ocl-removed").read_text() == ""
    assert not (local / "new.md").exists()


MERGER = """
import sys
import time
from pathlib import Path
from persistence.audit import Author
from persistence.errors import StoreBusyError
from persistence.shared_dir import merge
from persistence.workspace import Workspace
while True:
    try:
        print(merge(Workspace(Path(sys.argv[1])), Path(sys.argv[2]), author=Author("cli")).merged)
        break
    except StoreBusyError:
        continue
"""


def test_workspaces_that_merge_at_once_into_one_directory_lose_nothing(tmp_path: Path):
    shared = tmp_path / "shared"
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        root = open_workspace(tmp_path / str(number)).root
        lines = [f"- [Own {number}](own-{number}.md) -- o", "- [Same](same.md) -- s", f"- [Clash {number}](clash.md) -- c"]
        put(root / "memory", {
            "MEMORY.md": "\n".join(lines), f"own-{number}.md": f"own {number}", "same.md": "same", "clash.md": f"clash {number}",
        })  # fmt: skip
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", MERGER, str(tmp_path / str(number)), str(shared)], stdout=subprocess.PIPE, text=True
        )
        for number in range(3)
    ]
    assert [process.communicate(timeout=60)[0] for process in processes] == ["True\n"] * 3
    entries = parse_topic_index((shared / "MEMORY.md").read_text()).entries
    assert len(entries) == len({entry.file for entry in entries}) == 3 + 1 + 3
    for entry in entries:
        text = (shared / entry.file).read_text()
        assert text == entry.name.lower()
    assert leftovers(shared) == []


_files = st.sampled_from(["a.md", "A.md", "a-opim.md", "b.md"])
_sides = st.builds(
    lambda lines, hashes, removed: Side(
        [TopicEntry(f"N {file}", file, None, pinned=False, stale=False, summary="", line=0) for file in dict.fromkeys(lines)],
        hashes,
        frozenset(removed),
        frozenset(hashes),
    ),
    st.lists(_files, max_size=4),
    st.dictionaries(_files, st.sampled_from(["h1", "h2"])),
    st.sets(_files, max_size=1),
)


@given(_sides, _sides)
def test_a_plan_overwrites_nothing_and_a_second_one_adds_nothing(local: Side, shared: Side):
    steps = plan_steps(local, shared)
    hashes, listed = dict(shared.hashes), [entry.file for entry in shared.entries]
    for step in steps:
        if step.action in ("copy", "rename"):
            assert step.target.casefold() not in {file.casefold() for file in (*hashes, *listed)}
            hashes[step.target] = local.hashes[step.entry.file]
        if step.action in ("copy", "rename", "add_line"):
            assert step.target.casefold() not in {file.casefold() for file in listed}
            assert step.target in hashes
            listed.append(step.target)
    entries = [TopicEntry(f"N {file}", file, None, pinned=False, stale=False, summary="", line=0) for file in listed]
    again = plan_steps(local, Side(entries, hashes, shared.removed, frozenset(hashes)))
    assert {step.action for step in again} <= {"identical", "removed", "orphan"}
