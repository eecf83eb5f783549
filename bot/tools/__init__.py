"""The agent's tools. Each is a plain function with a typed schema; none leaves the scope of its turn's channel."""

from typing import Final

from pydantic_ai import Tool

from bot.tool import Bench
from bot.tools.history import history_search
from bot.tools.memory import memory_append, memory_read, memory_search
from bot.tools.skills import skill_read

TOOLS: Final[tuple[Tool[Bench], ...]] = tuple(
    Tool(function) for function in (memory_search, memory_read, memory_append, history_search, skill_read)
)
