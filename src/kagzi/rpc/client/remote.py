"""RemoteEngine: `api.engine.ManagedEngine` over a gRPC channel.

Nothing here decides anything. Writes of many callers share calls (`outbox.py`), waits for results too (`waits.py`). A
call that got no answer is repeated with the same ids, which the engine behind the server makes harmless, with growing
jittered pauses for as long as that engine itself would be patient with its database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

from google.protobuf.message import Message

from kagzi._proto.v1 import admin_pb2, worker_pb2, workflow_pb2
from kagzi._proto.v1.common_pb2 import PageRequest
from kagzi.api.operations import (
    CancelAnswer,
    CancelRun,
    Chunk,
    ChunkAnswer,
    Operation,
    RepeatRun,
    SendSignal,
    SetValue,
    SignalAnswer,
    Started,
    StartRun,
    StepOperation,
    TerminateRun,
    WakeAnswer,
)
from kagzi.api.reply import Reply, reply_of, settled
from kagzi.api.workers import (
    AttachedWorker,
    Claim,
    Heartbeat,
    HeartbeatAnswer,
    Inbox,
    Poll,
    Polled,
    Registered,
    Registration,
    RunNews,
)
from kagzi.api.workflows import RunFilter
from kagzi.clock import SystemClock
from kagzi.core.health import ComponentHealth, Health, HealthStatus
from kagzi.core.instant import SECOND, Span
from kagzi.core.limits import DEFAULT_PAGE_SIZE, PAGE_SIZE
from kagzi.core.page import Page
from kagzi.core.run import Run
from kagzi.core.run_value import RunValue
from kagzi.core.signal import Signal
from kagzi.core.step import Step
from kagzi.errors import InvalidRequest, KagziError, LeaseLost, NotFound, Unavailable
from kagzi.ids import IdSource, RandomIds
from kagzi.rpc.client.admin import RemoteAdmin, RemoteLimits, RemoteNamespaces, RemoteVersions
from kagzi.rpc.client.authorization import MetadataSource, nothing
from kagzi.rpc.client.channel import CONNECT_SECONDS, use_grpc
from kagzi.rpc.client.failover import channel_to
from kagzi.rpc.client.handshake import check_server
from kagzi.rpc.client.jobs import RemoteJobs
from kagzi.rpc.client.line import READ_SECONDS, WRITE_SECONDS, Line, converted, text
from kagzi.rpc.client.outbox import Outbox
from kagzi.rpc.client.schedules import RemoteSchedules
from kagzi.rpc.client.starts import Starts
from kagzi.rpc.client.waits import Waiting
from kagzi.rpc.convert import signals, values
from kagzi.rpc.convert.common import page_from_wire
from kagzi.rpc.convert.health import health_from_wire
from kagzi.rpc.convert.packed import pack_chunk
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
from kagzi.rpc.convert.unknown import unknown_value
from kagzi.rpc.convert.work import (
    all_done,
    answer_from_wire,
    claim_from_wire,
    heartbeat_answer_from_wire,
    heartbeat_to_wire,
    poll_to_wire,
    registered_from_wire,
    registration_to_wire,
    step_from_record,
)
from kagzi.rpc.limits import CALL_BYTES, LONGEST_WAIT_SECONDS
from kagzi.rpc.status import error_of
from kagzi.rpc.tls import ClientTls

M = TypeVar("M", bound=Message)
Ends: TypeAlias = tuple[list[Run], list[str]]
RunIds: TypeAlias = list[str]

_WORKFLOWS: Final = "WorkflowService"
_WORKERS: Final = "WorkerService"
_ADMIN: Final = "AdminService"

_HEARTBEAT_SECONDS: Final = 20.0
_MARGIN_SECONDS: Final = 10.0  # for a waiting call to answer after its wait
_PART_BYTES: Final = CALL_BYTES // 2


class RemoteEngine:
    """`target` is host:port, or several with commas between, any of which will do. With `tls` over TLS; `metadata`
    says what goes along with every call."""

    def __init__(
        self,
        target: str,
        *,
        tls: ClientTls | None = None,
        metadata: MetadataSource = nothing,
        ids: IdSource | None = None,
        threaded: bool = False,
    ) -> None:
        self._target = target
        self._tls = tls
        self._metadata = metadata
        self._ids = ids or RandomIds(SystemClock().now)
        self._threaded = threaded
        self._parts: _Parts | None = None

    @property
    def workflows(self) -> RemoteWorkflows:
        return self._opened.workflows

    @property
    def workers(self) -> RemoteWorkers:
        return self._opened.workers

    @property
    def admin(self) -> RemoteAdmin:
        return self._opened.admin

    @property
    def jobs(self) -> RemoteJobs:
        return self._opened.jobs

    @property
    def schedules(self) -> RemoteSchedules:
        return self._opened.schedules

    @property
    def namespaces(self) -> RemoteNamespaces:
        return self._opened.namespaces

    @property
    def versions(self) -> RemoteVersions:
        return self._opened.versions

    @property
    def limits(self) -> RemoteLimits:
        return self._opened.limits

    async def open(self) -> None:
        if self._parts is not None:
            return
        use_grpc()
        channel = channel_to(
            self._target, threaded=self._threaded, tls=self._tls, metadata=self._metadata, jitter=self._ids.jitter
        )
        try:
            await channel.connect(CONNECT_SECONDS)
        except BaseException:
            await channel.close()
            raise
        line = Line(channel, self._ids.jitter)
        if not self._threaded:
            await self._check_server(line)
        self._parts = _Parts(line)

    async def _check_server(self, line: Line) -> None:
        try:
            await check_server(line, self._target)
        except BaseException:
            await line.channel.close()
            raise

    async def close(self) -> None:
        """Waits for writes under way. Waits for results end with Unavailable."""
        parts, self._parts = self._parts, None
        if parts is not None:
            await parts.close()

    async def health(self) -> Health:
        try:
            return await self._opened.health()
        except KagziError as error:
            return Health((ComponentHealth("server", HealthStatus.UNHEALTHY, str(error)),))

    def sibling(self) -> RemoteEngine:
        return RemoteEngine(self._target, tls=self._tls, metadata=self._metadata, ids=self._ids, threaded=True)

    async def __aenter__(self) -> RemoteEngine:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def _opened(self) -> _Parts:
        if self._parts is None:
            raise Unavailable("the engine is not open; call open() first, or use it in `async with`")
        return self._parts


class _Parts:
    """Everything that belongs to a running event loop, made when the engine is opened."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self.workflows = RemoteWorkflows(line)
        self.workers = RemoteWorkers(line)
        self.admin = RemoteAdmin(line)
        self.namespaces = RemoteNamespaces(line)
        self.schedules = RemoteSchedules(line)
        self.jobs = RemoteJobs(line)
        self.versions = RemoteVersions(line)
        self.limits = RemoteLimits(line)

    async def health(self) -> Health:
        request = admin_pb2.HealthCheckRequest()
        answer = await self._line.call(
            _ADMIN, "HealthCheck", request, admin_pb2.HealthCheckResponse, seconds=READ_SECONDS, patience=0.0
        )
        return health_from_wire(answer)

    async def close(self) -> None:
        self._line.patience = min(self._line.patience, 5.0)
        await self.workflows.close()
        await self.workers.close()
        await self._line.channel.close()


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
                _ADMIN, "ListSteps", request, admin_pb2.ListStepsResponse, seconds=READ_SECONDS
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
            seconds=wait / SECOND + _MARGIN_SECONDS,
            patience=0.0,
        )
        return [run_from_wire(workflow) for workflow in answer.workflows], [*answer.unknown_run_ids]


class RemoteWorkers:
    """`api.workers.WorkerService`."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._loop = asyncio.get_running_loop()
        self._chunks: Outbox[bytes, ChunkAnswer] = Outbox(self._send_chunks, parallel=2)

    async def close(self) -> None:
        await self._chunks.close()

    async def register(self, registration: Registration) -> Registered:
        request = converted(registration_to_wire, registration)
        answer = await self._call("Register", request, worker_pb2.RegisterResponse, READ_SECONDS)
        return registered_from_wire(answer)

    async def poll(self, poll: Poll) -> Polled:
        request = converted(poll_to_wire, poll)
        seconds = min(poll.wait / SECOND, LONGEST_WAIT_SECONDS) + _MARGIN_SECONDS
        # Once: the worker repeats its polls itself.
        answer = await self._call("PollTasks", request, worker_pb2.PollTasksResponse, seconds, patience=0.0)
        claims = [await self._claim(claim, poll.namespace) for claim in answer.claims]
        found = tuple(claim for claim in claims if claim is not None)
        return Polled(now=answer.now_us, claims=found, waited=answer.waited_us)

    def commit(self, chunk: Chunk) -> Reply[ChunkAnswer]:
        try:
            packed = converted(pack_chunk, chunk)
        except InvalidRequest as error:
            return settled(error)
        if len(packed) > _PART_BYTES and len(chunk.operations) > 1:
            return reply_of(self._commit_in_parts(chunk))
        return self._chunks.submit(chunk.namespace, packed, len(packed))

    async def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatAnswer:
        request = converted(heartbeat_to_wire, heartbeat)
        # Once: the next one follows soon, and says something newer.
        answer = await self._call("Heartbeat", request, worker_pb2.HeartbeatResponse, _HEARTBEAT_SECONDS, patience=0.0)
        return heartbeat_answer_from_wire(answer)

    async def read_inbox(
        self,
        namespace: str,
        run_id: str,
        token: str,
        names: Sequence[str],
        *,
        children: bool = False,
        reconcile: bool = False,
    ) -> Inbox:
        request = worker_pb2.ReadInboxRequest(
            namespace=namespace, run_id=run_id, token=token, names=names, children=children, reconcile=reconcile
        )
        return signals.inbox_from_wire(
            await self._call("ReadInbox", request, worker_pb2.ReadInboxResponse, READ_SECONDS)
        )

    async def news(self, worker_id: str, namespace: str, wait: Span) -> tuple[RunNews, ...]:
        request = worker_pb2.WaitNewsRequest(namespace=namespace, worker_id=worker_id, wait_us=wait)
        seconds = min(wait / SECOND, LONGEST_WAIT_SECONDS) + _MARGIN_SECONDS
        # Once: the worker repeats it itself.
        answer = await self._call("WaitNews", request, worker_pb2.WaitNewsResponse, seconds, patience=0.0)
        return tuple(signals.news_from_wire(news) for news in answer.news)

    async def drain(self, worker_id: str, namespace: str | None = None) -> None:
        await self._deregister(worker_id, namespace, drain=True)

    async def deregister(self, worker_id: str, namespace: str | None = None) -> None:
        await self._deregister(worker_id, namespace, drain=False)

    async def _deregister(self, worker_id: str, namespace: str | None, *, drain: bool) -> None:
        request = converted(
            lambda wanted: worker_pb2.DeregisterRequest(worker_id=wanted, drain=drain, namespace=namespace or ""),
            worker_id,
        )
        await self._call("Deregister", request, worker_pb2.DeregisterResponse, READ_SECONDS)

    def attach(self, adopter: AttachedWorker, namespace: str, queues: tuple[str, ...]) -> None:
        """Adoption is for workers in the engine's own process, which this one is not."""

    async def _call(
        self, rpc: str, request: Message, answer: type[M], seconds: float, patience: float | None = None
    ) -> M:
        return await self._line.call(_WORKERS, rpc, request, answer, seconds=seconds, patience=patience)

    async def _claim(self, claim: worker_pb2.Claim, namespace: str) -> Claim | None:
        """The claim with the rest of its history. If that cannot be had, the whole poll fails and is repeated; but None
        if the run has ended or is somebody else's by now, since the repeat would bring it again."""
        try:
            return await self._whole_claim(claim, namespace)
        except (LeaseLost, NotFound):
            return None

    async def _whole_claim(self, claim: worker_pb2.Claim, namespace: str) -> Claim:
        history = [step_from_record(record) for record in claim.history]
        input = claim.input
        failed_input = claim.failed_input if claim.HasField("failed_input") else None
        token = claim.history_page_token
        while token:
            page = await self._call(
                "GetHistory",
                worker_pb2.GetHistoryRequest(
                    namespace=namespace, run_id=claim.run_id, token=claim.token, page_token=token
                ),
                worker_pb2.GetHistoryResponse,
                READ_SECONDS,
            )
            history += [step_from_record(record) for record in page.history]
            if page.HasField("input"):
                input = page.input
            if page.HasField("failed_input"):
                failed_input = page.failed_input
            token = page.next_page_token
        return claim_from_wire(claim, namespace, input, failed_input, history)

    async def _commit_in_parts(self, chunk: Chunk) -> ChunkAnswer:
        """A chunk too large for one message: one part after the other, each only if those before it are durable."""
        part: list[Operation] = []
        size = 0
        for operation in chunk.operations:
            weight = _weight(operation)
            if part and size + weight > _PART_BYTES:
                answer = await self._commit_part(chunk, part)
                if answer is not ChunkAnswer.DONE:
                    return answer
                part, size = [], 0
            part.append(operation)
            size += weight
        return await self._commit_part(chunk, part)

    def _commit_part(self, chunk: Chunk, operations: list[Operation]) -> Reply[ChunkAnswer]:
        packed = pack_chunk(
            Chunk(namespace=chunk.namespace, run_id=chunk.run_id, token=chunk.token, operations=tuple(operations))
        )
        return self._chunks.submit(chunk.namespace, packed, len(packed))

    async def _send_chunks(self, namespace: str, packed: list[bytes]) -> list[ChunkAnswer | KagziError]:
        answer = await self._call(
            "CommitBatch",
            worker_pb2.CommitBatchRequest(namespace=namespace, packed=packed),
            worker_pb2.CommitBatchResponse,
            WRITE_SECONDS,
        )
        if answer == all_done(len(packed)):
            return [ChunkAnswer.DONE] * len(packed)
        if len(answer.results) != len(packed):
            raise unknown_value(f"{len(answer.results)} answers to {len(packed)} chunks")
        return [answer_from_wire(result) or error_of(result.error) for result in answer.results]


def _weight(operation: Operation) -> int:
    if isinstance(operation, StepOperation):
        return 150 + len(operation.input or b"") + len(operation.output or b"") + len(operation.error or b"")
    if isinstance(operation, SetValue):
        return 100 + len(operation.value)
    return 100 + sum(len(getattr(operation, name, b"")) for name in ("input", "output", "error"))


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
