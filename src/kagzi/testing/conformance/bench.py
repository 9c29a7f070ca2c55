"""What the conformance tests share: a store under test, its clock, ids that are the same every time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from kagzi.api.operations import (
    Answer,
    Chunk,
    ChunkAnswer,
    CompleteStep,
    FailStep,
    Operation,
    Started,
    StartRun,
    StartStep,
    Write,
)
from kagzi.api.workers import Claim, Heartbeat, HeartbeatAnswer, Poll, Polled, Registration
from kagzi.core.instant import SECOND, Instant, Span
from kagzi.core.run import Run
from kagzi.core.step import Step
from kagzi.core.worker import WorkflowType
from kagzi.errors import Locked
from kagzi.store.protocol.changes import Recovered
from kagzi.store.protocol.store import Store
from kagzi.testing.clock import VirtualClock

LEASE: Final[Span] = 30 * SECOND
STALE: Final[Span] = 30 * SECOND  # after which a worker that is not heard of is OFFLINE
QUEUE: Final = "orders"
TYPE: Final = "checkout"
NAMESPACE: Final = "default"
MAX_CRASHES: Final = 3
_PATIENCE: Final = 60  # half seconds for which a write waits for a lock


class Bench:
    """A store with the handful of calls that most tests make."""

    def __init__(self, store: Store, clock: VirtualClock) -> None:
        self.store = store
        self.clock = clock
        self._ids = 0
        self._polls = 0
        self.worker_id = self.new_id()

    def now(self) -> Instant:
        return self.clock.now()

    def new_id(self) -> str:
        """A UUID; later ones are greater, as with UUIDv7."""
        self._ids += 1
        time = f"{self.now() // 1000:012x}"
        return f"{time[:8]}-{time[8:]}-7000-8000-{self._ids:012x}"

    # Starting.

    def start_run(self, **fields: Any) -> StartRun:
        return StartRun(
            **{
                "namespace": NAMESPACE,
                "run_id": fields.get("run_id") or self.new_id(),
                "workflow_type": TYPE,
                "task_queue": QUEUE,
                "version": "1",
                **fields,
            }
        )

    async def start(self, **fields: Any) -> str:
        """Start a run; returns its id."""
        answer = await self.answer(self.start_run(**fields))
        assert isinstance(answer, Started), answer
        return answer.run_id

    async def answer(self, write: Write) -> Answer:
        (answer,) = await self.apply([write])
        return answer

    async def apply(self, writes: Sequence[Write], store: Store | None = None) -> list[Answer]:
        """Has writes made as an engine does: what is locked waits apart."""
        store = store or self.store
        answers = (await store.work.apply(writes)).answers
        for _ in range(_PATIENCE):
            places = [place for place, answer in enumerate(answers) if isinstance(answer, Locked)]
            if not places:
                break
            again = await store.work.apply_patiently([writes[place] for place in places])
            for place, answer in zip(places, again.answers, strict=True):
                answers[place] = answer
        return answers

    async def apply_once(self, writes: Sequence[Write]) -> list[Answer]:
        return (await self.store.work.apply(writes)).answers

    # Claiming.

    def poll(self, **fields: Any) -> Poll:
        """A poll with a number and a token of its own."""
        self._polls += 1
        return Poll(
            **{
                "namespace": NAMESPACE,
                "worker_id": self.worker_id,
                "queues": (QUEUE,),
                "types": (WorkflowType(TYPE),),
                "limit": 100,
                "number": self._polls,
                "token": self.new_id(),
                "wait": 0,
                **fields,
            }
        )

    async def polled(self, poll: Poll, lease: Span = LEASE) -> Polled:
        return await self.store.work.claim(poll, lease)

    async def claims(self, **fields: Any) -> tuple[Claim, ...]:
        return (await self.polled(self.poll(**fields))).claims

    async def claimed_ids(self, **fields: Any) -> list[str]:
        return [claim.run_id for claim in await self.claims(**fields)]

    async def claim(self, run_id: str | None = None, **fields: Any) -> Claim:
        """Claim the only run there is to claim."""
        (claim,) = await self.claims(**fields)
        assert run_id is None or claim.run_id == run_id
        return claim

    async def started_claim(self, **fields: Any) -> Claim:
        """A fresh run under a fresh lease."""
        return await self.claim(await self.start(**fields))

    # Working.

    def chunk(self, claim: Claim, *operations: Operation, token: str | None = None) -> Chunk:
        return Chunk(
            namespace=claim.namespace,
            run_id=claim.run_id,
            token=token or claim.token,
            operations=operations,
        )

    async def send(self, claim: Claim, *operations: Operation, token: str | None = None) -> Answer:
        return await self.answer(self.chunk(claim, *operations, token=token))

    async def done(self, claim: Claim, *operations: Operation) -> None:
        assert await self.send(claim, *operations) is ChunkAnswer.DONE

    def begun(self, step_id: str, *, timeout: Span | None = None, **fields: Any) -> StartStep:
        timeout_at = None if timeout is None else self.now() + timeout
        return StartStep(step_id=step_id, started_at=self.now(), timeout_at=timeout_at, **fields)

    def completed(self, step_id: str, seq: int, **fields: Any) -> CompleteStep:
        return CompleteStep(
            **{
                "step_id": step_id,
                "completed_seq": seq,
                "started_at": self.now(),
                "finished_at": self.now(),
                "output": b'"%d"' % seq,
                **fields,
            }
        )

    def failed(self, step_id: str, **fields: Any) -> FailStep:
        return FailStep(
            **{
                "step_id": step_id,
                "started_at": self.now(),
                "finished_at": self.now(),
                "error": b"no",
                **fields,
            }
        )

    # Looking.

    async def run(self, run_id: str, namespace: str = NAMESPACE) -> Run:
        run = await self.store.runs.get(namespace, run_id)
        assert run is not None
        return run

    async def steps(self, run_id: str, namespace: str = NAMESPACE) -> list[Step]:
        return await self.store.runs.steps(namespace, run_id)

    async def state(self, run_id: str, namespace: str = NAMESPACE) -> tuple[Run, list[Step]]:
        """Everything visible of a run, to see that it has not changed."""
        return await self.run(run_id, namespace), await self.steps(run_id, namespace)

    # Workers and duties.

    def registration(self, **fields: Any) -> Registration:
        return Registration(
            **{
                "worker_id": self.worker_id,
                "namespace": NAMESPACE,
                "queues": (QUEUE,),
                "types": (WorkflowType(TYPE),),
                "hostname": "host",
                "pid": 1,
                "version": "1.0",
                "concurrency": 10,
                **fields,
            }
        )

    async def beat(self, *held: Claim, heard: int = 0, **fields: Any) -> tuple[HeartbeatAnswer, list[Recovered]]:
        """A heartbeat of the bench's worker that lists these claims."""
        (beaten,) = await self.store.workers.heartbeats([self.heartbeat(*held, heard=heard, **fields)])
        return beaten.answer, beaten.released

    def heartbeat(self, *held: Claim, heard: int = 0, **fields: Any) -> Heartbeat:
        return Heartbeat(
            **{
                "worker_id": self.worker_id,
                "held": tuple((claim.run_id, claim.token) for claim in held),
                "heard": heard,
                **fields,
            }
        )

    async def recover(
        self,
        *,
        limit: int = 100,
        max_crashes: int = MAX_CRASHES,
        backoff: Callable[[int], Span] = lambda crashes: 0,  # noqa: ARG005
    ) -> list[Recovered]:
        return (await self.store.duties.recover_runs(limit, max_crashes, backoff)).runs

    async def crash(self, claim: Claim) -> Recovered:
        """Let a lease run out, and have the run recovered."""
        self.clock.advance(claim.lease)
        (recovered,) = await self.recover()
        assert recovered.run_id == claim.run_id
        return recovered
