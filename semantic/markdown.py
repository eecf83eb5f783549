"""The structure of a Markdown text, line by line: headings, fences, tables, lists. Where to cut is decided in `chunker`. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

_ATX: Final = re.compile(r" {0,3}(#{1,6})(?:[ \t]|\Z)")
_FENCE: Final = re.compile(r"([ \t]*)(`{3,}|~{3,})")
_ITEM: Final = re.compile(r"([ \t]*)(?:[-*+]|\d{1,9}[.)])(?:[ \t]|\Z)")
_RULE: Final = re.compile(r" {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}\Z")
_UNDERLINE: Final = re.compile(r" {0,3}(=+|-+)[ \t]*\Z")
_TABLE_RULE: Final = frozenset("|:- \t")
_TITLE: Final = re.compile(r"(?:name|title)[ \t]*:[ \t]*(.+)")
_MAX_FRONT_MATTER_LINES: Final = 200
_MAX_SETEXT_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class Block:
    """Lines that belong together: `starts` are the 0-based first lines of its parts, `end` is the line after the last."""

    starts: tuple[int, ...]
    end: int


@dataclass(slots=True)
class Section:
    """A heading (level 0: the text before any) with the blocks below it, up to the next heading of any level."""

    heading: tuple[str, ...]
    level: int
    title_block: Block | None
    blocks: list[Block] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Outline:
    """A parsed text. `title`: what the front matter calls the document, or ""."""

    title: str
    front_matter: Block | None
    sections: tuple[Section, ...]


def parse_outline(lines: Sequence[str]) -> Outline:
    """Find the structure of a text given as lines; every non-blank line is in exactly one block."""
    end = _front_matter_end(lines)
    title = next((_unquote(found[1]) for line in lines[:end] if (found := _TITLE.match(line))), "")
    front_matter = Block(tuple(range(end)), end) if end else None
    return Outline(title, front_matter, tuple(_Reader(lines).sections(end)))


def _unquote(value: str) -> str:
    return value.strip().strip("\"'").strip()


def _front_matter_end(lines: Sequence[str]) -> int:
    if not lines or lines[0].rstrip() != "---":
        return 0
    limit = min(len(lines), _MAX_FRONT_MATTER_LINES)
    return next((at + 1 for at in range(1, limit) if lines[at].rstrip() in ("---", "...")), 0)


class _Reader:
    """Walks over the lines once. It remembers which fences have no end, so that a hostile text can't make it search for ever."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._endless: dict[str, int] = {}

    def sections(self, start: int) -> Iterator[Section]:
        section = Section((), 0, None)
        stack: list[tuple[int, str]] = []
        at = start
        while at < len(self._lines):
            if not self._lines[at].strip():
                at += 1
                continue
            found = self._heading(at)
            if found is None:
                block = self._block(at)
                section.blocks.append(block)
                at = block.end
                continue
            level, text, end = found
            yield section
            stack = [*((outer, name) for outer, name in stack if outer < level), (level, text)]
            section = Section(tuple(name for _, name in stack), level, Block(tuple(range(at, end)), end))
            at = end
        yield section

    def _heading(self, at: int) -> tuple[int, str, int] | None:
        """(level, text, line after it). A setext heading is one line here: two lines over a rule are meant as text."""
        line = self._lines[at]
        if found := _ATX.match(line):
            return len(found[1]), _heading_text(line.strip()[len(found[1]) :]), at + 1
        under = self._lines[at + 1] if at + 1 < len(self._lines) else ""
        if _UNDERLINE.match(under) and self._is_plain(at) and len(line) <= _MAX_SETEXT_CHARS:
            return (1 if "=" in under else 2), line.strip(), at + 2
        return None

    def _is_plain(self, at: int) -> bool:
        line = self._lines[at]
        quoted = line.lstrip().startswith((">", "<!--", "|"))
        return not (quoted or line.startswith(("    ", "\t")) or _ITEM.match(line) or _RULE.match(line) or _FENCE.match(line))

    def _block(self, at: int) -> Block:
        if end := self._table_end(at):
            return Block((at, *range(at + 2, end)), end)
        if end := self._fence_end(at) or self._comment_end(at):
            return Block(tuple(range(at, end)), end)
        if _ITEM.match(self._lines[at]) and not _RULE.match(self._lines[at]):
            return self._list(at)
        return self._paragraph(at)

    def _fence_end(self, at: int) -> int:
        """The line after the fence that opens at `at`, or 0.

        Without an end it reaches to the end of the text, as in CommonMark; an indented one without an end is taken as text.
        """
        closed = self._closed_fence(at)
        if closed or not (found := self._fence(at)):
            return closed
        return len(self._lines) if len(found[1].expandtabs(4)) < 4 else 0  # noqa: PLR2004 - indented code from four spaces on

    def _fence(self, at: int) -> re.Match[str] | None:
        found = _FENCE.match(self._lines[at])
        if found and found[2][0] == "`" and "`" in self._lines[at][found.end() :]:
            return None
        return found

    def _closed_fence(self, at: int) -> int:
        found = self._fence(at)
        if found is None:
            return 0
        mark, length = found[2][0], len(found[2])
        if length >= self._endless.get(mark, length + 1):
            return 0
        closing = re.compile(rf"[ \t]*{mark}{{{length},}}[ \t]*\Z")
        for end in range(at + 1, len(self._lines)):
            if closing.match(self._lines[end]):
                return end + 1
        self._endless[mark] = length
        return 0

    def _comment_end(self, at: int) -> int:
        if not self._lines[at].lstrip().startswith("<!--") or "<!--" in self._endless:
            return 0
        for end in range(at, len(self._lines)):
            if "-->" in self._lines[end]:
                return end + 1
        self._endless["<!--"] = 0
        return 0

    def _table_end(self, at: int) -> int:
        if at + 1 >= len(self._lines) or "|" not in self._lines[at]:
            return 0
        rule = self._lines[at + 1]
        if "|" not in rule or "-" not in rule or not _TABLE_RULE.issuperset(rule):
            return 0
        end = at + 2
        while end < len(self._lines) and "|" in self._lines[end]:
            end += 1
        return end

    def _list(self, at: int) -> Block:
        """A list with everything that is indented under its items; its parts are the outermost items."""
        indent = _indent(self._lines[at])
        starts, end = [at], at + 1
        while end < len(self._lines):
            line = self._lines[end]
            if not line.strip():
                if not self._goes_on(end, indent):
                    break
                end += 1
                continue
            is_item = _ITEM.match(line) is not None and not _RULE.match(line)
            if is_item and _indent(line) <= indent + 1:
                starts.append(end)
            elif self._breaks(end) and _indent(line) <= indent:
                break
            end = self._closed_fence(end) or end + 1
        return Block(tuple(starts), end)

    def _goes_on(self, blank: int, indent: int) -> bool:
        """Whether the list goes on after a blank line: with another item or an indented line."""
        after = blank + 1
        if after >= len(self._lines) or not self._lines[after].strip():
            return False
        line = self._lines[after]
        return _indent(line) > indent + 1 or (_ITEM.match(line) is not None and not _RULE.match(line))

    def _paragraph(self, at: int) -> Block:
        end = at + 1
        while end < len(self._lines) and self._lines[end].strip() and not self._breaks(end):
            end += 1
        return Block(tuple(range(at, end)), end)

    def _breaks(self, at: int) -> bool:
        """Whether another construct starts at this line."""
        line = self._lines[at]
        if _ATX.match(line) or _RULE.match(line) or _ITEM.match(line) or line.lstrip().startswith("<!--"):
            return True
        return bool(_FENCE.match(line)) or self._table_end(at) > 0


def _indent(line: str) -> int:
    return len(line.expandtabs(4)) - len(line.expandtabs(4).lstrip(" "))


def _heading_text(rest: str) -> str:
    text = rest.strip()
    bare = text.rstrip("#")
    if bare != text and (not bare or bare[-1] in " \t"):
        text = bare.rstrip()
    return text
