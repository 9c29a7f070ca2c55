"""AdminService: looking after a server and its workers."""

from __future__ import annotations

from collections import Counter
from typing import Final

from kagzi._proto.v1 import admin_pb2 as pb
from kagzi._proto.v1.common_pb2 import ERROR_CODE_PRECONDITION_FAILED, ErrorDetail, PageInfo, PageRequest
from kagzi.api.admin import WorkerFilter
from kagzi.core.limits import DEFAULT_PAGE_SIZE, check_name, check_page_size
from kagzi.core.page import BY_NUMBER, Cursor
from kagzi.core.run import RunStatus
from kagzi.core.versions import CheckedRun
from kagzi.core.worker import WorkerStatus
from kagzi.errors import Conflict, InvalidRequest, NotFound
from kagzi.ports.gradually import gradually
from kagzi.rpc.convert.common import optional_instant, page_info, page_size
from kagzi.rpc.convert.counts import count_to_wire
from kagzi.rpc.convert.health import health_to_wire
from kagzi.rpc.convert.limits import limit_to_wire, rate_from_wire, scope_of, wait_to_wire
from kagzi.rpc.convert.reports import report_to_wire
from kagzi.rpc.convert.runs import namespace_of
from kagzi.rpc.convert.steps import step_name_of, step_to_wire
from kagzi.rpc.convert.versions import interface_to_wire, version_to_wire
from kagzi.rpc.convert.workers import worker_status_of, worker_to_wire
from kagzi.rpc.limits import ANSWER_BYTES
from kagzi.rpc.methods import PACKAGE, SERVICES
from kagzi.rpc.server.services.host import Call, Host
from kagzi.version import __version__

_AT_ONCE: Final = 100  # messages that are made in one go, before others run
_STEPS_PAGE: Final = 50
_MOST_NAMES: Final = 1000  # in one map or list
_FEATURES: Final = (
    *("batches", "packed-chunks", "history-pages", "wait", "cancel", "terminate", "retry", "payload-metadata"),
    *("inbox", "signals", "handlers", "values", "versions", "schedules", "children", "limits", "continue"),
)
# As with runs: a token is a position, and bound to its listing.


class AdminService:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._workflows = host.engine.workflows
        self._admin = host.engine.admin
        self._versions = host.engine.versions
        self._limits = host.engine.limits

    async def HealthCheck(self, request: pb.HealthCheckRequest, call: Call) -> pb.HealthCheckResponse:  # noqa: ARG002
        if request.service and request.service.removeprefix(f"{PACKAGE}.") not in SERVICES:
            raise NotFound(f"there is no service {request.service[:100]!r}; there are {', '.join(SERVICES)}")
        health = await self._host.engine.health()
        serving = health.can_serve and not self._host.closing.is_set()
        return health_to_wire(health, self._host.clock.now(), serving=serving, details=not request.namespace)

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, call: Call) -> pb.GetServerInfoResponse:  # noqa: ARG002
        return pb.GetServerInfoResponse(
            version=__version__, api_version="v1", supported_features=_FEATURES, min_sdk_version="0.1.0"
        )

    # Workers.

    async def ListWorkers(self, request: pb.ListWorkersRequest, call: Call) -> pb.ListWorkersResponse:  # noqa: ARG002
        filter = WorkerFilter(
            namespace=namespace_of(request.namespace),
            task_queue=request.task_queue if request.HasField("task_queue") else None,
            status=worker_status_of(request.status_filter) if request.HasField("status_filter") else None,
        )
        page = await self._admin.list_workers(
            filter,
            page_size=page_size(request.page, DEFAULT_PAGE_SIZE),
            page_token=request.page.page_token or None,
        )
        total = 0
        if request.page.include_total_count and filter.task_queue is None:
            counts = await self._admin.count_workers(filter.namespace)
            total = sum(count for status, count in counts.items() if filter.status in (None, status))
        return pb.ListWorkersResponse(
            workers=[worker_to_wire(worker) for worker in page.items], page=page_info(page, total)
        )

    async def GetWorker(self, request: pb.GetWorkerRequest, call: Call) -> pb.GetWorkerResponse:  # noqa: ARG002
        worker = await self._admin.get_worker(request.worker_id, request.namespace or None)
        return pb.GetWorkerResponse(worker=worker_to_wire(worker))

    async def DrainWorker(self, request: pb.DrainWorkerRequest, call: Call) -> pb.DrainWorkerResponse:  # noqa: ARG002
        worker = await self._admin.drain_worker(request.worker_id, request.namespace or None)
        request.namespace = worker.namespace  # the audit log is told, also if the caller did not say
        draining = worker.status is WorkerStatus.DRAINING
        message = (
            "the worker will be told with its next heartbeat" if draining else f"the worker is {worker.status} already"
        )
        error = None
        if not draining:
            error = ErrorDetail(
                code=ERROR_CODE_PRECONDITION_FAILED,
                message=message,
                subject="worker",
                subject_id=worker.worker_id,
                exact_code=Conflict.code,
            )
        return pb.DrainWorkerResponse(success=draining, message=message, error=error)

    # Counting.

    async def GetStats(self, request: pb.GetStatsRequest, call: Call) -> pb.GetStatsResponse:  # noqa: ARG002
        namespace = request.namespace if request.namespace else None
        runs = await self._admin.count_runs(
            namespace,
            live=request.live,
            created_after=optional_instant(request, "created_after"),
            created_before=optional_instant(request, "created_before"),
        )
        workers = await self._admin.count_workers(namespace)
        schedules = await self._admin.count_schedules(namespace)
        by_status: Counter[str] = Counter()
        by_type: Counter[str] = Counter()
        for run in runs:
            by_status[run.status] += run.count
            by_type[run.workflow_type] += run.count
        return pb.GetStatsResponse(
            total_workflows=by_status.total(),
            pending_workflows=by_status[RunStatus.PENDING],
            running_workflows=by_status[RunStatus.RUNNING],
            completed_workflows=by_status[RunStatus.COMPLETED],
            failed_workflows=by_status[RunStatus.FAILED] + by_status[RunStatus.TIMED_OUT],
            total_workers=sum(workers.values()),
            online_workers=workers.get(WorkerStatus.ONLINE, 0),
            total_schedules=schedules.total,
            enabled_schedules=schedules.enabled,
            workflows_by_status={str(status): count for status, count in by_status.items() if count},
            workflows_by_type=dict(by_type.most_common(_MOST_NAMES)),
            counts=[count_to_wire(run) for run in runs],
            at_least=any(run.at_least for run in runs),
            workers_by_status={str(status): count for status, count in workers.items()},
            schedule_runs=schedules.runs,
            successful_schedule_runs=schedules.successful,
            failed_schedule_runs=schedules.failed,
            skipped_firings=schedules.skipped,
        )

    async def GetQueueDepth(self, request: pb.GetQueueDepthRequest, call: Call) -> pb.GetQueueDepthResponse:  # noqa: ARG002
        runs = await self._admin.count_runs(namespace_of(request.namespace), live=True)
        if request.HasField("task_queue"):
            queue = check_name(request.task_queue, "task_queue")
            runs = tuple([run for run in runs if run.task_queue == queue])
        by_status: Counter[RunStatus] = Counter()
        by_queue: Counter[str] = Counter()
        for run in runs:
            by_status[run.status] += run.count
            if run.status is RunStatus.PENDING:
                by_queue[run.task_queue] += run.count
        return pb.GetQueueDepthResponse(
            pending_count=by_status[RunStatus.PENDING],
            running_count=by_status[RunStatus.RUNNING],
            sleeping_count=by_status[RunStatus.SLEEPING],
            depth_by_queue=dict(by_queue.most_common(_MOST_NAMES)),
            at_least=any(run.at_least for run in runs),
        )

    async def ListWorkflowTypes(
        self,
        request: pb.ListWorkflowTypesRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.ListWorkflowTypesResponse:
        namespace = namespace_of(request.namespace)
        size = check_page_size(page_size(request.page, DEFAULT_PAGE_SIZE))
        filter_text = f"types {namespace!r}"
        begin = self._begin(request.page, filter_text)
        types: dict[str, pb.WorkflowTypeInfo] = {}
        for run in sorted(await self._admin.count_runs(namespace), key=lambda run: (run.workflow_type, run.task_queue)):
            info = types.setdefault(run.workflow_type, pb.WorkflowTypeInfo(workflow_type=run.workflow_type))
            info.total_runs += run.count
            info.active_runs += 0 if run.status.finished else run.count
            if run.task_queue not in info.task_queues and len(info.task_queues) < _MOST_NAMES:
                info.task_queues.append(run.task_queue)
        found = list(types.values())
        return pb.ListWorkflowTypesResponse(
            workflow_types=found[begin : begin + size],
            page=self._page_info(request.page, filter_text, begin, min(begin + size, len(found)), size, len(found)),
        )

    # Versions.

    async def ListVersions(self, request: pb.ListVersionsRequest, call: Call) -> pb.ListVersionsResponse:  # noqa: ARG002
        found = await self._versions.list(
            namespace_of(request.namespace), request.workflow_type if request.HasField("workflow_type") else None
        )
        versions = [version_to_wire(each) async for each in gradually(found.items, _AT_ONCE)]
        return pb.ListVersionsResponse(versions=versions, more=found.more)

    async def GetWorkflowInterface(
        self,
        request: pb.GetWorkflowInterfaceRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.GetWorkflowInterfaceResponse:
        found = await self._versions.describe(
            namespace_of(request.namespace),
            request.workflow_type,
            request.version if request.HasField("version") else None,
        )
        return pb.GetWorkflowInterfaceResponse(interface=interface_to_wire(found))

    async def GetWorkflowReport(
        self,
        request: pb.GetWorkflowReportRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.GetWorkflowReportResponse:
        return report_to_wire(
            await self._versions.report(
                namespace_of(request.namespace), request.workflow_type if request.HasField("workflow_type") else None
            )
        )

    async def SetDefaultVersion(
        self,
        request: pb.SetDefaultVersionRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.SetDefaultVersionResponse:
        await self._versions.set_default(
            namespace_of(request.namespace),
            request.workflow_type,
            request.version if request.HasField("version") else None,
            force=request.force,
        )
        return pb.SetDefaultVersionResponse()

    async def MoveWorkflows(self, request: pb.MoveWorkflowsRequest, call: Call) -> pb.MoveWorkflowsResponse:  # noqa: ARG002
        page = await self._versions.move(
            namespace_of(request.namespace),
            request.workflow_type,
            request.from_version,
            request.to_version,
            dry_run=request.dry_run,
            force=request.force,
            after=request.after,
        )
        return pb.MoveWorkflowsResponse(moved=page.moved, after=page.after or "")

    async def MoveCheckedWorkflows(
        self,
        request: pb.MoveCheckedWorkflowsRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.MoveCheckedWorkflowsResponse:
        moved = await self._versions.move_checked(
            namespace_of(request.namespace),
            request.workflow_type,
            request.from_version,
            request.to_version,
            [CheckedRun(each.run_id, each.executions) for each in request.runs],
        )
        return pb.MoveCheckedWorkflowsResponse(moved=moved)

    # Limits.

    async def ListLimits(self, request: pb.ListLimitsRequest, call: Call) -> pb.ListLimitsResponse:  # noqa: ARG002
        found = await self._limits.list(namespace_of(request.namespace))
        return pb.ListLimitsResponse(limits=[limit_to_wire(each) for each in found])

    async def PauseClaims(self, request: pb.PauseClaimsRequest, call: Call) -> pb.PauseClaimsResponse:  # noqa: ARG002
        limit = await self._limits.pause(
            namespace_of(request.namespace),
            scope_of(request.scope),
            request.name,
            by=request.by,
            reason=request.reason,
        )
        return pb.PauseClaimsResponse(limit=limit_to_wire(limit))

    async def ResumeClaims(self, request: pb.ResumeClaimsRequest, call: Call) -> pb.ResumeClaimsResponse:  # noqa: ARG002
        limit = await self._limits.resume(namespace_of(request.namespace), scope_of(request.scope), request.name)
        return pb.ResumeClaimsResponse(limit=limit_to_wire(limit))

    async def SetLimit(self, request: pb.SetLimitRequest, call: Call) -> pb.SetLimitResponse:  # noqa: ARG002
        limit = await self._limits.set(
            namespace_of(request.namespace),
            scope_of(request.scope),
            request.name,
            concurrency=request.concurrency if request.HasField("concurrency") else None,
            key_concurrency=request.key_concurrency if request.HasField("key_concurrency") else None,
            rate=rate_from_wire(request, "rate"),
            key_rate=rate_from_wire(request, "key_rate"),
        )
        return pb.SetLimitResponse(limit=limit_to_wire(limit))

    async def ClearLimit(self, request: pb.ClearLimitRequest, call: Call) -> pb.ClearLimitResponse:  # noqa: ARG002
        limit = await self._limits.clear(namespace_of(request.namespace), scope_of(request.scope), request.name)
        return pb.ClearLimitResponse(limit=limit_to_wire(limit))

    async def GetSlotWait(self, request: pb.GetSlotWaitRequest, call: Call) -> pb.GetSlotWaitResponse:  # noqa: ARG002
        wait = await self._limits.wait(namespace_of(request.namespace), request.run_id)
        return pb.GetSlotWaitResponse(wait=None if wait is None else wait_to_wire(wait))

    # Steps.

    async def GetStep(self, request: pb.GetStepRequest, call: Call) -> pb.GetStepResponse:  # noqa: ARG002
        namespace = namespace_of(request.namespace)
        name = step_name_of(request.step_id)
        unknown = NotFound(f"there is no step {request.step_id[:100]!r} in namespace {namespace}")
        try:
            steps = await self._workflows.steps(namespace, name.run_id, step_id=name.identity)
        except (InvalidRequest, NotFound):
            raise unknown from None
        for step in steps:
            if step.step_id == name.identity and step.attempt == name.attempt:
                return pb.GetStepResponse(step=step_to_wire(step, namespace, name.run_id))
        raise unknown

    async def ListSteps(self, request: pb.ListStepsRequest, call: Call) -> pb.ListStepsResponse:  # noqa: ARG002
        namespace = namespace_of(request.namespace)
        size = check_page_size(page_size(request.page, _STEPS_PAGE))
        filter_text = f"steps {namespace!r} {request.run_id!r} {request.step_name!r} {request.HasField('step_name')}"
        identity = request.identity if request.HasField("identity") else None
        if request.whole:
            filter_text += " whole"
        if identity is not None:
            filter_text += f" {identity!r}"
        begin = self._begin(request.page, filter_text)
        steps = await self._workflows.steps(
            namespace,
            request.run_id,
            whole=request.whole,
            payloads=not request.without_payloads,
            step_id=identity,
        )
        if request.fill:
            size = max(1, len(steps))
        if request.HasField("step_name"):
            steps = tuple([step for step in steps if step.name == request.step_name])
        response = pb.ListStepsResponse()
        bytes_left = ANSWER_BYTES
        async for step in gradually(steps[begin : begin + size], _AT_ONCE):
            message = step_to_wire(step, namespace, request.run_id)
            bytes_left -= message.ByteSize()
            if bytes_left < 0 and response.steps:
                break
            response.steps.append(message)
        end = begin + len(response.steps)
        response.page.CopyFrom(self._page_info(request.page, filter_text, begin, end, size, len(steps)))
        return response

    # Pages of what is at hand as a whole.

    def _begin(self, page: PageRequest, filter_text: str) -> int:
        if not page.page_token:
            return 0
        if len(page.page_token) > 1000:
            raise InvalidRequest("page token is malformed; use the token of the page before")
        return int(self._host.engine.page_tokens.read(page.page_token, filter_text, BY_NUMBER).key)

    def _page_info(self, page: PageRequest, filter_text: str, begin: int, end: int, size: int, total: int) -> PageInfo:
        return PageInfo(
            next_page_token=self._token(end, filter_text) if end < total else None,
            has_more=end < total,
            total_count=total if page.include_total_count else 0,
            prev_page_token=self._token(max(0, begin - size), filter_text) if begin else None,
        )

    def _token(self, begin: int, filter_text: str) -> str:
        return self._host.engine.page_tokens.sign(Cursor(str(begin)), filter_text)
