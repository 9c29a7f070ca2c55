"""Calls as part of their callers' traces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message
from msgspec.structs import replace

from kagzi import tracing
from kagzi.api.operations import Started, StartRun
from kagzi.rpc.server.services.host import Call, Host

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

Handle = Callable[[Any, Any], Awaitable[Message]]


def traced(tracer: Tracer, name: str, handle: Handle) -> Handle:
    """Makes a handler that answers calls within a span, if their metadata names a trace."""

    async def answer(request: Any, call: Call) -> Message:
        context = tracing.from_headers(call.invocation_metadata())
        if context is None:
            return await handle(request, call)
        with tracing.serving(tracer, name, context):
            return await handle(request, call)

    return answer


def start(host: Host, start: StartRun, call: Call | None) -> Awaitable[Started]:
    """Starts a run, in the trace that it names or else in that of the call.

    A call that starts many runs has no trace of its own: each of them gets a span of the server's.
    """
    workflows = host.engine.workflows
    context, tracer = start.trace_context, host.tracer
    if context is None and call is not None:
        context = tracing.from_headers(call.invocation_metadata()) if tracer is None else tracing.current()
        return workflows.start(start if context is None else replace(start, trace_context=context))
    if context is None or tracer is None:
        return workflows.start(start)
    return _start_traced(host, tracer, start, context)


async def _start_traced(host: Host, tracer: Tracer, start: StartRun, context: str) -> Started:
    with tracing.serving(tracer, "kagzi.v1.WorkflowService/StartWorkflow", context) as span:
        return await host.engine.workflows.start(replace(start, trace_context=tracing.context_of(span)))
