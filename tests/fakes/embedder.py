"""An embedder without a model: a text's vector is the sum of its words' hashed directions. The same text has the same vector."""

import hashlib
import re
import threading
from collections.abc import Sequence

import numpy as np

from semantic.embedder import Vectors


class HashingEmbedder:
    """Texts that share words are near each other. `embedded` lists every document text that was embedded, in order."""

    def __init__(self, dimension: int = 64) -> None:
        self._dimension = dimension
        self._lock = threading.Lock()
        self.embedded: list[str] = []

    @property
    def name(self) -> str:
        return f"hashing:{self._dimension}"

    @property
    def dimension(self) -> int:
        return self._dimension

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        with self._lock:
            self.embedded.extend(texts)
        return np.array([self._vector(text) for text in texts], dtype=np.float32).reshape(len(texts), self._dimension)

    def embed_query(self, text: str) -> Vectors:
        return self._vector(text)

    def _vector(self, text: str) -> Vectors:
        vector = np.zeros(self._dimension, dtype=np.float32)
        for word in re.findall(r"\w+", text.casefold()) or [""]:
            digest = hashlib.sha256(word.encode("utf-8", "surrogatepass")).digest()
            vector[int.from_bytes(digest[:4], "big") % self._dimension] += 1 if digest[4] & 1 else -1
        length = float(np.linalg.norm(vector))
        if length == 0:  # two words took each other away
            vector[0] = length = 1
        return vector / np.float32(length)
