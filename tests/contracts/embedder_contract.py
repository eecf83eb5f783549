"""What every embedder promises. Each implementation's test subclasses this and gives the `embedder` fixture."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

TEXTS = [
    "The deploy window is Tuesday.",
    "",
    "a much longer text " * 200,
    "用 kubectl 部署",
    "🎉",
    "The deploy window is Tuesday.",
]


class EmbedderContract:
    def test_documents_become_unit_vectors_in_the_order_of_the_texts(self, embedder):
        vectors = embedder.embed_documents(TEXTS)
        assert vectors.dtype == np.float32
        assert vectors.shape == (len(TEXTS), embedder.dimension)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
        for text, vector in zip(TEXTS, vectors, strict=True):
            np.testing.assert_allclose(embedder.embed_documents([text])[0], vector, atol=1e-5)

    def test_no_texts_are_no_rows(self, embedder):
        assert embedder.embed_documents([]).shape == (0, embedder.dimension)

    def test_a_query_is_one_unit_vector(self, embedder):
        vector = embedder.embed_query("when can we deploy?")
        assert vector.dtype == np.float32
        assert vector.shape == (embedder.dimension,)
        assert abs(float(np.linalg.norm(vector)) - 1) < 1e-5

    def test_a_text_is_nearest_to_itself(self, embedder):
        texts = ["The deploy window is Tuesday.", "Carrots grow in sandy soil.", "The invoice is due in May."]
        vectors = embedder.embed_documents(texts)
        for place, text in enumerate(texts):
            assert int(np.argmax(vectors @ embedder.embed_query(text))) == place

    def test_the_name_is_stable_and_not_empty(self, embedder):
        assert embedder.name
        assert embedder.name == embedder.name.strip()

    def test_many_threads_get_the_right_vectors(self, embedder):
        texts = [f"note number {number} about topic {number % 7}" for number in range(32)]
        expected = embedder.embed_documents(texts)
        with ThreadPoolExecutor(8) as pool:
            for vector, wanted in zip(pool.map(embedder.embed_query, texts), expected, strict=True):
                np.testing.assert_allclose(vector, wanted, atol=1e-5)
