"""The indexer on real files and a real index: everything is found, nothing is doubled, one bad file hides no other."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import lancedb
import pytest

from semantic.embedder import Vectors
from semantic.errors import EmbedderUnavailableError, IndexBusyError, IndexFaultError
from semantic.index import Index
from semantic.indexer import Indexer, fingerprint_of, open_indexer
from semantic.lease import lease_of
from semantic.types import CollectionStatus, Scope
from tests.fakes.embedder import HashingEmbedder


class Clock:
    """The time of day, that a test can put forward."""

    def __init__(self) -> None:
        self.now_s = 2_000_000_000.0

    def __call__(self) -> float:
        return self.now_s


class Workspace:
    """A small workspace with its indexer."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.uri = str(root / ".recalld" / "index")
        self.embedder = HashingEmbedder()
        self.clock = Clock()
        self.write(".recalld/VERSION", "1\n")
        self.indexer = self.another()

    @property
    def index(self) -> Index:
        return Index(self.uri, dimension=64, fingerprint=fingerprint_of(self.embedder.name))

    def another(self) -> Indexer:
        fingerprint = fingerprint_of(self.embedder.name)
        lease = lease_of(self.root, self.uri)
        return Indexer(self.root, self.index, self.embedder, lease, fingerprint=fingerprint, clock=self.clock)

    def write(self, name: str, text: str | bytes = "text\n") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def newly_embedded(self) -> list[str]:
        before = len(self.embedder.embedded)
        self.indexer.update_once()
        return self.embedder.embedded[before:]

    def found(self, words: str) -> list[str]:
        hits = self.index.search_text(words, scope=Scope(everything=True), collections=(), limit=50)
        return sorted(hit.path for hit in hits)

    def versions(self) -> list[int]:
        connection = lancedb.connect(self.uri)
        return [connection.open_table(name).version for name in sorted(connection.list_tables().tables)]

    def rows(self) -> list[tuple[str, str]]:
        connection = lancedb.connect(self.uri)
        (name,) = [name for name in connection.list_tables().tables if name.startswith("chunks-")]
        table = connection.open_table(name).to_arrow()
        return list(zip(table["path"].to_pylist(), table["id"].to_pylist(), strict=True))


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


def test_the_first_sweep_indexes_every_document_of_every_collection(space):
    for name in ("MEMORY.md", "memory/a.md", "C1/memory/b.md", "skills/x/SKILL.md", "C1/skills/y/SKILL.md", "C1/scratch/no.md"):
        space.write(name, f"# {name}\nthe word zebra\n")
    status = space.indexer.update_once()
    assert status.state == "idle"
    assert (status.pending, status.failed) == (0, ())
    assert status.indexed_through_s == space.clock.now_s
    assert status.last_sweep_ms > 0
    assert status.collections == {
        "memory": CollectionStatus(2, 2),
        "channels": CollectionStatus(1, 1),
        "skills": CollectionStatus(2, 2),
        "history": CollectionStatus(0, 0),
    }
    assert space.found("zebra") == sorted(
        ["MEMORY.md", "memory/a.md", "C1/memory/b.md", "skills/x/SKILL.md", "C1/skills/y/SKILL.md"]
    )


def test_a_second_sweep_without_changes_embeds_and_commits_nothing(space):
    space.write("memory/a.md")
    space.indexer.update_once()
    rows = space.rows()
    versions = space.versions()
    assert space.newly_embedded() == []
    assert space.rows() == rows
    assert space.versions() == versions


def test_a_change_a_new_file_and_a_removal_are_all_seen(space):
    space.write("memory/stays.md", "walrus\n")
    changed, gone = space.write("memory/changed.md", "walrus\n"), space.write("memory/gone.md", "walrus\n")
    space.indexer.update_once()
    changed.write_text("narwhal now\n")
    gone.unlink()
    space.write("memory/new.md", "walrus too\n")
    space.indexer.update_once()
    assert space.found("walrus") == ["memory/new.md", "memory/stays.md"]
    assert space.found("narwhal") == ["memory/changed.md"]
    assert sorted(path for path, _ in space.rows()) == ["memory/changed.md", "memory/new.md", "memory/stays.md"]


def test_an_emptied_document_has_no_chunks_and_is_not_read_again(space):
    path = space.write("memory/a.md", "walrus\n")
    space.indexer.update_once()
    path.write_text("")
    status = space.indexer.update_once()
    assert status.collections["memory"] == CollectionStatus(1, 0)
    assert space.found("walrus") == []
    assert space.indexer.update_once().pending == 0


def test_one_inserted_line_costs_one_embedding(space):
    sections = [f"## Part {i}\nabout thing{i} and other{i}\n\n" for i in range(50)]
    path = space.write("memory/big.md", "".join(sections))
    assert len(space.newly_embedded()) == 50
    path.write_text("a new first line\n" + "".join(sections))
    assert len(space.newly_embedded()) == 1
    path.write_text("".join(["a new first line\n", *sections[:20], "a line more\n", *sections[20:]]))
    assert len(space.newly_embedded()) == 1
    hit = space.index.search_text("thing49", scope=Scope(), collections=(), limit=1)[0]
    lines = path.read_text().split("\n")
    assert "about thing49 and other49" in lines[hit.start_line - 1 : hit.end_line]


def test_a_touched_file_is_stamped_and_not_embedded_again(space):
    path = space.write("memory/a.md")
    space.indexer.update_once()
    os.utime(path, ns=(1, 1))
    assert space.newly_embedded() == []
    assert space.index.documents()["memory/a.md"].stat.mtime_ns == 1


def test_a_change_that_keeps_size_and_mtime_is_seen(space):
    path = space.write("memory/a.md", "walrus\n")
    space.indexer.update_once()
    before = path.stat()
    path.write_text("badger\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    space.indexer.update_once()
    assert space.found("badger") == ["memory/a.md"]


def fake_stamp(space: Workspace, path: Path) -> None:
    """Make the index believe that it has seen the file as it is: what a coarse clock or a stale network stat comes to."""
    name = str(path.relative_to(space.root))
    document = space.index.documents()[name]
    found = path.stat()
    changed = {"size_bytes": found.st_size, "mtime_ns": found.st_mtime_ns, "ctime_ns": found.st_ctime_ns, "inode": found.st_ino}
    stat = type(document.stat)(**{name: getattr(document.stat, name) for name in document.stat.__slots__} | changed)
    space.index.restat([type(document)(stat, document.sha256, document.chunks, document.fingerprint)])


def test_a_change_that_no_stat_shows_is_found_by_verifying(space):
    path = space.write("memory/a.md", "walrus\n")
    space.indexer.update_once()
    path.write_text("badger\n")
    fake_stamp(space, path)
    space.indexer.update_once()
    assert space.found("badger") == []
    space.indexer.verify_once()
    assert space.found("badger") == ["memory/a.md"]


def test_verifying_a_few_at_a_time_gets_round_and_starts_again_after_an_hour(space):
    paths = [space.write(f"memory/{name}.md", f"{name} walrus\n") for name in "abcde"]
    space.indexer.update_once()

    def verify_round() -> int:
        for count in range(1, 10):
            space.indexer.verify_once(limit=2)
            if space.found("badger") == [f"memory/{name}.md" for name in "abcde"]:
                return count
        return 0

    for path in paths:
        path.write_text(path.read_text().replace("walrus", "badger"))
        fake_stamp(space, path)
    assert verify_round() == 3
    for path in paths:
        path.write_text(path.read_text().replace("badger", "ferret"))
        fake_stamp(space, path)
    space.indexer.verify_once(limit=2)
    assert space.found("ferret") == []
    space.clock.now_s += 3601
    for _ in range(3):
        space.indexer.verify_once(limit=2)
    assert len(space.found("ferret")) == 5


def test_a_file_written_twice_within_the_clock_s_grain_is_looked_at_again(space):
    path = space.write("memory/a.md", "walrus\n")
    space.clock.now_s = path.stat().st_ctime + 0.5
    space.indexer.update_once()
    path.write_text("badger\n")
    fake_stamp(space, path)
    space.indexer.update_once()
    assert space.found("badger") == ["memory/a.md"]


# Bad files


def test_a_file_that_is_not_utf8_is_indexed_and_reported_until_it_is_repaired(space):
    path = space.write("memory/latin.md", b"caf\xe9 walrus\n")
    space.write("memory/good.md", "walrus\n")
    for status in (space.indexer.update_once(), space.indexer.update_once()):
        assert [(failure.path, "not UTF-8" in failure.reason) for failure in status.failed] == [("memory/latin.md", True)]
    assert space.found("walrus") == ["memory/good.md", "memory/latin.md"]
    path.write_text("café walrus\n")
    assert space.indexer.update_once().failed == ()


def test_after_a_restart_a_file_that_is_not_utf8_is_reported_again(space):
    space.write("memory/latin.md", b"caf\xe9 walrus\n")
    space.indexer.update_once()
    assert [failure.path for failure in space.another().verify_once(limit=256).failed] == ["memory/latin.md"]


def test_a_file_that_is_too_large_is_reported_and_keeps_what_was_indexed(space):
    path = space.write("memory/big.md", "walrus\n")
    space.indexer.update_once()
    path.write_bytes(b"badger\n" * 700_000)
    space.write("memory/good.md", "badger\n")
    status = space.indexer.update_once()
    assert [failure.path for failure in status.failed] == ["memory/big.md"]
    assert status.pending == 0
    assert space.found("walrus") == ["memory/big.md"]
    assert space.found("badger") == ["memory/good.md"]
    path.write_text("badger again\n")
    assert space.indexer.update_once().failed == ()
    assert space.found("badger") == ["memory/big.md", "memory/good.md"]


def test_a_link_is_reported_and_its_target_is_not_indexed(space, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "secret.md"
    outside.write_text("walrus\n")
    space.write("memory/a.md", "badger\n")
    (space.root / "memory" / "link.md").symlink_to(outside)
    assert [failure.path for failure in space.indexer.update_once().failed] == ["memory/link.md"]
    assert space.found("walrus") == []


class PickyEmbedder(HashingEmbedder):
    """Fails for good with one word, as a model does that stumbles over an input."""

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        if any("poison" in text for text in texts):
            raise ValueError("poison")
        return super().embed_documents(texts)


def test_a_document_that_the_model_stumbles_over_fails_alone(space):
    space.embedder = PickyEmbedder()
    indexer = space.another()
    for number in range(20):
        space.write(f"memory/{number}.md", "walrus\n")
    bad = space.write("memory/bad.md", "poison walrus\n")
    status = indexer.update_once()
    assert [failure.path for failure in status.failed] == ["memory/bad.md"]
    assert len(space.found("walrus")) == 20
    bad.write_text("walrus\n")
    assert indexer.update_once().failed == ()
    assert len(space.found("walrus")) == 21


class AbsentEmbedder(HashingEmbedder):
    """Has no model for a while."""

    is_there = False

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        if not self.is_there:
            raise EmbedderUnavailableError("no model")
        return super().embed_documents(texts)


def test_without_a_model_the_sweep_fails_aloud_and_the_next_one_catches_up(space):
    space.embedder = AbsentEmbedder()
    indexer = space.another()
    space.write("memory/a.md", "walrus\n")
    with pytest.raises(EmbedderUnavailableError):
        indexer.update_once()
    assert (indexer.status.state, indexer.status.detail, indexer.status.indexed_through_s) == ("failed", "no model", None)
    space.embedder.is_there = True
    assert indexer.update_once().state == "idle"
    assert space.found("walrus") == ["memory/a.md"]


def test_a_volume_that_went_away_deletes_nothing(space):
    space.write("memory/a.md", "walrus\n")
    space.indexer.update_once()
    (space.root / ".recalld" / "VERSION").rename(space.root / ".recalld" / "gone")
    (space.root / "memory").rename(space.root / "elsewhere")
    with pytest.raises(IndexFaultError):
        space.indexer.update_once()
    assert space.indexer.status.state == "failed"
    assert space.found("walrus") == ["memory/a.md"]


def test_a_collection_folder_that_is_really_gone_removes_its_documents(space):
    space.write("memory/a.md", "walrus\n")
    space.write("C1/memory/b.md", "walrus\n")
    space.indexer.update_once()
    (space.root / "memory").rename(space.root / "attachments")
    space.indexer.update_once()
    assert space.found("walrus") == ["C1/memory/b.md"]


def test_a_deleted_index_is_built_again(space):
    space.write("memory/a.md", "walrus\n")
    space.indexer.update_once()
    subprocess.run(["rm", "-r", space.uri], check=True)
    assert space.indexer.update_once().collections["memory"] == CollectionStatus(1, 1)
    assert space.found("walrus") == ["memory/a.md"]


# Long sweeps


def test_a_paused_sweep_says_what_is_pending_and_the_next_goes_on_with_the_newest(space):
    for number in range(150):
        os.utime(space.write(f"memory/{number:03}.md", f"walrus {number}\n"), (number, number))
    seen = []
    first = space.indexer.update_once(progress=seen.append, pause=lambda: True)
    assert [status.state for status in seen] == ["indexing"]
    assert 0 < first.pending < 150
    assert first.indexed_through_s is None
    assert "memory/149.md" in space.index.documents()
    assert "memory/000.md" not in space.index.documents()
    os.utime(space.write("memory/fresh.md", "badger\n"), (1000, 1000))
    space.indexer.update_once(pause=lambda: True)
    assert space.found("badger") == ["memory/fresh.md"]
    last = space.indexer.update_once()
    assert (last.pending, last.collections["memory"].documents) == (0, 151)
    assert last.indexed_through_s == space.clock.now_s


def test_progress_counts_down(space):
    for number in range(150):
        space.write(f"memory/{number}.md", f"walrus {number}\n")
    pending = []
    space.indexer.update_once(progress=lambda status: pending.append(status.pending))
    assert len(pending) > 1
    assert pending == sorted(pending, reverse=True)
    assert pending[-1] == 0


def test_one_indexer_at_a_time_and_the_other_says_so(space):
    space.write("memory/a.md")
    with lease_of(space.root, space.uri).held(timeout_s=1), pytest.raises(IndexBusyError):
        space.indexer.update_once()
    assert space.indexer.status.state == "indexing"
    assert space.indexer.update_once().state == "idle"


def test_an_indexer_that_was_overtaken_in_the_middle_commits_nothing_more(space):
    for number in range(150):
        space.write(f"memory/{number}.md", f"walrus {number}\n")

    def overtake(_status: object) -> None:
        newest = max(int(path.name.rpartition("-")[2]) for path in Path(space.uri).glob("indexer.lock.gen-*"))
        (Path(space.uri) / f"indexer.lock.gen-{newest + 1}").touch()

    with pytest.raises(IndexBusyError):
        space.indexer.update_once(progress=overtake)
    assert 0 < len(space.index.documents()) < 150
    assert space.indexer.update_once().pending == 0
    assert len(space.rows()) == 150


def test_maintenance_runs_after_a_minute_with_commits(space):
    for number in range(12):
        space.write("memory/a.md", f"walrus {number}\n")
        space.indexer.update_once()
    files = len(list(Path(space.uri).rglob("*.lance")))
    space.indexer.maintain_if_due()
    assert len(list(Path(space.uri).rglob("*.lance"))) == files
    space.clock.now_s += 61
    space.indexer.maintain_if_due()
    assert space.found("walrus") == ["memory/a.md"]
    assert lancedb.connect(space.uri).open_table(chunk_table(space)).stats()["fragment_stats"]["num_fragments"] == 1


def chunk_table(space: Workspace) -> str:
    return next(name for name in lancedb.connect(space.uri).list_tables().tables if name.startswith("chunks-"))


def test_another_model_indexes_anew_beside_the_old_index(space):
    space.write("memory/a.md", "walrus\n")
    space.indexer.update_once()
    space.embedder = HashingEmbedder(32)
    status = open_indexer(space.root, space.uri, space.embedder).update_once()
    assert status.collections["memory"] == CollectionStatus(1, 1)
    assert space.embedder.embedded
    old = Index(space.uri, dimension=64, fingerprint=fingerprint_of("hashing:64"))
    assert list(old.documents()) == ["memory/a.md"]


SWEEP = """
import sys, time, pathlib
from semantic.errors import IndexBusyError
from semantic.indexer import open_indexer
from tests.fakes.embedder import HashingEmbedder
root, end = pathlib.Path(sys.argv[1]), time.monotonic() + float(sys.argv[2])
indexer = open_indexer(root, str(root / ".recalld/index"), HashingEmbedder())
sweeps = 0
while time.monotonic() < end:
    try:
        indexer.update_once()
        sweeps += 1
    except IndexBusyError:
        pass
print(sweeps)
"""


def test_two_processes_that_sweep_in_turns_double_and_lose_nothing(space):
    def write_round(number: int) -> None:
        for name in range(12):
            parts = "".join(f"## Part {part}\nround{number * (part % 2)} walrus{part}\n\n" for part in range(5))
            space.write(f"C{name % 3}/memory/{name}.md", parts)

    write_round(0)
    command = [sys.executable, "-c", SWEEP, str(space.root), "5"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) for _ in range(2)]
    number = 0
    while any(process.poll() is None for process in processes):
        number += 1
        write_round(number)
    sweeps = [int(process.communicate()[0]) for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert all(sweeps)
    space.indexer.update_once()
    rows = space.rows()
    assert len(rows) == len({chunk_id for _, chunk_id in rows}) == 60
    assert len(space.found(f"round{number}")) == 24


CHURN = """
import sys, itertools, pathlib
from semantic.indexer import open_indexer
from tests.fakes.embedder import HashingEmbedder
root = pathlib.Path(sys.argv[1])
indexer = open_indexer(root, str(root / ".recalld/index"), HashingEmbedder())
for number in itertools.count():
    for name in ("same", f"new-{sys.argv[2]}-{number}"):
        (root / "memory" / f"{name}.md").write_text(f"# One\\n{name} version{number} walrus\\n# Two\\nmore\\n")
    indexer.update_once()
    if number == 2:
        print("go", flush=True)
"""


def churn_until_killed(space: Workspace, number: int) -> None:
    command = [sys.executable, "-c", CHURN, str(space.root), str(number)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.1 + 0.037 * number)
    process.kill()
    process.communicate()


def test_kills_at_any_moment_leave_nothing_behind_that_a_sweep_does_not_put_right(space):
    same = space.write("memory/same.md", "# One\nthe very first\n")
    first = same.read_bytes()
    for number in range(4):
        space.indexer.update_once()
        churn_until_killed(space, number)
        for path in (space.root / "memory").glob("new-*.md"):
            path.unlink()
        same.write_bytes(first)
        space.indexer.update_once()
        assert [path for path, _ in space.rows()] == ["memory/same.md"]
        assert space.found("first") == ["memory/same.md"]
        assert space.found("walrus") == []
        assert list(space.index.documents()) == ["memory/same.md"]
