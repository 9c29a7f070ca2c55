"""Agents of pydantic-ai in workflows: what is a step, what is repeated, and what is refused."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, ApprovalRequired, CallDeferred, FunctionToolset, RunContext
from pydantic_ai.exceptions import ModelHTTPError, UnexpectedModelBehavior, UserError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import FunctionModel

import kagzi
from kagzi import CannotDecode, InvalidRequest, Kagzi, Retry, WorkflowFailed
from kagzi.codecs import Encrypt
from kagzi.contrib.pydantic_ai import Approval, KagziDurability
from kagzi.contrib.steps import short
from kagzi.testing import crash_everywhere, replay, run_virtually
from tests.contrib.pydantic_ai_program import RECORDED, Desk, calls, play, results, says, scripted

customer: ContextVar[str] = ContextVar("customer", default="nobody")


def run_agent(agent: Agent[None, Any], workflow: Any = None) -> tuple[Any, list[str]]:
    """Runs an agent in a workflow, and returns what it says and which steps are recorded."""
    app = Kagzi("memory://")

    @app.workflow
    async def ask() -> Any:
        return (await agent.run("?")).output

    async def main() -> tuple[Any, list[str]]:
        run = await (workflow or ask).start()
        said = await run.result()
        return said, [step.step_id for step in await run.steps()]

    return run_virtually(app, main)


def with_tool(tool: Any, *capabilities: Any, **options: Any) -> Agent[None, str]:
    """An agent that calls a tool once and tells its result."""

    def answer(messages: list[ModelMessage]) -> ModelResponse:
        return says(results(messages)[0]) if len(messages) > 1 else calls((tool.__name__, {}, "1"))

    agent: Agent[None, str] = Agent(
        scripted(answer), name="desk", capabilities=capabilities or [KagziDurability()], **options
    )
    agent.tool_plain(**options.pop("tool", {}))(tool)
    return agent


def test_requests_and_tools_are_steps_with_names_that_stay() -> None:
    app = Kagzi("memory://")
    desk = Desk(app)

    async def main() -> tuple[str, list[str], timedelta, list[Any]]:
        began = kagzi.now()
        run, said = await play(desk)
        steps = [step.step_id for step in await run.steps()]
        return said, steps, kagzi.now() - began, await run.value("approvals", list)

    said, steps, took, open_questions = run_virtually(app, main)
    assert said == "paid 7"
    assert set(steps) == {
        "desk.model",
        "desk.model#2",
        "desk.model#3",
        "desk.model#4",
        "desk.tool.look_up[1]",
        "desk.tool.look_up[2]",
        "desk.tool.look_up[3]",
        "desk.tool.rest[4]/@sleep",
        "desk.tool.rest[4]/wake",
        "approval:5/@@approval:5",
        "desk.tool.pay[5]",
    }
    assert desk.asked == 4
    assert sorted(desk.looked_up) == ["a", "b", "b", "b", "nonsense"], "its policy allows three attempts"
    assert desk.paid == [7]
    assert took >= timedelta(hours=5)
    assert open_questions == []


def test_a_crash_anywhere_repeats_nothing_that_was_recorded() -> None:
    app = Kagzi("memory://")
    desk = Desk(app)

    report = crash_everywhere(desk.workflow, "what?", signals=[("approval:5", True)])
    assert report.crashes > 5


@pytest.mark.parametrize(
    ("say", "told", "paid"),
    [
        (True, "paid 7", [7]),
        (False, "The tool call was denied.", []),
        (Approval(False, "too expensive"), "too expensive", []),
        (Approval(True, arguments={"cents": 3}), "paid 3", [3]),
        (None, "The tool call was denied.", []),
    ],
)
def test_a_person_decides(say: Any, told: str, paid: list[int]) -> None:
    app = Kagzi("memory://")
    desk = Desk(app)
    assert run_virtually(app, lambda: play(desk, say))[1] == told
    assert desk.paid == paid


def test_everything_that_is_asked_is_asked_at_once_and_no_longer_when_it_is_given_up() -> None:
    """A call that needs approval and one that is executed elsewhere, whose id is longer than a signal's name may be."""
    app = Kagzi("memory://")
    elsewhere = "c" * 400

    def answer(messages: list[ModelMessage]) -> ModelResponse:
        if len(messages) > 1:
            return says(" ".join(results(messages)))
        return calls(("pay", {}, "1"), ("order", {}, elsewhere))

    durability: KagziDurability[None] = KagziDurability(approvals="approval", approval_timeout="3 days")
    agent = Agent(scripted(answer), name="desk", capabilities=[durability])

    @agent.tool
    async def pay(context: RunContext[None]) -> str:
        if not context.tool_call_approved:
            raise ApprovalRequired
        return "paid"

    @agent.tool_plain
    async def order() -> str:
        raise CallDeferred

    @app.workflow
    async def ask(patience: float) -> str:
        try:
            async with asyncio.timeout(patience):
                return (await agent.run("?")).output
        except TimeoutError:
            await kagzi.sleep("1 hour")
            return "gave up"

    async def main() -> None:
        run = await ask.start(30 * 86400)
        while not (questions := await run.value("approvals", list, default=[])):
            await asyncio.sleep(60)
        pays, orders = sorted(questions, key=lambda question: question["tool"], reverse=True)
        assert (pays["signal"], len(orders["signal"])) == ("approval:1", 137)
        await run.signal(orders["signal"], "ordered")
        await run.signal(pays["signal"], True)
        assert await run.result() == "paid ordered"
        began = kagzi.now()
        assert await ask.run(30 * 86400) == "The tool call was denied. Nobody has given a result in time."
        assert kagzi.now() - began < timedelta(days=4), "their times run side by side"
        run = await ask.start(3600.0)
        assert await run.result() == "gave up"
        assert await run.value("approvals", list) == []

    run_virtually(app, main)


def test_tools_run_side_by_side() -> None:
    meet = asyncio.Barrier(3)

    def answer(messages: list[ModelMessage]) -> ModelResponse:
        if len(messages) > 1:
            return says(" ".join(results(messages)))
        return calls(*(("wait", {"number": number}, str(number)) for number in range(3)))

    agent = Agent(scripted(answer), name="desk", capabilities=[KagziDurability()])

    @agent.tool_plain
    async def wait(number: int) -> int:
        await meet.wait()
        return number

    assert run_agent(agent)[0] == "0 1 2"


def test_a_tool_is_tried_once_and_a_model_again() -> None:
    asked = 0
    tried = 0

    def answer(messages: list[ModelMessage]) -> ModelResponse:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise ModelHTTPError(503, "pretended", "busy")
        return calls(("break_", {}, "1"))

    agent = Agent(scripted(answer), name="desk", capabilities=[KagziDurability()])

    @agent.tool_plain
    async def break_() -> None:
        nonlocal tried
        tried += 1
        raise OSError("no such file")

    with pytest.raises(WorkflowFailed, match="no such file"):
        run_agent(agent)
    assert (asked, tried) == (3, 1)


def test_what_a_second_try_cannot_change_is_not_tried_again() -> None:
    asked = 0

    def answer(messages: list[ModelMessage]) -> ModelResponse:
        nonlocal asked
        asked += 1
        raise UnexpectedModelBehavior("nonsense")

    with pytest.raises(WorkflowFailed, match="nonsense"):
        run_agent(Agent(scripted(answer), name="desk", capabilities=[KagziDurability()]))
    assert asked == 1


def test_a_tool_ends_with_its_timeout() -> None:
    async def hang() -> None:
        await asyncio.sleep(3600)

    with pytest.raises(WorkflowFailed, match="longer than its timeout of 5 s"):
        run_agent(with_tool(hang, KagziDurability(tool={"timeout": "5s"})))


def test_the_error_of_a_model_is_itself_in_the_workflow() -> None:
    app = Kagzi("memory://")

    def answer(messages: list[ModelMessage]) -> ModelResponse:
        raise ModelHTTPError(429, "pretended", "slow down")

    agent = Agent(scripted(answer), name="desk", capabilities=[KagziDurability(model={"retry": Retry(attempts=2)})])

    @app.workflow
    async def ask() -> int:
        try:
            await agent.run("?")
        except ModelHTTPError as error:
            return error.status_code
        return 0

    assert run_virtually(app, lambda: ask.run()) == 429


def test_a_run_of_an_agent_is_the_same_at_every_replay() -> None:
    app = Kagzi("memory://")
    durability: KagziDurability[None] = KagziDurability()
    agent = with_tool(kagzi.attempt, durability)
    seen = []

    @app.workflow
    async def ask() -> str:
        result = await agent.run("?")
        clock = durability.get_run_clock()
        assert clock is not None
        seen.append((result.run_id, result.conversation_id, result.usage.requests, result.output, clock()))
        await kagzi.sleep("1 day")
        return result.output

    run_virtually(app, lambda: ask.run())
    assert len(seen) == 2
    assert seen[0] == seen[1]


def test_bodies_see_what_the_caller_has_set() -> None:
    app = Kagzi("memory://")

    async def who() -> str:
        return f"{customer.get()} in {kagzi.current().step_id}"

    agent = with_tool(who)

    @app.workflow
    async def ask() -> str:
        customer.set("ann")
        with agent.override(instructions="be brief"):
            return (await agent.run("?")).output

    assert run_virtually(app, lambda: ask.run()) == "ann in desk.tool.who[1]"


def test_a_model_that_answers_later_is_waited_for_durably() -> None:
    """Polls of a job at the provider: the run is parked between them."""
    asked = 0

    class Background(FunctionModel):
        def continuation_delay(self, response: ModelResponse) -> float | None:
            return 7200.0

        def continuation_mode(self, response: ModelResponse, *args: Any) -> Any:
            return super().continuation_mode(response, *args)

    async def answer(messages: list[ModelMessage], _: Any) -> ModelResponse:
        nonlocal asked
        asked += 1
        response = says("at last")
        if asked < 3:
            response = ModelResponse(parts=[], state="suspended", provider_response_id="job")
        return response

    app = Kagzi("memory://")
    agent = Agent(Background(answer), name="desk", capabilities=[KagziDurability()])

    @app.workflow
    async def ask() -> str:
        return (await agent.run("?")).output

    async def main() -> tuple[str, int, set[str]]:
        run = await ask.start()
        said = await run.result()
        return said, (await run.get()).executions, {step.step_id for step in await run.steps()}

    said, executions, steps = run_virtually(app, main)
    assert (said, asked, executions) == ("at last", 3, 3)
    assert {"desk.wait/@sleep", "desk.wait#2/@sleep"} <= steps


def test_a_handler_hears_of_models_and_tools_and_may_be_added_under_live_runs() -> None:
    seen: list[str] = []

    async def handler(_: Any, events: Any) -> None:
        async for event in events:
            seen.append(type(event).__name__)

    app = Kagzi("memory://")
    desk = Desk(app, handler)

    async def main() -> set[str]:
        run, _ = await play(desk)
        return {step.step_id for step in await run.steps()}

    steps = run_virtually(app, main)
    assert {"PartStartEvent", "FunctionToolCallEvent", "FunctionToolResultEvent"} <= set(seen)
    plain = Kagzi("memory://")
    without = Desk(plain)

    async def main_without() -> set[str]:
        run, _ = await play(without)
        return {step.step_id for step in await run.steps()}

    assert {step for step in steps if not step.startswith("desk.event")} == run_virtually(plain, main_without)


@pytest.mark.parametrize("file", sorted(RECORDED.glob("pydantic-ai-*.json")), ids=lambda file: file.stem)
def test_what_earlier_versions_have_recorded_is_understood(file: Path) -> None:
    """No model is asked and no tool is called; nothing is called otherwise than it was."""
    app = Kagzi("memory://")
    desk = Desk(app)
    assert replay(file, app).events == 11
    assert (desk.asked, desk.looked_up, desk.paid) == (0, [], [])


def test_names_and_keys_that_are_too_long_stay_different() -> None:
    assert short("a" * 300 + "x") != short("a" * 300 + "y")
    assert short("a", "k" * 300 + "x") != short("a", "k" * 300 + "y")
    assert all(len(part or "") < 150 for part in short("a" * 300, "k" * 300))
    assert short("support.tool", "call_1") == ("support.tool", "call_1")


def test_what_an_agent_says_is_sealed_as_all_else_is() -> None:
    app = Kagzi("memory://", codec=Encrypt({"1": bytes(32)}, current="1"))
    agent = with_tool(kagzi.attempt)

    @app.workflow
    async def ask() -> str:
        return (await agent.run("?")).output

    async def main() -> list[bytes | None]:
        run = await ask.start()
        assert await run.result() == "1"
        return [step.output for step in await app.engine.workflows.steps("default", run.id)]

    outputs = run_virtually(app, main)
    assert len(outputs) == 3
    assert all(output is not None and output.startswith(b"\x03") for output in outputs)


def test_a_recording_that_cannot_be_read_is_no_error_of_the_model() -> None:
    with pytest.raises(CannotDecode, match="cannot read what was recorded"):
        KagziDurability.engine_spec.codec.load(ModelResponse, {"parts": "none"})


def test_a_result_without_a_form_in_json_is_final() -> None:
    async def make() -> object:
        return object()

    with pytest.raises(WorkflowFailed, match="cannot be recorded"):
        run_agent(with_tool(make, KagziDurability(tool={"retry": Retry(attempts=5)})))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": {"retries": 3}}, "has no option 'retries'"),
        ({"tool": 3}, "must be step options"),
        ({"tool": {"retry": 3}}, "retry must be a Retry"),
        ({"event": {"timeout": "soon"}}, "soon"),
        ({"approvals": ""}, "approvals must not be empty"),
    ],
)
def test_wrong_options_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        KagziDurability(**options)


def test_wrong_options_of_a_tool_name_it() -> None:
    async def look() -> str:
        return ""

    agent = with_tool(look)
    agent._function_toolset.tools["look"].metadata = {"kagzi": {"tries": 2}}
    with pytest.raises(WorkflowFailed, match="of the tool look has no option 'tries'"):
        run_agent(agent)


def test_tools_that_come_with_a_run_are_refused() -> None:
    """They would be called outside of steps, and again at every replay."""
    app = Kagzi("memory://")
    agent = with_tool(kagzi.attempt)

    @app.workflow
    async def ask() -> str:
        return (await agent.run("?", toolsets=[FunctionToolset([kagzi.now], id="more")])).output

    with pytest.raises(WorkflowFailed, match="Kagzi") as raised:
        run_virtually(app, lambda: ask.run())
    assert raised.value.failure is not None
    assert raised.value.failure.is_a(UserError)


def test_an_agent_in_a_def_workflow_says_where() -> None:
    app = Kagzi("memory://")
    agent = with_tool(kagzi.attempt)

    @app.workflow
    def ask() -> str:
        return agent.run_sync("?").output

    with pytest.raises(WorkflowFailed, match=r"test_pydantic_ai\.py:\d+ in ask"):
        run_virtually(app, lambda: ask.run())


async def test_outside_of_workflows_it_is_an_ordinary_agent() -> None:
    result = await with_tool(kagzi.attempt).run("?")
    assert result.output == "1"
