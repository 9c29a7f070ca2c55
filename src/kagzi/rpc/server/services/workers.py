"""WorkerService: what workers ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from kagzi._proto.v1 import worker_pb2 as pb
from kagzi.api.operations import Chunk, ChunkAnswer
from kagzi.api.reply import Reply, gather, settled
from kagzi.api.workers import Registration
from kagzi.core.flow import MOST_CONCURRENCY
from kagzi.core.instant import SECOND
from kagzi.core.worker import WorkflowType
from kagzi.errors import InvalidRequest, VersionMismatch
from kagzi.rpc.convert import signals
from kagzi.rpc.convert.packed import unpack_chunk
from kagzi.rpc.convert.runs import namespace_of
from kagzi.rpc.convert.versions import interface_from_wire
from kagzi.rpc.convert.work import (
    all_done,
    answer_to_wire,
    chunk_from_wire,
    declaration_from_wire,
    declared_from_wire,
    heartbeat_answer_to_wire,
    heartbeat_from_wire,
    poll_from_wire,
    types_from_wire,
)
from kagzi.rpc.limits import CALL_ITEMS, PAYLOAD_BYTES
from kagzi.rpc.server.services.histories import MANY, KeptClaims, claims_to_wire, history_page
from kagzi.rpc.server.services.host import Call, Host
from kagzi.rpc.server.unary.calls import UnaryCalls
from kagzi.rpc.status import describe, wrong_state

W = TypeVar("W")

_UNNAMED = "unknown"
_LARGE = 32 * 1024  # bytes of packed chunks, which may be a thousand steps


def _most(limit: int) -> int | None:
    """Returns a limit that a client in the field has sent: none if it is not above 0, and no more than 10,000."""
    return min(limit, MOST_CONCURRENCY) if limit > 0 else None


def _many_steps(request: pb.CommitBatchRequest) -> bool:
    return sum(map(len, request.packed)) > _LARGE or any(len(chunk.steps) > MANY for chunk in request.chunks)


def _read_chunks(request: pb.CommitBatchRequest, namespace: str) -> list[Chunk]:
    chunks = [chunk_from_wire(chunk, namespace) for chunk in request.chunks]
    chunks += [unpack_chunk(packed, namespace) for packed in request.packed]
    return chunks


class WorkerService(UnaryCalls):
    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._workers = host.engine.workers
        self._kept = KeptClaims()

    # Joining, staying, leaving.

    async def Register(self, request: pb.RegisterRequest, call: Call) -> pb.RegisterResponse:
        worker_id = request.worker_id or self._host.ids.token()
        types = types_from_wire(request.types) or tuple([WorkflowType(name) for name in request.workflow_types])
        queues = tuple(request.queues) or (request.task_queue or (types[0].name if types else ""),)
        registered = await self._workers.register(
            Registration(
                worker_id=worker_id,
                namespace=namespace_of(request.namespace),
                queues=queues,
                types=types,
                hostname=request.hostname or _UNNAMED,
                pid=request.pid,
                version=request.version or _UNNAMED,
                concurrency=request.concurrency or 1,
                labels=dict(request.labels),
                queue_limit=_most(request.queue_concurrency_limit),
                type_limits={
                    limit.workflow_type: most
                    for limit in request.workflow_type_concurrency
                    if (most := _most(limit.max_concurrent)) is not None
                },
                limits=declared_from_wire(request.limits),
                schedules=tuple([declaration_from_wire(each) for each in request.schedules]),
                look=request.look,
                actor=call.actor,
                peer=call.peer_name,
                interfaces=tuple([interface_from_wire(each) for each in request.interfaces]),
            )
        )
        return pb.RegisterResponse(
            worker_id=worker_id,
            heartbeat_interval_secs=max(1, registered.heartbeat // SECOND),
            lease_us=registered.lease,
            heartbeat_us=registered.heartbeat,
            payload_bytes=min(registered.payload_bytes, PAYLOAD_BYTES),
            suspect_crashes=registered.suspect_crashes,
            schedules=registered.schedules,
            schedule_warnings=registered.warnings,
        )

    async def Heartbeat(self, request: pb.HeartbeatRequest, call: Call) -> pb.HeartbeatResponse:  # noqa: ARG002
        answer = await self._workers.heartbeat(heartbeat_from_wire(request))
        if not answer.known and not request.HasField("held"):
            # Clients in the field shut down when this call fails; ours read `known` and register again.
            worker = await self._host.engine.admin.get_worker(request.worker_id, request.namespace or None)
            raise wrong_state(
                f"worker {worker.worker_id} is {worker.status}", subject="worker", subject_id=worker.worker_id
            )
        return heartbeat_answer_to_wire(answer)

    async def Deregister(self, request: pb.DeregisterRequest, call: Call) -> pb.DeregisterResponse:  # noqa: ARG002
        if request.drain:
            worker = await self._host.engine.admin.drain_worker(request.worker_id, request.namespace or None)
            request.namespace = worker.namespace  # the audit log is told, also if the caller did not say
            return pb.DeregisterResponse(drained=worker.active == 0)
        await self._workers.deregister(request.worker_id, request.namespace or None)
        return pb.DeregisterResponse(drained=True)

    # Our own way to drive runs.

    async def PollTasks(self, request: pb.PollTasksRequest, call: Call) -> pb.PollTasksResponse:
        poll = poll_from_wire(request, namespace_of(request.namespace))
        poll = replace(poll, wait=self._host.wait_span(poll.wait, call))
        # Should the worker go away meanwhile, it repeats its poll, or its next heartbeat gives these runs back.
        polled = await self._host.unless_closing(lambda: self._workers.poll(poll))
        if len(polled.claims) <= MANY and all(len(claim.history) <= MANY for claim in polled.claims):
            claims = claims_to_wire(polled.claims, self._kept)
        else:  # so much work that the others do not wait for it
            claims = await asyncio.to_thread(claims_to_wire, polled.claims, self._kept)
        return pb.PollTasksResponse(now_us=polled.now, claims=claims, waited_us=polled.waited)

    async def GetHistory(self, request: pb.GetHistoryRequest, call: Call) -> pb.GetHistoryResponse:  # noqa: ARG002
        namespace = namespace_of(request.namespace)
        claim = self._kept.get(namespace, request.run_id, request.token)
        if claim is None:
            claim = await self._host.engine.leases.read(namespace, request.run_id, request.token)
            self._kept.add(claim)
        page = await asyncio.to_thread(history_page, claim, request.page_token)
        if not page.next_page_token:
            self._kept.discard(namespace, request.run_id, request.token)
        return page

    async def WaitNews(self, request: pb.WaitNewsRequest, call: Call) -> pb.WaitNewsResponse:
        namespace, wait = namespace_of(request.namespace), self._host.wait_span(request.wait_us, call)
        news = await self._host.unless_closing(lambda: self._workers.news(request.worker_id, namespace, wait))
        return pb.WaitNewsResponse(news=[signals.news_to_wire(each) for each in news])

    async def ReadInbox(self, request: pb.ReadInboxRequest, call: Call) -> pb.ReadInboxResponse:  # noqa: ARG002
        namespace = namespace_of(request.namespace)
        inbox = await self._workers.read_inbox(
            namespace,
            request.run_id,
            request.token,
            tuple(request.names),
            children=request.children,
            reconcile=request.reconcile,
        )
        return signals.inbox_to_wire(inbox)

    async def CommitBatch(self, request: pb.CommitBatchRequest, call: Call) -> pb.CommitBatchResponse:  # noqa: ARG002
        count = len(request.chunks) + len(request.packed)
        if count > CALL_ITEMS:
            raise InvalidRequest(f"chunks has {count:,} items; at most {CALL_ITEMS:,} go into one call")
        namespace = namespace_of(request.namespace)
        # All of them are in the engine's hands before the first is waited for.
        try:
            if count > MANY or _many_steps(request):
                chunks = await asyncio.to_thread(_read_chunks, request, namespace)
            else:
                chunks = _read_chunks(request, namespace)
        except (InvalidRequest, VersionMismatch):
            replies = [self._submit(chunk_from_wire, chunk, namespace) for chunk in request.chunks]
            replies += [self._submit(unpack_chunk, packed, namespace) for packed in request.packed]
        else:
            replies = self._workers.commit_together(chunks)
        results = await gather(replies)
        if results.count(ChunkAnswer.DONE) == len(results):
            return all_done(len(results))
        return pb.CommitBatchResponse(results=[self._result(result) for result in results])

    def _submit(self, read: Callable[[W, str], Chunk], wire: W, namespace: str) -> Reply[ChunkAnswer]:
        try:
            chunk = read(wire, namespace)
        except (InvalidRequest, VersionMismatch) as error:
            return settled(error)
        return self._workers.commit(chunk)

    def _result(self, result: ChunkAnswer | Exception) -> pb.ChunkResult:
        if isinstance(result, ChunkAnswer):
            return answer_to_wire(result)
        return pb.ChunkResult(error=describe(result, self._host.ids.token)[1])
