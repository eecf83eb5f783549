"""A language model with a script, behind the agent library's own interface: real runs, real tools, answers that are known."""

import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel


@dataclass(frozen=True)
class Calls:
    """One step: call these tools, each a (name, arguments)."""

    calls: tuple[tuple[str, dict[str, object]], ...]


def call(tool: str, **arguments: object) -> Calls:
    return Calls(((tool, arguments),))


FAIL = UnexpectedModelBehavior("the provider is down")


class ScriptedModel:
    """Answers each request with the next step of its script: a text, tool calls, an error, or what a function does first.

    `seen` are the requests: (system text, all texts of the newest user prompt).
    """

    def __init__(self, *script: str | Calls | Exception | Callable[[], object]) -> None:
        self._script = list(script)
        self.seen: list[tuple[str, list[str]]] = []
        self.model = FunctionModel(stream_function=self._stream, model_name="scripted")

    @property
    def is_used_up(self) -> bool:
        return not self._script

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        self.seen.append((info.instructions or "", list(_newest_texts(messages))))
        step = self._script.pop(0)
        while callable(step):
            step()
            step = self._script.pop(0)
        if isinstance(step, Exception):
            raise step
        if isinstance(step, str):
            yield step
            return
        for number, (tool, arguments) in enumerate(step.calls):
            yield {number: DeltaToolCall(tool, json.dumps(arguments), tool_call_id=f"call-{len(self.seen)}-{number}")}


def _newest_texts(messages: Iterable[ModelMessage]) -> Iterable[str]:
    """The texts of the last request that a person (or the program) made, not those of tool results."""
    prompts = [
        part
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, UserPromptPart)
    ]
    content = prompts[-1].content if prompts else ()
    return [content] if isinstance(content, str) else [item for item in content if isinstance(item, str)]
