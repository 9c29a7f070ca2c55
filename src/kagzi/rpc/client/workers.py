"""What a worker asks of a server: polls, chunks, heartbeats, news."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, TypeVar

from google.protobuf.message import Message

from kagzi._proto.v1 import worker_pb2
from kagzi.api.operations import (
    Chunk,
    ChunkAnswer,
    Operation,
    SetValue,
    StepOperation,
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
from kagzi.core.instant import SECOND, Span
from kagzi.errors import InvalidRequest, KagziError, LeaseLost, NotFound
from kagzi.rpc.client.line import MARGIN_SECONDS, READ_SECONDS, WRITE_SECONDS, Line, converted
from kagzi.rpc.client.outbox import Outbox
from kagzi.rpc.convert import signals
from kagzi.rpc.convert.packed import pack_chunk
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

M = TypeVar("M", bound=Message)

_WORKERS: Final = "WorkerService"

_HEARTBEAT_SECONDS: Final = 5.0  # longer than a server collects heartbeats before it writes them
_PART_BYTES: Final = CALL_BYTES // 2


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
        seconds = min(poll.wait / SECOND, LONGEST_WAIT_SECONDS) + MARGIN_SECONDS
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

    async def heartbeat(self, heartbeat: Heartbeat, within: Span | None = None) -> HeartbeatAnswer:
        request = converted(heartbeat_to_wire, heartbeat)
        seconds = _HEARTBEAT_SECONDS if within is None else min(_HEARTBEAT_SECONDS, within / SECOND)
        # Once: the next one follows soon, and says something newer.
        answer = await self._call("Heartbeat", request, worker_pb2.HeartbeatResponse, seconds, patience=0.0)
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
        seconds = min(wait / SECOND, LONGEST_WAIT_SECONDS) + MARGIN_SECONDS
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
        """Does nothing: only workers in the engine's own process adopt runs."""

    async def _call(
        self, rpc: str, request: Message, answer: type[M], seconds: float, patience: float | None = None
    ) -> M:
        return await self._line.call(_WORKERS, rpc, request, answer, seconds=seconds, patience=patience)

    async def _claim(self, claim: worker_pb2.Claim, namespace: str) -> Claim | None:
        """Returns a claim with the rest of its history. If that cannot be had, the whole poll fails and is repeated;
        but None if the run has ended or is somebody else's by now, since the repeat would bring it again."""
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
        inbox = tuple(signals.signal_from_wire(signal) for signal in claim.signals) if claim.signals_complete else None
        return claim_from_wire(claim, namespace, input, failed_input, history, inbox)

    async def _commit_in_parts(self, chunk: Chunk) -> ChunkAnswer:
        """Commits a chunk that is too large for one message part by part, each when those before it are durable."""
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
