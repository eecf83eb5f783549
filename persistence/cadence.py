"""When a lane's prompt takes up what changed in memory (docs/decisions/0006). Values only: reading memory is the caller's.

Between two such turns the prompt repeats, byte for byte, what it took up last, so that a provider's prefix cache holds.
"""

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

T = TypeVar("T")


def should_inject(turn: int, *, every_n: int, injected_before: bool, dirty: bool) -> bool:
    """Whether turn `turn` (from 1) takes memory up anew: the first one, one after a write, and every `every_n`-th."""
    return not injected_before or dirty or turn % every_n == 0


@dataclass(frozen=True, slots=True)
class Cadence(Generic[T]):
    """What one lane has counted and taken up since it began, or since its last compaction; a new one is `Cadence()`.

    `held` is what the prompt shows until the next refresh. `written` counts the writes to memory of the lane's scope, as its
    owner counts them: a count, not a flag, so that a write which comes while memory is being read is not forgotten.
    """

    turn: int = 0
    held: T | None = None
    written: int = 0

    def begin_turn(self) -> "Cadence[T]":
        """Count a turn."""
        return replace(self, turn=self.turn + 1)

    def is_due(self, *, every_n: int, written: int) -> bool:
        """Whether the turn that has begun takes memory up anew, when there were `written` writes by now."""
        dirty = written != self.written
        return should_inject(self.turn, every_n=every_n, injected_before=self.held is not None, dirty=dirty)

    def hold(self, value: T, *, written: int) -> "Cadence[T]":
        """Take up what was read for this turn; `written` is the count from before the reading."""
        return replace(self, held=value, written=written)
