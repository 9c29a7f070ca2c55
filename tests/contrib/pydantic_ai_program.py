"""Agents of pydantic-ai on pretended models, for the tests beside this file. What is recorded of `answer` is kept in
`recorded/`: `python -m tests.contrib.pydantic_ai_program` records it for the version of pydantic-ai that is installed.
Do not change what it does, or old recordings no longer fit; add another agent beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pydantic_ai
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.durable_exec import BaseDurabilityCapability
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    RetryPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

import kagzi
from kagzi import Kagzi, Retry
from kagzi.contrib.pydantic_ai import KagziDurability
from kagzi.sdk.histories import export_history
from kagzi.testing import run_virtually
from tests.histories.make import without_folder

RECORDED = Path(__file__).parent / "recorded"

Answers = Callable[[list[ModelMessage]], ModelResponse]


def scripted(answers: Answers) -> FunctionModel:
    """A model that answers so, at once and as a stream."""

    async def at_once(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        return answers(messages)

    async def stream(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[Any]:
        for number, part in enumerate(answers(messages).parts):
            if isinstance(part, TextPart):
                yield part.content
            elif isinstance(part, ToolCallPart):
                call = DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)
                yield {number: call}

    return FunctionModel(at_once, stream_function=stream)


def calls(*parts: tuple[str, dict[str, Any], str]) -> ModelResponse:
    return ModelResponse(parts=[ToolCallPart(tool, args, tool_call_id=id) for tool, args, id in parts])


def says(text: str) -> ModelResponse:
    return ModelResponse(parts=[TextPart(text)])


def results(messages: list[ModelMessage]) -> list[str]:
    """What came back of the tools that the model has called last."""
    return [str(part.content) for part in messages[-1].parts if isinstance(part, ToolReturnPart | RetryPromptPart)]


class Desk:
    """An agent that looks up two things, is corrected once, asks before it pays, and waits in a tool of its own."""

    def __init__(self, app: Kagzi, handler: Any = None) -> None:
        self.asked = 0
        self.looked_up: list[str] = []
        self.paid: list[int] = []
        durability: BaseDurabilityCapability[None] = KagziDurability(
            approvals="approval", approval_timeout="3 days", event_stream_handler=handler
        )
        agent = Agent(scripted(self.answer), name="desk", capabilities=[durability])
        agent.tool_plain(metadata={"kagzi": {"retry": Retry(attempts=3, first="1s"), "timeout": "1m"}})(self.look_up)
        agent.tool_plain(requires_approval=True)(self.pay)
        agent.tool_plain(metadata={"kagzi": False})(self.rest)
        self.agent = agent

        @app.workflow
        async def answer(question: str) -> str:
            return (await agent.run(question)).output

        self.workflow = answer

    def answer(self, messages: list[ModelMessage]) -> ModelResponse:
        self.asked += 1
        match len(messages):
            case 1:
                return calls(("look_up", {"word": "a"}, "1"), ("look_up", {"word": "b"}, "2"))
            case 3:
                return calls(("look_up", {"word": "nonsense"}, "3"), ("rest", {"hours": 5}, "4"))
            case 5:
                return calls(("pay", {"cents": 7}, "5"))
        return says("; ".join(results(messages)))

    async def look_up(self, word: str) -> str:
        self.looked_up.append(word)
        if word == "b" and kagzi.attempt() < 3:
            raise ConnectionError("try again")
        if word == "nonsense":
            raise ModelRetry("no such word")
        return f"{word} is a letter"

    def pay(self, cents: int) -> str:
        self.paid.append(cents)
        return f"paid {cents}"

    async def rest(self, hours: int) -> str:
        await asyncio.sleep(3600 * hours)
        return await kagzi.run_step("wake", lambda: f"rested for {hours} hours")


async def play(desk: Desk, say: Any = True) -> tuple[Any, str]:
    """Starts a run and says this to what it asks."""
    run = await desk.workflow.start("what?")
    while not (questions := await run.value("approvals", list, default=[])):
        await asyncio.sleep(60)
    if say is not None:
        await run.signal(questions[0]["signal"], say)
    return run, await run.result()


def recorded() -> bytes:
    app = Kagzi("memory://")
    desk = Desk(app)

    async def main() -> bytes:
        run, _ = await play(desk)
        row = await app.engine.workflows.get("default", run.id)
        return (await export_history(app.engine, row)).to_json()

    return run_virtually(app, main)


if __name__ == "__main__":
    file = RECORDED / f"pydantic-ai-{pydantic_ai.__version__}.json"
    if not file.exists():
        file.write_bytes(without_folder(recorded()))
