"""Which lines of the found passages answer a question: chosen by rules, quoted verbatim. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bot.words import content_words

FLOOR_SCORE: Final = 0.35
"""Below this a hit hardly speaks of what was asked (scores are absolute: `semantic.ranking`; 77 % of answers kept, 80 % of
unanswerable questions silent on the sample workspace)."""
NEAR_BEST_PASSAGE: Final = 0.5
NEAR_BEST_QUOTE: Final = 0.35
MAX_QUOTES: Final = 3
MAX_LINES: Final = 6

_SHARED_WORDS: Final = 0.5
_RIGHT_KIND: Final = 0.3
_POINTER: Final = -0.2  # a line of the topic index says where something stands, not what
_SOURCE: Final = re.compile(r"(?P<path>.+)#L(?P<start>\d+)-L(?P<end>\d+)\Z", re.DOTALL)
_ITEM: Final = re.compile(r"\s*(?:[-*+]|\d+[.)])\s")
_INDEX_LINE: Final = re.compile(r"\s*-\s+\[[^\]]+\]\([^)]+\)")
_STAMP: Final = re.compile(r"\d{4}-\d{2}-\d{2}T\S+")
_TIME: Final = re.compile(
    r"\b(?:\d{1,2}[:.]\d{2}|\d{4}-\d{2}-\d{2}|\d{1,2}\s?(?:am|pm|h)|(?:mon|tues|wednes|thurs|fri|satur|sun)days?|today|tomorrow|"
    r"daily|weekly|monthly|noon|midnight|(?:january|february|march|april|may|june|july|august|september|october|november|december))\b",
    re.IGNORECASE,
)
_ANSWER_KINDS: Final[tuple[tuple[re.Pattern[str], re.Pattern[str]], ...]] = (
    (re.compile(r"\b(?:when|what time|which day)\b", re.IGNORECASE), _TIME),
    (re.compile(r"\bhow (?:many|much|long|often|big|far)\b", re.IGNORECASE), re.compile(r"\d")),
    (re.compile(r"\b(?:which|what) (?:port|number|version|code)\b", re.IGNORECASE), re.compile(r"\d")),
    (re.compile(r"\b(?:where|which url|what link)\b", re.IGNORECASE), re.compile(r"[\w.-]+/[\w./-]+|\bat\b|\bin\b")),
)


@dataclass(frozen=True, slots=True)
class Quote:
    """Verbatim lines and where they stand, as path#Lstart-Lend."""

    text: str
    source: str


@dataclass(frozen=True, slots=True)
class _Block:
    """A paragraph or list item of a passage: its lines and the passage they are from."""

    path: str
    start_line: int
    lines: Sequence[str]
    score: float

    def quote(self) -> Quote:
        kept = self.lines[:MAX_LINES]
        return Quote("\n".join(kept), f"{self.path}#L{self.start_line}-L{self.start_line + len(kept) - 1}")


def best_quotes(result: dict[str, object], question: str) -> list[Quote]:
    """At most three quotes from a `memory_search` result, best first; none when nothing found speaks of the question.

    A block counts by its passage's score, by the words it shares with the question, and by whether it holds what the question
    asks for (a time for "when").
    """
    passages = result.get("passages")
    blocks = list(_blocks(passages if isinstance(passages, list) else [], question))
    blocks.sort(key=lambda block: -block.score)
    chosen: dict[str, Quote] = {}
    for block in blocks:
        if block.score < blocks[0].score - NEAR_BEST_QUOTE or len(chosen) == MAX_QUOTES:
            break
        quote = block.quote()
        chosen.setdefault(quote.text.strip(), quote)
    return list(chosen.values())


def _blocks(passages: Sequence[object], question: str) -> Iterator[_Block]:
    wanted = content_words(question)
    kind = next((answer for asked, answer in _ANSWER_KINDS if asked.search(question)), None)
    best = 0.0
    for passage in passages:
        if not isinstance(passage, dict) or (match := _SOURCE.match(str(passage.get("source", "")))) is None:
            continue
        score = float(passage.get("score", 0))
        best = max(best, score)
        if score < max(FLOOR_SCORE, best * NEAR_BEST_PASSAGE):
            continue
        lines = str(passage.get("text", "")).split("\n")
        for first, last in _spans(lines):
            block = lines[first : last + 1]
            worth = score + _worth("\n".join(block), wanted, kind)
            yield _Block(match["path"], int(match["start"]) + first, block, worth)


def _worth(text: str, wanted: frozenset[str], kind: re.Pattern[str] | None) -> float:
    plain = _STAMP.sub("", text)
    worth = _SHARED_WORDS * len(wanted & content_words(plain)) / max(1, len(wanted))
    if kind is not None and kind.search(plain):
        worth += _RIGHT_KIND
    return worth + (_POINTER if _INDEX_LINE.match(text) else 0)


def _spans(lines: Sequence[str]) -> list[tuple[int, int]]:
    """(first, last) index of each block; a list item is one of its own; headings, blank lines and front matter are none."""
    spans: list[tuple[int, int]] = []
    for number in range(_body_start(lines), len(lines)):
        line = lines[number]
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if spans and spans[-1][1] == number - 1 and not _ITEM.match(line):
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return spans


def _body_start(lines: Sequence[str]) -> int:
    """Index of the first line after a front matter block, which holds names and dates for programs."""
    if lines[0].strip() != "---":
        return 0
    return next((number + 1 for number in range(1, len(lines)) if lines[number].strip() == "---"), len(lines))
