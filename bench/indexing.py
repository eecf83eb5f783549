"""Index throughput as a share of the bare embedder's on the same texts, and what a sweep without changes costs."""

import tempfile
import time
from pathlib import Path

from bench.made_up import write_notes
from bench.measure import Samples, once, row, title
from persistence.workspace import open_workspace
from semantic.chunker import chunk_markdown
from semantic.embedder import Embedder
from semantic.embedders import load_embedder
from semantic.indexer import open_indexer

FILES, SECTIONS, ROUNDS, UNCHANGED = 25, 4, 9, 10_000


def run() -> None:
    """Print both throughputs, in turn, and the sweep of 10,000 unchanged files."""
    title(f"Indexing {FILES} notes from nothing, beside the bare embedder on the same chunks")
    embedder = load_embedder("bundled", threads=2)
    embedder.embed_documents(["warm"])
    _import_lancedb(embedder)
    ours, bare, chunks = [], [], 0
    for number in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            root = open_workspace(Path(folder)).root
            write_notes(root / "memory", FILES, sections=SECTIONS, seed=number)
            texts = _texts(root)
            chunks = len(texts)
            bare.append(once(lambda texts=texts: embedder.embed_documents(texts)))
            indexer = open_indexer(root, str(root / "index"), embedder)
            ours.append(once(indexer.update_once))
    bare_ms, ours_ms = Samples(bare).p50, Samples(ours).p50
    row("bare embedder", f"{chunks / bare_ms * 1000:8.1f} chunks/s")
    row("index update (read, chunk, embed, commit)", f"{chunks / ours_ms * 1000:8.1f} chunks/s")
    row("share of the bare embedder's throughput (aim: 0.90)", f"{bare_ms / ours_ms:.2f}")
    _sweep_unchanged()


def _import_lancedb(embedder: Embedder) -> None:
    """Its import takes a second, once a process, and is no part of indexing."""
    with tempfile.TemporaryDirectory() as folder:
        root = open_workspace(Path(folder)).root
        open_indexer(root, str(root / "index"), embedder).update_once()


def _texts(root: Path) -> list[str]:
    return [
        chunk.embed_text
        for path in sorted((root / "memory").iterdir())
        for chunk in chunk_markdown(f"memory/{path.name}", path.read_text("utf-8"))
    ]


def _sweep_unchanged() -> None:
    title(f"A sweep of {UNCHANGED:,} unchanged files, beside a bare stat of each")
    with tempfile.TemporaryDirectory() as folder:
        root = open_workspace(Path(folder)).root
        (root / "memory").mkdir()
        for number in range(UNCHANGED):
            (root / "memory" / f"n{number}.md").write_text("", "utf-8")
        indexer = open_indexer(root, str(root / "index"), load_embedder("bundled", threads=2))
        indexer.update_once()
        time.sleep(2.5)  # files written a moment ago are hashed once more in the next sweep
        indexer.update_once()
        sweep = Samples([once(indexer.update_once) for _ in range(3)])
        stats = Samples([once(lambda: [path.stat() for path in (root / "memory").iterdir()]) for _ in range(3)])
    row("sweep (scan, compare, nothing to do)", sweep)
    row("floor: a bare stat of each file", stats)
    row("sweep / floor", f"{sweep.p50 / stats.p50:.1f}")
