"""ASGI middleware around every route: request ids, a body limit that holds while streaming, and the loopback door."""

import re
import uuid
from typing import Final

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bot.api.problems import problem
from bot.errors import BodyTooLargeError

MAX_BODY_BYTES: Final = 1024 * 1024
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
_DISCARDED_BYTES: Final = 16 * 1024 * 1024
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}\Z", re.ASCII)
_LOOPBACK_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})


class Guard:
    """Wraps the app.

    Without keys only this machine may ask, so a request for another host name is refused: a page that rebinds its own name to
    127.0.0.1 must not read memory.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Guard `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        request_id = _request_id(headers.get(b"x-request-id", ""))
        structlog.contextvars.bind_contextvars(request_id=request_id)
        send = _with_header(send, request_id)
        try:
            if not _is_loopback(headers.get(b"host", "")):
                refusal = problem("forbidden", "without keys recalld answers requests for localhost only")
                await refusal(scope, receive, send)
            elif _declared_size(headers) > (limit := _limit_of(scope)):
                await _refuse_body(limit, scope, receive, send)
            else:
                await self._run_limited(scope, receive, send, limit)
        finally:
            structlog.contextvars.unbind_contextvars("request_id")

    async def _run_limited(self, scope: Scope, receive: Receive, send: Send, limit: int) -> None:
        """Count what really arrives, since a declared length may lie or be absent; what the app makes of the cut is dropped."""
        seen = 0

        async def limited() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                raise BodyTooLargeError(f"the body is over {limit} bytes")
            return message

        async def sending(message: Message) -> None:
            if seen <= limit:
                await send(message)

        await self._app(scope, limited, sending)
        if seen > limit:
            await _refuse_body(limit, scope, receive, send)


def _limit_of(scope: Scope) -> int:
    return MAX_FILE_BYTES if scope["path"].startswith("/v1/files/") and scope["method"] == "PUT" else MAX_BODY_BYTES


async def _refuse_body(limit: int, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 413. Some of what is still coming is thrown away first: a client that is sending would not see the answer."""
    left = _DISCARDED_BYTES
    while left > 0:
        message = await receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            break
        left -= len(message.get("body", b""))
    await problem("too_large", f"the body is over {limit} bytes")(scope, receive, send)


def _request_id(given: str) -> str:
    return given if _REQUEST_ID.match(given) else uuid.uuid4().hex


def _declared_size(headers: dict[bytes, str]) -> int:
    declared = headers.get(b"content-length", "0")
    return int(declared) if declared.isascii() and declared.isdigit() and len(declared) < 20 else 0  # noqa: PLR2004 - digits


def _is_loopback(host: str) -> bool:
    name = host if host.startswith("[") or host.count(":") != 1 else host.partition(":")[0]
    name = name.partition("]")[0] + "]" if name.startswith("[") else name
    return name.lower() in _LOOPBACK_HOSTS


def _with_header(send: Send, request_id: str) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
        await send(message)

    return sending
