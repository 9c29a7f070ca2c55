"""What operators ask of a server: `api.admin`, `api.namespaces`, `api.versions` and `api.limits` across the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from google.protobuf.message import Message

from kagzi._proto.v1 import admin_pb2, namespace_pb2
from kagzi.api.admin import RunCount, WorkerFilter
from kagzi.core.flow import FlowLimit, Scope, SlotWait
from kagzi.core.instant import Instant
from kagzi.core.limits import DEFAULT_PAGE_SIZE
from kagzi.core.namespace import Namespace
from kagzi.core.page import Page
from kagzi.core.rate import RateLimit
from kagzi.core.schedule import ScheduleCounts
from kagzi.core.versions import CheckedRun, MovedRuns, Versions, WorkflowInterface
from kagzi.core.worker import Worker, WorkerStatus
from kagzi.core.workflow_report import WorkflowReport
from kagzi.rpc.client.line import READ_SECONDS, WRITE_SECONDS, Line, converted
from kagzi.rpc.convert.common import page_from_wire, page_request, timestamp
from kagzi.rpc.convert.counts import count_from_wire
from kagzi.rpc.convert.limits import SCOPES, limit_from_wire, rate_to_wire, wait_from_wire
from kagzi.rpc.convert.namespaces import namespace_from_wire
from kagzi.rpc.convert.reports import report_from_wire
from kagzi.rpc.convert.unknown import unknown_value
from kagzi.rpc.convert.versions import interface_from_wire, version_from_wire
from kagzi.rpc.convert.workers import worker_filter_to_wire, worker_from_wire

M = TypeVar("M", bound=Message)

ADMIN: Final = "AdminService"
_NAMESPACES: Final = "NamespaceService"


class RemoteAdmin:
    """`api.admin.AdminService`."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def get_worker(self, worker_id: str, namespace: str | None = None) -> Worker:
        request = converted(
            lambda asked: admin_pb2.GetWorkerRequest(worker_id=asked, namespace=namespace or ""), worker_id
        )
        return worker_from_wire((await self._call("GetWorker", request, admin_pb2.GetWorkerResponse)).worker)

    async def list_workers(
        self, filter: WorkerFilter, *, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None
    ) -> Page[Worker]:
        request = converted(
            lambda asked: worker_filter_to_wire(asked, page_size=page_size, page_token=page_token), filter
        )
        answer = await self._call("ListWorkers", request, admin_pb2.ListWorkersResponse)
        return page_from_wire([worker_from_wire(worker) for worker in answer.workers], answer.page)

    async def drain_worker(self, worker_id: str, namespace: str | None = None) -> Worker:
        request = converted(
            lambda asked: admin_pb2.DrainWorkerRequest(worker_id=asked, namespace=namespace or ""), worker_id
        )
        await self._call("DrainWorker", request, admin_pb2.DrainWorkerResponse, WRITE_SECONDS)
        return await self.get_worker(worker_id, namespace)

    async def count_workers(self, namespace: str | None) -> dict[WorkerStatus, int]:
        answer = await self._stats(namespace, live=True)
        return {WorkerStatus(status): count for status, count in answer.workers_by_status.items()}

    async def count_schedules(self, namespace: str | None) -> ScheduleCounts:
        answer = await self._stats(namespace, live=True)
        return ScheduleCounts(
            total=answer.total_schedules,
            enabled=answer.enabled_schedules,
            runs=answer.schedule_runs,
            successful=answer.successful_schedule_runs,
            failed=answer.failed_schedule_runs,
            skipped=answer.skipped_firings,
        )

    async def count_runs(
        self,
        namespace: str | None,
        *,
        live: bool = False,
        created_after: Instant | None = None,
        created_before: Instant | None = None,
    ) -> tuple[RunCount, ...]:
        answer = await self._stats(namespace, live=live, created_after=created_after, created_before=created_before)
        if answer.total_workflows and not answer.counts:
            raise unknown_value("a count of runs that does not say which")
        return tuple([count_from_wire(count) for count in answer.counts])

    async def _stats(
        self,
        namespace: str | None,
        *,
        live: bool,
        created_after: Instant | None = None,
        created_before: Instant | None = None,
    ) -> admin_pb2.GetStatsResponse:
        request = converted(
            lambda asked: admin_pb2.GetStatsRequest(
                namespace=asked,
                live=live,
                created_after=timestamp(created_after),
                created_before=timestamp(created_before),
            ),
            namespace,
        )
        return await self._call("GetStats", request, admin_pb2.GetStatsResponse)

    async def _call(self, rpc: str, request: Message, answer: type[M], seconds: float = READ_SECONDS) -> M:
        return await self._line.call(ADMIN, rpc, request, answer, seconds=seconds)


class RemoteVersions:
    """`api.versions.VersionService`."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def list(self, namespace: str, workflow_type: str | None = None) -> Versions:
        request = converted(
            lambda asked: admin_pb2.ListVersionsRequest(namespace=namespace, workflow_type=asked), workflow_type
        )
        answer = await self._line.call(
            ADMIN, "ListVersions", request, admin_pb2.ListVersionsResponse, seconds=READ_SECONDS
        )
        return Versions(tuple([version_from_wire(each) for each in answer.versions]), more=answer.more)

    async def describe(self, namespace: str, workflow_type: str, version: str | None = None) -> WorkflowInterface:
        request = converted(
            lambda asked: admin_pb2.GetWorkflowInterfaceRequest(
                namespace=namespace, workflow_type=asked[0], version=asked[1]
            ),
            (workflow_type, version),
        )
        answer = await self._line.call(
            ADMIN,
            "GetWorkflowInterface",
            request,
            admin_pb2.GetWorkflowInterfaceResponse,
            seconds=READ_SECONDS,
        )
        return interface_from_wire(answer.interface)

    async def report(self, namespace: str, workflow_type: str | None = None) -> WorkflowReport:
        request = converted(
            lambda asked: admin_pb2.GetWorkflowReportRequest(namespace=namespace, workflow_type=asked), workflow_type
        )
        answer = await self._line.call(
            ADMIN, "GetWorkflowReport", request, admin_pb2.GetWorkflowReportResponse, seconds=READ_SECONDS
        )
        return report_from_wire(workflow_type, answer)

    async def set_default(
        self, namespace: str, workflow_type: str, version: str | None, *, force: bool = False
    ) -> None:
        request = converted(
            lambda asked: admin_pb2.SetDefaultVersionRequest(
                namespace=namespace, workflow_type=workflow_type, version=asked, force=force
            ),
            version,
        )
        await self._line.call(
            ADMIN, "SetDefaultVersion", request, admin_pb2.SetDefaultVersionResponse, seconds=WRITE_SECONDS
        )

    async def move(
        self,
        namespace: str,
        workflow_type: str,
        from_version: str,
        to_version: str,
        *,
        dry_run: bool = False,
        force: bool = False,
        after: str = "",
    ) -> MovedRuns:
        request = converted(
            lambda asked: admin_pb2.MoveWorkflowsRequest(
                namespace=namespace,
                workflow_type=workflow_type,
                from_version=asked[0],
                to_version=asked[1],
                dry_run=dry_run,
                force=force,
                after=after,
            ),
            (from_version, to_version),
        )
        answer = await self._line.call(
            ADMIN, "MoveWorkflows", request, admin_pb2.MoveWorkflowsResponse, seconds=WRITE_SECONDS
        )
        return MovedRuns(moved=answer.moved, after=answer.after or None)

    async def move_checked(
        self, namespace: str, workflow_type: str, from_version: str, to_version: str, runs: Sequence[CheckedRun]
    ) -> int:
        request = converted(
            lambda asked: admin_pb2.MoveCheckedWorkflowsRequest(
                namespace=namespace,
                workflow_type=workflow_type,
                from_version=from_version,
                to_version=to_version,
                runs=[admin_pb2.CheckedRun(run_id=each.run_id, executions=each.executions) for each in asked],
            ),
            runs,
        )
        answer = await self._line.call(
            ADMIN,
            "MoveCheckedWorkflows",
            request,
            admin_pb2.MoveCheckedWorkflowsResponse,
            seconds=WRITE_SECONDS,
        )
        return answer.moved


class RemoteLimits:
    """`api.limits.LimitService`."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def list(self, namespace: str) -> tuple[FlowLimit, ...]:
        request = converted(lambda asked: admin_pb2.ListLimitsRequest(namespace=asked), namespace)
        answer = await self._call("ListLimits", request, admin_pb2.ListLimitsResponse, READ_SECONDS)
        return tuple([limit_from_wire(each) for each in answer.limits])

    async def pause(self, namespace: str, scope: Scope, name: str, *, by: str, reason: str = "") -> FlowLimit:
        request = converted(
            lambda asked: admin_pb2.PauseClaimsRequest(
                namespace=namespace, scope=SCOPES[scope], name=asked, by=by, reason=reason
            ),
            name,
        )
        return limit_from_wire((await self._call("PauseClaims", request, admin_pb2.PauseClaimsResponse)).limit)

    async def resume(self, namespace: str, scope: Scope, name: str) -> FlowLimit:
        request = converted(
            lambda asked: admin_pb2.ResumeClaimsRequest(namespace=namespace, scope=SCOPES[scope], name=asked), name
        )
        return limit_from_wire((await self._call("ResumeClaims", request, admin_pb2.ResumeClaimsResponse)).limit)

    async def set(
        self,
        namespace: str,
        scope: Scope,
        name: str,
        *,
        concurrency: int | None = None,
        key_concurrency: int | None = None,
        rate: RateLimit | None = None,
        key_rate: RateLimit | None = None,
    ) -> FlowLimit:
        request = converted(
            lambda asked: admin_pb2.SetLimitRequest(
                namespace=namespace,
                scope=SCOPES[scope],
                name=asked,
                concurrency=concurrency,
                key_concurrency=key_concurrency,
                rate=rate_to_wire(rate),
                key_rate=rate_to_wire(key_rate),
            ),
            name,
        )
        return limit_from_wire((await self._call("SetLimit", request, admin_pb2.SetLimitResponse)).limit)

    async def wait(self, namespace: str, run_id: str) -> SlotWait | None:
        request = converted(lambda asked: admin_pb2.GetSlotWaitRequest(namespace=namespace, run_id=asked), run_id)
        answer = await self._call("GetSlotWait", request, admin_pb2.GetSlotWaitResponse, READ_SECONDS)
        return wait_from_wire(answer.wait) if answer.HasField("wait") else None

    async def clear(self, namespace: str, scope: Scope, name: str) -> FlowLimit:
        request = converted(
            lambda asked: admin_pb2.ClearLimitRequest(namespace=namespace, scope=SCOPES[scope], name=asked), name
        )
        return limit_from_wire((await self._call("ClearLimit", request, admin_pb2.ClearLimitResponse)).limit)

    async def _call(self, rpc: str, request: Message, answer: type[M], seconds: float = WRITE_SECONDS) -> M:
        return await self._line.call(ADMIN, rpc, request, answer, seconds=seconds)


class RemoteNamespaces:
    """`api.namespaces.NamespaceService`."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def create(self, namespace: str, *, display_name: str = "", description: str = "") -> Namespace:
        request = converted(
            lambda asked: namespace_pb2.CreateNamespaceRequest(
                namespace=asked, display_name=display_name, description=description
            ),
            namespace,
        )
        # Once: were the answer to the first try lost, the second would find what the first has made.
        answer = await self._line.call(
            _NAMESPACES,
            "CreateNamespace",
            request,
            namespace_pb2.CreateNamespaceResponse,
            seconds=WRITE_SECONDS,
            patience=0.0,
        )
        return namespace_from_wire(answer.namespace)

    async def get(self, namespace: str) -> Namespace:
        request = converted(lambda asked: namespace_pb2.GetNamespaceRequest(namespace=asked), namespace)
        answer = await self._call("GetNamespace", request, namespace_pb2.GetNamespaceResponse, READ_SECONDS)
        return namespace_from_wire(answer.namespace)

    async def list(self, *, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None) -> Page[Namespace]:
        request = converted(
            lambda asked: namespace_pb2.ListNamespacesRequest(page=page_request(asked, page_token)), page_size
        )
        answer = await self._call("ListNamespaces", request, namespace_pb2.ListNamespacesResponse, READ_SECONDS)
        return page_from_wire([namespace_from_wire(namespace) for namespace in answer.namespaces], answer.page)

    async def update(
        self,
        namespace: str,
        *,
        display_name: str | None = None,
        description: str | None = None,
        on_failure: str | None = None,
        on_failure_queue: str | None = None,
    ) -> Namespace:
        request = converted(
            lambda asked: namespace_pb2.UpdateNamespaceRequest(
                namespace=asked,
                display_name=display_name,
                description=description,
                on_failure=on_failure,
                on_failure_queue=on_failure_queue,
            ),
            namespace,
        )
        answer = await self._call("UpdateNamespace", request, namespace_pb2.UpdateNamespaceResponse)
        return namespace_from_wire(answer.namespace)

    async def enable(self, namespace: str, enabled: bool) -> Namespace:
        if enabled:
            enable = converted(lambda asked: namespace_pb2.EnableNamespaceRequest(namespace=asked), namespace)
            made = await self._call("EnableNamespace", enable, namespace_pb2.EnableNamespaceResponse)
            return namespace_from_wire(made.namespace)
        disable = converted(lambda asked: namespace_pb2.DisableNamespaceRequest(namespace=asked), namespace)
        answer = await self._call("DisableNamespace", disable, namespace_pb2.DisableNamespaceResponse)
        return namespace_from_wire(answer.namespace)

    async def _call(self, rpc: str, request: Message, answer: type[M], seconds: float = WRITE_SECONDS) -> M:
        return await self._line.call(_NAMESPACES, rpc, request, answer, seconds=seconds)
