"""How chunks and documents lie in the tables of the index: columns, and the way from values to rows and back. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semantic.terms import codes, plain
from semantic.types import Chunk, Collection, DocumentStat, IndexedDocument

Vector = npt.NDArray[np.float32]
Embedded = tuple[Chunk, Vector]

SCHEMA_VERSION: Final = "1"  # part of the fingerprint: raise it when rows mean something else
# Without the mark two processes that insert the same new ids leave silent duplicates (measured).
_PRIMARY_KEY: Final = {b"lance-schema:unenforced-primary-key": b"true"}
_STAT_FIELDS: Final = [field.name for field in fields(DocumentStat)]
CANDIDATE_COLUMNS: Final = (
    "id",
    "path",
    "collection",
    "channel",
    "heading",
    "start_line",
    "end_line",
    "text",
    "mtime_ns",
    "vector",
)


def _key(name: str) -> pa.Field:
    return pa.field(name, pa.string(), nullable=False, metadata=_PRIMARY_KEY)


def _columns(kind: pa.DataType, *names: str) -> list[pa.Field]:
    return [pa.field(name, kind) for name in names]


STAMP_SCHEMA: Final = pa.schema(
    [
        _key("path"),
        *_columns(pa.string(), "collection", "channel", "sha256", "fingerprint"),
        *_columns(pa.int64(), "size_bytes", "mtime_ns", "ctime_ns", "chunks"),
        *_columns(pa.uint64(), "inode"),
    ]
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chunk that one side found. `score` is BM25 of the text side, or the cosine of the vector side; higher is better."""

    id: str
    path: str
    collection: Collection
    channel: str | None
    heading: tuple[str, ...]
    start_line: int
    end_line: int
    text: str
    mtime_ns: int
    vector: Vector
    score: float


def chunk_schema(dimension: int) -> pa.Schema:
    return pa.schema(
        [
            _key("id"),
            *_columns(pa.string(), "path", "collection", "channel", "text", "search_text", "codes"),
            *_columns(pa.list_(pa.string()), "heading"),
            *_columns(pa.int64(), "start_line", "end_line", "mtime_ns"),
            *_columns(pa.list_(pa.float32(), dimension), "vector"),
        ]
    )


def chunk_rows(changed: Sequence[tuple[IndexedDocument, Sequence[Embedded]]], dimension: int) -> pa.Table:
    """The rows of all chunks of some documents; one row an id."""
    found = {chunk.id: (_chunk_row(document, chunk), vector) for document, chunks in changed for chunk, vector in chunks}
    schema = chunk_schema(dimension)
    table = pa.Table.from_pylist([row for row, _ in found.values()], schema=pa.schema(list(schema)[:-1]))
    flat = np.array([vector for _, vector in found.values()], dtype=np.float32).reshape(-1)
    return table.append_column(schema.field("vector"), pa.FixedSizeListArray.from_arrays(pa.array(flat), dimension))


def _chunk_row(document: IndexedDocument, chunk: Chunk) -> dict[str, object]:
    search_text = plain(chunk.embed_text)
    return {
        "id": chunk.id,
        "path": document.stat.path,
        "collection": document.stat.collection,
        "channel": document.stat.channel,
        "heading": list(chunk.heading),
        "start_line": chunk.start_line,
        "end_line": chunk.end_line,
        "text": chunk.text,
        "search_text": search_text,
        "codes": " ".join(codes(search_text)),
        "mtime_ns": document.stat.mtime_ns,
    }


def stamp_rows(documents: Iterable[IndexedDocument]) -> pa.Table:
    return pa.Table.from_pylist([_stamp_row(document) for document in documents], schema=STAMP_SCHEMA)


def _stamp_row(document: IndexedDocument) -> dict[str, object]:
    stamp = {"sha256": document.sha256, "chunks": document.chunks, "fingerprint": document.fingerprint}
    return {**asdict(document.stat), **stamp}


def indexed_documents(stamps: pa.Table) -> dict[str, IndexedDocument]:
    """The documents of stamp rows, by path."""
    return {
        row["path"]: IndexedDocument(
            DocumentStat(**{name: row[name] for name in _STAT_FIELDS}), row["sha256"], row["chunks"], row["fingerprint"]
        )
        for row in stamps.to_pylist()
    }


def candidates(found: pa.Table, scores: npt.NDArray[np.float32]) -> list[Candidate]:
    """The candidates of chunk rows, in order, each with its score."""
    rows = found.select(CANDIDATE_COLUMNS[:-1]).to_pylist()
    return [
        Candidate(**{**row, "heading": tuple(row["heading"])}, vector=vector, score=float(score))
        for row, vector, score in zip(rows, vectors(found), scores, strict=True)
    ]


def vectors(found: pa.Table) -> Vector:
    """The vector column as one array of shape (rows, dimension)."""
    column = found["vector"].combine_chunks()
    flat: Vector = column.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(column), -1) if len(column) else flat.reshape(0, 0)
