"""What a reader gets to see of a chunk: its lines in the file as it is now, and the stretch that answers the query. Pure."""

import unicodedata
from collections.abc import Sequence
from typing import Final

from semantic.terms import QueryTerms, find_terms

SNIPPET_CHARS: Final = 200
_LEAD_CHARS: Final = 50  # shown before the first matching word
_SLACK_CHARS: Final = 30  # how far a cut moves to fall between words
_ZWJ: Final = "\u200d"
_FLAG_LETTERS: Final = "".join(map(chr, range(0x1F1E6, 0x1F200)))  # two make a flag


def find_lines(lines: Sequence[str], text: str, *, start_line: int) -> tuple[int, int] | None:
    """The 1-based, inclusive lines where a chunk's text stands, nearest to `start_line`; None when it stands nowhere.

    A text of one line may be a piece of a very long line.
    """
    wanted = text.split("\n")
    starts = [at for at, line in enumerate(lines) if line == wanted[0] and list(lines[at : at + len(wanted)]) == wanted]
    if not starts and len(wanted) == 1:
        starts = [at for at, line in enumerate(lines) if text in line]
    if not starts:
        return None
    start = min(starts, key=lambda at: abs(at + 1 - start_line))
    return start + 1, start + len(wanted)


def cut_snippet(text: str, terms: QueryTerms) -> str:
    """About 200 characters with as many of the query's words as they can hold, cut between words, white space made single."""
    flat = " ".join(text.split())
    if len(flat) <= SNIPPET_CHARS:
        return flat
    start = _start_of_window(flat, terms)
    end = _border(flat, start + SNIPPET_CHARS, step=-1)
    start = _border(flat, start, step=1)
    return f"{'…' if start else ''}{flat[start:end].strip()}{'…' if end < len(flat) else ''}"


def _start_of_window(flat: str, terms: QueryTerms) -> int:
    matches = find_terms(terms, flat)
    last = len(flat) - SNIPPET_CHARS
    best, best_count = 0, -1
    for position, _ in matches:
        start = min(max(0, position - _LEAD_CHARS), last)
        count = len({term for at, term in matches if start <= at < start + SNIPPET_CHARS})
        if count > best_count:
            best, best_count = start, count
    return best


def _border(flat: str, at: int, *, step: int) -> int:
    """The nearest place from `at` on in this direction that is between words, or else between characters as seen."""
    if not 0 < at < len(flat):
        return min(max(at, 0), len(flat))
    reach = range(at, at + step * _SLACK_CHARS, step)
    spaces = (place for place in reach if 0 < place < len(flat) and (flat[place].isspace() or flat[place - 1].isspace()))
    found = next(spaces, None)
    return next((place for place in reach if _between_characters(flat, place)), at) if found is None else found


def _between_characters(flat: str, at: int) -> bool:
    if not 0 < at < len(flat):
        return True
    joins = unicodedata.category(flat[at]) in ("Mn", "Mc", "Me", "Cf", "Sk") or flat[at - 1] == _ZWJ
    inside_flag = flat[at] in _FLAG_LETTERS and (at - len(flat[:at].rstrip(_FLAG_LETTERS))) % 2 == 1
    return not joins and not inside_flag
