"""Agents of the OpenAI Agents SDK in workflows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

agents = pytest.importorskip("agents", reason="openai-agents is not installed (pip install 'kagzi[openai-agents]')")

from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool, handoff  # noqa: E402
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText  # noqa: E402

import kagzi  # noqa: E402
from kagzi import InvalidRequest, Kagzi, Retry, WorkflowFailed  # noqa: E402
from kagzi.contrib.openai_agents import durable, run  # noqa: E402
from kagzi.testing import crash_everywhere, run_virtually  # noqa: E402

tried: list[str] = []


class Pretended(Model):
    """Answers by what its tools have said so far."""

    def __init__(self, answer: Callable[[list[str]], list[Any]]) -> None:
        self.asked = 0
        self._answer = answer

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
        self.asked += 1
        items = [] if isinstance(input, str) else input
        results = [item["output"] for item in items if item.get("type") == "function_call_output"]
        return ModelResponse(output=self._answer(results), usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def call(tool: str, id: str, **arguments: Any) -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(name=tool, call_id=id, arguments=json.dumps(arguments), type="function_call")


def says(text: str) -> ResponseOutputMessage:
    content = [ResponseOutputText(text=text, type="output_text", annotations=[])]
    return ResponseOutputMessage(id="1", content=content, role="assistant", status="completed", type="message")


@function_tool(failure_error_function=None)
async def look_up(word: str) -> str:
    tried.append(word)
    if word == "b" and kagzi.attempt() < 3:
        raise ConnectionError("try again")
    return f"{word} is a letter"


@function_tool(failure_error_function=None)
async def rest(hours: int) -> str:
    await asyncio.sleep(3600 * hours)
    return await kagzi.run_step("wake", lambda: "rested")


@function_tool(needs_approval=True)
async def pay(cents: int) -> str:
    tried.append(f"pay {cents}")
    return f"paid {cents}"


def desk(answer: Callable[[list[str]], list[Any]], **options: Any) -> tuple[Kagzi, Any, Pretended]:
    tried.clear()
    app = Kagzi("memory://")
    model = Pretended(answer)
    agent = durable(Agent(name="desk", model=model, tools=[look_up, rest, pay]), **options)

    @app.workflow
    async def ask() -> str:
        return str((await run(agent, "?", approvals="approval", approval_timeout="3 days")).final_output)

    return app, ask, model


def story(results: list[str]) -> list[Any]:
    match len(results):
        case 0:
            return [call("look_up", "1", word="a"), call("look_up", "2", word="b")]
        case 2:
            return [call("rest", "3", hours=5)]
        case 3:
            return [call("pay", "4", cents=7)]
    return [says("; ".join(results))]


OPTIONS: dict[str, Any] = {"tools": {"look_up": {"retry": Retry(attempts=3, first="1s")}, "rest": False}}


@pytest.mark.parametrize("agrees", [True, False, None])
def test_requests_and_tools_are_steps(agrees: bool | None) -> None:
    app, ask, model = desk(story, **OPTIONS)

    async def main() -> tuple[str, set[str]]:
        handle = await ask.start()
        questions: list[dict[str, str]] = []
        while not questions:
            await asyncio.sleep(60)
            questions = await handle.value("approvals", list, default=[])
        assert questions == [{"signal": "approval:4", "tool": "pay", "arguments": '{"cents": 7}'}]
        if agrees is not None:
            await handle.signal("approval:4", agrees)
        return await handle.result(), {step.step_id for step in await handle.steps()}

    said, steps = run_virtually(app, main)
    assert said.startswith("a is a letter; b is a letter; rested; ")
    assert said.endswith("paid 7") is (agrees is True)
    assert model.asked == 4
    assert sorted(tried) == ["a", "b", "b", "b", *(["pay 7"] if agrees else [])]
    assert {"desk.model", "desk.model#4", "desk.tool.look_up[1]", "desk.tool.look_up[2]"} <= steps
    assert "desk.tool.rest[3]/wake" in steps
    assert ("desk.tool.pay[4]" in steps) is (agrees is True)


def test_a_crash_anywhere_repeats_nothing_that_was_recorded() -> None:
    _, ask, _ = desk(story, **OPTIONS)
    assert crash_everywhere(ask, signals=[("approval:4", True)]).crashes > 5


def test_a_tool_is_tried_once_if_nothing_else_is_said() -> None:
    app, ask, _ = desk(lambda _: [call("look_up", "1", word="b")])
    with pytest.raises(WorkflowFailed, match="try again"):
        run_virtually(app, lambda: ask.run())
    assert tried == ["b"]


def test_streams_are_refused_in_a_workflow() -> None:
    app = Kagzi("memory://")
    agent = durable(Agent(name="desk", model=Pretended(story)))

    @app.workflow
    async def ask() -> None:
        result = Runner.run_streamed(agent, "?", run_config=agents.RunConfig(tracing_disabled=True))
        async for _ in result.stream_events():
            pass

    with pytest.raises(WorkflowFailed, match="is not recorded"):
        run_virtually(app, lambda: ask.run())


def test_agents_that_hand_over_to_each_other_are_durable_all() -> None:
    first, second = Agent(name="first"), Agent(name="second")
    first.handoffs, second.handoffs = [second], [first]
    made = durable(first)
    assert made.handoffs[0].handoffs[0] is made  # type: ignore[union-attr]
    assert first.handoffs == [second], "what was given stays as it was"


def test_a_handoff_with_options_leads_to_a_durable_agent() -> None:
    """And a `def` tool, which the SDK calls on a thread, runs on virtual time."""
    app = Kagzi("memory://")

    @function_tool
    def count(word: str) -> int:
        return len(word)

    second = Agent(name="second", tools=[count])
    second.model = Pretended(lambda said: [says(said[-1])] if said[-1:] == ["3"] else [call("count", "2", word="abc")])
    first = Agent(
        name="first", model=Pretended(lambda _: [call("transfer_to_second", "1")]), handoffs=[handoff(second)]
    )
    agent = durable(first, tools={"count": {"timeout": "1m"}})

    @app.workflow
    async def ask() -> str:
        return str((await run(agent, "?")).final_output)

    async def main() -> tuple[str, list[str]]:
        handle = await ask.start()
        return await handle.result(), [step.step_id for step in await handle.steps()]

    said, steps = run_virtually(app, main)
    assert (said, steps) == ("3", ["first.model", "second.model", "second.tool.count[2]", "second.model#2"])


@pytest.mark.parametrize("config", [None, {}, agents.RunConfig()])
def test_nothing_is_traced_in_a_workflow_and_what_was_given_stays_as_it_was(config: Any) -> None:
    """The SDK's exporter is a thread."""
    traces: list[object] = []

    def answer(results: list[str]) -> list[Any]:
        traces.append(agents.get_current_trace())
        return [says("done")] if results else [call("pay", "1", cents=1)]

    app = Kagzi("memory://")
    agent = durable(Agent(name="desk", model=Pretended(answer), tools=[pay]))

    @app.workflow
    async def ask() -> None:
        await run(agent, "?", approvals="approval", approval_timeout="1 day", run_config=config)

    run_virtually(app, lambda: ask.run())
    assert [getattr(trace, "trace_id", "no-op") for trace in traces] == ["no-op"] * 2
    assert not config or not config.tracing_disabled


def test_a_model_of_the_run_config_which_would_not_be_recorded_is_refused() -> None:
    app = Kagzi("memory://")
    agent = durable(Agent(name="desk", model=Pretended(story)))

    @app.workflow
    async def ask() -> None:
        await run(agent, "?", run_config=agents.RunConfig(model=Pretended(story)))

    with pytest.raises(WorkflowFailed, match=r"run_config\.model would take the place"):
        run_virtually(app, lambda: ask.run())


def test_wrong_options_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"names 'pey', which is no function tool of desk .*; there are: pay"):
        durable(Agent(name="desk", tools=[pay]), tools={"pey": {"timeout": "1m"}})
    with pytest.raises(InvalidRequest, match="has no option 'retries'"):
        durable(Agent(name="desk"), tools={"pay": {"retries": 3}})  # type: ignore[typeddict-unknown-key]


async def test_outside_of_workflows_it_is_an_ordinary_agent() -> None:
    agent = durable(Agent(name="desk", model=Pretended(lambda _: [says("hello")])))
    result = await run(agent, "?", run_config=agents.RunConfig(tracing_disabled=True))
    assert result.final_output == "hello"


def test_an_answer_that_this_version_cannot_read_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def recorded_by_another_version(*_: Any, **__: Any) -> Any:
        return {"answer": 7}

    monkeypatch.setattr("kagzi.contrib.openai_agents.record", recorded_by_another_version)
    app, ask, _ = desk(story)
    with pytest.raises(WorkflowFailed, match=r"CannotDecode.*this version of openai-agents cannot read"):
        run_virtually(app, lambda: ask.run())


@pytest.mark.parametrize("made", ["plain", "tool", "agent", "handoff"])
def test_what_would_go_unrecorded_is_refused(made: str) -> None:
    model = Pretended(lambda _: [says("done")])
    plain = Agent(name="plain", model=model, tools=[look_up])
    agents = {
        "plain": plain,
        "tool": durable(Agent(name="desk", model=model)).clone(tools=[look_up]),
        "agent": durable(Agent(name="desk", model=model)).clone(handoffs=[plain]),
        "handoff": durable(Agent(name="desk", model=model)).clone(handoffs=[handoff(plain)]),
    }
    told = {
        "plain": "the agent plain is not durable",
        "tool": "the tool look_up of the agent desk is not durable, it was added afterwards",
        "agent": "the agent plain is not durable",
        "handoff": "the handoff transfer_to_plain of the agent desk is not durable, it was added afterwards",
    }
    app = Kagzi("memory://")

    @app.workflow
    async def ask() -> None:
        await run(agents[made], "?")

    with pytest.raises(WorkflowFailed, match=told[made]):
        run_virtually(app, lambda: ask.run())
    assert model.asked == 0
    assert asyncio.run(run(agents[made], "?", run_config={"tracing_disabled": True})).final_output == "done"
