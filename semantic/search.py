"""Answers queries: asks both sides of the index, ranks, and shows each hit with the lines that it has in its file now."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from semantic.embedder import Embedder, Vectors
from semantic.errors import DocumentUnreadableError, EmbedderUnavailableError, IndexFaultError, QueryEmptyError
from semantic.index import Index
from semantic.passages import cut_snippet, find_lines
from semantic.ranking import Ranked, fuse, rank_by_text, rank_by_vector, select
from semantic.rows import Candidate
from semantic.scanner import load_document
from semantic.terms import QueryTerms, parse_terms, plain, query_text
from semantic.types import Hit, Query, Scope, SearchResult

_MIN_CANDIDATES: Final = 60  # of each side: the best in sum is often far down on one of them
_CANDIDATES_PER_HIT: Final = 5
_NS: Final = 1_000_000_000


class Searcher:
    """Owns the readiness of the embedder. Thread-safe."""

    def __init__(self, root: Path, index: Index, embedder: Embedder) -> None:
        """Take the workspace's root, where hits are compared with their files. Nothing is loaded: that is `warm`."""
        self._root = root
        self._index = index
        self._embedder = embedder
        self._ready = threading.Event()
        self._problem = "the embedding model is still loading: ask again in a moment, or in text mode"

    @property
    def ready(self) -> bool:
        """Whether the vector side answers."""
        return self._ready.is_set()

    def warm(self) -> None:
        """Load the model and ask first queries, so that none of a user's is slow. Takes seconds: for a thread at the start.

        Raises EmbedderUnavailableError, after which hybrid searches go on by text alone, and IndexFaultError.
        """
        try:
            vector = self._embedder.embed_query("warm-up")
        except EmbedderUnavailableError as err:
            self._problem = str(err)
            raise
        self._ready.set()
        self._index.search_text("warm-up", scope=Scope(), collections=(), limit=1)
        self._index.search_vector(vector, scope=Scope(), collections=(), limit=1)

    def search(self, query: Query) -> SearchResult:
        """Hits, best first, of the scope alone. The meaning of `min_score` is that of `semantic.ranking.Ranked.score`.

        Hybrid: a side that is off is named in `degraded` and the other one answers. Raises QueryEmptyError for a blank text,
        EmbedderUnavailableError in vector mode while there is no model, IndexFaultError when no side can be asked.
        """
        if not query.text.strip():
            raise QueryEmptyError("the query is empty: give some words to search for")
        words = query_text(query.text)
        terms = parse_terms(words)
        ranked, degraded = self._ranked(query, words, terms)
        selected = select(ranked, limit=query.limit, min_score=query.min_score)
        return SearchResult(tuple(self._hit(item, terms) for item in selected), degraded)

    def _ranked(self, query: Query, words: str, terms: QueryTerms) -> tuple[list[Ranked], tuple[str, ...]]:
        if query.mode == "text":
            return rank_by_text(terms, self._by_text(words, query)), ()
        if query.mode == "vector":
            if not self.ready:
                raise EmbedderUnavailableError(self._problem)
            return rank_by_vector(self._by_vector(self._vector(query), query)), ()
        return self._hybrid(query, words, terms)

    def _hybrid(self, query: Query, words: str, terms: QueryTerms) -> tuple[list[Ranked], tuple[str, ...]]:
        vector = self._vector(query) if self.ready else None
        by_text, text_fault = _attempt(lambda: self._by_text(words, query))
        by_vector, vector_fault = _attempt(lambda: [] if vector is None else self._by_vector(vector, query))
        off = {"text": text_fault is not None, "vector": vector is None or vector_fault is not None}
        if text_fault is not None and off["vector"]:
            raise text_fault
        return fuse(terms, by_text, by_vector, vector), tuple(side for side, is_off in off.items() if is_off)

    def _vector(self, query: Query) -> Vectors:
        return self._embedder.embed_query(plain(query.text))

    def _by_text(self, words: str, query: Query) -> list[Candidate]:
        return self._index.search_text(words, scope=query.scope, collections=query.collections, limit=_depth(query))

    def _by_vector(self, vector: Vectors, query: Query) -> list[Candidate]:
        return self._index.search_vector(vector, scope=query.scope, collections=query.collections, limit=_depth(query))

    def _hit(self, item: Ranked, terms: QueryTerms) -> Hit:
        candidate = item.candidate
        lines, mtime_ns = self._lines_now(candidate)
        start_line, end_line = lines or (candidate.start_line, candidate.end_line)
        return Hit(
            id=candidate.id,
            score=item.score,
            collection=candidate.collection,
            channel=candidate.channel,
            path=candidate.path,
            heading=candidate.heading,
            start_line=start_line,
            end_line=end_line,
            snippet=cut_snippet(candidate.text, terms),
            text=candidate.text,
            modified_s=mtime_ns / _NS,
            outdated=lines is None,
        )

    def _lines_now(self, candidate: Candidate) -> tuple[tuple[int, int] | None, int]:
        """Where the passage stands in its file now (None: nowhere), and when the file was last modified."""
        try:
            read = load_document(self._root, candidate.path)
        except DocumentUnreadableError:
            return None, candidate.mtime_ns
        text = read.data.decode("utf-8", "replace").removeprefix("\ufeff")
        lines = [line.removesuffix("\r") for line in text.split("\n")]
        return find_lines(lines, candidate.text, start_line=candidate.start_line), read.mtime_ns


def _depth(query: Query) -> int:
    return max(_MIN_CANDIDATES, _CANDIDATES_PER_HIT * query.limit)


def _attempt(ask: Callable[[], list[Candidate]]) -> tuple[list[Candidate], IndexFaultError | None]:
    try:
        return ask(), None
    except IndexFaultError as err:
        return [], err
