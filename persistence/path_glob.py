"""Matches a path against a glob from outside, in time that no pattern can blow up. Pure."""

from functools import cache
from typing import Final

_ANY_DEPTH: Final = "**"


def matches_glob(path: str, pattern: str) -> bool:
    """Whether a `/`-separated path fits a pattern of `*`, `?` and `**` (any number of folders); case matters.

    A pattern without `/` is matched against the last part of the path, any other against the whole path.
    """
    parts = path.split("/")
    if "/" not in pattern and pattern != _ANY_DEPTH:
        return _part_matches(parts[-1], pattern)
    wanted = tuple(pattern.split("/"))

    @cache
    def fits(at: int, piece: int) -> bool:
        if piece == len(wanted):
            return at == len(parts)
        if wanted[piece] == _ANY_DEPTH:
            return fits(at, piece + 1) or (at < len(parts) and fits(at + 1, piece))
        return at < len(parts) and _part_matches(parts[at], wanted[piece]) and fits(at + 1, piece + 1)

    return fits(0, 0)


def _part_matches(text: str, pattern: str) -> bool:
    """Greedy, going back to the last star only: at most the product of both lengths."""
    at = piece = 0
    star, star_at = -1, 0
    while at < len(text):
        if piece < len(pattern) and pattern[piece] == "*":
            star, star_at, piece = piece, at, piece + 1
        elif piece < len(pattern) and pattern[piece] in ("?", text[at]):
            at, piece = at + 1, piece + 1
        elif star >= 0:
            star_at += 1
            at, piece = star_at, star + 1
        else:
            return False
    return all(char == "*" for char in pattern[piece:])
