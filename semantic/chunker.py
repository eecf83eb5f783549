"""Cuts a Markdown text into chunks with exact lines and ids that survive edits elsewhere in the file. Pure.

Where a section is too long, the cut goes before the part with the smallest hash of those in reach, again and again: an edit
moves only the cuts beside it, so that one inserted line costs one chunk and not the rest of the file.
"""

import hashlib
import re
import unicodedata
import zlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from semantic.markdown import Block, Outline, parse_outline
from semantic.types import Chunk

CHUNKER_VERSION: Final = "1"
_BREADCRUMB_SHARE: Final = 4
_MAX_HEADING_CHARS: Final = 200
_PIECE: Final = re.compile(r"[A-Za-z\u00c0-\u024f]+|[A-Za-z0-9\u00c0-\u024f]+|\s+|.", re.DOTALL)
_SHORT_WORD: Final = 6
_LONG_WORD: Final = 16
_UNNAMED: Final = frozenset({"memory", "skill", "system", "readme", "index"})
_SENTENCE_ENDS: Final = frozenset("\u3002\uff01\uff1f\uff1b\u3001\uff0c\uff0e")  # the stops and commas of CJK text
_ZWJ: Final = "\u200d"
_VIRAMA_CLASS: Final = 9


def count_tokens(text: str) -> int:
    """A careful estimate of the tokens of a word-piece model: rather too many than too few, by kind of character.

    A word of up to six letters is one, a longer one more, digits and mixed runs (hashes, ids) many, Hangul two for a syllable,
    every other character (punctuation, CJK, other scripts, emoji) one.
    """
    return sum(map(_piece_tokens, _PIECE.findall(text)))


def _piece_tokens(piece: str) -> int:
    first = piece[0]
    if first.isspace():
        return 0
    if len(piece) == 1:
        return 2 if "\uac00" <= first <= "\ud7a3" else 0 if unicodedata.combining(first) else 1
    if not piece.isalpha():
        return -(-len(piece) * 5 // 7)
    if len(piece) <= _SHORT_WORD:
        return 1
    return -(-len(piece) * 2 // 7) if len(piece) <= _LONG_WORD else -(-len(piece) * 3 // 7)


def chunk_markdown(path: str, text: str, *, max_tokens: int = 200) -> list[Chunk]:
    """Cut `text` into chunks in file order; every non-blank line is in one of them (a very long line in several).

    Lines end at LF alone, a CR before it is dropped, so that line numbers agree with every editor. `embed_text` stays within
    `max_tokens` by estimate, but for a single character sequence that is longer.
    """
    lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]
    outline = parse_outline(lines)
    return _identify(path, _Cutter(lines, max_tokens).drafts(outline, outline.title or _title_of(path)))


def _title_of(path: str) -> str:
    """What the file's name says of its content; nothing for MEMORY.md, the folder's name for a SKILL.md."""
    *folders, name = path.split("/")
    stem = name.rpartition(".")[0]
    if stem.casefold() == "skill" and folders:
        stem = folders[-1]
    return "" if stem.casefold() in _UNNAMED else re.sub(r"[-_\s]+", " ", stem).strip()


@dataclass(frozen=True, slots=True)
class _Draft:
    heading: tuple[str, ...]
    breadcrumb: str
    start: int
    end: int
    text: str


def _identify(path: str, drafts: Iterable[_Draft]) -> list[Chunk]:
    chunks = []
    seen: Counter[str] = Counter()
    for draft in drafts:
        embed_text = f"{draft.breadcrumb}\n{draft.text}" if draft.breadcrumb else draft.text
        content = "\0".join((path, *draft.heading, embed_text))
        chunk_id = _digest(f"{seen[content]}\0{content}")
        seen[content] += 1
        chunks.append(Chunk(chunk_id, draft.heading, draft.start + 1, draft.end, draft.text, embed_text))
    return chunks


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class _Cutter:
    """Holds the lines of one text and what each costs."""

    def __init__(self, lines: Sequence[str], max_tokens: int) -> None:
        self._lines = lines
        self._max = max_tokens
        self._costs = [0, *accumulate(count_tokens(line) for line in lines)]

    def drafts(self, outline: Outline, title: str) -> Iterator[_Draft]:
        if outline.front_matter is not None:
            yield from self._cut_section(_Heading((), "", 0), [outline.front_matter])
        carried: list[Block] = []
        for section, after in zip(outline.sections, [*outline.sections[1:], None], strict=True):
            titles = [*carried, *([section.title_block] if section.title_block else [])]
            if not section.blocks and after is not None and after.level > section.level:
                carried = titles  # a heading alone goes with what stands under it
                continue
            carried = []
            yield from self._cut_section(_Heading(section.heading, title, len(titles)), _glue(titles, section.blocks))

    def _cut_section(self, heading: "_Heading", blocks: Sequence[Block]) -> Iterator[_Draft]:
        names = tuple(_clip(name) for name in heading.names)
        breadcrumb = _breadcrumb(heading.way(), self._max // _BREADCRUMB_SHARE)
        shown = _breadcrumb(heading.way(without_titles=True), self._max // _BREADCRUMB_SHARE)
        budget = self._max - count_tokens(breadcrumb) - 1
        for start, end, piece in self._cut(blocks, budget):
            first, last = self._without_blank_edges(start, end)
            if first < last:
                text = "\n".join(self._lines[first:last]) if piece is None else piece
                yield _Draft(names, shown, first, last, text)
                shown = breadcrumb

    def _cut(self, blocks: Sequence[Block], budget: int) -> Iterator[tuple[int, int, str | None]]:
        """(start, end, piece): lines, or with a piece a stretch of one line. What fits stays whole; what doesn't is cut finer."""
        fitting: list[Block] = []
        for block in blocks:
            if self._cost(block) <= budget:
                fitting.append(block)
                continue
            yield from self._group(fitting, budget)
            fitting = []
            start = block.starts[0]
            if block.end - start == 1:
                yield from ((start, block.end, piece) for piece in _cut_line(self._lines[start], budget))
            else:
                yield from self._cut(_finer(block), budget)
        yield from self._group(fitting, budget)

    def _group(self, blocks: Sequence[Block], budget: int) -> Iterator[tuple[int, int, None]]:
        if blocks:
            keys = [self._key(block) for block in blocks]
            for low, high in _split([self._cost(block) for block in blocks], keys, budget):
                yield blocks[low].starts[0], blocks[high - 1].end, None

    def _cost(self, block: Block) -> int:
        return self._costs[block.end] - self._costs[block.starts[0]]

    def _key(self, block: Block) -> int:
        return _hash("\n".join(self._lines[block.starts[0] : block.end]))

    def _without_blank_edges(self, start: int, end: int) -> tuple[int, int]:
        while start < end and not self._lines[start].strip():
            start += 1
        while start < end and not self._lines[end - 1].strip():
            end -= 1
        return start, end


@dataclass(frozen=True, slots=True)
class _Heading:
    """The way to a section. The last `titles` names stand in the text of its first chunk."""

    names: tuple[str, ...]
    title: str
    titles: int

    def way(self, *, without_titles: bool = False) -> tuple[str, ...]:
        names = self.names[: len(self.names) - self.titles] if without_titles else self.names
        known = self.title.casefold() in (name.casefold() for name in self.names)
        return names if known or not self.title else (self.title, *names)


def _glue(titles: Sequence[Block], blocks: Sequence[Block]) -> list[Block]:
    """The blocks of a section; its headings become one with the first part of the first block."""
    if not titles:
        return list(blocks)
    start = titles[0].starts[0]
    if not blocks:
        return [Block((start,), titles[-1].end)]
    return [Block((start, *blocks[0].starts[1:]), blocks[0].end), *blocks[1:]]


def _finer(block: Block) -> list[Block]:
    """A block's parts, or the lines of a block that has only one."""
    starts = block.starts if len(block.starts) > 1 else range(block.starts[0], block.end)
    return [Block((start,), end) for start, end in zip(starts, [*starts[1:], block.end], strict=True)]


def _split(costs: Sequence[int], keys: Sequence[int], budget: int) -> Iterator[tuple[int, int]]:
    """Ranges [low, high) in order, each within the budget, cut before the smallest keys.

    A cut leaves at least a quarter of the budget on each side where it can; among equal keys the middle one is taken.
    """
    sums = [0, *accumulate(costs)]
    waiting = [(0, len(costs))]
    while waiting:
        low, high = waiting.pop()
        if high - low == 1 or sums[high] - sums[low] <= budget:
            yield low, high
            continue
        first = max(low + 1, bisect_left(sums, sums[low] + budget // 4))
        last = min(high - 1, bisect_right(sums, sums[high] - budget // 4) - 1)
        reach = range(first, last + 1) if first <= last else range(low + 1, high)
        twice_middle = sums[low] + sums[high]
        cut = min(reach, key=lambda at: (keys[at], abs(2 * sums[at] - twice_middle)))
        waiting += [(cut, high), (low, cut)]


def _cut_line(line: str, budget: int) -> Iterator[str]:
    """A line that is too long in pieces: at spaces and sentence ends, inside an endless word between characters as seen."""
    stretches: list[str] = []
    for stretch in _between(line, _is_word_start):
        stretches.extend([stretch] if count_tokens(stretch) <= budget else _between(stretch, _is_boundary))
    costs = [count_tokens(stretch) for stretch in stretches]
    for low, high in _split(costs, [_hash(stretch) for stretch in stretches], budget):
        yield "".join(stretches[low:high])


def _between(text: str, is_cut: Callable[[str, int], bool]) -> Iterator[str]:
    start = 0
    for at in range(1, len(text)):
        if is_cut(text, at):
            yield text[start:at]
            start = at
    yield text[start:]


def _is_word_start(text: str, at: int) -> bool:
    before = text[at - 1]
    return (before in _SENTENCE_ENDS or (before.isspace() and not text[at].isspace())) and _is_boundary(text, at)


def _is_boundary(text: str, at: int) -> bool:
    """Whether a cut before `at` parts no character as a reader sees it (combining signs, joined emoji, flags, syllables)."""
    char, before = text[at], text[at - 1]
    if char <= "\u02ff" and before <= "\u02ff":
        return True
    if unicodedata.category(char) in ("Mn", "Mc", "Me") or _extends(char) or before == _ZWJ:
        return False
    if unicodedata.combining(before) == _VIRAMA_CLASS or ("\u1100" <= before <= "\u11ff" and "\u1100" <= char <= "\u11ff"):
        return False
    return not (_is_flag(char) and _flags_before(text, at) % 2)


def _extends(char: str) -> bool:
    return char in (_ZWJ, "\u200c") or "\U0001f3fb" <= char <= "\U0001f3ff" or "\U000e0020" <= char <= "\U000e007f"


def _is_flag(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _flags_before(text: str, at: int) -> int:
    count = 0
    while at > count and _is_flag(text[at - count - 1]):
        count += 1
    return count


def _breadcrumb(names: Sequence[str], max_tokens: int) -> str:
    """`Title > Heading > Sub`: the deepest names that fit; of a single one that doesn't, the beginning."""
    kept: list[str] = []
    for name in reversed(names):
        if sum(count_tokens(part) + 1 for part in (*kept, name)) > max_tokens:
            break
        kept.insert(0, name)
    if names and not kept:
        return next(_cut_line(names[-1], max_tokens), "").strip()
    return " > ".join(kept)


def _clip(name: str) -> str:
    end = _MAX_HEADING_CHARS
    while 0 < end < len(name) and not _is_boundary(name, end):
        end -= 1
    return name[:end]


def _hash(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))
