"""Decides what an update of the index has to do, from what the scan saw and what is indexed. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from semantic.types import DocumentStat, IndexedDocument


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do.

    `to_index`: new, or indexed under another fingerprint. `to_check`: the stat changed; the content's hash decides whether it is
    indexed again or only stamped. `to_remove`: gone.
    """

    to_index: tuple[DocumentStat, ...] = ()
    to_check: tuple[DocumentStat, ...] = ()
    to_remove: tuple[str, ...] = ()

    @property
    def pending(self) -> int:
        return len(self.to_index) + len(self.to_check) + len(self.to_remove)

    def to_read(self) -> list[DocumentStat]:
        """New and changed documents, newest first: a fresh note is never behind a large backlog."""
        return sorted([*self.to_index, *self.to_check], key=lambda stat: (-stat.mtime_ns, stat.path))


def plan_update(
    seen: Mapping[str, DocumentStat],
    indexed: Mapping[str, IndexedDocument],
    *,
    fingerprint: str,
    kept: Collection[str],
) -> Plan:
    """Compare by path. `kept`: files and folders that could not be looked at; what is indexed of them stays ("" keeps all)."""
    to_index, to_check = [], []
    for path, stat in seen.items():
        known = indexed.get(path)
        if known is None or known.fingerprint != fingerprint:
            to_index.append(stat)
        elif known.stat != stat:
            to_check.append(stat)
    gone = (path for path in indexed if path not in seen and not _is_below(path, kept))
    return Plan(tuple(to_index), tuple(to_check), tuple(sorted(gone)))


def _is_below(path: str, kept: Collection[str]) -> bool:
    if not kept:
        return False
    parts = path.split("/")
    return any("/".join(parts[:count]) in kept for count in range(len(parts) + 1))
