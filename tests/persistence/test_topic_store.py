"""Reading topics: absence is a value, links are refused, and nothing on the volume changes."""

import hashlib
import os
from pathlib import Path

import pytest

from persistence.audit import Author
from persistence.errors import AmbiguousError, NotFoundError, TopicBlankError, UnsafeObjectError
from persistence.topic_store import TopicStore, read_topic_index
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


@pytest.fixture
def store(workspace: Workspace) -> TopicStore:
    put(workspace, "memory/MEMORY.md", INDEX)
    for name in ("zeta-one", "zeta-two", "kube", "old"):
        put(
            workspace,
            f"memory/{name}.md",
            f'---\nname: "{name}"\nsecretive: frontmatter\n---\n\nThe body of {name}.\n\nHOMElab at home\n',
        )
    put(workspace, "memory/drift.md", '---\nname: "Drift Topic"\n---\n\nonly here: gearbox\n')
    return TopicStore(workspace, None)


INDEX = """# Memory Index

- [Zeta One](zeta-one.md) 2026-01-01 -- first of two
- [Zeta Two](zeta-two.md) [pin] 2026-01-02 -- second of two
- [Kubernetes upgrade](kube.md) 2026-01-03 -- homelab cluster
- [Old](old.md) 2020-01-01 [stale?] -- ](kube.md) is newer
"""


def test_an_exact_name_or_file_name_wins_in_any_case_and_a_unique_part_does_too(store: TopicStore, workspace: Workspace):
    assert store.lookup("ZETA ONE").file == "zeta-one.md"
    assert store.lookup("zeta-TWO.md").file == "zeta-two.md"
    assert store.lookup(" kubernetes ").file == "kube.md"
    with pytest.raises(AmbiguousError) as caught:
        store.lookup("Zeta")
    assert caught.value.candidates == (("Zeta One", "zeta-one.md"), ("Zeta Two", "zeta-two.md"))
    put(workspace, "memory/MEMORY.md", INDEX + "- [Zeta](zeta.md) -- exactly\n")
    assert store.lookup("zeta").file == "zeta.md"
    with pytest.raises(NotFoundError):
        store.lookup("unheard of")


def test_a_name_that_is_the_file_name_of_another_is_ambiguous(store: TopicStore, workspace: Workspace):
    put(workspace, "memory/MEMORY.md", INDEX + "- [kube.md](other.md) -- x\n")
    with pytest.raises(AmbiguousError):
        store.lookup("kube.md")


def test_topics_are_listed_in_order_by_text_pin_and_age(store: TopicStore):
    assert [entry.file for entry in store.list()] == ["zeta-one.md", "zeta-two.md", "kube.md", "old.md"]
    assert [entry.file for entry in store.list(query="OF TWO")] == ["zeta-one.md", "zeta-two.md"]
    assert [entry.file for entry in store.list(pinned=True)] == ["zeta-two.md"]
    assert [entry.file for entry in store.list(stale=True)] == ["old.md"]
    assert [entry.file for entry in store.list(query="zeta", pinned=False, stale=False)] == ["zeta-one.md"]


def test_a_file_with_several_lines_is_listed_once(store: TopicStore, workspace: Workspace):
    put(workspace, "memory/MEMORY.md", INDEX + "- [Zeta One](zeta-one.md) [pin] 2025-01-01 -- older\n")
    assert [(e.summary, e.pinned) for e in store.list(query="zeta one")] == [("first of two", True)]


def test_a_topic_is_read_without_its_front_matter(store: TopicStore, workspace: Workspace):
    topic = store.read("zeta one")
    assert topic.text == "The body of zeta-one.\n\nHOMElab at home\n"
    assert topic.etag == hashlib.sha256((workspace.root / "memory/zeta-one.md").read_bytes()).hexdigest()
    assert not topic.truncated


def test_a_long_topic_is_cut_at_a_line_end_and_says_so(store: TopicStore, workspace: Workspace):
    put(workspace, "memory/old.md", ("ü" * 39 + "\n") * 1000)
    topic = store.read("old")
    assert topic.truncated
    assert len(topic.text.encode()) <= 51_200
    *lines, notice, end = topic.text.split("\n")
    assert set(lines) == {"ü" * 39}
    assert (notice.startswith("<!-- topic cut"), end) == (True, "")


def test_a_topic_whose_file_is_gone_is_said_to_be(store: TopicStore, workspace: Workspace):
    (workspace.root / "memory/old.md").unlink()
    with pytest.raises(NotFoundError, match="is gone"):
        store.read("old")


def test_a_search_finds_each_topic_once_by_its_line_first_in_any_case(store: TopicStore):
    assert [(match.kind, match.file) for match in store.search("HOMELAB")] == [
        ("index", "kube.md"),
        ("body", "old.md"),
        ("body", "zeta-one.md"),
        ("body", "zeta-two.md"),
    ]
    assert store.search("homelab") == store.search("HomeLab")
    assert store.search("body of zeta-one")[0].line == "The body of zeta-one."
    assert store.search("nowhere at all") == []
    assert store.search("secretive: frontmatter") == []


def test_a_search_shows_a_hit_in_a_file_that_is_not_listed(store: TopicStore):
    [match] = store.search("gearbox")
    assert (match.kind, match.name, match.file, match.line, match.indexed) == (
        "body", "Drift Topic", "drift.md", "only here: gearbox", False,
    )  # fmt: skip


def test_a_search_never_shows_a_removed_topic(store: TopicStore, workspace: Workspace):
    store.remove("Zeta One", author=Author("cli"))
    assert store.search("zeta-one") == []
    put(workspace, "memory/.ocl-removed", "drift.md\n")  # as another tool removes one
    assert store.search("gearbox") == []


def test_a_search_sees_the_first_part_of_a_file_and_120_characters_of_a_line(store: TopicStore, workspace: Workspace):
    put(workspace, "memory/old.md", "  early " + "x" * 200 + "\n" + "y" * 51_200 + " late\n")
    assert store.search("late") == []
    [match] = store.search("early")
    assert match.line == "early " + "x" * 114


@pytest.mark.parametrize("query", ["", "  "])
def test_a_blank_search_is_refused(store: TopicStore, query: str):
    with pytest.raises(TopicBlankError):
        store.search(query)


def test_reading_in_every_way_creates_nothing(workspace: Workspace):
    store = TopicStore(workspace, OPS)
    assert (store.list(), store.search("x"), store.status().topics) == ([], [], 0)
    with pytest.raises(NotFoundError):
        store.read("x")
    assert not (workspace.root / "ops").exists()
