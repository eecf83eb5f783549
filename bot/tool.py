"""What every tool of the agent works with, and what it answers. The tools themselves live in `bot.tools`."""

import json
from dataclasses import dataclass, field
from typing import Final

from bot.message import Json, Passage
from bot.stores import Stores
from persistence.audit import Author
from persistence.workspace import Lane
from semantic.types import Hit, Scope

FRESH_TIMEOUT_S: Final = 2.0
"""How long a search of a turn waits for this process's own writes to be indexed."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A turn's own tools: the stores, and the lane whose scope no tool leaves. `seen` collects what tools showed the model."""

    stores: Stores
    lane: Lane
    current_ts: str
    seen: list[Passage] = field(default_factory=list)
    turn_id: str | None = None

    @property
    def author(self) -> Author:
        """Who is behind what the tools write."""
        return Author("bot", "in a turn", self.turn_id)

    @property
    def scope(self) -> Scope:
        """Global files and this channel's own."""
        return Scope(channel=self.lane.channel)


def passage_of(hit: Hit) -> Passage:
    """A search hit as prompts and tools show it."""
    return Passage(hit.path, hit.start_line, hit.end_line, round(hit.score, 3), hit.text)


def result(**fields: Json) -> str:
    """A tool's answer: compact JSON, which models and `builtin/recall` read alike."""
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
