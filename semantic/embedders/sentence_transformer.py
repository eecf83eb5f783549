"""Any sentence-transformers model from a local folder. Needs the `models` extra; nothing is ever downloaded."""

import hashlib
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from semantic.embedder import Vectors
from semantic.errors import EmbedderUnavailableError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_HEAD_BYTES = 65536
_BATCH_TEXTS = 16


class SentenceTransformerEmbedder:
    """Owns the model. One thread at a time: its tokenizer is not safe for several."""

    def __init__(self, folder: Path, *, threads: int) -> None:
        if not (folder / "modules.json").is_file():
            raise EmbedderUnavailableError(
                f"no sentence-transformers model in {str(folder)!r} (it has no modules.json): "
                "give the folder of a saved model, or 'bundled'"
            )
        self._folder = folder
        self._threads = threads
        self._lock = threading.Lock()
        self._model: SentenceTransformer | None = None
        self._name = f"{folder.resolve().name}/sentence-transformers/{_folder_id(folder)}"

    @property
    def name(self) -> str:
        return self._name

    @property
    def dimension(self) -> int:
        declared = _declared_dimension(self._folder)
        if declared is not None:
            return declared
        with self._lock:
            return int(self._loaded().get_embedding_dimension() or 0)

    def load(self) -> None:
        """Load the model now. Raises EmbedderUnavailableError."""
        with self._lock:
            self._loaded()

    def embed_query(self, text: str) -> Vectors:
        with self._lock:
            return np.asarray(self._loaded().encode_query(text, normalize_embeddings=True), dtype=np.float32)

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        with self._lock:
            vectors = self._loaded().encode_document(
                list(texts), batch_size=_BATCH_TEXTS, normalize_embeddings=True, show_progress_bar=False
            )
        return np.asarray(vectors, dtype=np.float32)

    def _loaded(self) -> "SentenceTransformer":
        if self._model is None:
            self._model = _load_model(self._folder, self._threads)
        return self._model


def _load_model(folder: Path, threads: int) -> "SentenceTransformer":
    # Set, not read: the library looks at it while it is imported.
    os.environ["HF_HUB_OFFLINE"] = "1"  # noqa: TID251
    try:
        # Five seconds and half a gigabyte, and only there with the `models` extra.
        import torch  # noqa: PLC0415
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415
        from transformers.utils import logging  # noqa: PLC0415
    except ImportError as err:
        raise EmbedderUnavailableError(
            f"the model in {str(folder)!r} needs sentence-transformers ({err}): install recalld with the 'models' extra"
        ) from err
    torch.set_num_threads(threads)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # it would draw one while loading
    try:
        return SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    except Exception as err:  # the library raises whatever its parts raise
        raise EmbedderUnavailableError(
            f"the model in {str(folder)!r} can't be loaded ({err}): check or replace the folder"
        ) from err


def _folder_id(folder: Path) -> str:
    """Identity of a model folder: names, sizes and first bytes of its files (all of a configuration, the header of weights)."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".md"):
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        digest.update(repr((path.relative_to(folder).as_posix(), path.stat().st_size)).encode() + head)
    return digest.hexdigest()[:16]


def _declared_dimension(folder: Path) -> int | None:
    """The output size that the last module with one declares in its configuration, so that the model need not be loaded."""
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    for module in reversed(modules):
        config = folder / module["path"] / "config.json"
        if not module["path"] or not config.is_file():
            continue
        values = json.loads(config.read_text(encoding="utf-8"))
        for key in ("out_features", "word_embedding_dimension", "embedding_dimension"):
            if isinstance(values.get(key), int):
                return int(values[key])
    return None
