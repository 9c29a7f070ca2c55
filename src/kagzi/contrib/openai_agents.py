"""Durable agents of the OpenAI Agents SDK: each request to a model and each call of a tool is a recorded step.

    agent = durable(Agent(name="support", model="gpt-5", tools=[find_order]))

    @app.workflow
    async def support(question: str) -> str:
        return (await run(agent, question)).final_output

Outside of a workflow such an agent is an ordinary one.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Literal, TypeVar
from weakref import WeakSet

from agents import (
    Agent,
    FunctionTool,
    Handoff,
    Model,
    ModelProvider,
    ModelResponse,
    RunConfig,
    RunContextWrapper,
    Runner,
    RunResult,
    Tool,
)
from agents.items import ToolApprovalItem, TResponseStreamEvent
from agents.models.multi_provider import MultiProvider
from agents.tool_context import ToolContext
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from kagzi.contrib.steps import StepOptions, as_text, ask, check_options, in_workflow, plain, record
from kagzi.core.duration import Duration
from kagzi.core.limits import check_name
from kagzi.core.retry import Retry
from kagzi.errors import CannotDecode, InvalidRequest
from kagzi.sdk.replay.rooted import rooted

__all__ = ["StepOptions", "durable", "run"]

T = TypeVar("T")

# The functions that tools and handoffs of durable agents call.
_recording: WeakSet[Callable[..., Any]] = WeakSet()
_responses: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse)


def durable(
    agent: Agent[T],
    *,
    provider: ModelProvider | None = None,
    model: StepOptions | None = None,
    tool: StepOptions | None = None,
    tools: Mapping[str, StepOptions | Literal[False]] | None = None,
) -> Agent[T]:
    """Returns the agent, and those that it hands over to, with models and function tools that are steps in a workflow.

    `model` and `tool` are the `StepOptions` of such steps: models are tried five times and tools once, if nothing else
    is said. `tools` has those of single tools by name; False lets one run as part of the workflow. `provider` finds
    models by name (default: that of the SDK).
    """
    known = tools or {}
    options = {
        name: False if own is False else check_options(own, f"tools={{{name!r}: ...}}") for name, own in known.items()
    }
    wrapping = _Wrapping(
        provider,
        check_options(model, "durable(model=...)"),
        {"retry": Retry.none, **check_options(tool, "durable(tool=...)")},
        options,
    )
    made = wrapping.agent(agent)
    if unknown := sorted(set(options) - wrapping.seen):
        raise InvalidRequest(
            f"durable(tools=...) names {unknown[0]!r}, which is no function tool of {agent.name} or of those it hands "
            f"over to; there are: {', '.join(sorted(wrapping.seen)) or 'none'}"
        )
    return made


async def run(
    agent: Agent[T],
    input: Any,
    *,
    approvals: str | None = None,
    approval_timeout: Duration | None = None,
    **options: Any,
) -> RunResult:
    """Runs a durable agent as `Runner.run` does. With `approvals="approval"` a call that needs approval waits for the
    signal `approval:<id of the call>`, a bool, for `approval_timeout` at most, after which it is rejected. The value
    `approvals` of the run shows what is asked."""
    if in_workflow():
        _check_durable(agent, set())
        # Its exporter is a thread, and its ids are of chance.
        options["run_config"] = _without_tracing(options.get("run_config"))
    if approvals is not None:
        check_name(approvals, "approvals")
    result = await Runner.run(agent, input, **options)
    while approvals is not None and result.interruptions and in_workflow():
        state = result.to_state()
        asked = result.interruptions
        said = await asyncio.gather(*(_ask(item, approvals, approval_timeout) for item in asked))
        for item, approved in zip(asked, said, strict=True):
            if approved:
                state.approve(item)
            else:
                state.reject(item)
        result = await Runner.run(agent, state, **options)
    return result


def _check_durable(agent: Agent[Any], seen: set[int]) -> None:
    """Refuses an agent that would be asked, or call a tool, without a record: again at each replay."""
    if id(agent) in seen:
        return
    seen.add(id(agent))
    if not isinstance(agent.model, _DurableModel):
        raise InvalidRequest(
            f"the agent {agent.name} is not durable: nothing of it would be recorded in a workflow. Give run() what "
            "durable(agent) returns"
        )
    for tool in agent.tools:
        if isinstance(tool, FunctionTool) and tool.on_invoke_tool not in _recording:
            raise InvalidRequest(
                f"the tool {tool.name} of the agent {agent.name} is not durable, it was added afterwards: give an "
                "agent its tools before durable(agent)"
            )
    for other in agent.handoffs:
        if isinstance(other, Agent):
            _check_durable(other, seen)
        elif other.on_invoke_handoff not in _recording:
            raise InvalidRequest(
                f"the handoff {other.tool_name} of the agent {agent.name} is not durable, it was added afterwards: "
                "give an agent its handoffs before durable(agent)"
            )


def _without_tracing(config: Any) -> RunConfig:
    chosen = copy.copy(config) if isinstance(config, RunConfig) else RunConfig(**(config or {}))
    if chosen.model is not None:
        raise InvalidRequest(
            "run_config.model would take the place of the models that are recorded; in a workflow give the model to "
            "the agent: durable(agent.clone(model=...))"
        )
    chosen.tracing_disabled = True
    return chosen


async def _ask(item: ToolApprovalItem, approvals: str, timeout: Duration | None) -> bool:
    arguments = as_text(item.arguments or "")
    return bool(
        await ask(f"{approvals}:{item.call_id}", item.name or "", arguments, bool, timeout=timeout, default=False)
    )


class _Wrapping:
    """Makes agents durable, each once: they may hand over to each other in circles."""

    def __init__(
        self, provider: ModelProvider | None, model: StepOptions, tool: StepOptions, tools: dict[str, Any]
    ) -> None:
        self._provider = provider or MultiProvider()
        self._model = model
        self._tool = tool
        self._tools = tools
        self._agents: dict[int, tuple[Agent[Any], Agent[Any]]] = {}  # with what was given, whose id stays taken so
        self.seen: set[str] = set()  # the names of all function tools

    def agent(self, agent: Agent[Any]) -> Agent[Any]:
        if isinstance(agent.model, _DurableModel):
            return agent
        if (known := self._agents.get(id(agent))) is not None:
            return known[1]
        made = agent.clone(
            model=_DurableModel(agent.name, agent.model, self._provider, self._model),
            tools=[self._durable_tool(agent.name, tool) for tool in agent.tools],
        )
        self._agents[id(agent)] = agent, made
        made.handoffs = [
            self.agent(each) if isinstance(each, Agent) else self._durable_handoff(each) for each in agent.handoffs
        ]
        return made

    def _durable_handoff(self, handoff: Handoff[Any, Any]) -> Handoff[Any, Any]:
        """Hands over to a durable agent, too. Which one it is may be known only when it happens."""
        made = copy.copy(handoff)

        async def invoke(context: RunContextWrapper[Any], arguments: str) -> Agent[Any]:
            return self.agent(await handoff.on_invoke_handoff(context, arguments))

        _recording.add(invoke)
        made.on_invoke_handoff = invoke
        ahead = getattr(handoff, "_agent_ref", None)
        if ahead is not None and isinstance(known := ahead(), Agent):
            self.agent(known)  # its tools are seen
        return made

    def _durable_tool(self, agent: str, tool: Tool) -> Tool:
        if not isinstance(tool, FunctionTool):
            return tool  # the model's side executes it, or it has no function to call
        self.seen.add(tool.name)
        own = self._tools.get(tool.name, {})
        options: StepOptions = {**self._tool, **(own or {})}
        call = tool.on_invoke_tool
        made = copy.copy(tool)

        async def invoke(context: ToolContext[Any], arguments: str) -> Any:
            name = f"{agent}.tool.{tool.name}"
            if own is False:
                with rooted(f"{name}[{context.tool_call_id}]"):
                    return await call(context, arguments)

            async def body() -> Any:
                returned = await call(context, arguments)
                return plain(lambda: to_jsonable_python(returned, fallback=str), f"the tool {tool.name}")

            if not in_workflow():
                return await call(context, arguments)
            return await record(name, body, arguments, key=context.tool_call_id, options=options)

        _recording.add(invoke)
        made.on_invoke_tool = invoke
        return made


class _DurableModel(Model):
    """A model whose answers are recorded."""

    def __init__(self, agent: str, model: str | Model | None, provider: ModelProvider, options: StepOptions) -> None:
        self._agent = agent
        self._model = model
        self._provider = provider
        self._options = options

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        if not in_workflow():
            return await self._found().get_response(*args, **kwargs)

        async def body() -> Any:
            response = await self._found().get_response(*args, **kwargs)
            return plain(lambda: _responses.dump_python(response, mode="json"), "the model")

        recorded = await record(f"{self._agent}.model", body, None, options=self._options)
        try:
            return _responses.validate_python(recorded)
        except ValidationError as error:
            raise CannotDecode(f"this version of openai-agents cannot read a recorded answer: {error}") from error

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        if in_workflow():
            raise InvalidRequest(
                "Runner.run_streamed is not recorded; in a workflow use kagzi.contrib.openai_agents.run"
            )
        return self._found().stream_response(*args, **kwargs)

    def _found(self) -> Model:
        return self._model if isinstance(self._model, Model) else self._provider.get_model(self._model)
