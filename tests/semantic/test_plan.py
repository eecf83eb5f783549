"""Planning an update: what changed, what is gone, what must be kept."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from semantic.plan import Plan, plan_update
from semantic.types import DocumentStat, IndexedDocument

PATHS = ["MEMORY.md", "memory/a.md", "memory/sub/b.md", "C1/memory/c.md", "C1/memory2.md", "skills/x/SKILL.md"]


def stat_of(path: str, version: int = 0) -> DocumentStat:
    return DocumentStat(path, "memory", None, 10 + version, 1000 + version, 2000 + version, 7)


def indexed(stat: DocumentStat, fingerprint: str = "f1") -> IndexedDocument:
    return IndexedDocument(stat, f"sha-{stat.size_bytes}", 1, fingerprint)


def apply(plan: Plan, known: dict[str, IndexedDocument], fingerprint: str) -> dict[str, IndexedDocument]:
    after = {path: document for path, document in known.items() if path not in plan.to_remove}
    return after | {stat.path: indexed(stat, fingerprint) for stat in plan.to_read()}


SEEN = st.dictionaries(st.sampled_from(PATHS), st.integers(0, 3)).map(
    lambda versions: {path: stat_of(path, version) for path, version in versions.items()}
)
INDEXED = st.dictionaries(st.sampled_from(PATHS), st.tuples(st.integers(0, 3), st.sampled_from(["f1", "f2"]))).map(
    lambda found: {path: indexed(stat_of(path, version), fingerprint) for path, (version, fingerprint) in found.items()}
)
KEPT = st.sets(st.sampled_from(["", "memory", "memory/sub", "C1", "MEMORY.md"]))


@given(seen=SEEN, known=INDEXED, kept=KEPT)
def test_after_an_update_there_is_nothing_to_do(seen, known, kept):
    plan = plan_update(seen, known, fingerprint="f1", kept=kept)
    after = apply(plan, known, "f1")
    assert plan_update(seen, after, fingerprint="f1", kept=kept) == Plan()
    assert {path: after[path].stat for path in seen} == seen


@given(seen=SEEN, known=INDEXED, kept=KEPT)
def test_what_is_removed_was_indexed_is_gone_and_not_kept(seen, known, kept):
    for path in plan_update(seen, known, fingerprint="f1", kept=kept).to_remove:
        assert path in known
        assert path not in seen
        assert "" not in kept
        assert not any(path == folder or path.startswith(f"{folder}/") for folder in kept)


@given(seen=SEEN, known=INDEXED)
def test_without_unreadable_folders_everything_gone_is_removed(seen, known):
    plan = plan_update(seen, known, fingerprint="f1", kept=())
    assert set(plan.to_remove) == known.keys() - seen.keys()


def test_each_part_of_the_stat_counts():
    known = stat_of("memory/a.md")
    for name in ("size_bytes", "mtime_ns", "ctime_ns", "inode"):
        changed = replace(known, **{name: 99})
        plan = plan_update({known.path: changed}, {known.path: indexed(known)}, fingerprint="f1", kept=())
        assert plan.to_check == (changed,), name


def test_another_fingerprint_means_indexing_anew():
    known = stat_of("memory/a.md")
    plan = plan_update({known.path: known}, {known.path: indexed(known, "old")}, fingerprint="new", kept=())
    assert plan.to_index == (known,)


def test_a_folder_that_only_starts_like_an_unreadable_one_is_not_kept():
    known = {path: indexed(stat_of(path)) for path in ("C1/memory/a.md", "C1/memory2/a.md")}
    assert plan_update({}, known, fingerprint="f1", kept={"C1/memory"}).to_remove == ("C1/memory2/a.md",)


def test_the_newest_files_are_read_first():
    old, new = stat_of("memory/a.md", 1), stat_of("memory/b.md", 3)
    changed = replace(stat_of("memory/c.md"), mtime_ns=1002)
    plan = plan_update(
        {s.path: s for s in (old, changed, new)}, {changed.path: indexed(stat_of(changed.path))}, fingerprint="f1", kept=()
    )
    assert [stat.path for stat in plan.to_read()] == ["memory/b.md", "memory/c.md", "memory/a.md"]
