"""The agent loop: one run of a model with its tools, each completed message handed on as it is made.

The loop itself is the agent library's; what is kept, said and limited is decided here.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from pydantic_ai import Agent, CallToolsNode, ModelRequestNode
from pydantic_ai.exceptions import AgentRunError, UserError
from pydantic_ai.messages import (
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    ModelMessage,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRun
from pydantic_ai.usage import UsageLimits

from bot.errors import ModelFailedError, TurnTimeoutError
from bot.message import Delta, StopReason, TokenUsage, ToolCalled, ToolReturned, TurnEvent
from bot.models.mapping import to_assistant_message, to_tool_result
from bot.tool import Bench
from bot.tools import TOOLS
from persistence.records import AssistantMessage, TextBlock, ToolResultMessage

MAX_REQUESTS: Final = 50
_agent: Final = Agent[Bench, str](deps_type=Bench, tools=TOOLS)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a run is given. `model_name` is the name in settings; times in seconds."""

    model: Model
    model_name: str
    system: str
    history: Sequence[ModelMessage]
    prompt: Sequence[UserContent]
    timeout_s: float
    warn_before_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The final text of a run."""

    text: str
    usage: TokenUsage
    stop_reason: StopReason


Keep = Callable[[AssistantMessage | ToolResultMessage], Awaitable[None]]
Emit = Callable[[TurnEvent], None]


async def run_agent(assignment: Assignment, bench: Bench, *, keep: Keep, emit: Emit) -> Outcome:
    """Run the model until it answers; each completed message goes to `keep` (in order), each event to `emit`.

    Raises ModelFailedError and TurnTimeoutError; what was kept until then stays valid for the next turn.
    """
    started = time.monotonic()
    try:
        async with asyncio.timeout(assignment.timeout_s):
            return await _run(assignment, bench, keep=keep, emit=emit, started=started)
    except TimeoutError as err:
        raise TurnTimeoutError(
            f"the turn took longer than {assignment.timeout_s:g} s (settings: run_timeout_s); the message is kept, send it again",
        ) from err
    except (AgentRunError, UserError) as err:
        raise ModelFailedError(f"the model {assignment.model_name!r} could not answer: {err}") from err


async def _run(assignment: Assignment, bench: Bench, *, keep: Keep, emit: Emit, started: float) -> Outcome:
    warn_at = started + assignment.timeout_s - assignment.warn_before_s
    last: AssistantMessage | None = None
    async with _agent.iter(
        list(assignment.prompt),
        model=assignment.model,
        deps=bench,
        instructions=assignment.system,
        message_history=list(assignment.history),
        usage_limits=UsageLimits(request_limit=MAX_REQUESTS),
    ) as run:
        async for node in run:
            if isinstance(node, ModelRequestNode):
                if time.monotonic() > warn_at:
                    warn_at = float("inf")
                    node.request.parts = [*node.request.parts, UserPromptPart(_warning(assignment))]
                await _stream_text(node, run, emit)
            elif isinstance(node, CallToolsNode):
                last = to_assistant_message(node.model_response, model=assignment.model_name)
                await keep(last)
                await _run_tools(node, run, keep=keep, emit=emit)
        return _outcome(run, last)


def _warning(assignment: Assignment) -> str:
    return f"[The time of this turn is nearly over: about {assignment.warn_before_s:g} s are left. Answer now.]"


async def _stream_text(node: ModelRequestNode[Bench, str], run: AgentRun[Bench, str], emit: Emit) -> None:
    async with node.stream(run.ctx) as stream, aclosing(aiter(stream)) as events:  # type: ignore[type-var]  # it is a generator
        async for event in events:
            if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart) and event.part.content:
                emit(Delta(event.part.content))
            elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                emit(Delta(event.delta.content_delta))


async def _run_tools(node: CallToolsNode[Bench, str], run: AgentRun[Bench, str], *, keep: Keep, emit: Emit) -> None:
    async with node.stream(run.ctx) as stream:
        async for event in stream:
            if isinstance(event, FunctionToolCallEvent):
                emit(ToolCalled(event.part.tool_call_id, event.part.tool_name, event.part.args_as_json_str()))
            elif isinstance(event, FunctionToolResultEvent):
                result = to_tool_result(event.part)
                await keep(result)
                text = "\n".join(block.text for block in result.content if isinstance(block, TextBlock))
                emit(ToolReturned(result.tool_call_id, result.tool_name, text, result.is_error))


def _outcome(run: AgentRun[Bench, str], last: AssistantMessage | None) -> Outcome:
    text = run.result.output if run.result is not None else ""
    reason: StopReason = "length" if last is not None and last.stop_reason == "length" else "stop"
    return Outcome(text, TokenUsage(run.usage.input_tokens, run.usage.output_tokens), reason)
