import multiprocessing
import shutil
from collections import Counter
from datetime import timedelta
from pathlib import Path

import lancedb
import numpy as np
import pytest

from semantic.errors import IndexFaultError
from semantic.index import Index
from semantic.types import COLLECTIONS, Chunk, CollectionStatus, DocumentStat, IndexedDocument, Scope

DIMENSION = 16
GLOBAL = Scope()
ALL = Scope(everything=True)
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def uri(tmp_path):
    return str(tmp_path / "not" / "there" / "yet")


@pytest.fixture
def index(uri):
    return open_index(uri)


def open_index(uri, fingerprint="f1", **options):
    return Index(uri, dimension=DIMENSION, fingerprint=fingerprint, **options)


def document(path, *, collection="memory", channel=None, chunks=1, sha256="s1", mtime_ns=1):
    stat = DocumentStat(path, collection, channel, 10, mtime_ns, 3, 2**63 + 1)
    return IndexedDocument(stat, sha256, chunks, "f1")


def vector_of(text):
    seed = int.from_bytes(text.encode()[:8].ljust(8, b"\0"), "big") + len(text)
    vector = np.random.default_rng(seed).normal(size=DIMENSION).astype(np.float32)
    return vector / np.linalg.norm(vector)


def entry(path, *texts, collection="memory", channel=None, **stamp):
    chunks = [
        (Chunk(f"{path}#{text}", ("Notes", "Part"), place, place, text, f"Notes > Part\n{text}"), vector_of(text))
        for place, text in enumerate(texts, start=1)
    ]
    return document(path, collection=collection, channel=channel, chunks=len(texts), **stamp), chunks


def texts_found(index, text, *, scope=GLOBAL, collections=(), limit=50):
    return [hit.text for hit in index.search_text(text, scope=scope, collections=collections, limit=limit)]


def texts_near(index, text, *, scope=GLOBAL, collections=(), limit=50):
    return [hit.text for hit in index.search_vector(vector_of(text), scope=scope, collections=collections, limit=limit)]


def rows(uri):
    """The ids of all chunk rows, as another program reads them."""
    connection = lancedb.connect(uri)
    names = [name for name in connection.list_tables().tables if name.startswith("chunks-")]
    return [row["id"] for name in names for row in connection.open_table(name).to_arrow().select(["id"]).to_pylist()]


# An index that is not there


def test_an_index_that_is_not_there_is_empty_and_no_error(index, uri):
    index.refresh()
    assert index.documents() == {}
    assert index.counts() == dict.fromkeys(COLLECTIONS, CollectionStatus())
    assert index.vectors("a.md") == {}
    assert texts_found(index, "deploy") == texts_near(index, "deploy") == []
    assert not Path(uri).joinpath("chunks").exists()


def test_an_index_deleted_while_it_is_open_is_empty_and_then_made_anew(index, uri):
    index.apply([entry("a.md", "deploy")], [])
    assert texts_found(index, "deploy") == ["deploy"]
    shutil.rmtree(uri)
    assert texts_found(index, "deploy") == []
    assert index.documents() == {}
    index.apply([entry("b.md", "deploy again")], [])
    assert texts_found(index, "deploy") == ["deploy again"]


def test_stamps_without_their_chunks_count_for_nothing(index, uri):
    index.apply([entry("a.md", "deploy")], [])
    shutil.rmtree(next(Path(uri).glob("chunks-*")))
    assert open_index(uri).documents() == {}


def test_a_broken_index_is_a_fault_that_says_what_to_do(index, uri):
    index.apply([entry("a.md", "deploy")], [])
    for path in Path(uri).glob("chunks-*/_versions/*"):
        path.write_bytes(b"garbage")
    with pytest.raises(IndexFaultError, match="it can be deleted and is then rebuilt from the files"):
        texts_found(open_index(uri), "deploy")
    with pytest.raises(IndexFaultError):
        open_index(uri).apply([entry("b.md", "x")], [])


def test_an_index_path_that_is_a_file_is_a_fault(tmp_path):
    (tmp_path / "index").write_text("x")
    with pytest.raises(IndexFaultError):
        open_index(str(tmp_path / "index")).documents()


# Writing


def test_what_was_applied_is_read_back_to_the_letter(index):
    stamped, chunks = entry("memory/ä 'quoted' \"x\".md", "one", "two", "three", channel="C'1", collection="channels")
    index.apply([(stamped, chunks)], [])
    assert index.documents() == {stamped.stat.path: stamped}
    stored = index.vectors(stamped.stat.path)
    assert stored.keys() == {chunk.id for chunk, _ in chunks}
    for chunk, vector in chunks:
        np.testing.assert_array_equal(stored[chunk.id], vector)
    (hit,) = index.search_text("two", scope=Scope("C'1"), collections=(), limit=5)
    assert (hit.path, hit.collection, hit.channel) == (stamped.stat.path, "channels", "C'1")
    assert (hit.heading, hit.start_line, hit.end_line, hit.text) == (("Notes", "Part"), 2, 2, "two")


def test_a_document_of_many_chunks_gives_all_its_vectors(index):
    index.apply([entry("a.md", *(f"part {number}" for number in range(300)))], [])
    assert len(index.vectors("a.md")) == 300


def test_a_changed_document_leaves_no_stale_chunk(index, uri):
    index.apply([entry("a.md", "old deploy", "kept"), entry("b.md", "other")], [])
    index.apply([entry("a.md", "kept", "new deploy", sha256="s2")], [])
    assert sorted(rows(uri)) == ["a.md#kept", "a.md#new deploy", "b.md#other"]
    assert index.documents()["a.md"].sha256 == "s2"
    assert texts_found(index, "deploy") == ["new deploy"]


def test_removed_documents_leave_nothing(index, uri):
    index.apply([entry("a.md", "deploy"), entry("b'b.md", "deploy"), entry("c.md", "deploy")], [])
    index.apply([entry("a.md", "deploy soon")], ["b'b.md", "never-there.md"])
    index.apply([], ["c.md"])
    assert rows(uri) == ["a.md#deploy soon"]
    assert index.documents().keys() == {"a.md"}


def test_a_document_without_chunks_is_known_and_has_none(index, uri):
    index.apply([entry("a.md", "deploy")], [])
    index.apply([entry("a.md")], [])
    assert rows(uri) == []
    assert index.documents()["a.md"].chunks == 0


def test_a_whole_group_is_one_commit(index, uri):
    index.apply([entry("first.md", "x")], [])
    versions = {name: len(lancedb.connect(uri).open_table(name).list_versions()) for name in tables(uri)}
    index.apply([entry(f"{number}.md", "deploy", "text") for number in range(32)], ["first.md"])
    assert {name: len(lancedb.connect(uri).open_table(name).list_versions()) - count for name, count in versions.items()} == (
        dict.fromkeys(versions, 1)
    )


def tables(uri):
    return lancedb.connect(uri).list_tables().tables


def test_nothing_to_apply_commits_nothing(index, uri):
    index.apply([], [])
    index.restat([])
    assert not Path(uri).exists()


def test_restat_renews_the_stamp_alone(index, uri):
    index.apply([entry("a.md", "deploy")], [])
    index.restat([document("a.md", mtime_ns=99)])
    assert index.documents()["a.md"].stat.mtime_ns == 99
    assert rows(uri) == ["a.md#deploy"]


def test_thousands_of_removals_are_one_call(index, uri):
    index.apply([entry(f"{number}.md", "x") for number in range(300)], [])
    index.apply([], [f"{number}.md" for number in range(5000)])
    assert rows(uri) == []
    assert index.documents() == {}


def test_another_fingerprint_sees_nothing_of_this_one(index, uri):
    index.apply([entry("a.md", "deploy")], [])
    other = open_index(uri, "f2")
    assert other.documents() == {}
    other.apply([entry("b.md", "deploy other")], [])
    assert texts_found(index, "deploy") == ["deploy"]
    assert texts_found(other, "deploy") == ["deploy other"]


def test_counts_are_by_collection(index):
    index.apply(
        [
            entry("a.md", "x", "y"),
            entry("skills/s/SKILL.md", "z", collection="skills"),
            entry("C1/MEMORY.md", "w", collection="channels", channel="C1"),
            entry("C2/MEMORY.md", "w", "v", collection="channels", channel="C2"),
        ],
        [],
    )
    assert index.counts() == {
        "memory": CollectionStatus(1, 2),
        "channels": CollectionStatus(2, 3),
        "skills": CollectionStatus(1, 1),
        "history": CollectionStatus(),
    }


# Searching


LANGUAGES = {
    "Version 1.0.21 is out": ["1.0.21", "version"],
    "upgraded to v2.3.4-rc1 yesterday": ["2.3.4-rc1", "v2.3.4-rc1", "upgrade"],
    "We write C++ and C# here": ["C++", "C#", "c++"],
    "failed with ERR_CONN_RESET at boot": ["ERR_CONN_RESET", "err_conn_reset"],
    "see /var/log/app/error.log": ["/var/log/app/error.log", "error.log"],
    "digest " + "ab12" * 16: ["ab12" * 16],
    "用 kubectl 的部署方案在这里": ["部署方案", "kubectl", "部署"],
    "日本語のしりとりゲームをする": ["しりとり", "ゲーム"],
    "배포 서버는 화요일에 재시작": ["배포", "서버는"],
    "ประเทศไทยมีอาหารอร่อย": ["อาหาร"],
    "أعد نشر الخادم يوم الثلاثاء": ["الخادم", "نشر"],
    "party 🎉, then 🚀🚀": ["🎉", "🚀"],
    "the runners were running": ["run", "runner"],
    "a café in Köln": ["cafe", "café", "KÖLN", "cafe\u0301"],
    "\uff26\uff35\uff2c\uff2c width letters": ["full"],
}


@pytest.fixture(scope="module")
def languages(tmp_path_factory):
    index = open_index(str(tmp_path_factory.mktemp("index")))
    index.apply([entry(f"{place}.md", text) for place, text in enumerate(LANGUAGES)], [])
    return index


@pytest.mark.parametrize(("text", "query"), [(text, query) for text, queries in LANGUAGES.items() for query in queries])
def test_words_and_codes_of_any_language_are_found(languages, text, query):
    assert texts_found(languages, query)[:1] == [text]


def test_they_are_found_after_maintenance_too(languages):
    languages.maintain()
    for text, queries in LANGUAGES.items():
        for query in queries:
            assert texts_found(languages, query)[:1] == [text], query


ODD = [
    '"',
    "((",
    "a AND",
    "NOT",
    "*:*",
    "x^y~2",
    "' OR 1=1 --",
    "\\",
    "\0",
    "🎉" * 3000,
    "w " * 5000,
    "x" * 10_000,
    "?!,;",
    "{}[]<>",
    "-",
]


@pytest.mark.parametrize("query", ODD)
def test_no_text_is_query_syntax(languages, query):
    texts_found(languages, query)


def test_a_channel_sees_the_global_and_its_own_and_nothing_else(index):
    index.apply(
        [
            entry("g.md", "global plan"),
            entry("C1/MEMORY.md", "plan of one", collection="channels", channel="C1"),
            entry("C2/MEMORY.md", "plan of two", collection="channels", channel="C2"),
            entry("C1x/MEMORY.md", "plan of one x", collection="channels", channel="C1x"),
        ],
        [],
    )
    for found in (texts_found, texts_near):
        assert sorted(found(index, "plan", scope=Scope("C1"))) == ["global plan", "plan of one"]
        assert found(index, "plan", scope=GLOBAL) == ["global plan"]
        assert len(found(index, "plan", scope=ALL)) == 4
        assert found(index, "plan", scope=Scope("C2"), collections=("channels",)) == ["plan of two"]
        assert found(index, "plan", scope=Scope("C2"), collections=("skills", "history")) == []


@pytest.mark.parametrize("channel", ["C'1", "' OR channel IS NOT NULL OR channel = '", "%", "C1' --", 'a"b', "\\"])
def test_a_quote_in_a_channel_id_opens_nothing(index, channel):
    index.apply(
        [
            entry("a.md", "plan a", collection="channels", channel=channel),
            entry("b.md", "plan b", collection="channels", channel="C1"),
        ],
        [],
    )
    assert texts_found(index, "plan", scope=Scope(channel)) == texts_near(index, "plan", scope=Scope(channel)) == ["plan a"]


def test_a_tiny_channel_is_not_crowded_out_by_a_huge_one(index):
    huge = [entry(f"big/{n}.md", f"deploy plan {n}", collection="channels", channel="big") for n in range(400)]
    index.apply([*huge, entry("tiny/MEMORY.md", "our deploy day", collection="channels", channel="tiny")], [])
    index.maintain()
    for found in (texts_found, texts_near):
        assert found(index, "deploy plan 7", scope=Scope("tiny"), limit=3) == ["our deploy day"]


def test_the_nearest_vector_comes_first_with_its_cosine(index):
    index.apply([entry("a.md", *(f"note {number}" for number in range(20)))], [])
    hits = index.search_vector(vector_of("note 7"), scope=GLOBAL, collections=(), limit=5)
    assert hits[0].text == "note 7"
    assert [hit.score for hit in hits] == pytest.approx([float(hit.vector @ vector_of("note 7")) for hit in hits], abs=1e-5)
    assert hits[0].score == pytest.approx(1, abs=1e-5)


def test_a_large_table_gets_a_vector_index_that_still_finds_and_still_keeps_scopes(uri):
    index = open_index(uri, vector_index_rows=600)
    mine = entry("tiny/MEMORY.md", "the one", collection="channels", channel="tiny")
    index.apply([entry(f"{n}.md", *(f"{n} {m}" for m in range(20)), channel="big") for n in range(35)] + [mine], [])
    index.maintain()
    kinds = {found.index_type for name in tables(uri) for found in lancedb.connect(uri).open_table(name).list_indices()}
    assert any("IVF" in kind.upper() for kind in kinds)
    assert texts_near(index, "the one", scope=Scope("tiny")) == ["the one"]
    assert texts_near(index, "7 7", scope=ALL)[0] == "7 7"


# Several processes


def apply_in_process(uri, label, barrier, count, path):
    index = open_index(uri)
    barrier.wait()
    for number in range(count):
        index.apply([entry(path.format(label=label, number=number), f"text {number}", f"deploy {label} {number}")], [])


def run_writers(uri, path, *, writers=3, count=8):
    barrier = SPAWN.Barrier(writers)
    processes = [SPAWN.Process(target=apply_in_process, args=(uri, n, barrier, count, path)) for n in range(writers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    return [process.exitcode for process in processes]


def test_processes_that_write_different_documents_lose_none(uri):
    assert run_writers(uri, "{label}-{number}.md") == [0, 0, 0]
    assert len(rows(uri)) == len(set(rows(uri))) == 3 * 8 * 2
    assert len(open_index(uri).documents()) == 3 * 8


def test_processes_that_write_the_same_documents_leave_no_duplicate_ids(uri):
    assert run_writers(uri, "same-{number}.md") == [0, 0, 0]
    duplicates = {row: count for row, count in Counter(rows(uri)).items() if count > 1}
    assert duplicates == {}
    assert len(open_index(uri).documents()) == 8


def test_a_reader_sees_what_another_process_committed(index, uri):
    index.apply([entry("a.md", "deploy")], [])
    assert len(texts_found(index, "deploy")) == 1
    assert run_writers(uri, "{label}-{number}.md", writers=1, count=2) == [0]
    assert len(texts_found(index, "deploy")) == 3
    assert len(index.documents()) == 3


# Maintenance


def test_many_small_updates_stay_a_bounded_number_of_files(uri):
    index = open_index(uri, keep_versions=timedelta(milliseconds=1))
    counts = []
    for turn in range(4):
        for number in range(15):
            index.apply([entry(f"{number % 5}.md", f"deploy {turn} {number}")], [])
        index.maintain()
        counts.append(sum(path.is_file() for path in Path(uri).rglob("*")))
    assert len(rows(uri)) == 5
    assert counts[3] <= counts[1] + 5, counts
    assert max(counts) < 120, counts
    assert len(texts_found(index, "deploy")) == 5


def test_a_reader_survives_the_clean_up_of_what_it_was_reading(uri):
    writer, reader = open_index(uri, keep_versions=timedelta(milliseconds=1)), open_index(uri)
    writer.apply([entry("a.md", "deploy one")], [])
    assert texts_found(reader, "deploy") == ["deploy one"]
    for number in range(5):
        writer.apply([entry("a.md", f"deploy {number}")], [])
        writer.maintain()
        assert texts_found(reader, "deploy") == texts_near(reader, "deploy") == [f"deploy {number}"]


def test_maintenance_keeps_what_readers_may_still_be_at(index, uri):
    for number in range(3):
        index.apply([entry("a.md", f"deploy {number}")], [])
    before = {name: len(lancedb.connect(uri).open_table(name).list_versions()) for name in tables(uri)}
    index.maintain()
    for name, count in before.items():
        assert len(lancedb.connect(uri).open_table(name).list_versions()) >= count


def test_maintenance_makes_indexes_that_a_killed_process_left_out(index, uri):
    index.apply([entry("a.md", "部署方案")], [])
    for name in tables(uri):
        table = lancedb.connect(uri).open_table(name)
        for found in table.list_indices():
            table.drop_index(found.name)
    index.maintain()
    assert texts_found(index, "部署") == ["部署方案"]
    columns = {
        column
        for name in tables(uri)
        for found in lancedb.connect(uri).open_table(name).list_indices()
        for column in found.columns
    }
    assert columns == {"id", "path", "channel", "collection", "search_text", "codes"}


def test_tables_of_an_old_fingerprint_go_once_nobody_writes_them(uri):
    open_index(uri, "old").apply([entry("a.md", "x")], [])
    foreign = lancedb.connect(uri).create_table("somebody-elses", [{"a": 1}])
    new = open_index(uri, "new", keep_tables=timedelta(days=7))
    new.apply([entry("a.md", "x")], [])
    new.maintain()
    assert len(tables(uri)) == 5
    open_index(uri, "new", keep_tables=timedelta(0)).maintain()
    assert len(tables(uri)) == 3
    assert foreign.count_rows() == 1
    assert texts_found(new, "x") == ["x"]


def test_a_purge_takes_removed_rows_off_the_disk_and_keeps_the_others(tmp_path):
    index = Index(str(tmp_path / "index"), dimension=4, fingerprint="f")
    vector = np.array([1, 0, 0, 0], np.float32)
    for name, text in (("a.md", "the secretword is here"), ("b.md", "this one stays")):
        stat = DocumentStat(f"memory/{name}", "memory", None, 1, 1, 1, 1)
        index.apply([(IndexedDocument(stat, "sha", 1, "f"), [(Chunk(name, (), 1, 1, text, text), vector)])], [])
    index.maintain()
    old = Index(str(tmp_path / "index"), dimension=4, fingerprint="older")
    old.apply([(IndexedDocument(stat, "sha", 1, "older"), [(Chunk("x", (), 1, 1, "secretword", "secretword"), vector)])], [])
    reader = Index(str(tmp_path / "index"), dimension=4, fingerprint="f")
    assert reader.search_text("secretword", scope=Scope(), collections=(), limit=5)
    index.apply([], ["memory/a.md"])
    index.purge()
    files = [path for path in (tmp_path / "index").rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if b"secretword" in path.read_bytes()] == []
    assert set(index.documents()) == {"memory/b.md"}
    assert not reader.search_text("secretword", scope=Scope(), collections=(), limit=5)
    assert [hit.path for hit in reader.search_text("stays", scope=Scope(), collections=(), limit=5)] == ["memory/b.md"]
    index.apply([(IndexedDocument(stat, "sha2", 1, "f"), [(Chunk("b2", (), 1, 1, "changed", "changed"), vector)])], [])
    assert [hit.path for hit in reader.search_text("changed", scope=Scope(), collections=(), limit=5)] == ["memory/b.md"]
