"""The hot statements of PostgreSQL, one after the other, to be counted.

The store's own methods send them, so the instructions of this process are those of the store and of its driver. Every
backend of the server counts its own. A segment is what is done between two marks, see `callgrind.py`.
"""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from kagzi.api.operations import BirthLease, Chunk, ChunkAnswer, CompleteRun, CompleteStep, Started, StartRun, Write
from kagzi.api.workers import Poll
from kagzi.core.instant import SECOND
from kagzi.core.worker import WorkflowType
from kagzi.store.postgres.store import PostgresStore

if TYPE_CHECKING:
    from typing import TypeAlias

    _Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]

TIMES: Final = 8  # of each statement in its segment
BATCH: Final = 50
CALIBRATION: Final = "a table of its own"
NOTHING: Final = "nothing"  # what the marks themselves cost
SEGMENTS: Final = (
    NOTHING,
    CALIBRATION,
    "a start",
    "50 starts",
    "a step",
    "50 steps",
    "a last step and the end",
    "50 last steps and ends",
    "a claim of 50",
)
_NAMESPACE: Final = "default"
_QUEUE: Final = "counted"
_TYPE: Final = "one_step"
_LEASE: Final = 3600 * SECOND
_STARTED: Final = 1_790_000_000 * SECOND

_Job = Callable[[], Awaitable[None]]


class Program:
    def __init__(self, store: PostgresStore, plain: _Connection) -> None:
        self._store = store
        self._plain = plain
        self._random = random.Random(0)
        self._numbers = itertools.count(1)
        self._worker = self._id()
        self._polls = itertools.count(1)

    def _id(self) -> str:
        chance = f"{self._random.getrandbits(64):016x}"
        time = f"{next(self._numbers):012x}"
        return f"{time[:8]}-{time[8:]}-7{chance[:3]}-8{chance[3:6]}-{chance[4:16]}"

    def job(self, name: str) -> _Job:
        """Returns a segment. What it writes is made here, before it is counted."""
        match name:
            case "a start":
                return self._batches(1, self._births, Started)
            case "50 starts":
                return self._batches(BATCH, self._births, Started)
            case "a step":
                return self._batches(1, self._steps, ChunkAnswer)
            case "50 steps":
                return self._batches(BATCH, self._steps, ChunkAnswer)
            case "a last step and the end":
                return self._batches(1, self._ends, ChunkAnswer)
            case "50 last steps and ends":
                return self._batches(BATCH, self._ends, ChunkAnswer)
            case "a claim of 50":
                return self._claim
            case "a table of its own":
                return self._calibrate
        return self._nothing

    async def prepare(self, name: str) -> None:
        """Makes the runs that the next segment works on."""
        self._live = []
        many = 1 if name.startswith("a ") and "claim" not in name else BATCH
        if "claim" in name:
            for _ in range(TIMES):
                await self._store.work.apply([self._start(None) for _ in range(many)])
        elif "step" in name:
            for _ in range(TIMES):
                starts = self._births(many)
                await self._store.work.apply(starts)
                self._live.append([(start.run_id, start.lease.token) for start in starts if start.lease is not None])

    def _start(self, lease: BirthLease | None) -> StartRun:
        return StartRun(
            namespace=_NAMESPACE,
            run_id=self._id(),
            workflow_type=_TYPE,
            task_queue=_QUEUE,
            version="1",
            input=b"[7]",
            lease=lease,
        )

    def _births(self, many: int) -> list[StartRun]:
        return [self._start(BirthLease(worker_id=self._worker, token=self._id(), length=_LEASE)) for _ in range(many)]

    def _steps(self, many: int) -> list[Chunk]:
        return [self._chunk(run_id, token, _step()) for run_id, token in self._take(many)]

    def _ends(self, many: int) -> list[Chunk]:
        end = CompleteRun(output=b"8", unless_cancelled=True, family=False)
        return [self._chunk(run_id, token, _step(), end) for run_id, token in self._take(many)]

    def _take(self, many: int) -> list[tuple[str, str]]:
        taken = self._live.pop()
        assert len(taken) == many
        return taken

    def _chunk(self, run_id: str, token: str, *operations: Any) -> Chunk:
        return Chunk(namespace=_NAMESPACE, run_id=run_id, token=token, operations=operations)

    def _batches(self, many: int, make: Callable[[int], list[Any]], answer: type[Any]) -> _Job:
        batches: list[list[Write]] = [make(many) for _ in range(TIMES)]

        async def send() -> None:
            for batch in batches:
                applied = await self._store.work.apply(batch)
                assert all(type(each) is answer and each is not ChunkAnswer.LEASE_LOST for each in applied.answers)

        return send

    async def _claim(self) -> None:
        for _ in range(TIMES):
            poll = Poll(
                namespace=_NAMESPACE,
                worker_id=self._worker,
                queues=(_QUEUE,),
                types=(WorkflowType(_TYPE),),
                limit=BATCH,
                number=next(self._polls),
                token=self._id(),
                wait=0,
            )
            polled = await self._store.work.claim(poll, _LEASE)
            assert len(polled.claims) == BATCH

    async def _nothing(self) -> None:
        """The marks alone."""

    async def _calibrate(self) -> None:
        """Has the server do what its backends do for any program of this kind."""
        for _ in range(TIMES):
            ids = [self._id() for _ in range(BATCH)]
            await self._plain.execute(_INSERT, ids, list(range(BATCH)))
            await self._plain.fetch(_UPDATE, ids)
            for each in ids[:5]:
                await self._plain.fetch(_SELECT, each)


_TABLE: Final = """
    DROP TABLE IF EXISTS calibration;
    CREATE TABLE calibration (id uuid PRIMARY KEY, number bigint NOT NULL, note text, due timestamptz);
    CREATE INDEX ON calibration (number, id) WHERE due IS NULL"""
_INSERT: Final = """INSERT INTO calibration SELECT id, number, 'a note of some length', NULL
    FROM unnest($1::uuid[], $2::bigint[]) AS given (id, number) ON CONFLICT (id) DO NOTHING"""
_UPDATE: Final = """WITH mine AS (SELECT id FROM calibration WHERE id = ANY ($1::uuid[]) ORDER BY id FOR UPDATE)
    UPDATE calibration SET due = now(), number = number + 1 FROM mine WHERE calibration.id = mine.id
    RETURNING calibration.id, number, due"""
_SELECT: Final = "SELECT * FROM calibration WHERE id = $1"


def _step() -> CompleteStep:
    return CompleteStep(
        step_id="add_one", completed_seq=1, started_at=_STARTED, finished_at=_STARTED + 100, output=b"8", input_hash=7
    )


async def run(url: str, mark: Callable[[str], None]) -> tuple[str, Mapping[str, Mapping[int, int]]]:
    """Does everything once to warm up, then once more, with marks before and behind each segment. Returns the server's
    version and, by segment, how many marks each backend had set before it."""
    connections: list[_Connection] = []
    connect = asyncpg.connect

    async def connect_and_tell(*args: Any, **kwargs: Any) -> _Connection:
        connections.append(connection := await connect(*args, **kwargs))
        return connection

    marks: dict[int, int] = {}

    async def mark_backends() -> Mapping[int, int]:
        for connection in connections:
            if not connection.is_closed():
                await connection.execute("SELECT pg_backend_pid()")
                pid = connection.get_server_pid()
                marks[pid] = marks.get(pid, 0) + 1
        return dict(marks)

    asyncpg.connect = connect_and_tell
    # One lane for chunks, as their batches are made by hand; one connection for claims.
    store = PostgresStore(url, lanes=2, pool_size=1, chance=random.Random(0))
    await store.open()
    plain = await asyncpg.connect(url, server_settings={"plan_cache_mode": "force_generic_plan"})
    await plain.execute(_TABLE)
    program = Program(store, plain)
    told: dict[str, Mapping[int, int]] = {}
    for counted in (False, True):
        for name in SEGMENTS:
            await program.prepare(name)
            job = program.job(name)
            if not counted:
                await job()
                continue
            gc.collect()
            told[name] = await mark_backends()
            mark(name)
            await job()
            mark(name)
            await mark_backends()
    version = str(plain.get_server_version().major)
    await plain.close()
    await store.close()
    asyncpg.connect = connect
    return version, told
