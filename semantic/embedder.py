"""The contract of an embedder. Implementations live in `semantic.embedders`."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]


class Embedder(Protocol):
    """Turns texts into unit vectors. Thread-safe; loads its model on first use."""

    @property
    def name(self) -> str:
        """Identity of model and run time, part of the fingerprint: another name means other vectors."""
        ...

    @property
    def dimension(self) -> int:
        """Length of each vector."""
        ...

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """One row of unit length for each text, in order: float32, shape (len(texts), dimension).

        Raises EmbedderUnavailableError when the model can't be loaded.
        """
        ...

    def embed_query(self, text: str) -> Vectors:
        """The query's unit vector: float32, shape (dimension,)."""
        ...
