"""Routes of the bot's settings and of skills."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Body, Header, Query, Response
from pydantic import BaseModel, JsonValue

from bot.api.access import StoresDep
from bot.api.problems import responses
from bot.api.schemas import DiagnosticOut, SettingsOut
from persistence.settings import SettingsView
from persistence.skills import load_skills
from persistence.workspace import parse_channel_id

router = APIRouter(prefix="/v1", tags=["settings"])


def _out(view: SettingsView, response: Response) -> SettingsOut:
    if view.etag is not None:
        response.headers["ETag"] = f'"{view.etag}"'
    return SettingsOut(
        values=view.values.model_dump(mode="json"),
        origins=dict(view.origins),
        diagnostics=[DiagnosticOut(key=d.key, reason=d.reason, line=d.line) for d in view.diagnostics],
    )


@router.get("/settings", responses=responses())
async def read_settings(stores: StoresDep, response: Response) -> SettingsOut:
    """Effective values, where each comes from, and what is wrong in the file."""
    return _out(await asyncio.to_thread(stores.settings.load), response)


@router.patch("/settings", responses=responses("precondition_failed", "store_busy", "degraded", "storage_full"))
async def patch_settings(
    stores: StoresDep,
    response: Response,
    patch: Annotated[dict[str, JsonValue], Body(media_type="application/merge-patch+json", examples=[{"run_timeout_s": 120}])],
    if_match: Annotated[str | None, Header()] = None,
) -> SettingsOut:
    """Change settings by a merge patch (RFC 7396): null removes a key, all bad values are refused at once."""
    expected = None if if_match is None or if_match.strip() == "*" else if_match.strip().strip('"')
    return _out(await asyncio.to_thread(stores.settings.patch, patch, expected_etag=expected), response)


class SkillOut(BaseModel):
    name: str
    description: str
    path: str
    scope: str
    enabled: bool


class SkillProblemOut(BaseModel):
    path: str
    reason: str


class SkillsOut(BaseModel):
    items: list[SkillOut]
    diagnostics: list[SkillProblemOut]


@router.get("/skills", responses=responses("channel_invalid"), tags=["skills"])
async def list_skills(stores: StoresDep, channel: Annotated[str | None, Query(max_length=200)] = None) -> SkillsOut:
    """Skills of the scope, and why a broken one is left out."""
    scope = None if channel is None else parse_channel_id(channel)
    skills = await asyncio.to_thread(load_skills, stores.workspace, scope)
    return SkillsOut(
        items=[
            SkillOut(name=s.name, description=s.description, path=s.path, scope=s.scope, enabled=s.enabled) for s in skills.items
        ],
        diagnostics=[SkillProblemOut(path=p.path, reason=p.reason) for p in skills.problems],
    )
