"""Durable agents of LangChain: each request to a model and each call of a tool is a recorded step.

    agent = create_agent(model, tools=[search], middleware=[KagziMiddleware("support")])

    @app.workflow
    async def support(question: str) -> str:
        state = await agent.ainvoke({"messages": [("user", question)]})
        return state["messages"][-1].text

Outside of a workflow such an agent is an ordinary one. `durable(node)` makes a step of any async function of a graph.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from functools import wraps
from typing import Any, Literal, TypeVar

import langsmith
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ModelRequest, ModelResponse
from langchain.tools.tool_node import ToolCallRequest
from langchain_core.messages import ToolMessage, messages_from_dict, messages_to_dict
from langgraph.config import get_config
from langgraph.types import Command
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from kagzi.contrib.steps import StepOptions, check_options, in_workflow, plain, record
from kagzi.core.limits import check_name
from kagzi.core.retry import Retry
from kagzi.errors import InvalidRequest, NonRetryable
from kagzi.sdk.replay.rooted import rooted

__all__ = ["KagziMiddleware", "StepOptions", "durable"]

S = TypeVar("S")


class KagziMiddleware(AgentMiddleware[Any, Any, Any]):
    """The middleware that lets an agent survive crashes in a workflow. `name` begins the names of its steps.

    `model` and `tool` are the `StepOptions` of such steps: models are tried five times and tools once, if nothing else
    is said. `tools` has those of single tools by name; False lets one run as part of the workflow. Put it last, so that
    what other middleware changes in a request is not recorded but done again.
    """

    def __init__(
        self,
        name: str = "agent",
        *,
        model: StepOptions | None = None,
        tool: StepOptions | None = None,
        tools: Mapping[str, StepOptions | Literal[False]] | None = None,
    ) -> None:
        super().__init__()
        langsmith.set_runtime_overrides(aio_to_thread=_on_this_thread_in_workflows)
        self._prefix = check_name(name, "name of an agent")
        self._model = check_options(model, "KagziMiddleware(model=...)")
        self._tool: StepOptions = {"retry": Retry.none, **check_options(tool, "KagziMiddleware(tool=...)")}
        self._tools: dict[str, StepOptions | Literal[False]] = {
            tool: False if own is False else check_options(own, f"tools={{{tool!r}: ...}}")
            for tool, own in (tools or {}).items()
        }

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        if not in_workflow():
            return await handler(request)
        _refuse_streams()

        async def body() -> Any:
            response = await handler(request)
            answer = {"messages": messages_to_dict(response.result), "structured": response.structured_response}
            return plain(lambda: to_jsonable_python(answer), "the model")

        recorded = await record(f"{self._prefix}.model", body, len(request.messages), options=self._model)
        schema = getattr(request.response_format, "schema", None)
        structured = recorded["structured"]
        if structured is not None and schema is not None and not isinstance(schema, dict):
            structured = TypeAdapter(schema).validate_python(structured)
        return ModelResponse(result=messages_from_dict(recorded["messages"]), structured_response=structured)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        tool, key = request.tool_call["name"], request.tool_call["id"]
        name, own = f"{self._prefix}.tool.{tool}", self._tools.get(tool, {})
        if not in_workflow():
            return await handler(request)
        _refuse_streams()
        self._check_names(request)
        if own is False:
            with rooted(f"{name}[{key}]"):
                return await handler(request)

        async def body() -> Any:
            result = await handler(request)
            if not isinstance(result, ToolMessage):
                raise NonRetryable(
                    f"the tool {tool} returned a Command, which cannot be recorded; let it run as part of the "
                    f"workflow: KagziMiddleware(tools={{{tool!r}: False}})"
                )
            return plain(lambda: to_jsonable_python(messages_to_dict([result])), f"the tool {tool}")

        options: StepOptions = {**self._tool, **(own or {})}
        recorded = await record(name, body, request.tool_call["args"], key=key, options=options)
        (message,) = messages_from_dict(recorded)
        assert isinstance(message, ToolMessage)
        return message

    def _check_names(self, request: ToolCallRequest) -> None:
        """Which tools there are is known here, and not before: other middleware may offer the model a part of them."""
        there = {tool.name for tool in request.runtime.tools} | {request.tool_call["name"]}
        if unknown := sorted(self._tools.keys() - there):
            raise InvalidRequest(
                f"KagziMiddleware(tools=...) names {unknown[0]!r}, which is no tool of this agent; there are: "
                f"{', '.join(sorted(there))}"
            )


def _refuse_streams() -> None:
    """Refuses streams in workflows: what happens within a step is not heard when the run is executed again."""
    handlers = getattr(get_config().get("callbacks"), "handlers", ())
    for handler in handlers:
        if hasattr(handler, "tap_output_aiter"):  # as LangChain knows them
            raise InvalidRequest(
                "streams of tokens and of events within a step are not recorded; in a workflow use ainvoke, or astream "
                'with stream_mode="updates" or "values", which give what a step has returned'
            )


async def _on_this_thread_in_workflows(default: Any, context: Context, func: Any, /, *args: Any, **kwargs: Any) -> Any:
    """LangSmith prepares the trace of each middleware in a thread, traced or not; a workflow has none."""
    if in_workflow():
        return context.run(func, *args, **kwargs)
    return await default(context, func, *args, **kwargs)


def durable(
    node: Callable[[S], Awaitable[Any]], *, name: str | None = None, options: StepOptions | None = None
) -> Callable[[S], Awaitable[Any]]:
    """Makes a step of a node of a graph: `graph.add_node("search", durable(search))`. What it returns is JSON data."""
    chosen = check_options(options, "durable(options=...)")
    called = check_name(name or getattr(node, "__name__", ""), "name of a node")

    @wraps(node)
    async def step(state: S) -> Any:
        if in_workflow():
            _refuse_streams()

        async def body() -> Any:
            return await node(state)

        return await record(called, body, None, options=chosen)

    return step
