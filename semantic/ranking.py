"""Puts the candidates of both sides in one order, with scores that mean the same for every query. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from semantic.rows import Candidate, Vector
from semantic.terms import QueryTerms, coverage, distinct_words

MAX_HITS_PER_DOCUMENT: Final = 3
# How far each side alone can bring a score; together they add up like independent evidence. Words count more: with equal weights
# (and with ranks in place of scores) the vectors of this small model make the order worse than words alone.
_TEXT_WEIGHT: Final = 0.9
_VECTOR_WEIGHT: Final = 0.7
# Cosines of the bundled model: texts that have nothing in common lie below 0.1, a question and its answer mostly at 0.2 to 0.6.
_COSINE_NOTHING: Final = 0.1
_COSINE_SAME: Final = 0.7
# A line of a topic index says where something stands: what stands there comes before it when both are found.
_POINTER: Final = 0.85
_TOPIC_INDEX: Final = re.compile(r"(?:^|/)memory/MEMORY\.md\Z")
_DIFFERING: Final = 0.1  # the share of words in which two passages that say the same may differ


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate with its score in 0..1, which doesn't depend on how good the other candidates' texts are.

    Below 0.2 there is next to nothing in common with the query, above 0.35 an answer is more likely than not, and 0.9 means
    that all words of the query are there.
    """

    candidate: Candidate
    score: float


def rank_by_text(terms: QueryTerms, found: Sequence[Candidate]) -> list[Ranked]:
    """The text side alone: the share of the query's words that a passage has, less where BM25 is below the best."""
    return _sorted(Ranked(candidate, score) for candidate, score in _text_scores(terms, found))


def rank_by_vector(found: Sequence[Candidate]) -> list[Ranked]:
    return _sorted(Ranked(candidate, _closeness(candidate.score)) for candidate in found)


def fuse(
    terms: QueryTerms, found_by_text: Sequence[Candidate], found_by_vector: Sequence[Candidate], vector: Vector | None
) -> list[Ranked]:
    """Both sides. Without a vector (its side is off) the text side's part alone, on the same scale."""
    text_scores = {candidate.id: score for candidate, score in _text_scores(terms, found_by_text)}
    candidates = {candidate.id: candidate for candidate in (*found_by_vector, *found_by_text)}
    return _sorted(
        Ranked(candidate, 1 - (1 - _TEXT_WEIGHT * text_scores.get(key, 0)) * (1 - _VECTOR_WEIGHT * _nearness(candidate, vector)))
        for key, candidate in candidates.items()
    )


def select(ranked: Iterable[Ranked], *, limit: int, min_score: float) -> list[Ranked]:
    """The first `limit` of them: at most three of a document, none that says the same as a better one, none with score 0."""
    selected: list[Ranked] = []
    documents: Counter[str] = Counter()
    seen: list[frozenset[str]] = []
    for item in ranked:
        if len(selected) == limit or item.score < min_score or item.score <= 0:
            break
        words = distinct_words(item.candidate.text)
        if documents[item.candidate.path] < MAX_HITS_PER_DOCUMENT and not any(_alike(words, other) for other in seen):
            documents[item.candidate.path] += 1
            seen.append(words)
            selected.append(item)
    return selected


def _text_scores(terms: QueryTerms, found: Sequence[Candidate]) -> list[tuple[Candidate, float]]:
    best = max((candidate.score for candidate in found), default=0) or 1
    least = 1 / max(1, terms.total)  # a candidate has one of the words, even if only the index knows that form of it
    return [(candidate, max(least, coverage(terms, _shown(candidate))) * (candidate.score / best) ** 0.5) for candidate in found]


def _shown(candidate: Candidate) -> str:
    return "\n".join((candidate.path, *candidate.heading, candidate.text))


def _nearness(candidate: Candidate, vector: Vector | None) -> float:
    return 0.0 if vector is None else _closeness(float(vector @ candidate.vector))


def _closeness(cosine: float) -> float:
    return min(1.0, max(0.0, (cosine - _COSINE_NOTHING) / (_COSINE_SAME - _COSINE_NOTHING)))


def _sorted(ranked: Iterable[Ranked]) -> list[Ranked]:
    """Best first; equal scores in the order of path and line."""
    weighed = (
        Ranked(item.candidate, item.score * _POINTER) if _TOPIC_INDEX.search(item.candidate.path) else item for item in ranked
    )
    return sorted(weighed, key=lambda item: (-item.score, item.candidate.path, item.candidate.start_line, item.candidate.id))


def _alike(words: frozenset[str], other: frozenset[str]) -> bool:
    """Nearly the same words, and exactly the same numbers: two ports in one sentence are two facts."""
    differing = words ^ other
    return len(differing) <= _DIFFERING * len(words | other) and all(word.isalpha() for word in differing)
