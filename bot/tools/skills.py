"""Tool on skills: load a skill's text when it is needed."""

import asyncio
from typing import Annotated

from pydantic import Field
from pydantic_ai import RunContext

from bot.tool import Bench, result
from persistence.errors import PersistenceError
from persistence.skills import load_skills, read_skill


async def skill_read(ctx: RunContext[Bench], name: Annotated[str, Field(min_length=1, max_length=64)]) -> str:
    """Load the text of a skill.

    Args:
        ctx: The turn.
        name: The skill's name, as the skill list gives it.
    """
    bench = ctx.deps
    skills = await asyncio.to_thread(load_skills, bench.stores.workspace, bench.lane.channel)
    skill = next((skill for skill in skills.items if skill.name == name), None)
    if skill is None:
        return result(error=f"there is no skill {name!r}; there are: {', '.join(skill.name for skill in skills.items) or 'none'}")
    try:
        text = await asyncio.to_thread(read_skill, bench.stores.workspace, skill)
    except PersistenceError as err:
        return result(error=str(err))
    return result(name=name, path=skill.path, text=text)
