"""Timing and printing for the benchmarks: medians of repeated samples, both sides in one run."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Samples:
    """Durations in milliseconds."""

    ms: Sequence[float]

    @property
    def p50(self) -> float:
        return statistics.median(self.ms)

    @property
    def p95(self) -> float:
        ordered = sorted(self.ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]

    def __str__(self) -> str:
        return f"p50 {self.p50:8.2f} ms   p95 {self.p95:8.2f} ms   n {len(self.ms)}"


def sample(work: Callable[[], object], times: int, *, warm_up: int = 3) -> Samples:
    """Run `work` repeatedly and time each run."""
    for _ in range(warm_up):
        work()
    return Samples([once(work) for _ in range(times)])


def interleave(works: Sequence[Callable[[], object]], times: int, *, warm_up: int = 3) -> list[Samples]:
    """Time several works in turn, so that whatever else the machine does meets them all alike."""
    for work in works:
        for _ in range(warm_up):
            work()
    taken: list[list[float]] = [[] for _ in works]
    for _ in range(times):
        for work, into in zip(works, taken, strict=True):
            into.append(once(work))
    return [Samples(ms) for ms in taken]


def once(work: Callable[[], object]) -> float:
    """Milliseconds of one run."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000


def title(text: str) -> None:
    """Print a heading."""
    print(f"\n## {text}")


def row(name: str, value: object) -> None:
    """Print one result."""
    print(f"{name:58} {value}", flush=True)
