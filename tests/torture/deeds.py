"""What a writer was about to do, and what came of it: its journal of intents and acknowledgements, kept outside of the volume.

A line is written before a deed and one after it. A deed without the second line was cut short: it may have happened or not.
"""

import json
import os
from dataclasses import dataclass

Json = dict


@dataclass(frozen=True, slots=True)
class Deed:
    """One durable operation. `result` is set when it was acknowledged, `error` (a stable code) when it was refused.

    One without an intent did not come so far: the writer could not even be made.
    """

    number: int
    intent: Json
    result: Json | None = None
    error: str | None = None
    detail: str = ""

    @property
    def is_done(self):
        return self.result is not None


class Journal:
    """A writer's end. Each line is one write, so that a kill leaves it whole."""

    def __init__(self, path):
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def _write(self, **fields):
        os.write(self._fd, json.dumps(fields).encode() + b"\n")

    def begin(self, number, intent):
        self._write(number=number, intent=intent)

    def acknowledge(self, number, result):
        self._write(number=number, result=result)

    def refuse(self, number, code, detail):
        self._write(number=number, error=code, detail=detail)


def read_deeds(path):
    """The deeds of a journal, oldest first; none when the writer did not come to begin one."""
    deeds = {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        fields = json.loads(line)
        number = fields.pop("number")
        known = {"intent": deeds[number].intent} if number in deeds else {"intent": {}} | fields
        deeds[number] = Deed(number, **(known | fields))
    return list(deeds.values())
