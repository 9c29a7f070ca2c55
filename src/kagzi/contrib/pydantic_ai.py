"""Durable agents of pydantic-ai: each request to a model and each call of a tool is a recorded step.

    agent = Agent("openai:gpt-5", name="support", capabilities=[KagziDurability()])

    @app.workflow
    async def support(question: str) -> str:
        return (await agent.run(question)).output

Outside of a workflow such an agent is an ordinary one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, cast

from msgspec import Struct
from pydantic import ValidationError
from pydantic.errors import PydanticUserError
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, RunContext, ToolApproved, ToolDenied
from pydantic_ai import __version__ as library_version
from pydantic_ai.agent import AgentRunResult, EventStreamHandler
from pydantic_ai.capabilities.abstract import WrapRunHandler, WrapToolExecuteHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    CallableOperationBackend,
    DurabilityCodec,
    DurabilityEngineSpec,
    DurableOperationId,
    DurableOperationNamer,
    EventStreamHandlerId,
    JournalOperationNamer,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    conversation_id_from_run_id,
)
from pydantic_ai.exceptions import UnexpectedModelBehavior, UserError
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.tools import AgentDepsT, ToolDefinition
from pydantic_ai.toolsets import ToolsetTool

from kagzi.contrib.steps import (
    Inline,
    StepOptions,
    as_text,
    ask,
    check_options,
    in_workflow,
    on_virtual_time,
    record,
)
from kagzi.core.duration import Duration
from kagzi.core.limits import check_name
from kagzi.core.retry import Retry
from kagzi.errors import CannotDecode, NonRetryable
from kagzi.sdk.context import now, sleep, uuid4
from kagzi.sdk.replay.rooted import rooted

__all__ = ["Approval", "KagziDurability", "StepOptions"]

_TOO_LATE = "Nobody has given a result in time."
# A second try would end in the same way.
_FINAL = (UserError, PydanticUserError, UnexpectedModelBehavior)


class Approval(Struct, frozen=True):
    """What a person says about a call: True and False do as well. `message` tells the model why not; `arguments` take
    the place of those that the model gave."""

    approved: bool
    message: str = "The tool call was denied."
    arguments: dict[str, Any] | None = None


class _Codec(DurabilityCodec):
    """JSON, whose errors nobody takes for those of a model: it would be asked to call the tool again."""

    def dump(self, tp: Any, value: Any) -> Any:
        return JSON_CODEC.dump(tp, value)

    def load(self, tp: Any, payload: Any) -> Any:
        try:
            return JSON_CODEC.load(tp, payload)
        except ValidationError as error:
            raise CannotDecode(
                f"pydantic-ai {library_version} cannot read what was recorded of an earlier call: {error}. Go on with "
                "the version that has recorded it"
            ) from error


class KagziDurability(BaseDurabilityCapability[AgentDepsT]):
    """The capability that lets an agent survive crashes in a workflow.

    `models` are more models by name, for `agent.run(model="name")`. `event_stream_handler` gets the events of a model
    while its step runs, and each event of a tool in a step of its own. `name` begins the names of the steps (default:
    the agent's). `model`, `tool` and `event` are the `StepOptions` of such steps: models are tried five times and tools
    once, if nothing else is said. A tool has its own with `metadata={"kagzi": {"timeout": "30s"}}`; with
    `{"kagzi": False}` it runs as part of the workflow.

    With `approvals="approval"` a call that needs approval waits for the signal `approval:<id of the call>` (a bool, or
    an `Approval`), for `approval_timeout` at most, after which it is denied. The value `approvals` of the run shows
    what is asked. Calls that are executed elsewhere wait for their result in the same way.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="Kagzi",
        durable_unit_noun="step",
        durable_container_noun="workflow",
        codec=_Codec(),
        serialization_failure=lambda error: NonRetryable(f"what an agent got cannot be recorded: {error}"),
        # A body runs on the worker's event loop, so what it opens cannot be closed by the workflow's.
        toolset_lifecycles={"function": "enter-never", "mcp": "enter-never", "dynamic": "enter-never"},
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key="kagzi",
    )

    def __init__(
        self,
        *,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        name: str | None = None,
        model: StepOptions | None = None,
        tool: StepOptions | None = None,
        event: StepOptions | None = None,
        approvals: str | None = None,
        approval_timeout: Duration | None = None,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._model_options = _final(check_options(model, "KagziDurability(model=...)"))
        self._tool_options = check_options(tool, "KagziDurability(tool=...)")
        self._event_options = _final(check_options(event, "KagziDurability(event=...)"))
        self._approvals = None if approvals is None else check_name(approvals, "approvals")
        self._approval_timeout = approval_timeout

    @property
    def in_durable_context(self) -> bool:
        return in_workflow()

    def get_durable_operation_backend(self) -> _Steps:
        return _Steps(
            namer=_Names(self.name, self.default_model_id),
            config=RoleBasedOperationConfig[StepOptions](
                model=self._model_options,
                event=self._event_options,
                capability=_final({}),
                tool=self._tool_options,
                resolve_tool=self._options_of_tool,
            ),
        )

    # What pydantic-ai would take from chance and from the clock.

    def get_default_run_id(self) -> str | None:
        return str(uuid4()) if in_workflow() else None

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return conversation_id_from_run_id(run_id) if in_workflow() else None

    def get_run_clock(self) -> Callable[[], datetime] | None:
        return now if in_workflow() else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:  # noqa: ARG002
        return now() if in_workflow() else None

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Makes the waits of a run durable, as those for a model that answers later."""
        if not in_workflow():
            return await super().wrap_run(ctx, handler=handler)

        async def wait(seconds: float) -> None:
            with rooted(f"{self.name}.wait"):
                await sleep(max(seconds, 0))

        with Agent.using_sleep(wait):
            return await super().wrap_run(ctx, handler=handler)

    async def wrap_tool_execute(
        self,
        ctx: RunContext[AgentDepsT],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Gives tools that run as part of the workflow a place of their own, in which their steps are known."""
        with rooted(f"{self.name}.tool.{call.tool_name}[{call.tool_call_id}]"):
            return await super().wrap_tool_execute(ctx, call=call, tool_def=tool_def, args=args, handler=handler)

    async def handle_deferred_tool_calls(
        self,
        ctx: RunContext[AgentDepsT],  # noqa: ARG002
        *,
        requests: DeferredToolRequests,
    ) -> DeferredToolResults | None:
        if self._approvals is None or not in_workflow():
            return None
        # All at once: each is shown, and its time runs, from now on.
        approvals, outcomes = await asyncio.gather(
            asyncio.gather(*(self._ask(call, bool | Approval, False) for call in requests.approvals)),
            asyncio.gather(*(self._ask(call, Any, _TOO_LATE) for call in requests.calls)),
        )
        return DeferredToolResults(
            approvals={
                call.tool_call_id: _decision(said) for call, said in zip(requests.approvals, approvals, strict=True)
            },
            calls={call.tool_call_id: outcome for call, outcome in zip(requests.calls, outcomes, strict=True)},
        )

    async def _ask(self, call: ToolCallPart, answer: Any, default: Any) -> Any:
        return await ask(
            f"{self._approvals}:{call.tool_call_id}",
            call.tool_name,
            as_text(call.args_as_json_str()),
            answer,
            timeout=self._approval_timeout,
            default=default,
        )

    def _options_of_tool(
        self, operation_id: DurableOperationId, tool: object | None, tool_name: str
    ) -> StepOptions | Literal[False]:
        # Finding out which tools there are may be repeated; calling one may not, unless somebody says so.
        options: StepOptions = {"retry": Retry.none} if isinstance(operation_id, ToolsetCallToolId) else {}
        options.update(self._tool_options)
        metadata = tool.tool_def.metadata if isinstance(tool, ToolsetTool) else None
        own = None if metadata is None else metadata.get("kagzi")
        if own is False:
            return False
        options.update(check_options(own, f'metadata={{"kagzi": ...}} of the tool {tool_name}'))
        return _final(options)


class _Names(DurableOperationNamer):
    """What steps are called. These names are recorded: changing them runs finished steps of live runs again."""

    def __init__(self, agent: str, default_model: str | None) -> None:
        self._agent = agent
        self._default_model = default_model
        self._others = JournalOperationNamer(agent, default_model_id=default_model or "default")

    def operation_name(self, operation_id: DurableOperationId) -> str:
        match operation_id:
            case ModelRequestId(model_id=model):
                # The same for both ways to ask, so that a handler of events may be added under live runs.
                return (
                    f"{self._agent}.model" if model in (None, self._default_model) else f"{self._agent}.model.{model}"
                )
            case ToolsetCallToolId():
                return f"{self._agent}.tool"
            case EventStreamHandlerId():
                return f"{self._agent}.event"
            case _:
                return self._others.operation_name(operation_id)

    def invocation_name(self, operation_id: DurableOperationId, *, label: str | None) -> Any:
        name = self.operation_name(operation_id)
        named = self._others.invocation_name(operation_id, label=label)
        return replace(named, operation_name=name if label is None else f"{name}.{label}")


class _Steps(CallableOperationBackend[StepOptions]):
    """Runs each operation as a step."""

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: StepOptions,
    ) -> object:
        context = next((part for part in cache_key if isinstance(part, RunContext)), None)
        key = None if context is None else context.tool_call_id  # part of the model's answer, and so recorded

        async def on_worker() -> object:
            if not on_virtual_time():
                return await body()
            with Agent.using_thread_executor(Inline()):  # there are no threads on virtual time
                return await body()

        return await record(name, on_worker, _shown(operation_id, cache_key, context), key=key, options=config)


def _shown(operation_id: DurableOperationId, cache_key: Sequence[object], context: RunContext[Any] | None) -> Any:
    """What people see of a call, and what replay compares. Messages are left out: they are the answers before it."""
    match operation_id:
        case ToolsetCallToolId():
            return next((part for part in cache_key if isinstance(part, dict)), None)
        case ModelRequestId() if context is not None:
            return {"request": context.run_step, "run": context.run_id}
        case _:
            return None


def _decision(said: bool | Approval) -> ToolApproved | ToolDenied:
    said = Approval(said) if isinstance(said, bool) else said
    return ToolApproved(override_args=said.arguments) if said.approved else ToolDenied(said.message)


def _final(options: StepOptions) -> StepOptions:
    retry = options.get("retry", Retry())
    if retry == Retry.none:
        return options
    return cast("StepOptions", {**options, "retry": replace(retry, give_up_on=(*retry.give_up_on, *_FINAL))})
