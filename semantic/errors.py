"""What can go wrong in the catalogue, by what the caller can do about it. Each leaf carries the stable code of the API."""

from typing import ClassVar


class SemanticError(Exception):
    """Root of the catalogue's errors; `code` is the stable code of the HTTP contract."""

    code: ClassVar[str] = "degraded"


class QueryEmptyError(SemanticError):
    """The query holds nothing to search for."""

    code = "query_empty"


class EmbedderUnavailableError(SemanticError):
    """The embedding model can't be loaded; full-text search still answers."""

    code = "degraded"


class IndexBusyError(SemanticError):
    """Another indexer holds the lease of this index."""

    code = "store_busy"


class IndexFaultError(SemanticError):
    """The index can't be read or written; it can be deleted and rebuilt from the files."""

    code = "degraded"


class DocumentUnreadableError(SemanticError):
    """A document can't be read (no regular file, too large, no permission); the others are not affected."""

    code = "degraded"


class DocumentChangedError(DocumentUnreadableError):
    """The document was written to while it was read, or went away; the next sweep looks again."""
