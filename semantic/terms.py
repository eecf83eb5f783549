"""The words of texts and queries, as full-text search and ranking see them. Pure; what is found is decided elsewhere."""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_MAX_QUERY_CHARS: Final = 2000  # more than the model reads; a pasted file must not become a thousand-word query
_MAX_QUERY_WORDS: Final = 64
_MAX_CODE_CHARS: Final = 200
_PARTS: Final = re.compile(r"[/\\=:@,;()\[\]{}<>\"'`|]+|(?<=\bv)(?=\d)", re.IGNORECASE)
_WORD: Final = re.compile(r"\w+")
_SPACELESS: Final = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")
_ENDINGS: Final = "ations?|ments?|ings?|ied|ies|ers?|ed|es|ly|s|e|y"
_ENDING: Final = re.compile(rf"(?<=\w{{3}})(?:{_ENDINGS})$")
# fmt: off
_STOP_WORDS: Final = frozenset(
    {
        "a", "about", "an", "and", "any", "are", "as", "at", "be", "been", "but", "by", "can", "could", "did", "do",
        "does", "for", "from", "had", "has", "have", "having", "he", "her", "his", "how", "i", "if", "in", "into", "is",
        "it", "its", "just", "may", "me", "might", "my", "no", "not", "of", "on", "or", "our", "please", "shall", "she",
        "should", "so", "some", "tell", "than", "that", "the", "their", "them", "then", "there", "these", "they",
        "this", "those", "to", "us", "was", "we", "were", "what", "when", "where", "which", "who", "whom", "whose",
        "why", "will", "with", "would", "you", "your",
    }
)
# fmt: on


def plain(text: str) -> str:
    """The form in which texts are compared: compatibility forms unified, lone surrogates replaced."""
    return unicodedata.normalize("NFKC", text.encode("utf-8", "replace").decode("utf-8"))


def codes(text: str) -> list[str]:
    """What must be found to the letter and a word splitter loses: versions, paths, `C++`, `ERR_CONN_RESET`, emoji."""
    found: dict[str, None] = {}
    for raw in text.split():
        if raw.isalpha():
            continue
        word = _without_punctuation(raw)
        if 1 < len(word) <= _MAX_CODE_CHARS and not _is_word(word):
            found[word] = None
            found.update(dict.fromkeys(part for part in _PARTS.split(word) if len(part) > 1 and not _is_word(part)))
        if not raw.isascii():
            found.update(dict.fromkeys(char for char in raw if unicodedata.category(char) == "So"))
    return list(found)


def _without_punctuation(raw: str) -> str:
    """`raw` without punctuation at its ends, but for the plus and number sign of `C++` and `C#` and the dot of `.env`."""
    start, end = 0, len(raw)
    while start < end and _is_around(raw[start], "#."):
        start += 1
    while start < end and _is_around(raw[end - 1], "#"):
        end -= 1
    return raw[start:end]


def _is_around(char: str, kept: str) -> bool:
    return char == "|" or (char not in kept and unicodedata.category(char) in ("Ps", "Pe", "Pi", "Pf", "Po"))


def _is_word(text: str) -> bool:
    return text.isalpha() or all(unicodedata.category(char)[0] in "LM" or char in "'\u2019-" for char in text)


def query_text(text: str) -> str:
    """The part of a query that is searched for by word: its beginning, each word once, without the words that say nothing."""
    words = dict.fromkeys(plain(text[:_MAX_QUERY_CHARS]).split())
    telling = [word for word in words if _without_punctuation(word).casefold() not in _STOP_WORDS]
    return " ".join((telling or list(words))[:_MAX_QUERY_WORDS])


@dataclass(frozen=True, slots=True)
class QueryTerms:
    """What a query looks for: word stems, and literals (codes, and pairs of characters where words have no spaces)."""

    total: int
    words: re.Pattern[str]
    literals: re.Pattern[str]


def parse_terms(query: str) -> QueryTerms:
    folded = plain(query).casefold()
    stems: dict[str, None] = {}
    literals = dict.fromkeys(codes(folded))
    for word in _WORD.findall(folded):
        if _SPACELESS.search(word):
            literals.update(dict.fromkeys(word[at : at + 2] for at in range(max(1, len(word) - 1))))
        else:
            stems[_ENDING.sub("", word)] = None
    return QueryTerms(
        len(stems) + len(literals),
        re.compile(rf"(?<!\w)({_any_of(stems)})(?:{_ENDINGS})?(?!\w)", re.IGNORECASE),
        re.compile(rf"(?=({_any_of(literals)}))", re.IGNORECASE),  # looks ahead, since pairs overlap
    )


def _any_of(words: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(words, key=len, reverse=True))) or r"(?!)"


def find_terms(terms: QueryTerms, text: str) -> list[tuple[int, str]]:
    """Where the terms stand in `text`, in order: (position, term)."""
    matches = (match for pattern in (terms.words, terms.literals) for match in pattern.finditer(text))
    return sorted((match.start(), match.group(1).casefold()) for match in matches)


def coverage(terms: QueryTerms, text: str) -> float:
    """The share of a query's terms that `text` has, 0..1."""
    return len({term for _, term in find_terms(terms, plain(text))}) / max(1, terms.total)


def distinct_words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold()))
