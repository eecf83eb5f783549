import os
import threading

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from semantic.chunker import chunk_markdown
from semantic.embedders import load_embedder
from semantic.errors import EmbedderUnavailableError, IndexFaultError, QueryEmptyError
from semantic.index import Index
from semantic.passages import SNIPPET_CHARS, cut_snippet, find_lines
from semantic.scanner import classify
from semantic.search import Searcher
from semantic.terms import codes, coverage, parse_terms, query_text
from semantic.types import DocumentStat, IndexedDocument, Query, Scope
from tests.fakes.embedder import HashingEmbedder

FILES = {
    "MEMORY.md": "# Team\n\nMei Tanaka writes the carrier integrations.\nOla Nowak answers support mail in Polish.\n",
    "memory/deploy.md": (
        "# Deploy process\n\n## Before\nThe branch is green and someone else has approved it.\n\n"
        "## Shipping\nRun `pb ship`, then watch the error rate for fifteen minutes.\n\n"
        "## How we revert\nIf a release misbehaves, go back with `pb ship --previous`. It takes three minutes.\n"
    ),
    "memory/limits.md": "# API\n\nA shop may ask 600 times a minute. Over that it gets 429 with ERR_TOO_MANY.\n",
    "memory/people.md": "# Lunch\n\nThe team eats together on the first Wednesday. Priya does not eat gluten.\n",
    "memory/zh.md": "# 部署\n\n部署方案: 每周二下午重启服务器。\n",
    "skills/report/SKILL.md": "# Incident report\n\nSay what customers saw, the cause, and what was changed after the outage.\n",
    "ops/MEMORY.md": "# Ops\n\nStaging is rebuilt from the schema of production every night.\n",
    "secret/MEMORY.md": "# Secret\n\nThe merger with Nordpost is announced in May. Deploy freeze until then.\n",
}


@pytest.fixture(scope="module")
def model():
    return load_embedder("bundled", threads=1)


def write(root, files):
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def catalogue(index, embedder, files):
    """Index texts as the indexer does, without its process."""
    group = []
    for path, text in files.items():
        chunks = chunk_markdown(path, text)
        stat = DocumentStat(path, *(classify(path) or ("memory", None)), len(text), 1, 1, 1)
        vectors = embedder.embed_documents([chunk.embed_text for chunk in chunks])
        group.append((IndexedDocument(stat, "s", len(chunks), "f"), list(zip(chunks, vectors, strict=True))))
    index.apply(group, [])


def build(root, embedder, files):
    write(root, files)
    index = Index(str(root / ".recalld" / "index"), dimension=embedder.dimension, fingerprint="f")
    catalogue(index, embedder, files)
    return Searcher(root, index, embedder)


@pytest.fixture(scope="module")
def searcher(tmp_path_factory, model):
    searcher = build(tmp_path_factory.mktemp("workspace"), model, FILES)
    searcher.warm()
    return searcher


@pytest.fixture
def words(tmp_path):
    """A function that makes a warm searcher over files, with an embedder that knows words only."""

    def make(files):
        searcher = build(tmp_path, HashingEmbedder(), files)
        searcher.warm()
        return searcher

    return make


def found(searcher, text, *, channel=None, **query):
    return searcher.search(Query(text, query.pop("scope", Scope(channel)), **query)).hits


# Finding


@pytest.mark.parametrize(
    ("question", "path"),
    [
        ("how do I roll back a bad version", "memory/deploy.md"),
        ("who builds the connections to parcel companies", "MEMORY.md"),
        ("food allergies", "memory/people.md"),
        ("rate limiting of requests", "memory/limits.md"),
        ("post-mortem after an incident", "skills/report/SKILL.md"),
    ],
)
@pytest.mark.parametrize("mode", ["hybrid", "vector"])
def test_an_answer_is_found_by_meaning(searcher, question, path, mode):
    assert found(searcher, question, mode=mode)[0].path == path


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("gluten", "memory/people.md"),
        ("ERR_TOO_MANY", "memory/limits.md"),
        ("429", "memory/limits.md"),
        ("部署方案", "memory/zh.md"),
    ],
)
@pytest.mark.parametrize("mode", ["hybrid", "text"])
def test_an_answer_is_found_by_word(searcher, text, path, mode):
    assert found(searcher, text, mode=mode)[0].path == path


def test_a_hit_has_the_exact_lines_of_its_file(searcher):
    hit = found(searcher, "misbehaves")[0]
    assert (hit.path, hit.start_line, hit.end_line, hit.outdated) == ("memory/deploy.md", 9, 10, False)
    assert FILES["memory/deploy.md"].split("\n")[hit.start_line - 1 : hit.end_line] == hit.text.split("\n")
    assert hit.heading == ("Deploy process", "How we revert")
    assert (hit.collection, hit.channel) == ("memory", None)


def test_an_unknown_subject_scores_low_and_a_known_one_high(searcher):
    for unknown in ("what is the capital of Mongolia", "guitar chords for beginners", "quantum entanglement"):
        assert all(hit.score < 0.35 for hit in found(searcher, unknown)), unknown
        assert found(searcher, unknown, min_score=0.35) == ()
    for known in ("how do we revert a release", "who does not eat gluten", "staging schema"):
        assert found(searcher, known, channel="ops", min_score=0.35)[0].score > 0.5, known


@pytest.mark.parametrize("mode", ["hybrid", "vector", "text"])
def test_scores_fall_and_stay_in_their_range(searcher, mode):
    scores = [
        hit.score for hit in found(searcher, "deploy the release after the outage", scope=Scope(everything=True), mode=mode)
    ]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score <= 1 for score in scores)


@pytest.mark.parametrize("mode", ["hybrid", "vector", "text"])
def test_a_channel_never_gets_another_channels_passages(searcher, mode):
    for channel in (None, "ops", "secre", "secret'", "' OR 1=1 --", "SECRET"):
        assert all(
            hit.channel in (None, channel) for hit in found(searcher, "merger with Nordpost deploy", channel=channel, mode=mode)
        )
    assert found(searcher, "merger with Nordpost", channel="secret", mode=mode)[0].path == "secret/MEMORY.md"


def test_collections_narrow_a_search(searcher):
    hits = found(searcher, "outage report deploy", channel="ops", collections=("skills",))
    assert {hit.collection for hit in hits} == {"skills"}


def test_a_limit_is_kept(searcher):
    assert len(found(searcher, "deploy the release", limit=2)) == 2


@pytest.mark.parametrize("blank", ["", " ", "\n\t ", "\u3000"])
def test_a_blank_query_is_refused(searcher, blank):
    with pytest.raises(QueryEmptyError):
        found(searcher, blank)


@settings(max_examples=40, deadline=None)
@example(text='"')
@example(text="((( AND OR NOT *:*")
@example(text="\0")
@example(text="\ud800 lone surrogate")
@example(text="🎉" * 5000)
@example(text="word " * 2000)
@example(text="x" * 10_000)
@example(text="'; DROP TABLE chunks; --")
@example(text="the of and")
@example(text="\u200b")
@given(text=st.text(min_size=1).filter(str.strip))
def test_any_text_is_a_legal_query(searcher, text):
    for mode in ("hybrid", "text", "vector"):
        assert len(found(searcher, text, mode=mode)) <= 10


# While something is off


class Slow:
    """The words of HashingEmbedder, once `go` is set."""

    def __init__(self):
        self.go = threading.Event()
        self.inner = HashingEmbedder()
        self.name, self.dimension = self.inner.name, self.inner.dimension

    def embed_documents(self, texts):
        return self.inner.embed_documents(texts)

    def embed_query(self, text):
        assert self.go.wait(30)
        return self.inner.embed_query(text)


def test_while_the_model_loads_hybrid_answers_by_word_and_says_so(tmp_path):
    slow = Slow()
    searcher = build(tmp_path, slow, FILES)
    warming = threading.Thread(target=searcher.warm)
    warming.start()
    result = searcher.search(Query("gluten", Scope()))
    assert (result.hits[0].path, result.degraded) == ("memory/people.md", ("vector",))
    assert searcher.search(Query("gluten", Scope(), mode="text")).degraded == ()
    with pytest.raises(EmbedderUnavailableError, match="still loading"):
        found(searcher, "gluten", mode="vector")
    assert not searcher.ready
    slow.go.set()
    warming.join(30)
    assert searcher.ready
    assert searcher.search(Query("gluten", Scope())).degraded == ()


class Broken(Slow):
    """Has no model."""

    def embed_query(self, text):
        raise EmbedderUnavailableError(f"no model for {text!r}: reinstall it")


def test_without_a_model_hybrid_goes_on_by_word_and_vector_mode_says_why(tmp_path):
    searcher = build(tmp_path, Broken(), FILES)
    with pytest.raises(EmbedderUnavailableError):
        searcher.warm()
    assert searcher.search(Query("gluten", Scope())).degraded == ("vector",)
    with pytest.raises(EmbedderUnavailableError, match="reinstall it"):
        found(searcher, "gluten", mode="vector")


def test_a_broken_full_text_index_leaves_the_vector_side(words, tmp_path):
    searcher = words(FILES)
    for path in tmp_path.glob(".recalld/index/chunks-*/_indices/*/*"):
        path.write_bytes(b"garbage")
    fresh = Searcher(tmp_path, Index(str(tmp_path / ".recalld/index"), dimension=64, fingerprint="f"), HashingEmbedder())
    Index(str(tmp_path / ".recalld/index"), dimension=64, fingerprint="f").documents()
    with pytest.raises(IndexFaultError):
        fresh.warm()
    result = fresh.search(Query("Priya does not eat gluten", Scope()))
    assert result.degraded == ("text",)
    assert result.hits[0].path == "memory/people.md"
    with pytest.raises(IndexFaultError):
        found(fresh, "gluten", mode="text")
    assert searcher.ready


def test_an_unreadable_index_is_a_fault_and_no_empty_answer(words, tmp_path):
    words(FILES)
    for path in tmp_path.glob(".recalld/index/chunks-*/_versions/*"):
        path.write_bytes(b"garbage")
    index = Index(str(tmp_path / ".recalld/index"), dimension=64, fingerprint="f")
    with pytest.raises(IndexFaultError, match="it can be deleted"):
        found(Searcher(tmp_path, index, HashingEmbedder()), "gluten")


def test_an_index_that_is_not_there_yet_gives_no_hits(tmp_path):
    searcher = Searcher(tmp_path, Index(str(tmp_path / "index"), dimension=64, fingerprint="f"), HashingEmbedder())
    searcher.warm()
    assert searcher.search(Query("gluten", Scope())) == searcher.search(Query("gluten", Scope(), mode="text"))
    assert found(searcher, "gluten") == ()


# Lines that are true now


def test_a_passage_that_moved_has_its_new_lines(words, tmp_path):
    searcher = words(FILES)
    (tmp_path / "memory/limits.md").write_text("# New title\n\nA new line.\n\n" + FILES["memory/limits.md"], encoding="utf-8")
    hit = found(searcher, "ERR_TOO_MANY")[0]
    assert (hit.start_line, hit.end_line, hit.outdated) == (5, 7, False)


def test_a_passage_that_is_gone_is_marked(words, tmp_path):
    searcher = words(FILES)
    (tmp_path / "memory/limits.md").write_text("# API\n\nA shop may ask 900 times a minute.\n", encoding="utf-8")
    assert found(searcher, "ERR_TOO_MANY")[0].outdated
    (tmp_path / "memory/limits.md").unlink()
    assert found(searcher, "ERR_TOO_MANY")[0].outdated


def test_a_link_in_place_of_the_file_is_not_followed(words, tmp_path):
    searcher = words(FILES)
    (tmp_path / "elsewhere.md").write_text(FILES["memory/limits.md"], encoding="utf-8")
    (tmp_path / "memory/limits.md").unlink()
    (tmp_path / "memory/limits.md").symlink_to(tmp_path / "elsewhere.md")
    assert found(searcher, "ERR_TOO_MANY")[0].outdated


def test_windows_line_ends_and_a_byte_order_mark_change_no_lines(words, tmp_path):
    searcher = words(FILES)
    text = "\ufeff" + FILES["memory/limits.md"].replace("\n", "\r\n")
    (tmp_path / "memory/limits.md").write_bytes(text.encode())
    hit = found(searcher, "ERR_TOO_MANY")[0]
    assert (hit.start_line, hit.end_line, hit.outdated) == (1, 3, False)


def test_a_hit_tells_when_its_file_was_last_modified(words, tmp_path):
    searcher = words(FILES)
    os.utime(tmp_path / "memory/limits.md", (1_700_000_000, 1_700_000_000))
    assert found(searcher, "ERR_TOO_MANY")[0].modified_s == 1_700_000_000


@given(
    lines=st.lists(st.sampled_from(["", "a", "b", "c", "a b", "abc"]), min_size=1, max_size=12),
    at=st.integers(0, 11),
    count=st.integers(1, 4),
    moved=st.integers(0, 5),
)
def test_found_lines_hold_the_text_and_unmoved_ones_are_kept(lines, at, count, moved):
    start = at % len(lines)
    text = "\n".join(lines[start : start + count])
    size = text.count("\n") + 1
    assert find_lines(lines, text, start_line=start + 1) == (start + 1, start + size)
    place = find_lines(["new"] * moved + lines, text, start_line=start + 1)
    assert place is not None
    assert "\n".join((["new"] * moved + lines)[place[0] - 1 : place[1]]) == text


def test_a_piece_of_a_very_long_line_is_found_in_it():
    assert find_lines(["x", "one two three four", "two"], "two three", start_line=1) == (2, 2)
    assert find_lines(["x"], "gone", start_line=1) is None


# The list


def test_one_document_gives_at_most_three_hits(words):
    long = "# Log\n\n" + "\n\n".join(
        f"## Day {n}\nDeploy number {n} of the billing service went {w}." for n, w in enumerate("abcdefgh")
    )
    hits = found(
        words({"memory/long.md": long, "memory/b.md": "# B\n\nA deploy elsewhere.\n"}), "deploy of the billing service", limit=8
    )
    assert [hit.path for hit in hits].count("memory/long.md") == 3
    assert "memory/b.md" in [hit.path for hit in hits]


def test_the_same_text_in_many_files_is_one_hit(words):
    copies = {f"memory/copy{n}.md": "# Deploy\n\nThe deploy window is Tuesday at two, ask Jonas.\n" for n in range(6)}
    hits = found(words({**copies, "memory/other.md": "# Other\n\nNo deploy on Friday.\n"}), "deploy window")
    assert [hit.path for hit in hits] == ["memory/copy0.md", "memory/other.md"]


def test_texts_that_differ_in_a_number_are_different_facts(words):
    sentence = (
        "# Ports\n\nThe billing service of the production cluster in Berlin listens on port {}, behind a proxy that ends the "
        "encryption and passes every request on without changing any header but one.\n"
    )
    hits = found(words({f"memory/{port}.md": sentence.format(port) for port in (8080, 8081)}), "port of the billing service")
    assert len(hits) == 2


def test_ties_come_in_the_order_of_their_paths(words):
    names = ["delta", "alpha", "echo", "bravo"]
    searcher = words({f"memory/{name}.md": f"# Note\n\nDeploy {name}.\n" for name in names})
    orders = {tuple(hit.path for hit in found(searcher, "deploy", mode="text")) for _ in range(5)}
    assert orders == {tuple(f"memory/{name}.md" for name in sorted(names))}


# Snippets and words


def test_a_snippet_shows_the_words_of_the_query():
    text = "Nothing of interest here. " * 30 + "The gluten warning is for Priya. " + "More filler follows. " * 30
    snippet = cut_snippet(text, parse_terms("gluten Priya"))
    assert "The gluten warning is for Priya." in snippet
    assert snippet.startswith("…")
    assert snippet.endswith("…")


def test_a_short_text_is_its_own_snippet():
    assert cut_snippet("one\n  two", parse_terms("two")) == "one two"


@example(parts=["🇩🇪"] * 150)
@example(parts=["a", *["🇩🇪"] * 150])
@given(parts=st.lists(st.sampled_from([*"abc. \n", "部署", "e\u0301", "👩\u200d👧", "🇩🇪", "👍🏽"]), min_size=80, max_size=400))
def test_a_snippet_is_short_and_begins_and_ends_with_whole_characters(parts):
    text = "".join(parts)
    snippet = cut_snippet(text, parse_terms("ab 部署"))
    assert len(snippet) <= SNIPPET_CHARS + 2
    inner = snippet.strip("…")
    assert inner in " ".join(text.split())
    assert (inner + "\0").count("🇩🇪") * 2 == sum("\U0001f1e6" <= char <= "\U0001f1ff" for char in inner)
    assert not inner.startswith(("\u0301", "\u200d", "🏽"))
    assert not inner.endswith("\u200d")


def test_words_that_say_nothing_are_not_searched_for_unless_there_is_no_other():
    assert query_text("What is the deploy window?") == "deploy window?"
    assert query_text("who are you") == "who are you"
    assert len(query_text("x y " * 20_000).split()) <= 64


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see (v1.0.21), please", {"v1.0.21", "1.0.21"}),
        ("in C++, C# or .env", {"C++", "C#", ".env"}),
        ("path /var/log/a.log!", {"var/log/a.log", "a.log"}),
        ("key=ERR_A_1;", {"key=ERR_A_1", "ERR_A_1"}),
        ("plain words, don't well-known naïve 部署。", set()),
        ("yes 🎉!", {"🎉"}),
    ],
)
def test_codes_are_what_a_word_splitter_loses(text, expected):
    assert set(codes(text)) == expected


def test_coverage_is_the_share_of_the_querys_words():
    assert coverage(parse_terms("deploying servers"), "We deploy the server on Tuesday.") == 1
    assert coverage(parse_terms("deploy the moon"), "deploy") == pytest.approx(1 / 3)
    assert coverage(parse_terms("car"), "the carrier") == 0
    assert coverage(parse_terms("部署方案"), "这里的部署方案") == 1
    assert coverage(parse_terms("1.0.21"), "release 1.0.22") < 0.8
    assert coverage(parse_terms("!!!"), "anything") == 0


def test_a_topic_comes_before_the_line_of_the_index_that_points_to_it(tmp_path, model):
    said = "We get back to the previous version by shipping the last good commit again; it takes three minutes and no approval."
    files = {
        "memory/MEMORY.md": "- [Deploy](deploy.md) 2026-01-01 -- How we get back to the previous version\n",
        "memory/deploy.md": f"# Deploy\n\n{said}\n",
    }
    hits = build(tmp_path, model, files).search(Query(text="how do we get back to the previous version?", scope=Scope())).hits
    assert [hit.path for hit in hits] == ["memory/deploy.md", "memory/MEMORY.md"]
