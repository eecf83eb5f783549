"""Tool on the channel's history: who said what."""

import asyncio
from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import Field
from pydantic_ai import RunContext

from bot.tool import Bench, result
from bot.words import content_words
from persistence.log import ChannelLog
from persistence.records import LogRecord

LOOK_BACK_MESSAGES: Final = 2_000
_PAGE: Final = 200


async def history_search(
    ctx: RunContext[Bench],
    words: Annotated[str, Field(min_length=1, max_length=1000)],
    user: Annotated[str | None, Field(max_length=200)] = None,
    limit: Annotated[int, Field(ge=1, le=50)] = 10,
) -> str:
    """Find messages of this channel by their words, newest first among equals. Looks back over the newest 2,000 messages.

    Args:
        ctx: The turn.
        words: Words that the message holds.
        user: Only messages of this user id.
        limit: How many messages at most.
    """
    bench = ctx.deps
    log = bench.stores.log(bench.lane.channel)
    found = await asyncio.to_thread(_find, log, content_words(words), before=bench.current_ts, user=user, limit=limit)
    return result(
        messages=[
            {"ts": record.ts, "date": record.date, "user": record.user, "name": _name(record), "text": record.text[:2000]}
            for record in found
        ],
        looked_back=LOOK_BACK_MESSAGES,
    )


def _name(record: LogRecord) -> str | None:
    return record.display_name or record.user_name or record.user


def _find(log: ChannelLog, wanted: frozenset[str], *, before: str, user: str | None, limit: int) -> list[LogRecord]:
    scored = []
    for age, record in enumerate(_newest(log, before, user)):
        share = len(wanted & content_words(record.text)) / max(1, len(wanted))
        if share > 0 and not record.is_bot:
            scored.append((-share, age, record))
    return [record for _, _, record in sorted(scored, key=lambda item: item[:2])[:limit]]


def _newest(log: ChannelLog, before: str, user: str | None) -> Iterable[LogRecord]:
    left = LOOK_BACK_MESSAGES
    while left > 0 and (page := log.page(before=before, user=user, limit=min(_PAGE, left), newest_first=True)):
        yield from page
        left -= len(page)
        before = page[-1].ts
