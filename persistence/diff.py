"""The unified diff of two texts, in bounded time and size whatever the texts are. Opens no file."""

from difflib import SequenceMatcher
from typing import Final, TypeAlias

MAX_DIFF_BYTES: Final = 64 * 1024
_CONTEXT: Final = 3
_MAX_PAIRS: Final = 1_000_000  # above, what lies between the common ends is shown as replaced whole: finer takes minutes
_NO_FINAL_NEWLINE: Final = "\n\\ No newline at end of file"

_Op: TypeAlias = tuple[str, int, int, int, int]


def diff_texts(old: str, new: str, *, old_label: str, new_label: str) -> str:
    """The unified diff with three lines of context, "" for equal texts; cut at a line end after 64 KiB, which is said."""
    if old == new:
        return ""
    before, after = _lines(old), _lines(new)
    out = [f"--- {old_label}", f"+++ {new_label}"]
    for group in _groups(_operations(before, after)):
        out += _hunk(group, before, after)
    return _capped(out)


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    if lines[-1] == "":
        return lines[:-1]
    lines[-1] += _NO_FINAL_NEWLINE
    return lines


def _operations(before: list[str], after: list[str]) -> list[_Op]:
    """What turns one into the other. The common beginning and end are set aside first: an edit is mostly small."""
    shortest = min(len(before), len(after))
    head = next((at for at in range(shortest) if before[at] != after[at]), shortest)
    rest = shortest - head
    tail = next((at for at in range(rest) if before[-1 - at] != after[-1 - at]), rest)
    old_end, new_end = len(before) - tail, len(after) - tail
    middle: list[_Op] = [("replace", head, old_end, head, new_end)]
    if (old_end - head) * (new_end - head) <= _MAX_PAIRS:
        matcher = SequenceMatcher(None, before[head:old_end], after[head:new_end])
        middle = [(tag, i1 + head, i2 + head, j1 + head, j2 + head) for tag, i1, i2, j1, j2 in matcher.get_opcodes()]
    return [("equal", 0, head, 0, head), *middle, ("equal", old_end, len(before), new_end, len(after))]


def _groups(operations: list[_Op]) -> list[list[_Op]]:
    """The changes with their context, those near each other together."""
    groups: list[list[_Op]] = [[]]
    last = len(operations) - 1
    for at, (tag, i1, i2, j1, j2) in enumerate(operations):
        if tag != "equal" or (0 < at < last and i2 - i1 <= 2 * _CONTEXT):
            groups[-1].append((tag, i1, i2, j1, j2))
            continue
        if at > 0:
            groups[-1].append((tag, i1, min(i2, i1 + _CONTEXT), j1, min(j2, j1 + _CONTEXT)))
        if 0 < at < last:
            groups.append([])
        if at < last:
            groups[-1].append((tag, max(i1, i2 - _CONTEXT), i2, max(j1, j2 - _CONTEXT), j2))
    return [group for group in groups if any(tag != "equal" for tag, *_ in group)]


def _hunk(group: list[_Op], before: list[str], after: list[str]) -> list[str]:
    old, new = _span(group[0][1], group[-1][2]), _span(group[0][3], group[-1][4])
    lines = [f"@@ -{old} +{new} @@"]
    for tag, i1, i2, j1, j2 in group:
        if tag == "equal":
            lines += [f" {line}" for line in before[i1:i2]]
        else:
            lines += [f"-{line}" for line in before[i1:i2]] + [f"+{line}" for line in after[j1:j2]]
    return lines


def _span(start: int, end: int) -> str:
    length = end - start
    return f"{start + 1 if length else start},{length}"


def _capped(lines: list[str]) -> str:
    size = 0
    kept: list[str] = []
    for line in lines:
        size += len(line.encode("utf-8", "surrogatepass")) + 1
        if size > MAX_DIFF_BYTES:
            return "\n".join([*kept, f"\\ Diff cut here: {len(lines) - len(kept)} more lines", ""])
        kept.append(line)
    return "\n".join([*kept, ""])
