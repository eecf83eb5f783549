"""Which topic of an index a text means, and which ones it fits. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from persistence.errors import AmbiguousError, NotFoundError, TopicBlankError, UnsafeObjectError
from persistence.topics.index import TopicEntry, TopicIndex, file_key, merged
from persistence.topics.names import key_of

_SHOWN: Final = 10


def one_per_file(entries: Iterable[TopicEntry]) -> list[TopicEntry]:
    """The entries as a reader should see them: of several lines of one file the latest, where the first one stands."""
    best: dict[str, TopicEntry] = {}
    for entry in entries:
        key = file_key(entry.file)
        best[key] = merged(best[key], entry) if key in best else entry
    return list(best.values())


def exact_matches(entries: Iterable[TopicEntry], text: str) -> list[TopicEntry]:
    """The topics whose name or file name is the text, in any case."""
    wanted = key_of(text.strip())
    return [entry for entry in one_per_file(entries) if wanted in (key_of(entry.name), key_of(entry.file))]


def find_topic(index: TopicIndex, text: str) -> TopicEntry:
    """The one topic that a text means: its exact name or file name, else the only one that it is a part of.

    Raises TopicBlankError, NotFoundError, AmbiguousError (two topics of one name too), UnsafeObjectError for the name of a
    line that is quarantined.
    """
    wanted = key_of(text.strip())
    if not wanted:
        raise TopicBlankError("say which topic: its name, its file name or a part of one")
    found = exact_matches(index.entries, text) or [
        entry for entry in one_per_file(index.entries) if wanted in key_of(entry.name) or wanted in key_of(entry.file)
    ]
    if len(found) > 1:
        raise ambiguous(text, found)
    if not found:
        raise _unknown(index, wanted, text)
    return found[0]


def ambiguous(text: str, found: Sequence[TopicEntry]) -> AmbiguousError:
    """The error that offers each candidate's file name."""
    names = ", ".join(f"{entry.name} ({entry.file})" for entry in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return AmbiguousError(
        f"{text[:120]!r} fits several topics: {names}{more}; nothing was changed, give the file name of the one you mean",
        candidates=tuple((entry.name, entry.file) for entry in found),
    )


def _unknown(index: TopicIndex, wanted: str, text: str) -> NotFoundError | UnsafeObjectError:
    if any(f"[{wanted}]" in key_of(line) for _, line in index.quarantined):
        return UnsafeObjectError(f"the index line of {text[:120]!r} names an unsafe file: nothing was changed, repair it by hand")
    return NotFoundError(f"no topic fits {text[:120]!r}: list the topics to see what there is")


def fits(entry: TopicEntry, query: str) -> bool:
    """Whether a text is part of an entry's name, file name or summary, in any case."""
    wanted = key_of(query.strip())
    return any(wanted in key_of(text) for text in (entry.name, entry.file, entry.summary))
