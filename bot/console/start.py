"""The start page: what runs here, and where to look."""

from html import escape
from importlib.resources import files
from string import Template
from typing import Final

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from bot.api.access import StoresDep

router = APIRouter()
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_PAGE: Final = Template(files("bot.console").joinpath("start.html").read_text("utf-8"))


@router.get("/", response_class=HTMLResponse, include_in_schema=False)
def start_page(stores: StoresDep) -> HTMLResponse:
    """Links to everything that answers here, and the channels that there are."""
    channels = [escape(channel) for channel in stores.workspace.channels()][:50]
    rows = "\n".join(
        f'<li><a href="/v1/channels/{channel}/messages">{channel}</a> '
        f'(<a href="/v1/channels/{channel}/prompt?text=hello">prompt</a>, <a href="/v1/channels/{channel}/context">context</a>)</li>'
        for channel in channels
    )
    status = stores.indexer.status
    documents = sum(counts.documents for counts in status.collections.values())
    index = f"{status.state}, {documents} documents, {status.pending} pending"
    page = _PAGE.substitute(channels=rows or "<li>none yet: post a message to make one</li>", index=escape(index))
    return HTMLResponse(page, headers=_HEADERS)
