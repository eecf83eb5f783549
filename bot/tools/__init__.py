"""The agent's tools. Each is a plain function with a typed schema; none leaves the scope of its turn's channel."""

from typing import Final

from pydantic_ai import Tool

from bot.tool import Bench
from bot.tools.history import history_search
from bot.tools.memory import memory_append, memory_forget, memory_read, memory_search
from bot.tools.skills import skill_read
from bot.tools.topics import topic_list, topic_pin, topic_read, topic_remove, topic_write

TOOLS: Final[tuple[Tool[Bench], ...]] = (
    Tool(memory_search),
    Tool(memory_read),
    Tool(memory_append),
    Tool(memory_forget),
    Tool(topic_list),
    Tool(topic_read),
    Tool(topic_write),
    Tool(topic_remove),
    Tool(topic_pin),
    Tool(history_search),
    Tool(skill_read),
)
