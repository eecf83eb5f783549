"""Which lines of the found passages answer a question: chosen by shared words, quoted verbatim. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bot.words import content_words

FLOOR_SCORE: Final = 0.30
"""Below this a hit does not speak of what was asked (measured with the bundled model: bench/recall_floor)."""
NEAR_BEST: Final = 0.75
MAX_QUOTES: Final = 3
MAX_LINES: Final = 4

_SOURCE: Final = re.compile(r"(?P<path>.+)#L(?P<start>\d+)-L(?P<end>\d+)\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Quote:
    """Verbatim lines and where they stand, as path#Lstart-Lend."""

    text: str
    source: str


def best_quotes(result: dict[str, object], question: str) -> list[Quote]:
    """At most three quotes from a `memory_search` result: passages well above the floor and not far behind the best."""
    passages = result.get("passages")
    quotes: list[Quote] = []
    best = 0.0
    for passage in passages if isinstance(passages, list) else []:
        score = float(passage.get("score", 0))
        best = max(best, score)
        if score < max(FLOOR_SCORE, best * NEAR_BEST) or len(quotes) >= MAX_QUOTES:
            break
        quote = _quote(str(passage.get("source", "")), str(passage.get("text", "")), question)
        if quote is not None and quote.text not in {other.text for other in quotes}:
            quotes.append(quote)
    return quotes


def _quote(source: str, text: str, question: str) -> Quote | None:
    match = _SOURCE.match(source)
    lines = text.split("\n")
    if match is None or not text.strip():
        return None
    first, last = _best_span(lines, content_words(question))
    start = int(match["start"])
    return Quote("\n".join(lines[first : last + 1]).strip("\n"), f"{match['path']}#L{start + first}-L{start + last}")


def _best_span(lines: Sequence[str], wanted: frozenset[str]) -> tuple[int, int]:
    """(first, last) index of the lines to quote: the paragraph or list item that shares most words, else the first one."""
    spans = _blocks(lines)
    first, last = max(spans, key=lambda span: (_overlap(lines, span, wanted), -span[0]))
    return first, min(last, first + MAX_LINES - 1)


def _overlap(lines: Sequence[str], span: tuple[int, int], wanted: frozenset[str]) -> int:
    return len(wanted & content_words(" ".join(lines[span[0] : span[1] + 1])))


def _blocks(lines: Sequence[str]) -> list[tuple[int, int]]:
    """Spans of text blocks: a list item is a block of its own, headings and blank lines are none unless there is nothing else."""
    blocks: list[tuple[int, int]] = []
    for number, line in enumerate(lines):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        continues = blocks and blocks[-1][1] == number - 1 and not re.match(r"\s*(?:[-*+]|\d+[.)])\s", line)
        if continues:
            blocks[-1] = (blocks[-1][0], number)
        else:
            blocks.append((number, number))
    return blocks or [(0, len(lines) - 1)]
