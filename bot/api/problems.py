"""Errors as RFC 9457 problem documents with a stable code. No stack trace, path of this machine or secret gets out here."""

from http import HTTPStatus
from typing import Any, Final

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from bot.errors import STATUS, BotError
from bot.message import Json
from persistence.errors import (
    AmbiguousError,
    PersistenceError,
    PreconditionFailedError,
    RunConflictError,
    SecretDetectedError,
    SettingsInvalidError,
)
from semantic.errors import SemanticError

logger = structlog.get_logger()
MEDIA_TYPE: Final = "application/problem+json"
_TITLES: Final = {
    "not_found": "Not found",
    "method_not_allowed": "Method not allowed",
    "channel_invalid": "Not a channel id",
    "body_invalid": "The request is malformed",
    "query_empty": "The query is empty",
    "too_large": "Too large",
    "message_conflict": "Another message has this ts or key",
    "ts_future": "The ts lies in the future",
    "unsafe_object": "Not a regular file",
    "not_utf8": "Not UTF-8",
    "precondition_failed": "The file changed",
    "context_unsupported": "The context is of a newer version",
    "store_busy": "Another writer is at work",
    "lane_full": "Too many messages wait",
    "model_error": "The model failed",
    "turn_timeout": "The turn took too long",
    "storage_full": "The volume is full",
    "store_error": "The volume failed",
    "degraded": "Not available now",
    "forbidden": "Forbidden",
    "role_unknown": "No such role",
    "role_invalid": "Not a role",
    "ambiguous": "Several things fit",
    "pinned": "The topic is pinned",
    "decision_immutable": "A decision is never changed",
    "index_full": "The index is full",
    "agents_active": "Agents are at work",
    "run_entry_quota": "Too many entries in one run",
    "conflict": "Somebody else was faster",
    "event_refused": "The event does not follow",
    "run_corrupt": "The run can only be read",
    "topic_blank": "The topic has no name",
    "topic_structural": "The name would break the index",
    "topic_no_slug": "The name has no letter or digit",
    "topic_reserved": "The name is reserved",
    "topic_retired": "The topic is no longer kept",
    "secret_detected": "The text holds a secret",
    "precondition_required": "A condition is needed",
    "flush_missing": "The memory flush is missing",
    "rollback_failed": "A change could not be taken back",
    "internal_error": "Something went wrong here",
}
_HTTP_CODES: Final = {404: "not_found", 405: "method_not_allowed", 403: "forbidden", 413: "too_large"}


class FieldProblem(BaseModel):
    """Where in the request something is wrong, and what."""

    loc: list[str | int]
    msg: str


class Problem(BaseModel):
    """An RFC 9457 problem document."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    errors: list[FieldProblem] | None = None


def problem(
    code: str, detail: str, *, headers: dict[str, str] | None = None, fields: dict[str, Json] | None = None
) -> JSONResponse:
    """The response for a stable code."""
    status = STATUS.get(code, 500)
    body: dict[str, Json] = {
        "type": f"urn:recalld:problem:{code}",
        "title": _TITLES.get(code, HTTPStatus(status).phrase),
        "status": status,
        "detail": detail,
        "code": code,
        **(fields or {}),
    }
    if status in (STATUS["store_busy"], STATUS["lane_full"], STATUS["degraded"]):
        headers = {"Retry-After": "2", **(headers or {})}
    return JSONResponse(body, status, headers, MEDIA_TYPE)


def describe(err: Exception) -> tuple[str, str, dict[str, Json]]:  # noqa: PLR0911 - one return for each kind of error
    """(code, detail, extra fields) of an error of ours; anything else is an internal error that says nothing of itself."""
    match err:
        case SettingsInvalidError():
            return err.code, str(err), {"errors": [{"loc": ["body", key], "msg": reason} for key, reason in err.problems]}
        case PreconditionFailedError():
            return err.code, str(err), {"etag": err.etag, "diff": err.diff}
        case AmbiguousError():
            return err.code, str(err), {"candidates": [{"name": name, "file": file} for name, file in err.candidates]}
        case SecretDetectedError():
            return err.code, str(err), {"kind": err.kind, "offset": err.offset}
        case RunConflictError():
            return err.code, str(err), {"seq": err.seq, "head": err.head}
        case BotError() | PersistenceError() | SemanticError():
            return err.code, str(err), {}
        case _:
            return "internal_error", "this is a fault of recalld; the log has the details under this X-Request-Id", {}


def responses(*codes: str) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries for the codes that a route may answer with, besides those that every route may."""
    by_status: dict[int, list[str]] = {}
    for code in (*codes, "body_invalid", "internal_error", "store_error"):
        by_status.setdefault(STATUS[code], []).append(code)
    return {
        status: {
            "model": Problem,
            "description": " or ".join(f"`{code}`" for code in found),
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "example": _example(found[0])}},
        }
        for status, found in by_status.items()
    }


def _example(code: str) -> dict[str, Json]:
    title = _TITLES[code]
    return {"type": f"urn:recalld:problem:{code}", "title": title, "status": STATUS[code], "detail": "…", "code": code}


def install(app: FastAPI) -> None:
    """Make every error of `app` a problem document."""
    for kind in (BotError, PersistenceError, SemanticError, Exception):
        app.add_exception_handler(kind, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)


async def _on_error(request: Request, err: Exception) -> Response:
    code, detail, fields = describe(err)
    if STATUS.get(code, 500) >= 500:  # noqa: PLR2004 - the server's own faults
        logger.error("request_failed", code=code, path=request.url.path, exc_info=err)
    return problem(code, detail, fields=fields)


async def _on_invalid(_request: Request, err: Exception) -> Response:
    raw = err.errors() if isinstance(err, RequestValidationError) else ()
    errors: list[Json] = [{"loc": [str(part) for part in e["loc"]], "msg": str(e["msg"])} for e in raw]
    first = errors[0] if errors and isinstance(errors[0], dict) else {"loc": [], "msg": "the request is malformed"}
    loc = first["loc"]
    where = ".".join(map(str, loc)) if isinstance(loc, list) else ""
    return problem("body_invalid", f"{where}: {first['msg']}", fields={"errors": errors})


async def _on_http(request: Request, err: Exception) -> Response:
    if not isinstance(err, HTTPException):
        raise err
    code = _HTTP_CODES.get(err.status_code, "body_invalid")
    if code in ("not_found", "method_not_allowed"):
        detail = f"there is no {request.method} {request.url.path[:200]} here; /openapi.json lists every route"
    else:
        detail = str(err.detail)
    return problem(code, detail, headers=dict(err.headers or {}))
