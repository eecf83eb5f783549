"""Implementations of the embedder contract."""
