"""The unary half of WorkerService: workers in the field drive a run call by call.

`PollTaskResponse.run_id` is a handle, `<run id>.<token>`, which the worker echoes in every call. Each call reads the
lease it names, asks `rules` what follows, and commits that through the engine's batcher like anybody else. Calls
about one run are answered one after the other.
"""

from __future__ import annotations

import asyncio
from typing import Final
from weakref import WeakValueDictionary

from google.protobuf.duration_pb2 import Duration
from msgspec.structs import replace

from kagzi._proto.v1 import worker_pb2 as pb
from kagzi._proto.v1.workflow_pb2 import ON_CONFLICT_RETURN, StartWorkflowRequest
from kagzi.api.operations import Chunk, ChunkAnswer, HandBackRun, Operation
from kagzi.api.workers import Claim, LeaseState, Poll, Polled
from kagzi.core.duration import LONGEST
from kagzi.core.failed_run import whole_document
from kagzi.core.family import ParentPolicy
from kagzi.core.instant import SECOND, Span
from kagzi.core.limits import check_name
from kagzi.core.retry import Retry
from kagzi.core.run import RunStatus
from kagzi.core.step import Step, StepKind
from kagzi.core.worker import Worker, WorkerStatus, WorkflowType
from kagzi.errors import InvalidRequest, LeaseLost, NotFound
from kagzi.rpc.convert.common import NULL, payload_from_bytes, payload_to_bytes, retry_policy, timestamp
from kagzi.rpc.convert.errors import failure_from_detail, failure_to_detail
from kagzi.rpc.convert.runs import namespace_of, old_status, start_from_wire
from kagzi.rpc.convert.steps import StepName, step_name_of, step_to_wire
from kagzi.rpc.convert.work import kind_of
from kagzi.rpc.limits import LONGEST_WAIT_SECONDS
from kagzi.rpc.server.services.host import Call, Host
from kagzi.rpc.server.unary import rules
from kagzi.rpc.server.unary.open_steps import OpenSteps
from kagzi.rpc.status import finally_failed, wrong_state

_DEFAULT: Final = Retry()
_POLICY_BYTES: Final = 4096  # travels in step ids
# A worker in the field may have several polls under way. One number for all of them lets them wait side by side.
_POLL_NUMBER: Final = 1
_POLICIES: Final = (ParentPolicy.CANCEL, ParentPolicy.ABANDON, ParentPolicy.TERMINATE)
_OPTIONAL: Final = frozenset({"lease_us", "signal", "debounce", "limit_name", "parent_step_attempt_id"})
_NOT_OF_CHILDREN: Final = ("run_id", "wait_us", *sorted(_OPTIONAL))


class UnaryCalls:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._engine = host.engine
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._open = OpenSteps()

    async def PollTask(self, request: pb.PollTaskRequest, call: Call) -> pb.PollTaskResponse:
        namespace = namespace_of(request.namespace)
        worker = await self._worker(request.worker_id, namespace)
        types = tuple([WorkflowType(name) for name in request.workflow_types]) or worker.types
        poll = Poll(
            namespace=namespace,
            worker_id=worker.worker_id,
            queues=(request.task_queue,) if request.task_queue else worker.queues,
            types=types,
            limit=1,
            number=_POLL_NUMBER,
            token=self._host.ids.token(),
            wait=self._host.wait_span(round(LONGEST_WAIT_SECONDS * SECOND), call),
        )
        nothing = Polled(now=0, claims=())
        polled = await self._host.hand_out(
            lambda: self._engine.workers.poll(poll), nothing, lambda: self._hand_back(poll)
        )
        for claim in polled.claims:
            handle = f"{claim.run_id}.{claim.token}"
            self._open.begin(handle)
            return pb.PollTaskResponse(
                run_id=handle,
                workflow_type=claim.workflow_type,
                input=payload_from_bytes(_whole_input(claim)),
            )
        return pb.PollTaskResponse()

    async def BeginStep(self, request: pb.BeginStepRequest, call: Call) -> pb.BeginStepResponse:  # noqa: ARG002
        name = check_name(request.step_name, "step_name")
        kind = kind_of(request.kind or pb.STEP_KIND_FUNCTION)
        if kind in (StepKind.SIGNAL, StepKind.CANCEL):
            raise InvalidRequest("kind must be FUNCTION, SLEEP or CHILD_WORKFLOW")
        input = payload_to_bytes(request.input) if request.HasField("input") else None
        async with self._lock(request.run_id):
            state = await self._lease(request.namespace, request.run_id)
            try:
                begun = rules.begin_step(state, name=name, kind=kind, input=input)
            except rules.FinallyFailed as failed:
                await self._commit(state, failed.operations)
                raise finally_failed(failure_to_detail(failed.error), failed.step.name) from None
            policy = None
            if request.HasField("retry_policy"):
                policy = retry_policy(request.retry_policy, rules.run_policy(state) or _DEFAULT).encode()
                if len(policy) > _POLICY_BYTES:
                    raise InvalidRequest(f"retry_policy is too long: at most {_POLICY_BYTES:,} bytes as JSON")
            await self._commit(state, begun.operations)
            if begun.execute and kind is not StepKind.SLEEP:
                self._open.add(request.run_id, begun.identity, begun.attempt)
        return pb.BeginStepResponse(
            step_id=str(StepName(state.run_id, begun.identity, begun.attempt, policy)),
            should_execute=begun.execute,
            cached_output=None if begun.execute else payload_from_bytes(begun.output),
        )

    async def CompleteStep(self, request: pb.CompleteStepRequest, call: Call) -> pb.CompleteStepResponse:  # noqa: ARG002
        output = payload_to_bytes(request.output) if request.HasField("output") else NULL
        async with self._lock(request.run_id):
            state = await self._lease(request.namespace, request.run_id)
            name = _name(request.step_id, state)
            beside = self._open.beside(request.run_id, name.identity, name.attempt)
            operations = rules.complete_step(state, name.identity, name.attempt, output, beside)
            await self._commit(state, operations)
            self._open.discard(request.run_id, name.identity, name.attempt)
            step = await self._step(state, name)
        return pb.CompleteStepResponse(step=step_to_wire(step, state.namespace, state.run_id, request.step_id))

    async def FailStep(self, request: pb.FailStepRequest, call: Call) -> pb.FailStepResponse:  # noqa: ARG002
        failure = failure_from_detail(request.error)
        async with self._lock(request.run_id):
            state = await self._lease(request.namespace, request.run_id)
            name = _name(request.step_id, state)
            policy = None if name.policy is None else Retry.decode(name.policy)
            beside = self._open.beside(request.run_id, name.identity, name.attempt)
            jitter = self._host.ids.jitter()
            failed = rules.fail_step(state, name.identity, name.attempt, policy, failure, jitter, beside)
            await self._commit(state, failed.operations)
            if failed.operations and failed.retry_at is not None:
                self._open.wait(request.run_id)
            self._open.discard(request.run_id, name.identity, name.attempt)
        return pb.FailStepResponse(scheduled_retry=failed.retry_at is not None, retry_at=timestamp(failed.retry_at))

    async def Sleep(self, request: pb.SleepRequest, call: Call) -> pb.SleepResponse:  # noqa: ARG002
        length = _span(request.duration)
        async with self._lock(request.run_id):
            state = await self._lease(request.namespace, request.run_id)
            name = _name(request.step_id, state)
            await self._commit(state, rules.sleep(state, name.identity, name.attempt, length))
            self._open.forget(request.run_id)
        return pb.SleepResponse()

    async def SpawnChild(self, request: pb.SpawnChildRequest, call: Call) -> pb.SpawnChildResponse:  # noqa: ARG002
        policy = _policy(request.parent_policy)
        async with self._lock(request.run_id):
            state = await self._lease(request.namespace, request.run_id)
            name = _name(request.step_id, state)
            run_id, spawned = rules.child_of(state, name.identity, name.attempt)
            if not spawned:
                _check_child(request.start, state.namespace)
                start = start_from_wire(request.start, namespace=state.namespace, run_id=run_id)
                start = await self._engine.workflows.admit(start)
                await self._commit(state, rules.spawn_child(state, name.identity, name.attempt, start, policy))
                self._open.discard(request.run_id, name.identity, name.attempt)
        return pb.SpawnChildResponse(child_run_id=run_id)

    async def AwaitChild(self, request: pb.AwaitChildRequest, call: Call) -> pb.AwaitChildResponse:  # noqa: ARG002
        async with self._lock(request.run_id):
            state = await self._lease(request.namespace, request.run_id)
            name = _name(request.step_id, state)
            park = rules.await_child(state, name.identity, name.attempt)
            if park is not None and rules.may_be_untold(state, name.identity, name.attempt):
                await self._engine.workers.read_inbox(
                    state.namespace, state.run_id, state.token, (), children=True, reconcile=True
                )
                state = await self._lease(request.namespace, request.run_id)
                park = rules.await_child(state, name.identity, name.attempt)
            if park is not None:
                await self._commit(state, (park,))
                self._open.forget(request.run_id)
        return pb.AwaitChildResponse(parked=park is not None or state.status is RunStatus.SLEEPING)

    async def CompleteWorkflow(
        self,
        request: pb.CompleteWorkflowRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.CompleteWorkflowResponse:
        output = payload_to_bytes(request.output) if request.HasField("output") else NULL
        async with self._lock(request.run_id):
            state = await self._lease(request.namespace, request.run_id)
            ended = rules.complete_workflow(state, output)
            await self._commit(state, ended.operations)
            self._open.forget(request.run_id)
        return pb.CompleteWorkflowResponse(status=old_status(ended.status))

    async def FailWorkflow(self, request: pb.FailWorkflowRequest, call: Call) -> pb.FailWorkflowResponse:  # noqa: ARG002
        failure = failure_from_detail(request.error)
        async with self._lock(request.run_id):
            state = await self._lease(request.namespace, request.run_id)
            ended = rules.fail_workflow(state, failure, self._host.ids.jitter(), self._open.beside(request.run_id))
            await self._commit(state, ended.operations)
            self._open.forget(request.run_id)
        return pb.FailWorkflowResponse(status=old_status(ended.status))

    async def _worker(self, worker_id: str, namespace: str) -> Worker:
        worker = await self._engine.admin.get_worker(worker_id)
        if worker.namespace != namespace:
            raise NotFound(f"there is no worker {worker_id}")
        if worker.status is not WorkerStatus.ONLINE:
            raise wrong_state(f"worker {worker_id} is {worker.status}", subject="worker", subject_id=worker_id)
        return worker

    def _lock(self, handle: str) -> asyncio.Lock:
        lock = self._locks.get(handle)
        if lock is None:
            lock = self._locks[handle] = asyncio.Lock()
        return lock

    async def _lease(self, namespace: str, handle: str) -> LeaseState:
        run_id, dot, token = handle.partition(".")
        if not dot:
            raise InvalidRequest("run_id must be the handle that PollTask gave, not the id of the run alone")
        return await self._engine.leases.read(namespace_of(namespace), run_id, token, confirm=True)

    async def _commit(self, state: LeaseState, operations: tuple[Operation, ...]) -> None:
        if not operations:
            return
        answer = await self._engine.workers.commit(_chunk(state, operations))
        if answer is ChunkAnswer.NEWS:
            # Something arrived before the run could be parked. Whoever claims it next sees it.
            answer = await self._engine.workers.commit(_chunk(state, (HandBackRun(),)))
        if answer is ChunkAnswer.LEASE_LOST:
            raise LeaseLost(f"the lease on run {state.run_id} has ended; somebody else may drive it now")

    async def _step(self, state: LeaseState, name: StepName) -> Step:
        for step in await self._engine.workflows.steps(state.namespace, state.run_id):
            if step.step_id == name.identity and step.attempt == name.attempt:
                return step
        raise LeaseLost(f"the lease on run {state.run_id} has ended; its steps were set aside")

    async def _hand_back(self, poll: Poll) -> None:
        """Hands back the run that a poll may have claimed for a caller who is gone. The poll is made again, which tells
        that run."""
        polled = await self._engine.workers.poll(replace(poll, wait=0))
        for claim in polled.claims:
            await self._engine.workers.commit(
                Chunk(namespace=claim.namespace, run_id=claim.run_id, token=claim.token, operations=(HandBackRun(),))
            )


def _chunk(state: LeaseState, operations: tuple[Operation, ...]) -> Chunk:
    return Chunk(namespace=state.namespace, run_id=state.run_id, token=state.token, operations=operations)


def _name(step_id: str, state: LeaseState) -> StepName:
    name = step_name_of(step_id)
    if name.run_id != state.run_id:
        raise NotFound(f"there is no step {step_id[:100]!r} in run {state.run_id}")
    return name


def _span(duration: Duration) -> Span:
    span = duration.seconds * SECOND + duration.nanos // 1000
    if not 0 <= span <= LONGEST:
        raise InvalidRequest("duration must be between 0 and 1000 years")
    return span


def _policy(name: str) -> ParentPolicy:
    if not name:
        return ParentPolicy.CANCEL
    if name not in _POLICIES:
        raise InvalidRequest(f"parent_policy is {name[:100]!r}; it is one of {', '.join(_POLICIES)}")
    return ParentPolicy(name)


def _check_child(start: StartWorkflowRequest, namespace: str) -> None:
    """Refuses what a child cannot have."""
    if start.namespace and start.namespace != namespace:
        raise InvalidRequest(f"start.namespace must be empty or that of the parent, {namespace}")
    for field in _NOT_OF_CHILDREN:
        if start.HasField(field) if field in _OPTIONAL else bool(getattr(start, field)):
            raise InvalidRequest(f"start.{field} is not for children; leave it empty")
    if start.on_conflict == ON_CONFLICT_RETURN:
        raise InvalidRequest(
            "start.on_conflict must be FAIL, RESTART_FINISHED or RESTART_FAILED: a run that has the id already would "
            "be no child of this one"
        )


def _whole_input(claim: Claim) -> bytes:
    return claim.input if claim.failed_input is None else whole_document(claim.input, claim.failed_input)
