"""Which of a directory's topics are carried over into a shared one, and under which file names. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, Literal

from persistence.topics.index import TopicEntry, file_key
from persistence.topics.names import key_of

SUFFIX: Final = "-opim"

MergeAction = Literal["copy", "rename", "add_line", "identical", "removed", "orphan", "unreadable"]


@dataclass(frozen=True, slots=True)
class MergeStep:
    """What becomes of one local topic, and its file name in the shared directory ("" when it is not carried over).

    copy, and rename (under a name of its own, since the shared file is another text): file and line; add_line: the same file is
    there, its line is not; identical: both are there; removed, orphan, unreadable: skipped. `same_name`: the file of another
    shared topic that has the same display name, so that the two can only be told apart by file.
    """

    action: MergeAction
    entry: TopicEntry
    target: str = ""
    same_name: str | None = None


@dataclass(frozen=True, slots=True)
class Side:
    """A directory as a plan sees it: its entries, the hash of each file that can be read, its removed topics, all its names."""

    entries: Sequence[TopicEntry]
    hashes: Mapping[str, str]
    removed: AbstractSet[str]
    names: AbstractSet[str]


@dataclass(frozen=True, slots=True)
class _Shared:
    """The shared side while it is planned, keyed by folded file name."""

    hashes: dict[str, str]
    spelled: dict[str, str]
    listed: set[str]
    taken: set[str]
    removed: AbstractSet[str]
    suffix: str
    named: dict[str, str] = field(default_factory=dict)


def fold(file: str) -> str:
    """What tells whether two files of a directory would be one on some disk."""
    return file_key(file).casefold()


def plan_steps(local: Side, shared: Side, *, suffix: str = SUFFIX) -> list[MergeStep]:
    """Decide for each local topic in the order of the index; carrying over twice decides on nothing more."""
    listed = {fold(entry.file) for entry in shared.entries}
    target = _Shared(
        hashes={fold(file): value for file, value in shared.hashes.items()},
        spelled={fold(file): file for file in shared.hashes},
        listed=listed,
        taken={fold(file) for file in shared.names} | listed,
        removed={fold(file) for file in local.removed | shared.removed},
        suffix=suffix,
        named={key_of(entry.name): entry.file for entry in reversed(shared.entries)},
    )
    hashes = {file_key(file): value for file, value in local.hashes.items()}
    there = {file_key(file) for file in local.names}
    return [_plan_step(entry, hashes.get(file_key(entry.file)), target, there=there) for entry in local.entries]


def _plan_step(entry: TopicEntry, content: str | None, shared: _Shared, *, there: AbstractSet[str]) -> MergeStep:
    if fold(entry.file) in shared.removed:
        return MergeStep("removed", entry)
    if content is None:
        return MergeStep("unreadable" if file_key(entry.file) in there else "orphan", entry)
    target = next(
        file
        for file in _candidates(entry.file, shared.suffix)
        if shared.hashes.get(fold(file)) == content or fold(file) not in shared.taken
    )
    key = fold(target)
    if key in shared.removed:
        return MergeStep("removed", entry)
    action: MergeAction = "copy" if target == entry.file else "rename"
    target = shared.spelled.setdefault(key, target)
    if key in shared.hashes:
        action = "identical" if key in shared.listed else "add_line"
    namesake = shared.named.setdefault(key_of(entry.name), target)
    shared.hashes[key] = content
    shared.taken.add(key)
    shared.listed.add(key)
    return MergeStep(action, entry, target, None if fold(namesake) == key else namesake)


def _candidates(file: str, suffix: str) -> Iterator[str]:
    stem, ending = file[: -len(".md")], file[-len(".md") :]
    yield file
    yield f"{stem}{suffix}{ending}"
    number = 2
    while True:
        yield f"{stem}{suffix}-{number}{ending}"
        number += 1
