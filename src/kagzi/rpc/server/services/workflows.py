"""WorkflowService: what clients ask."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Iterable

from kagzi._proto.v1 import workflow_pb2 as pb
from kagzi.api.operations import Started, StartRun
from kagzi.api.reply import Reply, gather, reply_of, settled
from kagzi.api.workflows import RunFilter
from kagzi.core.instant import Span
from kagzi.core.limits import DEFAULT_PAGE_SIZE
from kagzi.core.run import Run
from kagzi.core.signal import MADE_KEY
from kagzi.errors import InvalidRequest, KagziError
from kagzi.ports.gradually import gradually
from kagzi.rpc.convert import signals, values
from kagzi.rpc.convert.common import page_info, page_size
from kagzi.rpc.convert.runs import (
    cancel_from_wire,
    filter_from_wire,
    namespace_of,
    old_status,
    repeat_from_wire,
    run_to_wire,
    start_from_wire,
    started_to_wire,
    terminate_from_wire,
)
from kagzi.rpc.limits import ANSWER_BYTES, CALL_ITEMS
from kagzi.rpc.server.services import traces
from kagzi.rpc.server.services.host import Call, Host
from kagzi.rpc.server.services.waits import Waits
from kagzi.rpc.status import Refused, describe

_STARTS_AT_ONCE = 50  # are read in one go, before others run
_MOST_WAITS = 10 * CALL_ITEMS


class WorkflowService:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._workflows = host.engine.workflows
        self._waits = Waits(self._workflows)

    def close(self) -> None:
        self._waits.close()

    # Starting.

    async def StartWorkflow(self, request: pb.StartWorkflowRequest, call: Call) -> pb.StartWorkflowResponse:
        wait = self._host.wait_span(request.wait_us, call)  # refuses what makes no sense, before anything is stored
        namespace = namespace_of(request.namespace)
        response = started_to_wire(await self._start(request, namespace, call))
        if wait:
            # The run is stored: if waiting fails, the caller hears so much at least, and asks again for its end.
            with contextlib.suppress(KagziError, Refused):
                for run in (await self._wait(namespace, [response.run_id], wait))[0]:
                    response.workflow.CopyFrom(run_to_wire(run))
                    self._waits.sent(run)
        return response

    async def StartWorkflows(self, request: pb.StartWorkflowsRequest, call: Call) -> pb.StartWorkflowsResponse:  # noqa: ARG002
        if len(request.starts) > CALL_ITEMS:
            raise InvalidRequest(f"starts has {len(request.starts):,} items; at most {CALL_ITEMS:,} go into one call")
        namespace = namespace_of(request.namespace)
        for start in request.starts:
            if start.namespace not in ("", request.namespace):
                raise InvalidRequest("starts: every run of one call belongs to the namespace of the call")
        # All of them are in the engine's hands before the first is waited for.
        replies = []
        async for start in gradually(request.starts, _STARTS_AT_ONCE):
            replies.append(self._begin(start, namespace))
        results = await gather(replies)
        response = pb.StartWorkflowsResponse()
        async for result in gradually(results, _STARTS_AT_ONCE):
            response.results.append(self._start_result(result))
        return response

    def _begin(self, request: pb.StartWorkflowRequest, namespace: str) -> Reply[Started]:
        try:
            started = self._start(request, namespace, None)
        except Exception as error:
            return settled(error)
        return started if isinstance(started, Reply) else reply_of(started)

    def _start(self, request: pb.StartWorkflowRequest, namespace: str, call: Call | None) -> Awaitable[Started]:
        run_id = request.run_id or self._host.ids.run_id()
        start = start_from_wire(request, namespace=namespace, run_id=run_id)
        if start.started_by is not None:
            return self._start_by_step(start, start.started_by.run_id, call)
        return traces.start(self._host, start, call)

    async def _start_by_step(self, start: StartRun, parent: str, call: Call | None) -> Started:
        """Starts a run by a step, if the run of that step is one of this namespace."""
        await self._workflows.get(start.namespace, parent)
        return await traces.start(self._host, start, call)

    def _start_result(self, result: Started | Exception) -> pb.StartResult:
        if not isinstance(result, Exception):
            return pb.StartResult(started=started_to_wire(result))
        return pb.StartResult(error=describe(result, self._host.ids.token)[1])

    # Looking.

    async def GetWorkflow(self, request: pb.GetWorkflowRequest, call: Call) -> pb.GetWorkflowResponse:  # noqa: ARG002
        run = await self._workflows.get(namespace_of(request.namespace), request.run_id)
        return pb.GetWorkflowResponse(workflow=run_to_wire(run))

    async def GetWorkflowByExternalId(
        self,
        request: pb.GetWorkflowByExternalIdRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.GetWorkflowByExternalIdResponse:
        run = await self._workflows.get_by_external_id(namespace_of(request.namespace), request.external_id)
        return pb.GetWorkflowByExternalIdResponse(workflow=run_to_wire(run))

    async def ListWorkflows(self, request: pb.ListWorkflowsRequest, call: Call) -> pb.ListWorkflowsResponse:  # noqa: ARG002
        filter = filter_from_wire(request)
        size = page_size(request.page, DEFAULT_PAGE_SIZE)
        while True:
            page = await self._workflows.list(filter, page_size=size, page_token=request.page.page_token or None)
            response = pb.ListWorkflowsResponse(
                workflows=[run_to_wire(run) for run in page.items], page=page_info(page)
            )
            if size == 1 or response.ByteSize() <= ANSWER_BYTES:
                if request.page.include_total_count:
                    await self._count(filter, response)
                return response
            # A page of large payloads is a shorter page.
            size = max(1, min(size, len(page.items)) // 2)

    async def _count(self, filter: RunFilter, response: pb.ListWorkflowsResponse) -> None:
        counts = await self._host.engine.admin.count_runs(
            filter.namespace, created_after=filter.created_after, created_before=filter.created_before
        )
        matching = [
            count
            for count in counts
            if filter.status in (None, count.status) or filter.or_status is count.status
            if filter.workflow_type in (None, count.workflow_type)
            if filter.task_queue in (None, count.task_queue)
        ]
        total = sum(count.count for count in matching)
        # Counting looks at a bounded part, so a page of what is rare may hold more than was counted.
        listed = len(response.workflows) + response.page.has_more
        response.page.total_count = max(total, listed)
        response.page.total_is_least = total < listed or any(count.at_least for count in counts)

    # Ending, and beginning again.

    async def CancelWorkflow(self, request: pb.CancelWorkflowRequest, call: Call) -> pb.CancelWorkflowResponse:  # noqa: ARG002
        answer = await self._workflows.cancel(cancel_from_wire(request))
        return pb.CancelWorkflowResponse(cancelled=answer.effective, status=old_status(answer.status))

    async def TerminateWorkflow(
        self,
        request: pb.TerminateWorkflowRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.TerminateWorkflowResponse:
        answer = await self._workflows.terminate(terminate_from_wire(request))
        return pb.TerminateWorkflowResponse(terminated=answer.effective, status=old_status(answer.status))

    async def WakeWorkflow(self, request: pb.WakeWorkflowRequest, call: Call) -> pb.WakeWorkflowResponse:  # noqa: ARG002
        answer = await self._workflows.wake(namespace_of(request.namespace), request.run_id)
        return pb.WakeWorkflowResponse(woken=answer.woken, status=old_status(answer.status))

    async def SignalWorkflow(self, request: pb.SignalWorkflowRequest, call: Call) -> pb.SignalWorkflowResponse:  # noqa: ARG002
        signal = signals.send_from_wire(request, MADE_KEY + self._host.ids.token())
        return signals.answer_to_wire(await self._workflows.signal(signal), signal.key)

    async def ListSignals(self, request: pb.ListSignalsRequest, call: Call) -> pb.ListSignalsResponse:  # noqa: ARG002
        found = await self._workflows.signals(namespace_of(request.namespace), request.run_id, after=request.after_seq)
        response, size = pb.ListSignalsResponse(), 0
        for signal in map(signals.signal_to_wire, found):
            size += signal.ByteSize()
            if size > ANSWER_BYTES and response.signals:
                break  # the caller asks again after the last
            response.signals.append(signal)
        return response

    async def GetWorkflowValues(self, request: pb.GetWorkflowValuesRequest, call: Call) -> pb.GetWorkflowValuesResponse:  # noqa: ARG002
        found = await self._workflows.values(
            namespace_of(request.namespace), request.run_id, tuple(request.names), after=request.after_name
        )
        response, size = pb.GetWorkflowValuesResponse(), 0
        for value in map(values.value_to_wire, found):
            size += value.ByteSize()
            if size > ANSWER_BYTES and response.values:
                response.more = True
                break
            response.values.append(value)
        return response

    async def RetryWorkflow(self, request: pb.RetryWorkflowRequest, call: Call) -> pb.RetryWorkflowResponse:  # noqa: ARG002
        started = await self._workflows.repeat(repeat_from_wire(request, self._host.ids.run_id()))
        return pb.RetryWorkflowResponse(new_run_id=started.run_id, already_running=started.already_exists)

    # Waiting.

    async def WaitWorkflow(self, request: pb.WaitWorkflowRequest, call: Call) -> pb.WaitWorkflowResponse:
        namespace = namespace_of(request.namespace)
        runs = await self._wait(namespace, [request.run_id], self._host.wait_span(request.wait_us, call))
        run = runs[0][0] if runs[0] else await self._workflows.get(namespace, request.run_id)
        return pb.WaitWorkflowResponse(workflow=run_to_wire(run))

    async def WaitWorkflows(self, request: pb.WaitWorkflowsRequest, call: Call) -> pb.WaitWorkflowsResponse:
        if len(request.run_ids) > _MOST_WAITS:
            raise InvalidRequest(f"run_ids has {len(request.run_ids):,} items; at most {_MOST_WAITS:,} are waited for")
        wait = self._host.wait_span(request.wait_us, call)
        runs, unknown = await self._wait(namespace_of(request.namespace), request.run_ids, wait)
        response = pb.WaitWorkflowsResponse(unknown_run_ids=unknown)
        size = 0
        for run in runs:
            workflow = run_to_wire(run)
            size += workflow.ByteSize()
            if size > ANSWER_BYTES and response.workflows:
                break
            response.workflows.append(workflow)
            self._waits.sent(run)
        return response

    async def _wait(self, namespace: str, run_ids: Iterable[str], wait: Span) -> tuple[list[Run], list[str]]:
        runs, unknown, trouble = await self._host.unless_closing(lambda: self._waits.any_of(namespace, run_ids, wait))
        if trouble is not None and not runs and not unknown:
            raise trouble
        return runs, unknown
