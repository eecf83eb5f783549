"""What a text says, as the words by which copies of it are recognised elsewhere, and taking these words out. Pure."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

FORGOTTEN: Final = "[forgotten]"
MIN_WORDS: Final = 6
"""Characters. What is shorter is no copy of anything in particular."""
TELLING: Final = 20
"""Characters. What is shorter may well be said elsewhere by chance, such as a heading."""

_FRONT_MATTER = re.compile(r"\A\ufeff?---[ \t]*\n(?P<fields>.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_DESCRIPTION = re.compile(r"^description:[ \t]*(?P<value>.+)$", re.MULTILINE)
_MARKUP = re.compile(r"^[\s>*+#-]*(?:[0-9]{1,9}[.)][ \t]+)?(?:\[[ xX]\][ \t]+)?")
_SENTENCE_END = re.compile("(?<=[.!?])\\s+|(?<=[\u3002\uff01\uff1f])|\\|")
_LETTER = re.compile(r"\w")


def words_of(text: str) -> Iterator[str]:
    """The lines of a text without their markup, and the sentences and table cells of each; of front matter the description."""
    body = text.replace("\r\n", "\n")
    front = _FRONT_MATTER.match(body)
    if front is not None:
        body = body[front.end() :]
        described = _DESCRIPTION.search(front["fields"])
        if described is not None:
            yield from _pieces(described["value"].strip().strip("\"'"))
    for line in body.split("\n"):
        yield from _pieces(line)


def _pieces(line: str) -> Iterator[str]:
    whole = _MARKUP.sub("", line).strip()
    if len(whole) >= MIN_WORDS and _LETTER.search(whole):
        yield whole
    yield from (piece for part in _SENTENCE_END.split(whole) if len(piece := part.strip()) >= TELLING)


@dataclass(frozen=True, slots=True)
class Words:
    """Words to be forgotten, the longest first."""

    needles: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str], *, said_elsewhere: Iterable[str] = ()) -> "Words":
        """The words of these texts. Short ones that are also said in a text that stays are left out: they tell nothing."""
        wanted = {words for text in texts for words in words_of(text)}
        for text in said_elsewhere:
            wanted -= {words for words in wanted if len(words) < TELLING and words in text}
        wanted = {form for words in wanted if words not in FORGOTTEN for form in _forms(words)}
        return cls(tuple(sorted(wanted, key=lambda words: (-len(words), words))))

    def take_out(self, text: str) -> str:
        """The text with each occurrence replaced by `[forgotten]`; parts of longer words are no occurrence."""
        for needle in self.needles:
            if needle in text:
                text = re.sub(_bounded(needle), lambda _: FORGOTTEN, text)
        return text

    def first_line(self, text: str) -> int | None:
        """The 1-based line on which a telling one occurs, None when none does."""
        starts = [at for needle in self.needles if len(needle) >= TELLING and (at := text.find(needle)) >= 0]
        return text.count("\n", 0, min(starts)) + 1 if starts else None


def _forms(words: str) -> set[str]:
    """As they are, and as they are inside a JSON text that is itself quoted, which tool calls and cut lines hold."""
    return {words, json.dumps(words)[1:-1], json.dumps(words, ensure_ascii=False)[1:-1]}


def _bounded(needle: str) -> str:
    # In a quoted JSON text a line's first word follows the letter of an escape.
    before = r"(?:(?<!\w)|(?<=\\[nrt]))" if _LETTER.match(needle[0]) else ""
    after = r"(?!\w)" if _LETTER.match(needle[-1]) else ""
    return f"{before}{re.escape(needle)}{after}"
