"""The prompt that a message would get, made without a trace on disk."""

import asyncio
import time
from typing import Literal

from bot.api.schemas import PromptMessageOut, PromptOut, section_out
from bot.briefing import load_prompt, open_job, peek_topics, recall
from bot.consolidation import MemoryJob
from bot.prompt import Prompt, estimate_tokens
from bot.stores import Stores
from persistence.context import Context
from persistence.records import (
    AssistantMessage,
    LogRecord,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultMessage,
    UserMessage,
)
from persistence.sync import preview_sync
from persistence.workspace import Lane
from persistence.wrapper import wrap_message

PREVIEW_USER = "preview"


async def preview_prompt(stores: Stores, lane: Lane, text: str) -> PromptOut:
    """System text, messages and sections as a turn for `text` in `lane` would get them now."""
    job = await open_job(stores, lane)
    passages = await recall(stores, lane, text, settings=job.settings)
    context = Context(stores.workspace, lane)  # one of its own: a turn may be using the shared one
    prompt = await asyncio.to_thread(load_prompt, job, context, surface="http", passages=passages, take=peek_topics(job))
    asked = LogRecord(ts=f"{time.time():.6f}", text=text, user=PREVIEW_USER, thread_ts=lane.thread_ts)
    earlier = await asyncio.to_thread(_earlier_messages, job, context, estimate_tokens(prompt.system))
    return _out(prompt, earlier, wrap_message(asked))


def _earlier_messages(job: MemoryJob, context: Context, system_tokens: int) -> list[Message]:
    log = job.stores.log(job.lane.channel)
    news = preview_sync(log, context, job.stores.workspace, current_ts=f"{time.time() + 1:.6f}")
    room = max(0, job.limits.threshold_tokens - system_tokens)
    return [*context.build_messages(budget_tokens=room, lookup=job.changes).messages, *news]


def _out(prompt: Prompt, earlier: list[Message], asked: str) -> PromptOut:
    messages = [PromptMessageOut(role=_role(message), text=_text(message)) for message in earlier]
    messages.append(PromptMessageOut(role="user", text="\n".join(part for part in (asked, prompt.beside) if part)))
    return PromptOut(
        system=prompt.system,
        messages=messages,
        sections=[section_out(section) for section in prompt.sections],
        tokens=estimate_tokens(prompt.system) + sum(estimate_tokens(message.text) for message in messages),
        fingerprint=prompt.fingerprint,
    )


def _role(message: Message) -> Literal["user", "assistant", "tool"]:
    match message:
        case UserMessage():
            return "user"
        case AssistantMessage():
            return "assistant"
        case ToolResultMessage():
            return "tool"


def _text(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    return "\n".join(_block_text(block) for block in message.content)


def _block_text(block: object) -> str:
    match block:
        case TextBlock():
            return block.text
        case ThinkingBlock():
            return f"[thinking] {block.thinking}"
        case ToolCallBlock():
            return f"[calls {block.name} {block.arguments}]"
        case _:
            return "[image]"
