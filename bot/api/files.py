"""Routes of memory files: read, write with a condition, append, versions, and the audit of all changes."""

import asyncio
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field

from bot.api.access import HTTP, MAX_PAGE, StoresDep, decode_cursor, encode_cursor
from bot.api.problems import responses
from bot.api.schemas import Body
from bot.errors import BodyInvalidError
from bot.stores import Stores
from persistence.audit import AuditLine, read_audit
from persistence.documents import (
    AppendedText,
    Document,
    DocumentInfo,
    WrittenDocument,
    append_document,
    delete_document,
    document_name,
    list_documents,
    read_document,
    writable_name,
    write_document,
)
from persistence.versions import Version, diff_versions, list_versions, read_version, restore_version
from persistence.workspace import parse_channel_id
from semantic.scanner import classify

router = APIRouter(prefix="/v1", tags=["files"])
_READ_CODES = ("not_found", "forbidden", "unsafe_object", "too_large")
_WRITE_CODES = (
    *_READ_CODES,
    "precondition_failed",
    "precondition_required",
    "secret_detected",
    "not_utf8",
    "store_busy",
    "storage_full",
)
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
Line = Annotated[int | None, Query(ge=1)]


class FilePage(BaseModel):
    items: list[DocumentInfo]
    next_cursor: str | None = None


class AppendBody(Body):
    """A text to add at the end; `heading` becomes a line of its own before it."""

    text: Annotated[str, Field(min_length=1, max_length=500_000)]
    heading: Annotated[str | None, Field(max_length=500)] = None


class RestoreBody(Body):
    version: Annotated[str, Field(min_length=1, max_length=200)]


class RemovedOut(BaseModel):
    """The version under which the removed bytes are kept."""

    version: str


class VersionPage(BaseModel):
    items: list[Version]
    next_cursor: None = None


class RestoredOut(BaseModel):
    """The etag of the file after it was restored."""

    etag: str


class AuditOut(BaseModel):
    items: list[AuditLine]
    next_cursor: str | None = None


@router.get("/files", responses=responses("body_invalid"))
async def list_files(
    stores: StoresDep,
    prefix: Annotated[str, Query(max_length=1000)] = "",
    glob: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = 50,
    cursor: str | None = None,
) -> FilePage:
    """Files that may be read, by path."""
    after = decode_cursor(cursor)
    page = await asyncio.to_thread(list_documents, stores.workspace, prefix=prefix, glob=glob, after=after, limit=limit)
    return FilePage(items=page.items, next_cursor=None if page.next_after is None else encode_cursor(page.next_after))


@router.get("/files/{path:path}/versions", responses=responses(*_READ_CODES))
async def file_versions(path: str, stores: StoresDep) -> VersionPage:
    """Earlier bytes of a file, newest first."""
    name = document_name(stores.workspace, path)
    return VersionPage(items=await asyncio.to_thread(list_versions, stores.workspace, name))


@router.get("/files/{path:path}/versions/{version}", response_class=PlainTextResponse, responses=responses(*_READ_CODES))
async def file_version(path: str, version: str, stores: StoresDep) -> Response:
    """The text of a version."""
    document = await asyncio.to_thread(_version_text, stores, path, version)
    return PlainTextResponse(document, media_type="text/markdown")


def _version_text(stores: Stores, path: str, version: str) -> str:
    return read_version(stores.workspace, document_name(stores.workspace, path), version)[1].decode("utf-8", "replace")


@router.get("/files/{path:path}/diff", response_class=PlainTextResponse, responses=responses(*_READ_CODES))
async def file_diff(
    path: str,
    stores: StoresDep,
    old: Annotated[str | None, Query(alias="from", max_length=200)] = None,
    new: Annotated[str | None, Query(alias="to", max_length=200)] = None,
) -> Response:
    """Unified diff of two versions of a file."""
    name = document_name(stores.workspace, path)
    return PlainTextResponse(
        await asyncio.to_thread(diff_versions, stores.workspace, name, old=old, new=new), media_type="text/x-diff"
    )


@router.get("/files/{path:path}", response_class=PlainTextResponse, responses=responses(*_READ_CODES))
async def read_file(path: str, stores: StoresDep, start_line: Line = None, end_line: Line = None) -> Response:
    """A file's text, or lines of it. The ETag is that of the whole file."""
    document = await asyncio.to_thread(read_document, stores.workspace, path, start_line=start_line, end_line=end_line)
    return PlainTextResponse(document.text, headers=_headers(document), media_type="text/markdown")


def _headers(document: Document) -> dict[str, str]:
    modified = datetime.fromtimestamp(document.last_modified_s, UTC)
    return {
        "ETag": f'"{document.etag}"',
        "Last-Modified": format_datetime(modified, usegmt=True),
        "X-Total-Lines": str(document.total_lines),
    }


@router.put(
    "/files/{path:path}",
    responses=responses(*_WRITE_CODES),
    openapi_extra={"requestBody": {"content": {"text/markdown": {"schema": {"type": "string"}}}, "required": True}},
)
async def write_file(
    path: str,
    request: Request,
    response: Response,
    stores: StoresDep,
    *,
    if_match: Annotated[str | None, Header()] = None,
    if_none_match: Annotated[str | None, Header()] = None,
) -> WrittenDocument:
    """Replace a file (`If-Match` with the ETag that you read) or create it (`If-None-Match: *`). A conflict gives a diff."""
    text = _decode(await request.body())
    written = await asyncio.to_thread(
        write_document, stores.workspace, path, text, author=HTTP, if_match=if_match, if_none_match=if_none_match
    )
    _mark(stores, path)
    response.headers["ETag"] = f'"{written.etag}"'
    response.status_code = 201 if written.created else 200
    return written


def _mark(stores: Stores, path: str) -> None:
    """Tell searches and prompts that a file changed, when it is one of memory or a skill."""
    if (placed := classify(path)) is not None:
        stores.writes.mark(None if placed[1] is None else parse_channel_id(placed[1]))


def _decode(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as err:
        raise BodyInvalidError(f"the body is not UTF-8 at byte {err.start}") from err


@router.delete("/files/{path:path}", responses=responses(*_WRITE_CODES))
async def delete_file(path: str, stores: StoresDep, if_match: Annotated[str | None, Header()] = None) -> RemovedOut:
    """Remove a file; its bytes stay as a version until they are forgotten."""
    version = await asyncio.to_thread(delete_document, stores.workspace, path, author=HTTP, if_match=if_match)
    _mark(stores, path)
    return RemovedOut(version=version)


@router.post("/files/{path:path}/append", responses=responses(*_WRITE_CODES))
async def append_file(path: str, body: AppendBody, stores: StoresDep) -> AppendedText:
    """Add a text at the end of a file, atomically among writers; needs no condition."""
    appended = await asyncio.to_thread(append_document, stores.workspace, path, body.text, author=HTTP, heading=body.heading)
    _mark(stores, path)
    return appended


@router.post("/files/{path:path}/restore", responses=responses(*_WRITE_CODES))
async def restore_file(path: str, body: RestoreBody, stores: StoresDep) -> RestoredOut:
    """Make a version the file again; what it replaces becomes a version itself."""
    name = writable_name(stores.workspace, path)
    etag = await asyncio.to_thread(restore_version, stores.workspace, name, body.version, author=HTTP)
    _mark(stores, path)
    return RestoredOut(etag=etag)


@router.get("/audit", responses=responses())
async def read_audit_log(
    stores: StoresDep,
    name: Annotated[str | None, Query(max_length=1000, description="Only changes of this file")] = None,
    by: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = 50,
    cursor: str | None = None,
) -> AuditOut:
    """Who changed what, newest first; never the content."""
    before = decode_cursor(cursor)
    if before is not None and not before.isdigit():
        raise BodyInvalidError("the cursor is not one that a page of this list gave")
    page = await asyncio.to_thread(
        read_audit, stores.workspace, before=None if before is None else int(before), limit=limit, name=name, by=by
    )
    return AuditOut(items=page.items, next_cursor=None if page.before is None else encode_cursor(str(page.before)))
