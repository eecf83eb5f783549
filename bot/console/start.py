"""The start page: what runs here, and where to look."""

from html import escape
from importlib.resources import files
from itertools import islice
from string import Template
from typing import Final

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from bot.api.access import StoresDep

router = APIRouter()
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_PAGE: Final = Template(files("bot.console").joinpath("start.html").read_text("utf-8"))


@router.get("/", response_class=HTMLResponse, include_in_schema=False)
def start_page(stores: StoresDep) -> HTMLResponse:
    """Links to everything that answers here, and the channels that there are."""
    rows = "\n".join(_row(escape(channel)) for channel in islice(stores.workspace.channels(), 50))
    status = stores.indexer.status
    documents = sum(counts.documents for counts in status.collections.values())
    index = f"{status.state}, {documents} documents, {status.pending} pending"
    page = _PAGE.substitute(channels=rows or "<li>none yet: post a message to make one</li>", index=escape(index))
    return HTMLResponse(page, headers=_HEADERS)


def _row(channel: str) -> str:
    base = f"/v1/channels/{channel}"
    links = f'<a href="{base}/prompt?text=hello">prompt</a>, <a href="{base}/context">context</a>'
    return f'<li><a href="{base}/messages">{channel}</a> ({links})</li>'
