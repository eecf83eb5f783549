"""The vocabulary of the catalogue: values only, no disk, no clock, no index."""

from dataclasses import dataclass, field
from typing import Final, Literal

Collection = Literal["memory", "channels", "skills", "history"]
COLLECTIONS: Final[tuple[Collection, ...]] = ("memory", "channels", "skills", "history")
Mode = Literal["hybrid", "vector", "text"]


@dataclass(frozen=True, slots=True)
class DocumentStat:
    """A file as the scan saw it: `path` is workspace-relative, `/`-separated; `channel` is None for global files."""

    path: str
    collection: Collection
    channel: str | None
    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class IndexedDocument:
    """What the index knows of a file: its stat at indexing time, its content hash, the fingerprint it was indexed under."""

    stat: DocumentStat
    sha256: str
    chunks: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """A cut piece of a document. `id` depends on path and content, not on line numbers; lines are 1-based and inclusive.

    `text` is the bare text of the lines; `embed_text` is what is embedded and searched (breadcrumb and text).
    """

    id: str
    heading: tuple[str, ...]
    start_line: int
    end_line: int
    text: str
    embed_text: str


@dataclass(frozen=True, slots=True)
class Scope:
    """What a search may see: global documents, and those of `channel`; with `everything` (admin) those of all channels."""

    channel: str | None = None
    everything: bool = False


@dataclass(frozen=True, slots=True)
class Query:
    """A search. `text` is data, never query syntax. `collections` empty means all."""

    text: str
    scope: Scope
    collections: tuple[Collection, ...] = ()
    mode: Mode = "hybrid"
    limit: int = 10
    min_score: float = 0.0


@dataclass(frozen=True, slots=True)
class Hit:
    """A search result. `score` is in 0..1. `outdated`: the file changed and the lines may not be true of it any more."""

    id: str
    score: float
    collection: Collection
    channel: str | None
    path: str
    heading: tuple[str, ...]
    start_line: int
    end_line: int
    snippet: str
    text: str
    modified_s: float
    outdated: bool = False


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Hits, best first, and what was off while searching (`vector` while the model loads, `text`, `index`)."""

    hits: tuple[Hit, ...]
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """A document that could not be indexed, with the reason; it is tried again on each sweep."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class CollectionStatus:
    """Counts of one collection."""

    documents: int = 0
    chunks: int = 0


@dataclass(frozen=True, slots=True)
class IndexStatus:
    """The state of the index. Times are seconds since the epoch.

    `indexed_through_s`: every file change before this time is searchable (start of the last complete sweep). `pending`:
    documents known to be changed and not indexed yet.
    """

    fingerprint: str = ""
    collections: dict[Collection, CollectionStatus] = field(default_factory=dict)
    pending: int = 0
    failed: tuple[Failure, ...] = ()
    indexed_through_s: float | None = None
    last_sweep_ms: float | None = None
    state: Literal["starting", "idle", "indexing", "failed"] = "starting"
    detail: str = ""
