"""Benchmarks. Each prints both sides, measured in one run, and their ratio; none asserts a time."""
