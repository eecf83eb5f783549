"""The shared topic directory: where it is, and carrying a workspace's topics over into it, on request and never by a read.

What is in the shared directory stays but that lines are added to its index; the local directory stays as it is.
"""

import json
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from persistence.audit import Author
from persistence.errors import BodyInvalidError, PersistenceError, StoreFaultError
from persistence.files import etag_of, opened_folder, read_bytes, replace_bytes
from persistence.topics.change import TopicChange, changing
from persistence.topics.folder import INDEX_FILE, SENTINEL_FILE, TopicFolder
from persistence.topics.index import Row, file_key, put_entry
from persistence.topics.lock import LockWaits
from persistence.topics.lookup import one_per_file
from persistence.topics.merge import SUFFIX, MergeStep, Side, fold, plan_steps
from persistence.topics.view import NO_INDEX, load_index
from persistence.versions import replace_with_version
from persistence.workspace import SHARED_TOPICS, Workspace

_SENTINEL_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class MergePlan:
    """What a merge does or did. `already`: it was done before; `no_index`: nothing local to carry over; then no steps.

    `merged`: it is done, and will not be done again. False after a merge when a local file could not be read.
    """

    steps: tuple[MergeStep, ...] = ()
    already: bool = False
    no_index: bool = False
    merged: bool = False


def shared_directory(workspace: Workspace, elsewhere: Path | None = None) -> Path:
    """Where the shared topics are: in the workspace, or in the directory that the operator names.

    Raises UnsafeObjectError when the one in the workspace is, or lies behind, a link.
    """
    if elsewhere is not None:
        return elsewhere
    with suppress(FileNotFoundError), opened_folder(workspace.root, SHARED_TOPICS):
        pass
    return workspace.root / SHARED_TOPICS


def plan_merge(workspace: Workspace, shared: Path, *, suffix: str = SUFFIX) -> MergePlan:
    """What `merge` would do now: takes no lock, creates nothing."""
    local, target = _folders(workspace, shared)
    return _reason_not_to(local) or MergePlan(tuple(_plan(local, target, suffix)))


def merge(
    workspace: Workspace,
    shared: Path,
    *,
    author: Author,
    suffix: str = SUFFIX,
    waits: LockWaits = LockWaits(),  # noqa: B008 - immutable
) -> MergePlan:
    """Carry the global topics over into a shared directory, once; a merge that broke off is finished by the next one.

    Raises StoreBusyError soon when either directory is busy, NotUtf8Error for an index, UnsafeObjectError, and the disk's
    errors. Nothing that was there is lost by any of them.
    """
    local, target = _folders(workspace, shared)
    brief = replace(waits, shared_s=waits.own_s, shared_pause_s=0)  # the local lock is held meanwhile
    with changing(local, brief, author=author) as here:
        if (reason := _reason_not_to(local)) is not None:
            return reason
        with changing(target, brief, author=author) as there:
            steps = _plan(local, target, suffix)
            _carry_over(local, steps, there)
        merged = all(step.action != "unreadable" for step in steps)
        if merged:
            _write_sentinel(here, steps)
    return MergePlan(tuple(steps), merged=merged)


def _folders(workspace: Workspace, shared: Path) -> tuple[TopicFolder, TopicFolder]:
    local = TopicFolder.of(workspace, None)
    if shared.resolve() == (workspace.root / local.folder).resolve():
        raise BodyInvalidError("the shared directory is the workspace's own topic directory: there is nothing to merge")
    return local, TopicFolder(Workspace(shared), "", shared=True)


def _reason_not_to(local: TopicFolder) -> MergePlan | None:
    if read_bytes(local.home.root, local.name(SENTINEL_FILE)) is not None:  # an empty one, as other tools write it, counts
        return MergePlan(already=True)
    return MergePlan(no_index=True) if load_index(local) is None else None


def _plan(local: TopicFolder, target: TopicFolder, suffix: str) -> list[MergeStep]:
    here = _side(local, lambda _: True)
    ours = {fold(entry.file)[: -len(".md")] for entry in here.entries}
    wanted = suffix.casefold()

    def may_be_ours(file: str) -> bool:
        """Only a file that a topic could become is read: the shared directory may hold many more."""
        stem = fold(file)[: -len(".md")]
        return stem in ours or stem.rpartition(wanted)[0] in ours

    return plan_steps(here, _side(target, may_be_ours), suffix=suffix)


def _side(folder: TopicFolder, is_wanted: Callable[[str], bool]) -> Side:
    listing = folder.list_files()
    hashes: dict[str, str] = {}
    for file in listing.files.values():
        if is_wanted(file):
            with suppress(PersistenceError):  # without a hash it is unreadable here, and another text there
                data = read_bytes(folder.home.root, folder.name(file))
                hashes |= {} if data is None else {file: etag_of(data)}
    entries = one_per_file((load_index(folder) or NO_INDEX).entries)
    names = frozenset(listing.files) if not folder.shared else listing.taken
    return Side(entries, hashes, frozenset(folder.read_removed()), names)


def _carry_over(local: TopicFolder, steps: list[MergeStep], there: TopicChange) -> None:
    """Files first, then their lines: what a kill leaves without a line gets it from the next merge."""
    rows: list[Row] = list(there.index.lines)  # verbatim: lines of others are not rewritten
    on_disk = local.list_files().files
    for step in steps:
        if step.action in ("copy", "rename"):
            _copy(local, on_disk.get(file_key(step.entry.file), step.entry.file), step, there)
    added = [step for step in steps if step.action in ("copy", "rename", "add_line")]
    for step in added:
        rows = put_entry(rows, replace(step.entry, file=step.target))
    if added or read_bytes(there.folder.home.root, INDEX_FILE) is None:
        there.write_index(rows)


def _copy(local: TopicFolder, file: str, step: MergeStep, there: TopicChange) -> None:
    """Copy the bytes as they are and make sure that they arrived."""
    home, name = there.folder.home, there.folder.name(step.target)
    data = read_bytes(local.home.root, local.name(file))
    if data is None:
        raise StoreFaultError(f"{local.name(file)!r} went away while it was carried over: try again")
    with there.topic_locked(step.target) as held:
        replace_with_version(home, name, data, held, author=there.author)
    if read_bytes(home.root, name) != data:
        raise StoreFaultError(f"the copy {name!r} is not what was written: try again")


def _write_sentinel(here: TopicChange, steps: list[MergeStep]) -> None:
    index = read_bytes(here.folder.home.root, here.folder.index_name) or b""
    said = {
        "version": _SENTINEL_VERSION,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "counts": dict(sorted(Counter(step.action for step in steps).items())),
        "source_index": etag_of(index),
    }
    data = json.dumps(said, indent=2).encode() + b"\n"
    replace_bytes(here.folder.home.root, here.folder.name(SENTINEL_FILE), data, here.held)
