"""The embedders there are and how a setting chooses one. The contract is `semantic.embedder`."""

from pathlib import Path

from semantic.embedder import Embedder
from semantic.embedders.minilm import MiniLmEmbedder
from semantic.embedders.sentence_transformer import SentenceTransformerEmbedder

BUNDLED = "bundled"


def load_embedder(spec: str, *, threads: int) -> Embedder:
    """The embedder that `spec` names: "bundled", or the folder of a sentence-transformers model.

    Cheap: the model itself is loaded on first use. Raises EmbedderUnavailableError when `spec` names no such folder.
    """
    if spec == BUNDLED:
        return MiniLmEmbedder(threads=threads)
    return SentenceTransformerEmbedder(Path(spec), threads=threads)
