"""An indexer and a search with nothing in them, for tests of the conversation alone."""

from semantic.types import IndexStatus, SearchResult


class IdleIndexer:
    """Never has anything to do."""

    status = IndexStatus(state="idle", indexed_through_s=1.0)

    def __init__(self):
        self.wakes = 0

    def wake(self):
        self.wakes += 1

    async def flush(self, timeout_s):
        return timeout_s > 0


class NothingFound:
    """A search over no documents."""

    ready = True

    def search(self, query):
        assert query.text.strip()
        return SearchResult(hits=())

    def warm(self):
        pass
