"""Liveness, which touches nothing, and readiness, which asks the volume, the settings, the index and the model."""

import asyncio
import shutil
from typing import Final, Literal

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from bot.api.access import StoresDep
from bot.api.problems import responses
from bot.api.schemas import HealthOut, ReadyOut
from bot.stores import Stores
from persistence.errors import PersistenceError
from persistence.workspace import probe

router = APIRouter(tags=["health"])
PROBE_TIMEOUT_S: Final = 2.0
MIN_FREE_BYTES: Final = 64 * 1024 * 1024


@router.get("/healthz")
async def healthz() -> HealthOut:
    """200 while the process serves."""
    return HealthOut()


@router.get("/readyz", response_model=ReadyOut, responses={503: {"model": ReadyOut, "description": "Not ready"}, **responses()})
async def readyz(stores: StoresDep) -> JSONResponse:
    """200 when messages can be taken. `starting` and `degraded` say what is off; indexing is not waited for."""
    checks = await _checks(stores)
    status: Literal["ok", "degraded", "starting"] = "ok"
    if any(value == "starting" for value in checks.values()):
        status = "starting"
    if any(value not in ("ok", "starting") for value in checks.values()):
        status = "degraded"
    serving = checks["volume"] == "ok" and checks["disk"] == "ok"
    return JSONResponse(ReadyOut(status=status, checks=checks).model_dump(), 200 if serving else 503)


async def _checks(stores: Stores) -> dict[str, str]:
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):  # a network file system may hang: then the answer is no, not silence
            checks = await asyncio.to_thread(_check_volume, stores)
    except TimeoutError:
        checks = {"volume": "does not answer", "settings": "unknown", "disk": "unknown"}
    state = stores.indexer.status.state
    index = (
        "ok"
        if state in ("idle", "indexing")
        else "starting"
        if state == "starting"
        else f"failed: {stores.indexer.status.detail}"
    )
    return {**checks, "index": index, "embedder": "ok" if stores.searcher.ready else "starting"}


def _check_volume(stores: Stores) -> dict[str, str]:
    root = stores.workspace.root
    try:
        probe(stores.workspace)
        volume = "ok"
    except PersistenceError as err:
        volume = err.code
    free = shutil.disk_usage(root).free
    return {
        "volume": volume,
        "settings": "broken: see /v1/settings" if stores.settings.load().broken else "ok",
        "disk": "ok" if free >= MIN_FREE_BYTES else f"only {free // 1_000_000} MB are free",
    }
