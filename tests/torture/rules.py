"""Which file-system operation goes wrong, and how. Applying it is `crash_fs`'s."""

import re
import threading
from dataclasses import asdict, dataclass, field
from typing import Literal


@dataclass(slots=True)
class Rule:
    """From its `nth` fitting operation on, `times` operations (-1: all) go wrong as the other fields say.

    `op` and `path` are regular expressions for the whole operation and any part of the path. `half`: a write writes half of
    its bytes, an fsync forgets what it should have made durable (alone they say that all is well). `then`: after the operation
    the caller is killed, or the power goes (`how`, `seed`).
    """

    op: str = ".*"
    path: str = ""
    nth: int = 1
    times: int = 1
    errno: int = 0
    half: bool = False
    delay_s: float = 0.0
    then: Literal["", "kill", "power_loss"] = ""
    how: Literal["drop", "prefix", "torn"] = "drop"
    seed: int = 0
    seen: int = 0
    hits: int = 0

    def fits(self, op, path):
        if not re.fullmatch(self.op, op) or not re.search(self.path, path):
            return False
        self.seen += 1
        if self.seen < self.nth or 0 <= self.times <= self.hits:
            return False
        self.hits += 1
        return True


@dataclass(slots=True)
class Rules:
    """The rules in force, and the operations seen since the last `clear`."""

    rules: list[Rule] = field(default_factory=list)
    trace: list[tuple[str, str]] = field(default_factory=list)
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    def find(self, op, path):
        """The rule that this operation falls under, None for most."""
        with self._mutex:
            self.trace.append((op, path))
            fitting = [rule for rule in self.rules if rule.fits(op, path)]
            return fitting[0] if fitting else None

    def add(self, **fields):
        with self._mutex:
            self.rules.append(Rule(**fields))

    def clear(self):
        with self._mutex:
            self.rules, self.trace = [], []

    def report(self):
        with self._mutex:
            return {"rules": [asdict(rule) for rule in self.rules], "trace": list(self.trace)}
