"""Search latency by the size of the index, beside the floor: the bare embedding and the two bare LanceDB queries."""

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.made_up import sentence
from bench.measure import interleave, row, title
from semantic.embedder import Embedder
from semantic.embedders import load_embedder
from semantic.index import Index
from semantic.search import Searcher
from semantic.types import Chunk, DocumentStat, IndexedDocument, Query, Scope

SIZES = (1_000, 20_000)
PER_DOCUMENT = 10
_REAL_VECTORS = 500


def _fill(root: Path, index: Index, embedder: Embedder, chunks: int) -> None:
    """Rows with real texts; vectors are real embeddings of sentences, each moved a little, so that no two are equal."""
    rng, noise = random.Random(chunks), np.random.default_rng(chunks)
    base = embedder.embed_documents([sentence(rng) for _ in range(_REAL_VECTORS)])
    documents = []
    for number in range(chunks // PER_DOCUMENT):
        path = f"memory/note-{number:05}.md"
        lines = [sentence(rng) for _ in range(PER_DOCUMENT)]
        (root / "memory").mkdir(exist_ok=True)
        (root / path).write_text("\n".join(lines) + "\n", "utf-8")
        vectors = base[noise.integers(0, len(base), PER_DOCUMENT)] + noise.normal(0, 0.02, (PER_DOCUMENT, base.shape[1]))
        vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        stat = DocumentStat(path, "memory", None, 1, 1, 1, number)
        rows = [(Chunk(f"{path}:{n}", (), n + 1, n + 1, line, line), vectors[n]) for n, line in enumerate(lines)]
        documents.append((IndexedDocument(stat, str(number), len(rows), "bench"), rows))
    for start in range(0, len(documents), 200):
        index.apply(documents[start : start + 200], [])
    index.maintain()


def _queries(rng: random.Random) -> Sequence[str]:
    return [sentence(rng) for _ in range(200)]


def run() -> None:
    """Print latencies at both sizes."""
    embedder = load_embedder("bundled", threads=1)
    for chunks in SIZES:
        title(f"Search at {chunks:,} chunks (one thread, embedding included)")
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            index = Index(str(root / "index"), dimension=embedder.dimension, fingerprint="bench")
            _fill(root, index, embedder, chunks)
            _measure(root, index, embedder, chunks)


def _measure(root: Path, index: Index, embedder: Embedder, chunks: int) -> None:
    searcher = Searcher(root, index, embedder)
    searcher.warm()
    texts = iter(_queries(random.Random(3)) * 10)
    scope = Scope()

    def floor() -> None:
        text = next(texts)
        vector = embedder.embed_query(text)
        index.search_text(text, scope=scope, collections=(), limit=50)
        index.search_vector(vector, scope=scope, collections=(), limit=50)

    def ours() -> None:
        searcher.search(Query(text=next(texts), scope=scope, limit=10))

    def by_word() -> None:
        searcher.search(Query(text=next(texts), scope=scope, limit=10, mode="text"))

    bare, hybrid, text = interleave((floor, ours, by_word), 100)
    row("floor: bare embedding + bare text + bare vector query", bare)
    row("hybrid search, 10 hits with lines checked in their files", hybrid)
    row("text search alone", text)
    row(f"hybrid / floor at {chunks:,} chunks", f"{hybrid.p50 / bare.p50:.2f}")
