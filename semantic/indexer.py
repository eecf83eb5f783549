"""Brings the index up to date with the files: one sweep at a time, under the lease. When to sweep is decided by its caller."""

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from semantic.chunker import CHUNKER_VERSION, chunk_markdown
from semantic.embedder import Embedder, Vectors
from semantic.errors import DocumentChangedError, DocumentUnreadableError, IndexBusyError, SemanticError
from semantic.index import Index
from semantic.lease import Lease, lease_of
from semantic.plan import Plan, plan_update
from semantic.scanner import ScanResult, load_document, scan
from semantic.types import (
    COLLECTIONS,
    Chunk,
    Collection,
    CollectionStatus,
    DocumentStat,
    Failure,
    IndexedDocument,
    IndexStatus,
)

SCHEMA_VERSION: Final = "1"
"""Raised when the tables of `semantic.index` change their meaning."""

_LEASE_TIMEOUT_S: Final = 2.0
_GROUP_CHUNKS: Final = 64
_GROUP_DOCUMENTS: Final = 64
_GROUP_TOUCHED: Final = 500
_MAINTENANCE_COMMITS: Final = 100
_MAINTENANCE_S: Final = 60.0
_VERIFY_ROUND_S: Final = 3600.0
_RACY_S: Final = 2.0  # a file written again within the clock's grain looks unchanged: it is hashed again in the next sweep

logger = logging.getLogger(__name__)

Progress = Callable[[IndexStatus], object]


def fingerprint_of(embedder_name: str) -> str:
    """Identity of embedder, chunker and schema, in short hex: another one means that everything is indexed anew."""
    return hashlib.sha256(f"{embedder_name}\0{CHUNKER_VERSION}\0{SCHEMA_VERSION}".encode()).hexdigest()[:16]


def open_indexer(root: Path, index_uri: str, embedder: Embedder, *, shared: bool = False) -> "Indexer":
    """The indexer of a workspace with the index at `index_uri` (a folder or an object store's address); `shared` as in `scan`."""
    fingerprint = fingerprint_of(embedder.name)
    index = Index(index_uri, dimension=embedder.dimension, fingerprint=fingerprint)
    return Indexer(root, index, embedder, lease_of(root, index_uri), fingerprint=fingerprint, shared=shared)


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A document that was read: its chunks, and by chunk id the vectors that the index already has."""

    document: IndexedDocument
    chunks: Sequence[Chunk]
    vectors: Mapping[str, Vectors]

    def missing(self) -> list[Chunk]:
        return [chunk for chunk in self.chunks if chunk.id not in self.vectors]


@dataclass(slots=True)
class _Group:
    """What goes into one commit: `changed` documents, and `touched` ones whose content is as it was."""

    changed: list[_Prepared] = field(default_factory=list)
    touched: list[IndexedDocument] = field(default_factory=list)

    def is_full(self) -> bool:
        chunks = sum(len(prepared.missing()) for prepared in self.changed)
        return chunks >= _GROUP_CHUNKS or len(self.changed) >= _GROUP_DOCUMENTS or len(self.touched) >= _GROUP_TOUCHED


@dataclass(slots=True)
class _Pass:
    """One sweep: what was seen, what is to be done, what happened. `indexed` follows the commits."""

    scan: ScanResult
    plan: Plan
    indexed: dict[str, IndexedDocument]
    failures: list[Failure]
    done: int = 0
    changing: int = 0

    @property
    def pending(self) -> int:
        return max(0, self.plan.pending - self.done) + self.changing


class Indexer:
    """Owns the way from the files of `root` to the index. For one thread; other processes may sweep the same index."""

    def __init__(
        self,
        root: Path,
        index: Index,
        embedder: Embedder,
        lease: Lease,
        *,
        fingerprint: str,
        shared: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._root = root
        self._index = index
        self._embedder = embedder
        self._lease = lease
        self._fingerprint = fingerprint
        self._shared = shared
        self._clock = clock
        self._status = IndexStatus(fingerprint=fingerprint)
        self._garbled: dict[str, Failure] = {}
        self._suspects: set[str] = set()
        self._unverified: list[str] = []
        self._round_s = 0.0
        self._commits = 0
        self._maintained_s = clock()
        self.folders: frozenset[str] = frozenset()

    @property
    def status(self) -> IndexStatus:
        """As of the last sweep, or of the last group of a running one."""
        return self._status

    @property
    def index(self) -> Index:
        """The index that is brought up to date."""
        return self._index

    def survey(self) -> IndexStatus:
        """What is indexed now and what a sweep would find to do; changes nothing and needs no lease."""
        return self._report(self._look(), "idle")

    def update_once(self, *, progress: Progress | None = None, pause: Callable[[], bool] = _never) -> IndexStatus:
        """One sweep. It ends early, with the rest `pending`, when `pause` says so between two groups of documents.

        Raises IndexBusyError when another indexer keeps the lease, IndexFaultError and EmbedderUnavailableError; what was
        committed until then stays, and the next sweep goes on from there.
        """
        return self._sweep(frozenset(self._suspects), progress, pause)

    def verify_once(
        self, *, limit: int | None = None, progress: Progress | None = None, pause: Callable[[], bool] = _never
    ) -> IndexStatus:
        """A sweep that also reads and hashes documents whose stat is unchanged: it finds what a stat can't show.

        All of them, or with `limit` the next few, until each had its turn; the next round starts an hour after the last one.
        """
        if limit is None or (not self._unverified and self._clock() - self._round_s >= _VERIFY_ROUND_S):
            self._unverified, self._round_s = sorted(self._index.documents()), self._clock()
        paths = self._unverified[:limit]
        status = self._sweep(self._suspects.union(paths), progress, pause)
        self._unverified = self._unverified[len(paths) :]
        return status

    def purge(self) -> None:
        """Take what was removed from the index off the disk too. Raises IndexBusyError, IndexFaultError."""
        with self._lease.held(timeout_s=_LEASE_TIMEOUT_S):
            self._lease.check()
            self._index.purge()

    def maintain_if_due(self) -> None:
        """Compact the index after enough commits or time; leaves it to the other indexer when the lease is taken."""
        due = self._commits and self._clock() - self._maintained_s >= _MAINTENANCE_S
        if due or self._commits >= _MAINTENANCE_COMMITS:
            try:
                with self._lease.held(timeout_s=0.1):
                    self._maintain()
            except IndexBusyError:
                return

    def _sweep(self, suspects: AbstractSet[str], progress: Progress | None, pause: Callable[[], bool]) -> IndexStatus:
        started_s, started = self._clock(), time.perf_counter()
        try:
            with self._lease.held(timeout_s=_LEASE_TIMEOUT_S):
                run = self._look()
                self._work(run, suspects, progress or (lambda _status: None), pause)
        except SemanticError as err:
            state: Literal["indexing", "failed"] = "indexing" if isinstance(err, IndexBusyError) else "failed"
            self._status = replace(self._status, state=state, detail=str(err))
            raise
        self._status = replace(
            self._report(run, "idle"),
            indexed_through_s=self._status.indexed_through_s if run.pending else started_s,
            last_sweep_ms=(time.perf_counter() - started) * 1000,
        )
        return self._status

    def _look(self) -> _Pass:
        found = scan(self._root, shared=self._shared)
        self.folders = found.folders
        indexed = self._index.documents()
        plan = plan_update(found.documents, indexed, fingerprint=self._fingerprint, kept=frozenset(found.unreadable))
        self._garbled = {path: failure for path, failure in self._garbled.items() if path in found.documents}
        self._suspects.intersection_update(found.documents)
        return _Pass(found, plan, indexed, list(found.problems))

    def _report(self, run: _Pass, state: Literal["idle", "indexing"]) -> IndexStatus:
        return replace(
            self._status,
            collections=_count(run.indexed),
            pending=run.pending,
            failed=tuple(sorted([*run.failures, *self._garbled.values()], key=lambda failure: failure.path)),
            state=state,
            detail="",
        )

    def _work(self, run: _Pass, suspects: AbstractSet[str], progress: Progress, pause: Callable[[], bool]) -> None:
        self._remove(run)
        planned = run.plan.to_read()
        others = (set(suspects) - {stat.path for stat in planned}).intersection(run.scan.documents)
        for group in self._groups(run, [*planned, *(run.scan.documents[path] for path in sorted(others))]):
            self._commit(run, group)
            self._status = self._report(run, "indexing")
            progress(self._status)
            if pause():
                return

    def _remove(self, run: _Pass) -> None:
        if run.plan.to_remove:
            self._lease.check()
            self._index.apply([], run.plan.to_remove)
            self._commits += 1
            for path in run.plan.to_remove:
                del run.indexed[path]
            run.done += len(run.plan.to_remove)

    def _groups(self, run: _Pass, stats: Iterable[DocumentStat]) -> Iterator[_Group]:
        """Read documents into groups that are large enough to embed well and small enough to be searchable soon."""
        group = _Group()
        for stat in stats:
            try:
                self._read(run, stat, group)
            except DocumentChangedError:
                run.changing += 1
            except DocumentUnreadableError as err:
                run.failures.append(Failure(stat.path, str(err)))
            run.done += 1
            if group.is_full():
                yield group
                group = _Group()
        if group.changed or group.touched:
            yield group

    def _read(self, run: _Pass, stat: DocumentStat, group: _Group) -> None:
        read = load_document(self._root, stat.path)
        self._suspect(stat.path, read.ctime_ns)
        text = self._decode(stat.path, read.data)
        seen = replace(stat, size_bytes=read.size_bytes, mtime_ns=read.mtime_ns, ctime_ns=read.ctime_ns, inode=read.inode)
        sha256 = hashlib.sha256(read.data).hexdigest()
        old = run.indexed.get(stat.path)
        if old is not None and old.fingerprint != self._fingerprint:
            old = None
        if old is None or old.sha256 != sha256:
            chunks = chunk_markdown(stat.path, text)
            vectors = {} if old is None else self._index.vectors(stat.path)
            document = IndexedDocument(seen, sha256, len(chunks), self._fingerprint)
            group.changed.append(_Prepared(document, chunks, vectors))
        elif old.stat != seen:
            group.touched.append(replace(old, stat=seen))

    def _suspect(self, path: str, ctime_ns: int) -> None:
        if ctime_ns / 1e9 > self._clock() - _RACY_S:
            self._suspects.add(path)
        else:
            self._suspects.discard(path)

    def _decode(self, path: str, data: bytes) -> str:
        self._garbled.pop(path, None)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as err:
            reason = f"is not UTF-8 (byte {err.start}): indexed with replacement characters, repair it by hand"
            self._garbled[path] = Failure(path, reason)
            return data.decode("utf-8", "replace")

    def _commit(self, run: _Pass, group: _Group) -> None:
        """Commit a group; when something unforeseen is wrong with it, its documents one by one, so that one fails alone."""
        try:
            self._write(run, group)
        except SemanticError:
            raise
        except Exception as err:
            if len(group.changed) + len(group.touched) > 1:
                for prepared in group.changed:
                    self._commit(run, _Group(changed=[prepared]))
                for document in group.touched:
                    self._commit(run, _Group(touched=[document]))
                return
            path = (group.changed[0].document if group.changed else group.touched[0]).stat.path
            logger.exception("indexing %r failed", path)
            run.failures.append(Failure(path, f"can't be indexed ({type(err).__name__}): see the log"))

    def _write(self, run: _Pass, group: _Group) -> None:
        if group.changed:
            embedded = self._embed(group.changed)
            self._lease.check()
            # Chunks and stamps are two commits. After a kill between them the file may go away or be as it was before, and its
            # chunks would stay for good: a stamp of no fingerprint says beforehand that they can't be trusted.
            self._index.restat([replace(document, fingerprint="", chunks=0) for document, _ in embedded])
            self._index.apply(embedded, [])
            self._commits += 1
            run.indexed.update((document.stat.path, document) for document, _ in embedded)
        if group.touched:
            self._lease.check()
            self._index.restat(group.touched)
            run.indexed.update((document.stat.path, document) for document in group.touched)
        if self._commits >= _MAINTENANCE_COMMITS:
            self._maintain()

    def _embed(self, group: Sequence[_Prepared]) -> list[tuple[IndexedDocument, list[tuple[Chunk, Vectors]]]]:
        missing = [chunk for prepared in group for chunk in prepared.missing()]
        vectors: dict[str, Vectors] = {}
        for start in range(0, len(missing), _GROUP_CHUNKS):
            chunks = missing[start : start + _GROUP_CHUNKS]
            rows = self._embedder.embed_documents([chunk.embed_text for chunk in chunks])
            vectors.update((chunk.id, row) for chunk, row in zip(chunks, rows, strict=True))
        for prepared in group:
            vectors.update(prepared.vectors)
        return [(prepared.document, [(chunk, vectors[chunk.id]) for chunk in prepared.chunks]) for prepared in group]

    def _maintain(self) -> None:
        self._lease.check()
        self._index.maintain()
        self._commits = 0
        self._maintained_s = self._clock()


def _count(indexed: Mapping[str, IndexedDocument]) -> dict[Collection, CollectionStatus]:
    documents = Counter(document.stat.collection for document in indexed.values())
    chunks: Counter[Collection] = Counter()
    for document in indexed.values():
        chunks[document.stat.collection] += document.chunks
    return {name: CollectionStatus(documents[name], chunks[name]) for name in COLLECTIONS}
