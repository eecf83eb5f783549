"""What routes get from the app, and how they read ids and times from a request."""

import base64
import binascii
from datetime import datetime
from typing import Annotated, Final

from fastapi import Depends, Path, Request

from bot.errors import BodyInvalidError
from bot.lanes import Lanes
from bot.stores import Stores
from persistence.audit import Author
from persistence.workspace import ChannelId, is_ts, parse_channel_id

MAX_PAGE: Final = 200
HTTP: Final = Author("http", "asked for over HTTP")
"""Who changes made through these routes are by: without keys everyone on this machine is the same."""


def _stores(request: Request) -> Stores:
    stores: Stores = request.app.state.stores
    return stores


def _lanes(request: Request) -> Lanes:
    lanes: Lanes = request.app.state.lanes
    return lanes


def _channel(channel: Annotated[str, Path(description="Channel id", examples=["general"])]) -> ChannelId:
    return parse_channel_id(channel)


StoresDep = Annotated[Stores, Depends(_stores)]
LanesDep = Annotated[Lanes, Depends(_lanes)]
ChannelDep = Annotated[ChannelId, Depends(_channel)]


def parse_time(text: str | None, name: str) -> str | None:
    """A ts, or an ISO time with offset, as a ts; raises BodyInvalidError for anything else, a naive time included."""
    if text is None or is_ts(text):
        return text
    try:
        time = datetime.fromisoformat(text.replace(" ", "+"))
    except ValueError as err:
        raise BodyInvalidError(f"{name}={text[:40]!r} is neither a ts nor an ISO 8601 time") from err
    if time.tzinfo is None:
        raise BodyInvalidError(f"{name}={text[:40]!r} has no offset: write it as 2026-11-30T12:00:00Z")
    return f"{time.timestamp():.6f}"


def encode_cursor(value: str) -> str:
    """An opaque cursor for a page that starts after `value`."""
    return base64.urlsafe_b64encode(value.encode()).decode().rstrip("=")


def decode_cursor(cursor: str | None) -> str | None:
    """The value of a cursor that `encode_cursor` made; raises BodyInvalidError for another text."""
    if cursor is None:
        return None
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as err:
        raise BodyInvalidError("the cursor is not one that a page of this list gave") from err
