"""Routes that post, edit and delete messages: JSON, or server-sent events of the turn."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated, Final

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from bot.api.access import ChannelDep, LanesDep, StoresDep
from bot.api.problems import describe, responses
from bot.api.schemas import (
    AnsweredOut,
    EditBody,
    MessageBody,
    MessageOut,
    Ts,
    answered_out,
    message_out,
    passages_out,
    reply_out,
    turn_out,
)
from bot.errors import STATUS
from bot.lanes import Lanes
from bot.message import Accepted, Answered, Delta, IncomingMessage, Json, Recalled, Replied, ToolCalled, ToolReturned, TurnEvent
from persistence.records import Attachment
from persistence.workspace import ChannelId

router = APIRouter(prefix="/v1/channels/{channel}/messages", tags=["messages"])
KEEP_ALIVE_S: Final = 15.0
REPLAYED: Final = "Idempotent-Replayed"
Key = Annotated[str | None, Header(min_length=1, max_length=200, description="Makes a retry safe where the client has no ts")]
_POST_CODES: Final = (
    "channel_invalid",
    "message_conflict",
    "unsafe_object",
    "too_large",
    "ts_future",
    "store_busy",
    "lane_full",
    "model_error",
    "turn_timeout",
    "storage_full",
)


def _incoming(channel: ChannelId, body: MessageBody, key: str | None) -> IncomingMessage:
    return IncomingMessage(
        channel=channel,
        text=body.text,
        user=body.user,
        user_name=body.user_name,
        display_name=body.display_name,
        ts=body.ts,
        thread_ts=body.thread_ts,
        attachments=tuple(Attachment(name=attachment.name, local=attachment.local) for attachment in body.attachments),
        key=key,
        metadata=body.metadata,
    )


@router.post(
    "",
    response_model=AnsweredOut,
    responses={
        202: {"model": AnsweredOut, "description": "Logged; no turn was asked for"},
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "The message and its reply"},
        **responses(*_POST_CODES),
    },
)
async def post_message(
    request: Request, channel: ChannelDep, body: MessageBody, lanes: LanesDep, idempotency_key: Key = None
) -> Response:
    """Log a message durably and answer it.

    With `Accept: text/event-stream` the turn's events come as they happen. `respond: false` only logs (202).
    """
    message = _incoming(channel, body, idempotency_key)
    if not body.respond:
        appended = await lanes.log_only(message)
        return _answer(Answered(appended.record, None, None, replayed=appended.replayed), 202)
    if "text/event-stream" in request.headers.get("accept", ""):
        return await _stream(lanes, message)
    return _answer(await lanes.submit(message), 200)


def _answer(answered: Answered, status: int) -> Response:
    headers = {REPLAYED: "true"} if answered.replayed else {}
    return JSONResponse(answered_out(answered).model_dump(mode="json"), status, headers)


async def _stream(lanes: Lanes, message: IncomingMessage) -> Response:
    """Refusals before the message is logged are plain problem documents; from then on everything is an event."""
    events: asyncio.Queue[TurnEvent] = asyncio.Queue()
    answer = asyncio.ensure_future(lanes.submit(message, events.put_nowait))
    first = asyncio.ensure_future(events.get())
    await asyncio.wait((answer, first), return_when=asyncio.FIRST_COMPLETED)
    if not first.done():
        first.cancel()
        await answer  # raises what was refused
    return StreamingResponse(
        _events(answer, events, first), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
    )


async def _events(
    answer: "asyncio.Future[Answered]", events: "asyncio.Queue[TurnEvent]", first: "asyncio.Future[TurnEvent]"
) -> AsyncIterator[str]:
    getter = first
    try:
        while True:
            await asyncio.wait((answer, getter), timeout=KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED)
            if getter.done():
                yield _frame(*event_out(getter.result()))
                getter = asyncio.ensure_future(events.get())
            elif answer.done():
                yield _last(answer)
                yield _frame("done", {})
                return
            else:
                yield ": still working\n\n"
    finally:  # a client that goes away ends this stream only: the turn goes on
        getter.cancel()
        answer.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await answer


def _last(answer: "asyncio.Future[Answered]") -> str:
    err = answer.exception()
    if err is None:
        answered = answer.result()
        replay = answered.replayed and answered.turn is None and answered.reply is not None
        return _frame("reply", {"reply": reply_out(answered.reply).model_dump(mode="json")}) if replay and answered.reply else ""
    code, detail, _ = describe(err if isinstance(err, Exception) else RuntimeError())
    return _frame("error", {"code": code, "detail": detail, "status": STATUS.get(code, 500)})


def _frame(event: str, data: dict[str, Json]) -> str:
    return f"event: {event}\ndata: {json.dumps(data, ensure_ascii=False, default=str)}\n\n"


def event_out(event: TurnEvent) -> tuple[str, dict[str, Json]]:  # noqa: PLR0911 - one return for each kind of event
    """(name, data) of a server-sent event."""
    match event:
        case Accepted(message):
            return "accepted", {"message": message_out(message).model_dump(mode="json")}
        case Recalled(passages):
            return "recall", {"passages": [passage.model_dump() for passage in passages_out(passages)]}
        case ToolCalled(call_id, name, arguments):
            return "tool_call", {"id": call_id, "name": name, "arguments": arguments}
        case ToolReturned(call_id, name, text, is_error):
            return "tool_result", {"id": call_id, "name": name, "text": text, "is_error": is_error}
        case Delta(text):
            return "delta", {"text": text}
        case Replied(reply, turn):
            return "reply", {"reply": reply_out(reply).model_dump(mode="json"), "turn": turn_out(turn).model_dump(mode="json")}


@router.patch("/{ts}", responses=responses("channel_invalid", "not_found", "store_busy", "storage_full"))
async def edit_message(channel: ChannelDep, ts: Ts, body: EditBody, stores: StoresDep) -> MessageOut:
    """Give a message a new text; the old one stays in the log's earlier line."""
    return message_out(await asyncio.to_thread(stores.log(channel).edit, ts, body.text))


@router.delete("/{ts}", responses=responses("channel_invalid", "not_found", "store_busy", "storage_full"))
async def delete_message(channel: ChannelDep, ts: Ts, stores: StoresDep) -> MessageOut:
    """Hide a message everywhere; its line stays in the log until it is forgotten."""
    return message_out(await asyncio.to_thread(stores.log(channel).delete, ts))
