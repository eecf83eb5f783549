"""Reading the topic index of a scope: absence is a value, links are refused, and nothing on the volume changes."""

import os
from pathlib import Path

import pytest

from persistence.errors import UnsafeObjectError
from persistence.topic_store import read_topic_index
from persistence.workspace import Workspace, open_workspace, parse_channel_id

OPS = parse_channel_id("ops")
TEXT = "# Memory Index\n\n- [Gone](gone.md) 2026-01-01 -- its file is missing\n- [Removed](removed.md) -- s\n"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace(tmp_path)


def put(workspace: Workspace, name: str, text: str) -> Path:
    path = workspace.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def tree(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in root.rglob("*")}


def test_a_missing_index_is_none_and_reading_creates_nothing(workspace: Workspace):
    before = tree(workspace.root)
    assert read_topic_index(workspace, None) is None
    assert read_topic_index(workspace, OPS) is None
    assert tree(workspace.root) == before


def test_each_scope_has_its_own_index(workspace: Workspace):
    put(workspace, "memory/MEMORY.md", "- [A](a.md) -- for all\n")
    put(workspace, "ops/memory/MEMORY.md", "- [B](b.md) -- for ops\n")
    everywhere, ops = read_topic_index(workspace, None), read_topic_index(workspace, OPS)
    assert everywhere is not None
    assert ops is not None
    assert [entry.name for entry in everywhere.entries] == ["A"]
    assert [entry.name for entry in ops.entries] == ["B"]


def test_entries_without_their_file_stay_and_reading_tidies_nothing(workspace: Workspace):
    put(workspace, "memory/MEMORY.md", TEXT)
    put(workspace, "memory/.ocl-removed", "removed.md\n")
    before = tree(workspace.root)
    index = read_topic_index(workspace, None)
    assert index is not None
    assert [entry.file for entry in index.entries] == ["gone.md", "removed.md"]
    assert tree(workspace.root) == before


def test_an_empty_index_has_no_entries(workspace: Workspace):
    put(workspace, "memory/MEMORY.md", "")
    index = read_topic_index(workspace, None)
    assert index is not None
    assert (index.entries, index.lines) == ((), ())


def test_a_linked_index_is_refused(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory):
    outside = tmp_path_factory.mktemp("outside") / "MEMORY.md"
    outside.write_text(TEXT)
    (workspace.root / "memory").mkdir()
    (workspace.root / "memory/MEMORY.md").symlink_to(outside)
    with pytest.raises(UnsafeObjectError):
        read_topic_index(workspace, None)


def test_a_linked_folder_of_topics_is_refused(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "MEMORY.md").write_text(TEXT)
    (workspace.root / "memory").symlink_to(outside)
    with pytest.raises(UnsafeObjectError):
        read_topic_index(workspace, None)


@pytest.mark.timeout(10)
def test_an_index_that_is_a_fifo_is_refused_and_does_not_block(workspace: Workspace):
    (workspace.root / "memory").mkdir()
    os.mkfifo(workspace.root / "memory/MEMORY.md")
    with pytest.raises(UnsafeObjectError):
        read_topic_index(workspace, None)
