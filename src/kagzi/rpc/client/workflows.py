"""Runs, as clients of a server start, read and change them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

from google.protobuf.message import Message

from kagzi._proto.v1 import admin_pb2, workflow_pb2
from kagzi._proto.v1.common_pb2 import PageRequest
from kagzi.api.operations import (
    CancelAnswer,
    CancelRun,
    RepeatRun,
    SendSignal,
    SignalAnswer,
    Started,
    StartRun,
    TerminateRun,
    WakeAnswer,
)
from kagzi.api.reply import settled
from kagzi.api.workflows import RunFilter
from kagzi.core.instant import SECOND, Span
from kagzi.core.limits import DEFAULT_PAGE_SIZE, PAGE_SIZE
from kagzi.core.page import Page
from kagzi.core.run import Run
from kagzi.core.run_value import RunValue
from kagzi.core.signal import Signal
from kagzi.core.step import Step
from kagzi.errors import InvalidRequest
from kagzi.rpc.client.admin import ADMIN
from kagzi.rpc.client.line import MARGIN_SECONDS, READ_SECONDS, WRITE_SECONDS, Line, converted, text
from kagzi.rpc.client.starts import Starts
from kagzi.rpc.client.waits import Waiting
from kagzi.rpc.convert import signals, values
from kagzi.rpc.convert.common import page_from_wire
from kagzi.rpc.convert.runs import (
    cancel_answer_from_wire,
    cancel_to_wire,
    either_status,
    filter_to_wire,
    repeat_to_wire,
    run_from_wire,
    start_to_wire,
    terminate_to_wire,
)
from kagzi.rpc.convert.steps import step_from_wire

M = TypeVar("M", bound=Message)
Ends: TypeAlias = tuple[list[Run], list[str]]
RunIds: TypeAlias = list[str]

_WORKFLOWS: Final = "WorkflowService"


class RemoteWorkflows:
    """`api.workflows.WorkflowService`."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._loop = asyncio.get_running_loop()
        self._starts = Starts(line)
        self._waiting = Waiting(self._ask_for_ends)

    async def close(self) -> None:
        await self._waiting.close()
        await self._starts.close()

    def start(self, start: StartRun, *, awaited: bool = False) -> Awaitable[Started]:
        try:
            message = converted(start_to_wire, start)
            namespace = text(start.namespace, "namespace")
        except InvalidRequest as error:
            return settled(error)
        return self._starts.submit(namespace, message, len(start.input) + 300, awaited=awaited)

    async def get(self, namespace: str, run_id: str) -> Run:
        request = converted(_get_request, (namespace, run_id))
        answer = await self._read("GetWorkflow", request, workflow_pb2.GetWorkflowResponse)
        return run_from_wire(answer.workflow)

    async def get_by_external_id(self, namespace: str, external_id: str) -> Run:
        request = converted(_get_by_external_id_request, (namespace, external_id))
        answer = await self._read("GetWorkflowByExternalId", request, workflow_pb2.GetWorkflowByExternalIdResponse)
        return run_from_wire(answer.workflow)

    async def list(
        self, filter: RunFilter, *, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None
    ) -> Page[Run]:
        for name, field in ((filter.workflow_type, "workflow type"), (filter.task_queue, "task queue")):
            if name is not None:
                text(name, field)
        request = converted(lambda asked: filter_to_wire(asked, page_size=page_size, page_token=page_token), filter)
        answer = await self._read("ListWorkflows", request, workflow_pb2.ListWorkflowsResponse)
        return page_from_wire([run_from_wire(workflow) for workflow in answer.workflows], answer.page)

    async def steps(
        self,
        namespace: str,
        run_id: str,
        *,
        whole: bool = False,
        payloads: bool = True,
        step_id: str | None = None,
    ) -> tuple[Step, ...]:
        steps: list[Step] = []
        token = ""
        while True:
            request = converted(_steps_request, _AskedSteps(namespace, run_id, token, whole, payloads, step_id))
            answer = await self._line.call(
                ADMIN, "ListSteps", request, admin_pb2.ListStepsResponse, seconds=READ_SECONDS
            )
            steps += [step_from_wire(step) for step in answer.steps]
            token = answer.page.next_page_token
            if not token:
                # An older server answers with all of them.
                return tuple([step for step in steps if step_id is None or step.step_id == step_id])

    async def wait(self, namespace: str, run_id: str, timeout: Span) -> Run:
        if timeout <= 0:
            return await self.get(namespace, run_id)
        try:
            async with asyncio.timeout(min(timeout / SECOND, 1e8)):
                return await self._waiting.wait(text(namespace, "namespace"), text(run_id, "run id"))
        except TimeoutError:
            return await self.get(namespace, run_id)

    async def cancel(self, cancel: CancelRun) -> CancelAnswer:
        request = converted(cancel_to_wire, cancel)
        answer = await self._write("CancelWorkflow", request, workflow_pb2.CancelWorkflowResponse)
        return cancel_answer_from_wire(cancel.run_id, answer.cancelled, answer.status)

    async def terminate(self, terminate: TerminateRun) -> CancelAnswer:
        request = converted(terminate_to_wire, terminate)
        answer = await self._write("TerminateWorkflow", request, workflow_pb2.TerminateWorkflowResponse)
        return cancel_answer_from_wire(terminate.run_id, answer.terminated, answer.status)

    async def wake(self, namespace: str, run_id: str) -> WakeAnswer:
        request = workflow_pb2.WakeWorkflowRequest(
            namespace=text(namespace, "namespace"), run_id=text(run_id, "run id")
        )
        answer = await self._write("WakeWorkflow", request, workflow_pb2.WakeWorkflowResponse)
        return WakeAnswer(run_id=run_id, woken=answer.woken, status=either_status(0, answer.status))

    async def signal(self, signal: SendSignal) -> SignalAnswer:
        request = converted(signals.send_to_wire, signal)
        return signals.answer_from_wire(
            await self._write("SignalWorkflow", request, workflow_pb2.SignalWorkflowResponse)
        )

    async def signals(self, namespace: str, run_id: str, *, after: int = 0) -> tuple[Signal, ...]:
        request = converted(_signals_request, (namespace, run_id, after))
        answer = await self._read("ListSignals", request, workflow_pb2.ListSignalsResponse)
        return tuple(signals.signal_from_wire(signal) for signal in answer.signals)

    async def values(
        self, namespace: str, run_id: str, names: Sequence[str] = (), *, after: str = ""
    ) -> tuple[RunValue, ...]:
        found: list[RunValue] = []
        while True:
            request = converted(_values_request, (namespace, run_id, tuple(names), after))
            answer = await self._read("GetWorkflowValues", request, workflow_pb2.GetWorkflowValuesResponse)
            found += map(values.value_from_wire, answer.values)
            if not answer.more or not answer.values:
                return tuple(found)
            after = found[-1].name

    async def repeat(self, repeat: RepeatRun) -> Started:
        request = converted(repeat_to_wire, repeat)
        answer = await self._write("RetryWorkflow", request, workflow_pb2.RetryWorkflowResponse)
        return Started(run_id=answer.new_run_id, already_exists=answer.already_running)

    async def _read(self, rpc: str, request: Message, answer: type[M]) -> M:
        return await self._line.call(_WORKFLOWS, rpc, request, answer, seconds=READ_SECONDS)

    async def _write(self, rpc: str, request: Message, answer: type[M]) -> M:
        return await self._line.call(_WORKFLOWS, rpc, request, answer, seconds=WRITE_SECONDS)

    async def _ask_for_ends(self, namespace: str, run_ids: RunIds, wait: Span) -> Ends:
        answer = await self._line.call(
            _WORKFLOWS,
            "WaitWorkflows",
            workflow_pb2.WaitWorkflowsRequest(namespace=namespace, run_ids=run_ids, wait_us=wait),
            workflow_pb2.WaitWorkflowsResponse,
            seconds=wait / SECOND + MARGIN_SECONDS,
            patience=0.0,
        )
        return [run_from_wire(workflow) for workflow in answer.workflows], [*answer.unknown_run_ids]


def _get_request(asked: tuple[str, str]) -> workflow_pb2.GetWorkflowRequest:
    return workflow_pb2.GetWorkflowRequest(namespace=asked[0], run_id=text(asked[1], "run id"))


def _signals_request(asked: tuple[str, str, int]) -> workflow_pb2.ListSignalsRequest:
    namespace, run_id, after = asked
    return workflow_pb2.ListSignalsRequest(namespace=namespace, run_id=run_id, after_seq=after)


def _values_request(asked: tuple[str, str, tuple[str, ...], str]) -> workflow_pb2.GetWorkflowValuesRequest:
    namespace, run_id, names, after = asked
    return workflow_pb2.GetWorkflowValuesRequest(
        namespace=namespace, run_id=text(run_id, "run id"), names=names, after_name=text(after, "after")
    )


def _get_by_external_id_request(asked: tuple[str, str]) -> workflow_pb2.GetWorkflowByExternalIdRequest:
    return workflow_pb2.GetWorkflowByExternalIdRequest(namespace=asked[0], external_id=text(asked[1], "id"))


class _AskedSteps(NamedTuple):
    namespace: str
    run_id: str
    token: str
    whole: bool
    payloads: bool
    step_id: str | None


def _steps_request(asked: _AskedSteps) -> admin_pb2.ListStepsRequest:
    # A server reads the whole history for each page, so the fewer of them the better; an older one knows pages alone.
    return admin_pb2.ListStepsRequest(
        namespace=asked.namespace,
        run_id=text(asked.run_id, "run id"),
        page=PageRequest(page_size=PAGE_SIZE, page_token=asked.token),
        whole=asked.whole,
        identity=None if asked.step_id is None else text(asked.step_id, "step id"),
        without_payloads=not asked.payloads,
        fill=True,
    )
