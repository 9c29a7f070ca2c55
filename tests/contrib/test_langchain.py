"""Agents of LangChain, and graphs of LangGraph, in workflows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("langchain", reason="langchain is not installed (pip install 'kagzi[langchain]')")

from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command
from pydantic import BaseModel
from typing_extensions import TypedDict

import kagzi
from kagzi import InvalidRequest, Kagzi, Retry, WorkflowFailed
from kagzi.contrib.langchain import KagziMiddleware, durable
from kagzi.testing import crash_everywhere, run_virtually

tried: list[str] = []


class Pretended(BaseChatModel):
    answer: Callable[[list[str]], AIMessage]

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        tried.append("asked")
        results = [str(message.content) for message in messages if isinstance(message, ToolMessage)]
        return ChatResult(generations=[ChatGeneration(message=self.answer(results))])

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    def bind_tools(self, *args: Any, **kwargs: Any) -> Any:
        return self

    @property
    def _llm_type(self) -> str:
        return "pretended"


def calls(*made: tuple[str, dict[str, Any], str]) -> AIMessage:
    return AIMessage("", tool_calls=[ToolCall(name=name, args=args, id=id) for name, args, id in made])


@tool
async def look_up(word: str) -> str:
    """Look a word up."""
    tried.append(word)
    if word == "b" and kagzi.attempt() < 3:
        raise ConnectionError("try again")
    return f"{word} is a letter"


@tool
async def rest(hours: int) -> str:
    """Wait."""
    await asyncio.sleep(3600 * hours)
    return "rested"


@tool
async def jump() -> Command[Any]:
    """Go elsewhere."""
    return Command(goto=END)


@tool(response_format="content_and_artifact")
def draw() -> tuple[str, object]:
    """Draw something. LangChain calls it on a thread."""
    tried.append("draw")
    return "drawn", object()


def desk(answer: Callable[[list[str]], AIMessage], **options: Any) -> tuple[Kagzi, Any]:
    tried.clear()
    app = Kagzi("memory://")
    middleware = KagziMiddleware("desk", **options)
    agent: Any = create_agent(Pretended(answer=answer), tools=[look_up, rest, jump, draw], middleware=[middleware])

    @app.workflow
    async def ask() -> str:
        state = await agent.ainvoke({"messages": [("user", "?")]})
        return str(state["messages"][-1].content)

    return app, ask


def story(results: list[str]) -> AIMessage:
    match len(results):
        case 0:
            return calls(("look_up", {"word": "a"}, "1"), ("look_up", {"word": "b"}, "2"))
        case 2:
            return calls(("rest", {"hours": 5}, "3"))
    return AIMessage("; ".join(results))


OPTIONS: dict[str, Any] = {"tools": {"look_up": {"retry": Retry(attempts=3, first="1s")}, "rest": False}}


def test_requests_and_tools_are_steps() -> None:
    app, ask = desk(story, **OPTIONS)

    async def main() -> tuple[str, set[str], int]:
        run = await ask.start()
        said = await run.result()
        return said, {step.step_id for step in await run.steps()}, (await run.get()).executions

    said, steps, executions = run_virtually(app, main)
    assert said == "a is a letter; b is a letter; rested"
    assert executions > 1, "it was parked while a tool was waiting"
    assert sorted(tried) == ["a", "asked", "asked", "asked", "b", "b", "b"]
    assert {"desk.model", "desk.model#3", "desk.tool.look_up[1]", "desk.tool.look_up[2]"} <= steps


def test_a_crash_anywhere_repeats_nothing_that_was_recorded() -> None:
    _, ask = desk(story, **OPTIONS)
    assert crash_everywhere(ask).crashes > 5


def test_a_tool_is_tried_once_if_nothing_else_is_said() -> None:
    app, ask = desk(lambda _: calls(("look_up", {"word": "b"}, "1")))
    with pytest.raises(WorkflowFailed, match="try again"):
        run_virtually(app, lambda: ask.run())
    assert tried == ["asked", "b"]


def test_a_command_cannot_be_recorded() -> None:
    app, ask = desk(lambda _: calls(("jump", {}, "1")))
    with pytest.raises(WorkflowFailed, match="returned a Command, which cannot be recorded"):
        run_virtually(app, lambda: ask.run())


class Weather(BaseModel):
    degrees: int


def test_an_answer_with_a_form_has_it_at_every_replay() -> None:
    app = Kagzi("memory://")
    answer = Pretended(answer=lambda _: calls(("Weather", {"degrees": 21}, "1")))
    agent: Any = create_agent(answer, response_format=ToolStrategy(Weather), middleware=[KagziMiddleware("desk")])
    seen: list[object] = []

    @app.workflow
    async def ask() -> int:
        said = (await agent.ainvoke({"messages": [("user", "?")]}))["structured_response"]
        seen.append(said)
        await kagzi.sleep("1 day")
        return int(said.degrees)

    assert run_virtually(app, lambda: ask.run()) == 21
    assert seen == [Weather(degrees=21)] * 2


def test_what_cannot_be_recorded_is_final() -> None:
    app, ask = desk(lambda _: calls(("draw", {}, "1")), tools={"draw": {"retry": Retry(attempts=5)}})
    with pytest.raises(WorkflowFailed, match="what the tool draw returned cannot be recorded"):
        run_virtually(app, lambda: ask.run())
    assert tried == ["asked", "draw"]


def test_wrong_options_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="has no option 'retries'"):
        KagziMiddleware(model={"retries": 3})  # type: ignore[typeddict-unknown-key]


class State(TypedDict):
    total: int


def test_nodes_of_a_graph_are_steps() -> None:
    app = Kagzi("memory://")
    added: list[int] = []

    async def add(state: State) -> dict[str, int]:
        added.append(state["total"])
        return {"total": state["total"] + 1}

    graph: Any = StateGraph(State)
    graph.add_node("add", durable(add))
    graph.add_edge(START, "add")
    graph.add_edge("add", END)
    compiled = graph.compile()

    @app.workflow
    async def count() -> int:
        state = await compiled.ainvoke({"total": 1})
        await kagzi.sleep("1 day")
        return int(state["total"])

    assert run_virtually(app, lambda: count.run()) == 2
    assert added == [1]


async def test_outside_of_workflows_it_is_an_ordinary_agent() -> None:
    agent: Any = create_agent(
        Pretended(answer=lambda _: AIMessage("hello")), tools=[look_up], middleware=[KagziMiddleware()]
    )
    state = await agent.ainvoke({"messages": [("user", "?")]})
    assert state["messages"][-1].content == "hello"


def test_a_policy_for_a_tool_that_is_not_there_is_refused_before_one_is_called() -> None:
    app, ask = desk(story, tools={"lookup": {"retry": Retry(attempts=3)}})
    with pytest.raises(WorkflowFailed, match="names 'lookup', which is no tool of this agent; there are: draw"):
        run_virtually(app, lambda: ask.run())
    assert tried == ["asked"]


def streaming(mode: str | None) -> tuple[Kagzi, Any, list[list[Any]]]:
    """An agent of which a workflow hears in this way, or by events, and what it heard in each execution."""
    tried.clear()
    app = Kagzi("memory://")
    answer = Pretended(answer=lambda results: AIMessage("done") if results else calls(("look_up", {"word": "a"}, "1")))
    agent: Any = create_agent(answer, tools=[look_up], middleware=[KagziMiddleware("desk")])
    heard: list[list[Any]] = []

    @app.workflow
    async def ask() -> int:
        mine: list[Any] = []
        heard.append(mine)
        question = {"messages": [("user", "?")]}
        stream = agent.astream(question, stream_mode=mode) if mode else agent.astream_events(question, version="v2")
        async for chunk in stream:
            mine.append(list(chunk))
        await kagzi.sleep("1 day")
        return len(mine)

    return app, ask, heard


@pytest.mark.parametrize("mode", ["updates", "values"])
def test_what_steps_return_is_streamed_the_same_at_every_replay(mode: str) -> None:
    app, ask, heard = streaming(mode)
    assert run_virtually(app, lambda: ask.run()) > 2
    assert len(heard) == 2
    assert heard[0] == heard[1]


@pytest.mark.parametrize("mode", ["messages", "tools", None])
def test_what_happens_within_steps_is_no_stream_in_a_workflow(mode: str | None) -> None:
    app, ask, _ = streaming(mode)
    with pytest.raises(WorkflowFailed, match="within a step are not recorded; in a workflow use ainvoke"):
        run_virtually(app, lambda: ask.run())
    assert tried == []


def test_a_step_that_writes_to_a_stream_of_the_workflow_is_told() -> None:
    class State(TypedDict):
        number: int

    async def node(state: State) -> State:
        get_stream_writer()("half way")
        return {"number": state["number"] + 1}

    graph: Any = StateGraph(State)
    graph.add_node("node", durable(node))
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    compiled = graph.compile()
    app = Kagzi("memory://")

    @app.workflow
    async def ask() -> None:
        async for _ in compiled.astream({"number": 1}, stream_mode="custom"):
            pass

    with pytest.raises(WorkflowFailed, match=r"return it from the step .*test_langchain\.py:\d+ in node"):
        run_virtually(app, lambda: ask.run())
