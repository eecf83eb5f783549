"""Checks and repairs of topic directories: whether index, files and list of removed topics agree."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Final

from persistence.audit import Author
from persistence.checks.findings import Finding
from persistence.document_path import document_channel
from persistence.errors import PersistenceError
from persistence.topic_store import TopicStore
from persistence.topics.file import parse_topic_file
from persistence.topics.folder import REMOVED_FILE, TopicFolder
from persistence.topics.index import TopicEntry, TopicIndex, file_key
from persistence.topics.view import NO_INDEX, TopicStatus, load_index, load_status
from persistence.workspace import SHARED_TOPICS, ChannelId, Workspace

CODE_PREFIX: Final = "topic_"


def check_topics(workspace: Workspace, channel: ChannelId | None, now: datetime) -> Iterator[Finding]:
    """What does not agree in a scope's topics. A directory without an index and without topics has nothing to say."""
    yield from _check_folder(TopicFolder.of(workspace, channel), now)


def check_shared_topics(workspace: Workspace, now: datetime) -> Iterator[Finding]:
    """As `check_topics`, of the shared directory inside the workspace, if there is one."""
    if (workspace.root / SHARED_TOPICS).is_dir():
        for finding in _check_folder(_shared(workspace), now):
            yield replace(finding, path=f"{SHARED_TOPICS}/{finding.path}")


def _shared(workspace: Workspace) -> TopicFolder:
    return TopicFolder(Workspace(workspace.root / SHARED_TOPICS), "", shared=True)


def _check_folder(folder: TopicFolder, now: datetime) -> Iterator[Finding]:
    try:
        status, index = load_status(folder, now), load_index(folder) or NO_INDEX
        removed = folder.read_removed()
    except PersistenceError as err:
        yield Finding("topic_unreadable", folder.index_name, None, str(err), fixable=False)
        return
    yield from _check_index(folder, status, index)
    yield from _check_files(folder, status, index)
    listed = {file_key(entry.file) for entry in index.entries}
    for name in removed:
        if file_key(name) in listed:
            yield Finding(
                "topic_removed_and_listed", folder.name(REMOVED_FILE), None, f"{name!r} is in the index too", fixable=True
            )


def _check_index(folder: TopicFolder, status: TopicStatus, index: TopicIndex) -> Iterator[Finding]:
    path = folder.index_name
    about_lines = (
        ("orphan", status.orphans, "the file {0.file!r} is gone", True),
        ("behind", status.behind, "the line is older than {0.file!r} says", True),
        ("duplicate_line", _repeated(index), "{0.file!r} is on an earlier line too", True),
        ("clock_skew", status.clock_skew, "the time {0.stamp} lies in the future", False),
    )
    for code, entries, detail, fixable in about_lines:
        for entry in entries:
            yield Finding(f"{CODE_PREFIX}{code}", path, entry.line, detail.format(entry), fixable=fixable)
    for line, _ in index.quarantined:
        yield Finding("topic_unsafe_line", path, line, "the file name is unsafe; the line is never injected", fixable=False)
    if status.damaged_lines:
        yield Finding("topic_damaged_lines", path, None, f"{status.damaged_lines} lines are no text", fixable=True)
    for name in status.ambiguous:
        yield Finding("topic_ambiguous", path, None, f"several topics have the name {name!r}: rename one", fixable=False)


def _repeated(index: TopicIndex) -> list[TopicEntry]:
    first = dict[str, TopicEntry]()
    return [entry for entry in index.entries if first.setdefault(file_key(entry.file), entry) is not entry]


def _check_files(folder: TopicFolder, status: TopicStatus, index: TopicIndex) -> Iterator[Finding]:
    for file in status.unindexed:
        yield Finding("topic_unindexed", folder.name(file), None, "the topic has no line in the index", fixable=True)
    entries = {file_key(entry.file): entry for entry in index.entries}
    for file in status.unmarked:  # that other tools' files do not say what the index says is how they are
        topic, entry = parse_topic_file(folder.read_start(file) or ""), entries.get(file_key(file))
        if (topic.pinned and (entry is None or not entry.pinned)) or (topic.removed_at is not None and entry is not None):
            detail = "its front matter says the opposite of what the index says"
            yield Finding("topic_contradicts_index", folder.name(file), 1, detail, fixable=True)


def repair_scope(workspace: Workspace, path: str, now: datetime, *, author: Author) -> str:
    """Derive the index of the topics again that a finding's path is about."""
    shared = workspace.root / SHARED_TOPICS if path.startswith(f"{SHARED_TOPICS}/") else None
    report = TopicStore(workspace, document_channel(path), shared=shared, clock=lambda: now).repair(author=author)
    done = {"added": report.added, "refreshed": report.refreshed, "dropped": report.dropped, "marked": report.marked}
    said = ", ".join(f"{len(items)} {what}" for what, items in done.items() if items)
    return f"the index was derived again: {said or 'tidied'}"
