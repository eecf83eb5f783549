"""The grammar of a topic index (formats: topics.md): parsing it, tidying it, choosing what goes into a prompt. Pure.

Reading and writing the file is in `topic_store`, what a topic's own file looks like in `topic_file`.
"""

import re
import unicodedata
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

MAX_INDEX_BYTES: Final = 51_200
PIN: Final = "[pin]"
STALE: Final = "[stale?]"
HEADING: Final = "# Memory Index"
_BURST: Final = timedelta(minutes=1)

_LINK = re.compile(r"\s*-\s+\[([^\]]+)\]\(([^)]*)\)(.*)\Z", re.DOTALL)
_SEPARATOR = re.compile(r"(?:\A|\s)--(?:\s|\Z)")
_STAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}(:[0-9]{2}([.,][0-9]+)?)?(Z|[+-][0-9]{2}:?[0-9]{2})?)?\Z",
    re.ASCII,
)
_UNSAFE_CHARS = re.compile(r"[\\/\[\]()\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """One topic's line. `stamp` as written (a date or a date-time), `line` 1-based, `extra_tokens` kept for other tools."""

    name: str
    file: str
    stamp: str | None
    pinned: bool
    stale: bool
    summary: str
    line: int
    extra_tokens: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicIndex:
    """A parsed index. `quarantined` are (line, text) of entries with an unsafe file name: never injected, only reported."""

    entries: tuple[TopicEntry, ...]
    quarantined: tuple[tuple[int, str], ...]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """What of an index goes into a prompt: `text` is whole lines, with a notice as the last one when some were left out.

    `index_lines` and `index_bytes` are the size before the cut, `max_lines` and `max_bytes` the caps it met.
    """

    text: str
    kept_lines: int
    omitted_lines: int
    omitted_entries: int
    quarantined_lines: int
    index_lines: int
    index_bytes: int
    max_lines: int
    max_bytes: int

    @property
    def truncated(self) -> bool:
        return self.omitted_lines > 0


def is_safe_topic_file(name: str) -> bool:
    """Whether a file name from an index or a folder is one of a topic: `*.md`, not the index, not hidden, no path."""
    folded = name.casefold()
    return (
        folded.endswith(".md")
        and folded != "memory.md"
        and not name.startswith(".")
        and ".." not in name
        and not _UNSAFE_CHARS.search(name)
    )


def parse_topic_index(text: str) -> TopicIndex:
    """Parse an index leniently: what is no entry stays in `lines`, an unsafe entry is quarantined, nothing is refused."""
    lines = tuple(line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n"))
    if lines[-1] == "":
        lines = lines[:-1]
    entries: list[TopicEntry] = []
    quarantined: list[tuple[int, str]] = []
    for number, line in enumerate(lines, start=1):
        link = _LINK.match(line.replace("\r", " "))
        if link is None or not link[1].strip():
            continue
        if is_safe_topic_file(link[2]):
            entries.append(_entry(link[1].strip(), link[2], link[3], number))
        else:
            quarantined.append((number, line))
    return TopicIndex(tuple(entries), tuple(quarantined), lines)


def readable_lines(data: bytes) -> tuple[str, int]:
    """The lines of an index that are text, and how many are not: no UTF-8, or the NULs that a lost write leaves."""
    good: list[str] = []
    lines = data.split(b"\n")
    for line in lines:
        try:
            text = line.decode()
        except UnicodeDecodeError:
            continue
        good += [] if "\0" in text else [text]
    return "\n".join(good), len(lines) - len(good)


def _entry(name: str, file: str, rest: str, number: int) -> TopicEntry:
    """Flags and the stamp count only before the first ` -- `, as whole tokens: a summary can't act."""
    cut = _SEPARATOR.search(rest)
    head, summary = (rest, "") if cut is None else (rest[: cut.start()], rest[cut.end() :])
    tokens = head.split()
    stamp = next((token for token in tokens if _STAMP.match(token)), None)
    extra = [token for token in tokens if token not in (PIN, STALE)]
    if stamp is not None:
        extra.remove(stamp)
    return TopicEntry(
        name=name,
        file=file,
        stamp=stamp,
        pinned=PIN in tokens,
        stale=STALE in tokens,
        summary=summary.strip(),
        line=number,
        extra_tokens=tuple(extra),
    )


def render_entry(entry: TopicEntry) -> str:
    """The canonical line of an entry, without LF; tokens of other tools follow our own."""
    head = [f"- [{entry.name}]({entry.file})"]
    head += [PIN] if entry.pinned else []
    head += [entry.stamp] if entry.stamp is not None else []
    head += [STALE] if entry.stale else []
    return " ".join([*head, *entry.extra_tokens, "--", entry.summary])


def instant(stamp: str | None) -> datetime | None:
    """The moment that a stamp names (a bare date is its midnight, a missing offset is UTC); None when it names none."""
    if stamp is None or not _STAMP.match(stamp):
        return None
    try:
        found = datetime.fromisoformat(stamp)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def stamp_of(moment: datetime) -> str:
    """The canonical stamp: local time of the clock that gave `moment`, with offset, in whole seconds."""
    return moment.isoformat(timespec="seconds")


def next_stamp(listed: str | None, moment: datetime) -> str:
    """The stamp of a write at `moment` to a topic whose line has the stamp `listed`: a later one, also within one second.

    Else a kill between file and line could not be told from a line that somebody wrote by hand. A line's stamp that is far in
    the future is not followed.
    """
    before = instant(listed)
    if before is None or not moment.replace(microsecond=0) <= before < moment + _BURST:
        return stamp_of(moment)
    return stamp_of((before + timedelta(seconds=1)).astimezone(moment.tzinfo))


Row: TypeAlias = str | TopicEntry
"""One line of an index that is being changed: an entry, or a text that stays as it is."""


def rows_of(index: TopicIndex) -> list[Row]:
    """The lines of an index, in their order."""
    entries = {entry.line: entry for entry in index.entries}
    return [entries.get(number, line) for number, line in enumerate(index.lines, start=1)]


def file_key(file: str) -> str:
    """What tells whether two file names of an index are one: disks may spell a name decomposed."""
    return unicodedata.normalize("NFC", file)


def put_entry(rows: Sequence[Row], entry: TopicEntry) -> list[Row]:
    """The rows with this entry as the only one of its file: where its first one was, or at the end."""
    same = [place for place, row in enumerate(rows) if isinstance(row, TopicEntry) and file_key(row.file) == file_key(entry.file)]
    if same:
        return [entry if place == same[0] else row for place, row in enumerate(rows) if place not in same[1:]]
    filled = [place for place, row in enumerate(rows) if not _is_blank(row)]
    kept = list(rows[: filled[-1] + 1]) if filled else [HEADING]
    gap: list[Row] = [""] if isinstance(kept[-1], str) and kept[-1].startswith("#") else []
    return [*kept, *gap, entry]


def drop_file(rows: Sequence[Row], file: str) -> list[Row]:
    """The rows without any entry of a file."""
    return [row for row in rows if isinstance(row, str) or file_key(row.file) != file_key(file)]


def tidy(rows: Sequence[Row], *, present: AbstractSet[str], now: datetime, stale_after_days: int) -> list[Row]:
    """Drop entries without a file, keep one entry a file, set the stale flags; every other line stays. Never adds an entry.

    `present` holds the regular files of the folder, as `file_key`. Of several entries of one file the latest says what is
    true (a later line wins a tie) at the place of the first, and is pinned if any was. `stale_after_days` 0 flags nothing.
    """
    best: dict[str, TopicEntry] = {}
    for row in rows:
        if isinstance(row, TopicEntry) and (key := file_key(row.file)) in present:
            known = best.get(key)
            best[key] = row if known is None else merged(known, row)
    tidied: list[Row] = []
    for row in rows:
        if isinstance(row, str):
            tidied.append(row)
        elif (entry := best.pop(file_key(row.file), None)) is not None:
            tidied.append(replace(entry, stale=_is_stale(entry, now, stale_after_days)))
    return tidied


def merged(known: TopicEntry, later: TopicEntry) -> TopicEntry:
    """What two entries of one file say together: the one with the later instant (the later line on a tie), pinned if one is."""
    was, then = instant(known.stamp), instant(later.stamp)
    latest = known if was is not None and (then is None or then < was) else later
    return replace(latest, pinned=known.pinned or later.pinned)


def _is_stale(entry: TopicEntry, now: datetime, stale_after_days: int) -> bool:
    moment = instant(entry.stamp)
    return not entry.pinned and stale_after_days > 0 and moment is not None and (now - moment).days > stale_after_days


def render_index(rows: Sequence[Row]) -> str:
    """The text of an index: canonical entries, other lines verbatim, no runs of blank lines, LF at the end."""
    lines = [render_entry(row) if isinstance(row, TopicEntry) else row for row in rows]
    shown = [line for place, line in enumerate(lines) if line.strip() or (place and lines[place - 1].strip())]
    while shown and not shown[-1].strip():
        shown.pop()
    if not shown:
        shown = [HEADING]
    if shown[-1].startswith("#"):
        shown.append("")
    return "".join(f"{line}\n" for line in shown)


def _is_blank(row: Row) -> bool:
    return isinstance(row, str) and not row.strip()


def select_for_prompt(index: TopicIndex, *, max_lines: int, max_bytes: int = MAX_INDEX_BYTES) -> TopicSelection:
    """Choose whole lines within both caps (the notice of a cut counts to the bytes, not to the lines).

    An index that fits is given as it stands, without its quarantined lines. Otherwise: its title, then pinned entries, then
    fresh ones with headings and prose in their order, then stale ones; a kept line never ranks below one that was left out
    (but for a line which alone is over the cap). Don't cut the text again: give the smaller cap here.
    """
    bad = {number for number, _ in index.quarantined}
    whole = [(number, line) for number, line in enumerate(index.lines, start=1) if number not in bad]
    index_bytes = sum(_size(line) for _, line in whole)
    omitted: list[_Line] = []
    kept, notice = whole, ""
    if len(whole) > max_lines or index_bytes > max_bytes:
        ranked = _ranked(index, whole)
        kept, omitted = _fill(ranked, max_lines, max_bytes)
        if omitted:
            sizes = f"{len(whole)} lines, {index_bytes} bytes; the caps are {max_lines} lines, {max_bytes} bytes"
            kept, omitted = _fill(ranked, max_lines, max_bytes - _size(_notice(len(ranked), sizes)))
            notice = _notice(len(omitted), sizes)
    lines = [*(line for _, line in kept), *([notice] if notice and _size(notice) <= max_bytes else [])]
    entry_lines = {entry.line for entry in index.entries}
    return TopicSelection(
        text="".join(f"{line}\n" for line in lines),
        kept_lines=len(kept),
        omitted_lines=len(omitted),
        omitted_entries=sum(number in entry_lines for number, _ in omitted),
        quarantined_lines=len(bad),
        index_lines=len(whole),
        index_bytes=index_bytes,
        max_lines=max_lines,
        max_bytes=max_bytes,
    )


_Line = tuple[int, str]


def _size(line: str) -> int:
    """Bytes of a line with its LF."""
    return len(line.encode("utf-8", "surrogatepass")) + 1


def _notice(omitted: int, sizes: str) -> str:
    return f"<!-- topic index cut, lines left out here: {omitted} (it has {sizes}); read the index file for all -->"


def _ranked(index: TopicIndex, lines: list[_Line]) -> list[_Line]:
    """The lines that say something, the most wanted first: title, pinned, fresh with what stands between them, stale."""
    entries = {entry.line: entry for entry in index.entries}
    filled = [(number, line) for number, line in lines if line.strip()]

    def rank(item: _Line) -> int:
        entry = entries.get(item[0])
        if entry is None:
            return 0 if item == filled[0] and item[1].startswith("#") else 2
        return 1 if entry.pinned else 3 if entry.stale else 2

    return sorted(filled, key=rank)


def _fill(ranked: list[_Line], max_lines: int, max_bytes: int) -> tuple[list[_Line], list[_Line]]:
    """The longest run from the front within the caps, and the rest; a line that can't fit at all doesn't end the run."""
    kept: list[_Line] = []
    omitted: list[_Line] = []
    room = max_bytes
    for place, item in enumerate(ranked):
        size = _size(item[1])
        if size > max_bytes:
            omitted.append(item)
        elif size > room or len(kept) >= max_lines:
            return kept, [*omitted, *ranked[place:]]
        else:
            kept.append(item)
            room -= size
    return kept, omitted
