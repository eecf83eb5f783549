"""The index: chunks with vectors and full text, and a stamp for each document, in LanceDB. Only this module speaks LanceDB.

It is derived from the files and may be deleted at any time. Which hits a query gets in which order is `semantic.search`.
"""

import hashlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar, cast

import pyarrow as pa

from semantic.errors import IndexFaultError
from semantic.rows import (
    CANDIDATE_COLUMNS,
    SCHEMA_VERSION,
    STAMP_SCHEMA,
    Candidate,
    Embedded,
    Vector,
    candidates,
    chunk_rows,
    chunk_schema,
    indexed_documents,
    stamp_rows,
    vectors,
)
from semantic.terms import codes, plain
from semantic.types import COLLECTIONS, Collection, CollectionStatus, IndexedDocument, Scope

# lancedb takes a second to import, which would be half of a server's start: it is imported where it is first needed.
if TYPE_CHECKING:
    from lancedb.db import DBConnection
    from lancedb.query import FullTextQuery, LanceVectorQueryBuilder
    from lancedb.table import Table

__all__ = ["SCHEMA_VERSION", "Index"]

T = TypeVar("T")

_PASSING_FAULTS = ("Not found", "ommit conflict", "Too many concurrent writers")
# As good as no age; for none at all lancedb warns of readers that stand on older versions, and those find the new one here.
_PURGED_AGE = timedelta(milliseconds=5)
_READ_PAUSES_S = (0.0,)
_WRITE_PAUSES_S = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)


class Index:
    """Owns the connection and the two tables of one fingerprint. Reads are thread-safe and see other processes' commits."""

    def __init__(
        self,
        uri: str,
        *,
        dimension: int,
        fingerprint: str,
        keep_versions: timedelta = timedelta(hours=1),
        keep_tables: timedelta = timedelta(days=7),
        vector_index_rows: int = 50_000,
    ) -> None:
        """Take the folder or URI of the index. Nothing is read or made yet.

        For `maintain`: `keep_versions` is how long superseded data stays for readers that are still at it (at least ten minutes
        where other processes read), `keep_tables` how long another fingerprint's tables stay after their last commit, and
        `vector_index_rows` from how many chunks on an approximate vector index is worth it.
        """
        self._uri = uri
        self._dimension = dimension
        self._fingerprint = fingerprint
        self._keep_versions = keep_versions
        self._keep_tables = keep_tables
        self._vector_index_rows = vector_index_rows
        suffix = hashlib.sha256(fingerprint.encode()).hexdigest()[:16]
        self._chunks_name, self._stamps_name = f"chunks-{suffix}", f"documents-{suffix}"
        self._lock = threading.Lock()
        self._connection: DBConnection | None = None
        self._tables: dict[str, Table] = {}

    # Reading

    def documents(self) -> dict[str, IndexedDocument]:
        """What the index holds, by path. Raises IndexFaultError, as all methods do when the index can't be read or written."""
        if self._read(self._chunks_name, lambda table: table.name) is None:
            return {}  # stamps without their chunks prove nothing
        return self._read(self._stamps_name, lambda table: indexed_documents(table.to_arrow())) or {}

    def counts(self) -> dict[Collection, CollectionStatus]:
        documents: Counter[Collection] = Counter()
        chunks: Counter[Collection] = Counter()
        for document in self.documents().values():
            documents[document.stat.collection] += 1
            chunks[document.stat.collection] += document.chunks
        return {name: CollectionStatus(documents[name], chunks[name]) for name in COLLECTIONS}

    def vectors(self, path: str) -> dict[str, Vector]:
        """The stored vectors of a document by chunk id, so that unchanged chunks need no new embedding."""
        condition = f"path = {_literal(path)}"
        found = self._read(self._chunks_name, lambda table: table.search().where(condition).select(["id", "vector"]).to_arrow())
        return {} if found is None else dict(zip(found["id"].to_pylist(), vectors(found), strict=True))

    def search_text(self, text: str, *, scope: Scope, collections: Sequence[Collection], limit: int) -> list[Candidate]:
        """Chunks with words or codes of `text`, best first; `text` is data, no syntax. The scope is filtered before ranking."""
        query = _text_query(text)
        condition = _condition(scope, collections)

        def run(table: "Table") -> pa.Table:
            search = table.search(query, query_type="fts").select([*CANDIDATE_COLUMNS, "_score"])
            return (search.where(condition, prefilter=True) if condition else search).limit(limit).to_arrow()

        found = self._read(self._chunks_name, run)
        return [] if found is None else candidates(found, found["_score"].to_numpy())

    def search_vector(self, vector: Vector, *, scope: Scope, collections: Sequence[Collection], limit: int) -> list[Candidate]:
        """Chunks nearest to the unit vector, best first. The scope is filtered before ranking."""
        condition = _condition(scope, collections)

        def run(table: "Table") -> pa.Table:
            # Typed as its root class; with this query_type it is the builder of vector searches.
            search = cast("LanceVectorQueryBuilder", table.search(vector, vector_column_name="vector", query_type="vector"))
            search = search.distance_type("cosine").nprobes(20).refine_factor(5)
            search = search.select([*CANDIDATE_COLUMNS, "_distance"])
            return (search.where(condition, prefilter=True) if condition else search).limit(limit).to_arrow()

        found = self._read(self._chunks_name, run)
        return [] if found is None else candidates(found, 1 - found["_distance"].to_numpy())

    def refresh(self) -> None:
        """See the latest commits of other processes (reads do so by themselves), also after the index was deleted."""
        for name in (self._chunks_name, self._stamps_name):
            self._read(name, lambda table: table.checkout_latest())  # type: ignore[no-untyped-call]  # lancedb leaves it so

    # Writing

    def apply(self, changed: Sequence[tuple[IndexedDocument, Sequence[Embedded]]], removed: Sequence[str]) -> None:
        """Replace the chunks of changed documents and drop those of removed ones: one commit, then the stamps in another.

        A kill between the two leaves documents that look unindexed, so that they are simply applied again.
        """
        paths = [document.stat.path for document, _ in changed]
        self._merge(self._chunks_name, chunk_rows(changed, self._dimension), drop=[*paths, *removed])
        self._merge(self._stamps_name, stamp_rows(document for document, _ in changed), drop=removed)

    def restat(self, documents: Sequence[IndexedDocument]) -> None:
        """Renew the stamps of documents whose content is as it was."""
        self._merge(self._stamps_name, stamp_rows(documents), drop=[])

    def maintain(self) -> None:
        """Compact, index the newest rows, drop what is superseded, and other fingerprints' tables that nobody writes any more.

        For one owner at a time (the holder of the indexer's lease).
        """
        for name in (self._chunks_name, self._stamps_name):
            self._write(name, self._maintain_table)
        with _translated("clean up old tables of"):
            self._drop_old_tables()

    def purge(self) -> None:
        """Write the tables anew and drop every older version of them: what was removed from the index is then gone from the disk.

        For the lease's holder alone. A reader that stands on a dropped version finds the new one by itself.
        """
        connection = self._connected()
        with _translated("purge"):
            for name in connection.list_tables().tables:
                if name in (self._chunks_name, self._stamps_name):
                    self._rewrite(name)
                elif name.startswith(("chunks-", "documents-")):
                    connection.drop_table(name)

    def _rewrite(self, name: str) -> None:
        rows = self._connected().open_table(name).to_arrow()
        with self._lock:
            table = self._connected().create_table(name, rows, schema=self._schema(name), mode="overwrite")
            self._tables[name] = table
        _create_missing_indexes(table, self._vector_index_rows)
        time.sleep(2 * _PURGED_AGE.total_seconds())
        table.optimize(cleanup_older_than=_PURGED_AGE, delete_unverified=True)

    def _maintain_table(self, table: "Table") -> None:
        _create_missing_indexes(table, self._vector_index_rows)
        table.optimize(cleanup_older_than=self._keep_versions)

    def _drop_old_tables(self) -> None:
        connection = self._connected()
        horizon = datetime.now() - self._keep_tables  # noqa: DTZ005  versions carry naive local time
        for name in connection.list_tables().tables:
            is_ours = name.startswith(("chunks-", "documents-"))
            if is_ours and name not in (self._chunks_name, self._stamps_name) and _last_commit(connection, name) < horizon:
                connection.drop_table(name)

    def _merge(self, name: str, rows: pa.Table, *, drop: Sequence[str]) -> None:
        """One commit: insert or update `rows`, delete every other row of the paths in `drop`."""
        if not rows.num_rows and not drop:
            return

        def run(table: "Table") -> None:
            key = "path" if name == self._stamps_name else "id"
            merge = table.merge_insert(key).when_matched_update_all().when_not_matched_insert_all()
            if drop:
                merge = merge.when_not_matched_by_source_delete(f"path IN ({', '.join(map(_literal, drop))})")
            merge.execute(rows)

        self._write(name, run)

    # The tables

    def _read(self, name: str, run: "Callable[[Table], T]") -> T | None:
        """The answer of `run` on the table, None when there is no table."""
        with _translated("read"):
            return self._retried(lambda: None if (table := self._open(name)) is None else run(table), _READ_PAUSES_S)

    def _write(self, name: str, run: "Callable[[Table], None]") -> None:
        """Do `run` on the table, which is made when it is missing."""
        with _translated("write"):
            self._retried(lambda: run(self._open(name) or self._create(name)), _WRITE_PAUSES_S)

    def _retried(self, attempt: Callable[[], T], pauses_s: Sequence[float]) -> T:
        """Do what can be done again: a handle may point at what another process cleaned up, a commit may meet another one."""
        for pause_s in pauses_s:
            try:
                return attempt()
            except RuntimeError as err:
                if not any(sign in str(err) for sign in _PASSING_FAULTS):
                    raise
                with self._lock:
                    self._tables.clear()  # opened anew at the latest version
                time.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311  so that two writers don't meet again
        return attempt()

    def _open(self, name: str) -> "Table | None":
        """The table, None when it is missing."""
        with self._lock:
            if name not in self._tables:
                try:
                    self._tables[name] = self._connected().open_table(name)
                except ValueError:  # so lancedb says that there is no such table
                    return None
            return self._tables[name]

    def _create(self, name: str) -> "Table":
        with self._lock:
            # Empty indexes come with the table: rows that no index covers yet are then cut into words by the same rules.
            table = self._connected().create_table(name, schema=self._schema(name), exist_ok=True)
            _create_missing_indexes(table, self._vector_index_rows)
            self._tables[name] = table
            return table

    def _schema(self, name: str) -> pa.Schema:
        return STAMP_SCHEMA if name == self._stamps_name else chunk_schema(self._dimension)

    def _connected(self) -> "DBConnection":
        if self._connection is None:
            import lancedb  # noqa: PLC0415  see above

            # An interval of zero: each read looks for commits of other processes.
            self._connection = lancedb.connect(self._uri, read_consistency_interval=timedelta(0))
        return self._connection


def _last_commit(connection: "DBConnection", name: str) -> datetime:
    try:
        timestamp: datetime = connection.open_table(name).list_versions()[-1]["timestamp"]
    except ValueError:
        return datetime.max  # noqa: DTZ901  another process is about to make it
    return timestamp


def _create_missing_indexes(table: "Table", vector_index_rows: int) -> None:
    from lancedb.index import FTS, Bitmap, BTree, IvfSq  # noqa: PLC0415  see above

    wanted: dict[str, FTS | Bitmap | BTree | IvfSq] = {"path": BTree()}
    if "vector" in table.schema.names:
        wanted |= {"id": BTree(), "channel": Bitmap(), "collection": Bitmap()}
        # icu finds words in Chinese, Japanese and Thai. Stop words stay: English ones are words or names elsewhere ("C").
        wanted["search_text"] = FTS(base_tokenizer="icu", language="English", stem=True, remove_stop_words=False)
        wanted["codes"] = FTS(base_tokenizer="whitespace", stem=False, remove_stop_words=False, max_token_length=None)
        if table.count_rows() >= vector_index_rows:
            wanted["vector"] = IvfSq(distance_type="cosine")
    present = {column for index in table.list_indices() for column in index.columns}
    for column, config in wanted.items():
        if column not in present:
            table.create_index(column, config=config)


def _match(text: str, column: str) -> "FullTextQuery":
    from lancedb.query import MatchQuery  # noqa: PLC0415  see above

    return MatchQuery(text, column)  # type: ignore[call-arg]  # mypy doesn't see the defaults behind pydantic.Field


def _text_query(text: str) -> "FullTextQuery":
    from lancedb.query import BooleanQuery, Occur  # noqa: PLC0415  see above

    words = _match(plain(text), "search_text")
    exact = codes(plain(text))
    if not exact:
        return words
    return BooleanQuery([(Occur.SHOULD, words), (Occur.SHOULD, _match(" ".join(exact), "codes"))])


def _condition(scope: Scope, collections: Sequence[Collection]) -> str:
    """The filter of a search, "" for none."""
    parts = []
    if not scope.everything:
        own = "" if scope.channel is None else f" OR channel = {_literal(scope.channel)}"
        parts.append(f"(channel IS NULL{own})")
    if collections:
        parts.append(f"collection IN ({', '.join(map(_literal, collections))})")
    return " AND ".join(parts)


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, OSError, pa.ArrowException) as err:
        raise IndexFaultError(f"can't {doing} the index ({err}): it can be deleted and is then rebuilt from the files") from err
