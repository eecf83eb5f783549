"""What a conversation works on: the open workspace, its logs and contexts, the settings, the search and the indexer.

Opened once by the composition root; nothing here decides anything.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from bot.held import HeldTopics
from persistence.context import Context
from persistence.log import ChannelLog
from persistence.rules import RulesStore
from persistence.secrets import redact as redact_text
from persistence.settings import SettingsStore
from persistence.shared_dir import shared_directory
from persistence.team import TeamMemory
from persistence.topic_store import TopicStore
from persistence.workspace import SHARED_TOPICS, ChannelId, Lane, Workspace
from semantic.process import IndexerProcess
from semantic.search import Searcher

FIRST_SWEEP_S: Final = 10.0
"""How long after the start a search waits for the first sweep."""

_OPEN_LOGS: Final = 1024
_OPEN_CONTEXTS: Final = 256


class OwnWrites:
    """Counts writes to memory, so that searches and prompts of this process see them. Used from one event loop.

    What was written before this process started counts as one write that a search may not see yet, but only for a while: a
    first sweep over thousands of new files must not hold up every turn.
    """

    def __init__(self, indexer: IndexerProcess) -> None:
        """Bring writes up to date with `indexer`."""
        self._indexer = indexer
        self._written: Counter[ChannelId | None] = Counter()
        self._marked = 1
        self._settled = 0
        self._started = time.monotonic()

    def mark(self, channel: ChannelId | None = None) -> None:
        """A memory file of a channel, or a global one, was written."""
        self._written[channel] += 1
        self._marked += 1
        self._indexer.wake()

    def seen_from(self, channel: ChannelId) -> int:
        """How many writes there were to what a channel may see."""
        return self._written[channel] + self._written[None]

    async def settle(self, timeout_s: float) -> bool:
        """Wait until every marked write is searchable, at most `timeout_s`; costs nothing when there is none."""
        marked = self._marked
        if marked == 1 and self._settled == 0:
            timeout_s = max(0.0, self._started + FIRST_SWEEP_S - time.monotonic())
        if self._settled < marked and timeout_s > 0 and await self._indexer.flush(timeout_s):
            self._settled = max(self._settled, marked)
        return self._settled >= marked


@dataclass(frozen=True, slots=True)
class Stores:
    """The open stores. `log` and `context` open what they are asked for and keep the most recently used ones."""

    workspace: Workspace
    writes: OwnWrites
    settings: SettingsStore
    searcher: Searcher
    indexer: IndexerProcess
    rules: RulesStore
    held: HeldTopics
    log: Callable[[ChannelId], ChannelLog]
    context: Callable[[Lane], Context]
    team: Callable[[ChannelId | None], TeamMemory]

    def topics(self, channel: ChannelId | None) -> TopicStore:
        """The topics of a scope; the global ones lie in the shared directory when the rules say so."""
        rules = self.rules.load().rules
        shared = shared_directory(self.workspace) if channel is None and rules.shared_dir else None
        return TopicStore(self.workspace, channel, shared=shared, stale_after_days=rules.stale_after_days)

    def topic_path(self, store: TopicStore, file: str) -> str:
        """A topic's file as sources name it: relative to the workspace."""
        return f"{SHARED_TOPICS}/{file}" if store.folder.shared else store.folder.name(file)


def open_stores(workspace: Workspace, settings: SettingsStore, *, searcher: Searcher, indexer: IndexerProcess) -> Stores:
    """Bring the two packages together over one workspace; opens no file yet."""

    def redact(text: str) -> str:
        """Takes secrets out, unless the settings in force say not to."""
        return redact_text(text) if settings.load().values.redact_secrets else text

    @lru_cache(maxsize=_OPEN_LOGS)
    def log(channel: ChannelId) -> ChannelLog:
        return ChannelLog(workspace, channel, redact=redact)

    @lru_cache(maxsize=_OPEN_CONTEXTS)
    def context(lane: Lane) -> Context:
        return Context(workspace, lane, redact=redact)

    @lru_cache(maxsize=_OPEN_LOGS)
    def team(channel: ChannelId | None) -> TeamMemory:
        return TeamMemory(workspace, channel)

    return Stores(
        workspace=workspace,
        writes=OwnWrites(indexer),
        settings=settings,
        rules=RulesStore(workspace),
        held=HeldTopics(),
        searcher=searcher,
        indexer=indexer,
        log=log,
        context=context,
        team=team,
    )
