"""The same operations through SQLite and PostgreSQL give the same answers and the same visible state.

A seed makes a history of random operations against a handful of runs: starts with and without external ids, claims,
chunks of every shape under good, old and made-up tokens, children, signals, forks, takeovers of ids, pauses, moves to
other versions, jobs, a schedule, repeats of anything sent before, heartbeats, duties, and time passing. After every
operation the answers are compared, and now and then everything that can be seen.

Where the contract leaves something open (which of two equally old runs is claimed first) the test does not ask.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from kagzi.api.operations import (
    BirthLease,
    CancelRun,
    CancelStep,
    ChildStart,
    Chunk,
    CompleteRun,
    CompleteStep,
    ContinueRun,
    EndCancelledRun,
    FailRun,
    FailStep,
    Fork,
    HandBackRun,
    Operation,
    ParkRun,
    RepeatRun,
    RetryRun,
    SendSignal,
    SetValue,
    SpawnChild,
    StartDebounce,
    StartRun,
    StartStep,
    TakeOutcome,
    TerminateRun,
    Write,
)
from kagzi.api.schedules import CreateSchedule
from kagzi.api.workers import Heartbeat, Poll, Registration
from kagzi.api.workflows import RunFilter
from kagzi.core.conflict import OnConflict
from kagzi.core.family import ParentPolicy
from kagzi.core.flow import Scope
from kagzi.core.instant import SECOND
from kagzi.core.job import Job, JobAction, JobOptions, JobStatus
from kagzi.core.page import Cursor
from kagzi.core.run import RunStatus
from kagzi.core.schedule import Overlap
from kagzi.core.step import StepKind
from kagzi.core.worker import WorkflowType
from kagzi.store.protocol.changes import Applied, Changed, Told
from kagzi.store.protocol.limits import LimitChange
from kagzi.store.protocol.store import Store
from kagzi.store.sqlite import SqliteStore
from kagzi.testing.clock import VirtualClock
from tests.campaigns import length

pytestmark = pytest.mark.postgres

LEASE = 30 * SECOND
NAMESPACES = ("default", "tenant")
QUEUES = ("a", "b")
TYPES = ("x", "y")
STEPS = ("s", "t", "s#2")
CHILDREN = ("c", "c#2", "c#3")
OPERATIONS = 700
SEEDS = length(2, 12)


@pytest.fixture
async def stores(sqlite_file: str, postgres_database: str) -> AsyncIterator[tuple[VirtualClock, tuple[Store, Store]]]:
    from kagzi.store.postgres.store import PostgresStore

    clock = VirtualClock()
    sqlite = SqliteStore(sqlite_file, now=clock.now)
    postgres = PostgresStore(postgres_database, now=clock.now)
    async with AsyncExitStack() as stack:
        for store in (sqlite, postgres):
            await store.open()
            stack.push_async_callback(store.close)
        yield clock, (sqlite, postgres)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_both_stores_agree(stores: tuple[VirtualClock, tuple[Store, Store]], seed: int) -> None:
    clock, pair = stores
    world = World(random.Random(seed), clock)
    for number in range(OPERATIONS):
        clock.advance(world.random.choice((1, 1, 1000, SECOND, 10 * SECOND)))
        name, call = world.next_call()
        answers = [plain(await call(store)) for store in pair]
        assert answers[0] == answers[1], f"seed {seed}, operation {number}: {name}"
        world.learn(name, answers[0])
        if number % 50 == 0 or number == OPERATIONS - 1:
            one, other = [await world.visible(store) for store in pair]
            for what in one.keys() | other.keys():
                assert one.get(what) == other.get(what), f"seed {seed}, after operation {number}: {name}, {what}"
    # A history in which nothing happens would agree too.
    assert world.seen >= set(RunStatus) - {RunStatus.SCHEDULED, RunStatus.PAUSED}


def plain(answer: Any) -> Any:
    """An answer in a form that can be compared: exceptions by class, lists whose order is open sorted."""
    if isinstance(answer, Exception):
        return type(answer).__name__
    if isinstance(answer, list):
        if answer and isinstance(answer[0], Told):
            # Whoever is told several times may be named each time, or once: the last one counts.
            # Where it stands is as of then: which of two runs of one batch is written first is open.
            last = {told.run_id: told for told in sorted(answer, key=lambda told: told.inbox_seq)}.values()
            answer = [
                told if told.workflow_type else replace(told, status=RunStatus.RUNNING, available_at=0) for told in last
            ]
        answers = [plain(item) for item in answer]
        return (
            sorted(answers, key=repr)
            if answers and type(answer[0]).__name__ in ("Recovered", "Told", "str")
            else answers
        )
    if isinstance(answer, tuple):
        return tuple(plain(item) for item in answer)
    if isinstance(answer, Applied):
        # A batch with a refused write is written again one by one. What was committed of it before is not told twice.
        refused = any(isinstance(each, Exception) for each in answer.answers)
        return plain(answer.answers), [] if refused else plain(answer.woken)
    if isinstance(answer, Changed):
        return plain(answer.runs), plain(answer.woken)
    return answer


class World:
    """What the test knows, from which it makes up the next operation."""

    def __init__(self, chance: random.Random, clock: VirtualClock) -> None:
        self.random = chance
        self.clock = clock
        self.seen: set[RunStatus] = set()
        self._ids = 0
        self._workers = [self._new_id() for _ in range(3)]
        self._polls = 0
        self._runs: list[tuple[str, str]] = []
        self._leases: list[tuple[str, str, str]] = []  # (namespace, run_id, token), newest last
        self._holders: dict[str, str] = {}  # by token
        self._polled_by = ""
        self._sent: list[list[Write]] = []
        self._sent_polls: list[Poll] = []
        self._seq = 0
        self._cursor: Cursor | None = None
        self._cascade: list[Write] = []  # what the last look at cascades has said
        self._schedule = self._new_id()

    def next_call(self) -> tuple[str, Any]:
        names, weights = zip(*CALLS.items(), strict=True)
        name: str = self.random.choices(names, weights)[0]
        return name, getattr(self, f"_{name}")()

    def learn(self, name: str, answer: Any) -> None:
        if name in ("claim", "repeat_poll"):
            for claim in answer.claims:
                self._leases.append((claim.namespace, claim.run_id, claim.token))
                self._holders[claim.token] = self._polled_by

        if name == "cascade_ends" and isinstance(answer, list):
            self._cascade = list(answer)

    async def visible(self, store: Store) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for namespace in NAMESPACES:
            runs = (await store.runs.search(RunFilter(namespace=namespace), None, 100)).runs
            self.seen.update(run.status for run in runs)
            state[f"listing of {namespace}"] = [run.run_id for run in runs]
            state[f"workers of {namespace}"] = await store.workers.rows(namespace)
            for run in runs:
                steps = await store.runs.steps(namespace, run.run_id)
                state[f"run {run.run_id}"] = run
                state[f"order of {run.run_id}"] = [(step.step_id, step.attempt) for step in steps]
                state[f"values of {run.run_id}"] = await store.runs.values(namespace, run.run_id, (), "")
                state[f"signals of {run.run_id}"] = await store.signals.page(namespace, run.run_id, 0, 100)
                state |= {f"step {run.run_id}/{step.step_id}/{step.attempt}": step for step in steps}
        horizon = await store.overview.horizon([(namespace, queue) for namespace in NAMESPACES for queue in QUEUES])
        # When a leftover of a finished run is swept away is each store's own business.
        state["horizon"] = (
            horizon.now,
            horizon.due,
            horizon.lease,
            horizon.deadline,
            horizon.cancel,
            horizon.heartbeat,
        )
        state["finished"] = sorted(await store.runs.finished_of(self._runs))
        return state

    # Calls.

    def _start(self) -> Any:
        return self._apply([self._new_start() for _ in range(self.random.choice((1, 1, 3)))])

    def _repeat(self) -> Any:
        if not self._sent:
            return self._start()
        writes = self.random.choice(self._sent[-30:])
        return lambda store: store.work.apply(writes)

    def _chunks(self) -> Any:
        writes: list[Write] = []
        for _ in range(self.random.randint(1, 6)):
            if self._leases:
                writes.append(self._new_chunk())
        return self._apply(writes) if writes else self._start()

    def _claim(self) -> Any:
        self._polls += 1
        poll = Poll(
            namespace=self.random.choice(NAMESPACES),
            worker_id=self.random.choice(self._workers),
            queues=self.random.choice((QUEUES, QUEUES[:1], QUEUES[1:])),
            types=self.random.choice(
                ((WorkflowType("x"), WorkflowType("y")), (WorkflowType("x", "1"), WorkflowType("y")), ())
            ),
            limit=100,  # runs that were let go of together are equally old: which are claimed first is open
            number=self._polls,
            token=self._new_id(),
            wait=0,
        )
        self._sent_polls.append(poll)
        self._polled_by = poll.worker_id
        return lambda store: store.work.claim(poll, LEASE)

    def _repeat_poll(self) -> Any:
        if not self._sent_polls:
            return self._claim()
        poll = self.random.choice(self._sent_polls[-10:])
        self._polled_by = poll.worker_id
        return lambda store: store.work.claim(poll, LEASE)

    def _heartbeats(self) -> Any:
        beats = [self._heartbeat() for _ in range(self.random.choice((1, 1, 2, 5)))]
        if len(beats) > 1:
            # Nobody knows the tokens of others. Whoever lists one may hear or not that its holder has just lost it.
            beats = [self._own(beat) for beat in beats]

        async def call(store: Store) -> Any:
            told = []
            for beaten in await store.workers.heartbeats(beats):
                answer = beaten.answer
                lists = sorted(answer.lost), sorted(answer.news), sorted(answer.cancelled)
                released = sorted(beaten.released, key=lambda run: (run.namespace, run.run_id))
                told.append((lists, answer.drain, answer.known, beaten.shortest, released))
            return told

        return call

    def _heartbeat(self) -> Heartbeat:
        held = {}
        for _, run_id, token in self._leases[-20:]:
            if self.random.random() < 0.8:
                held[run_id] = token
        confirmed = self.random.random() < 0.2
        return Heartbeat(
            worker_id=self.random.choice(self._workers),
            held=() if confirmed else tuple(held.items()),
            heard=max(0, self._polls - self.random.choice((0, 3, 1000))),
            confirmed=confirmed,
            namespace=self.random.choice((None, None, *NAMESPACES)),
            completed=self.random.randint(0, 9),
            failed=self.random.randint(0, 9),
        )

    def _own(self, beat: Heartbeat) -> Heartbeat:
        return replace(beat, held=tuple(pair for pair in beat.held if self._holders[pair[1]] == beat.worker_id))

    def _register(self) -> Any:
        registration = Registration(
            worker_id=self.random.choice(self._workers),
            namespace=self.random.choice(NAMESPACES),
            queues=QUEUES,
            types=(WorkflowType("x"), WorkflowType("y", "2")),
            hostname="host",
            pid=self.random.randint(1, 9),
            version="1",
            concurrency=3,
        )
        return lambda store: store.workers.register(registration)

    def _deregister(self) -> Any:
        worker_id = self.random.choice(self._workers)
        return lambda store: store.workers.deregister(worker_id)

    def _recover(self) -> Any:
        return lambda store: store.duties.recover_runs(100, 3, lambda crashes: (crashes - 1) * SECOND)

    def _time_out_steps(self) -> Any:
        return lambda store: store.duties.time_out_steps(100, SECOND)

    def _time_out_runs(self) -> Any:
        return lambda store: _one_at_a_time(store.duties.time_out_runs)

    def _end_cancelled_runs(self) -> Any:
        return lambda store: _one_at_a_time(store.duties.end_cancelled_runs)

    def _request(self) -> Any:
        """Cancel, terminate or repeat, alone or beside chunks."""
        if not self._runs:
            return self._start()
        namespace, run_id = self.random.choice(self._runs[-25:])
        if self.random.random() < 0.05:
            run_id = self._new_id()
        writes: list[Write] = [self._new_chunk()] if self._leases and self.random.random() < 0.3 else []
        match self.random.randint(0, 6):
            case 0:
                writes.append(TerminateRun(namespace=namespace, run_id=run_id, reason="enough"))
            case 1 | 2:
                made = self._new_id()
                keep = self.random.random() < 0.7
                writes.append(RepeatRun(namespace=namespace, run_id=made, of_run_id=run_id, keep_steps=keep))
                self._runs.append((namespace, made))
            case _:
                writes.append(
                    CancelRun(namespace=namespace, run_id=run_id, grace=self.random.choice((0, 20, 60)) * SECOND)
                )
        return self._apply(writes)

    def _fork(self) -> Any:
        if not self._runs:
            return self._start()
        namespace, run_id = self.random.choice(self._runs[-25:])
        made = self._new_id()
        step, version = self.random.choice((None, *STEPS)), self.random.choice((None, "2"))
        fork = Fork(from_step=step, input=self.random.choice((None, b"3")), version=version)
        self._runs.append((namespace, made))
        return self._apply(
            [RepeatRun(namespace=namespace, run_id=made, of_run_id=run_id, keep_steps=True, keep_id=False, fork=fork)]
        )

    def _signal(self) -> Any:
        if not self._runs:
            return self._start()
        namespace, run_id = self.random.choice(self._runs[-25:])
        signal = SendSignal(
            namespace=namespace,
            run_id=run_id,
            name=self.random.choice("ab"),
            value=self._payload(),
            key=f"key {self.random.randint(1, 6)}",
        )
        return self._apply([signal])

    def _cascade_ends(self) -> Any:
        """Looks who is to follow the end of its parent, or tells them."""
        if self._cascade:
            told, self._cascade = self._cascade, []
            return self._apply(told)

        async def call(store: Store) -> Any:
            return sorted(await store.duties.cascade_ends(100), key=repr)

        return call

    def _flow(self) -> Any:
        scope = self.random.choice((Scope.QUEUE, Scope.QUEUE, Scope.WORKFLOW, Scope.NAMESPACE))
        name = {Scope.QUEUE: "a", Scope.WORKFLOW: "x", Scope.NAMESPACE: ""}[scope]
        namespace = self.random.choice(NAMESPACES)
        chance = self.random.random()
        if chance < 0.2:
            return lambda store: store.limits.pause(namespace, scope, name, "operations", "why not")
        if chance < 0.5 or scope is Scope.NAMESPACE:
            return lambda store: store.limits.resume(namespace, scope, name)
        if chance < 0.8:
            change = LimitChange(concurrency=self.random.choice((1, 3, 20, None)))
            return lambda store: store.limits.change(namespace, scope, name, change)

        async def unhold(store: Store) -> Any:
            freed = await store.limits.unhold(namespace, ())
            return sorted(freed.queues), freed.after, freed.later

        return unhold

    def _move(self) -> Any:
        namespace, kind, dry = self.random.choice(NAMESPACES), self.random.choice(TYPES), self.random.random() < 0.3

        async def call(store: Store) -> Any:
            page = await store.versions.move_runs(namespace, kind, "1", "2", ("", 0, _id(0)), 1000, dry)
            return page.moved, sorted(page.queues), page.last is None

        return call

    def _options(self, action: JobAction) -> JobOptions:
        if action is JobAction.MOVE:
            return JobOptions(from_version="1", version="2")
        if action is not JobAction.FORK:
            return JobOptions()
        return JobOptions(from_step=self.random.choice((None, "x", *STEPS)), version=self.random.choice((None, "2")))

    def _job(self) -> Any:
        """Starts a job, or lets one go on. It makes the same ids on both."""
        if self.random.random() < 0.3:
            ends = (JobAction.CANCEL, JobAction.TERMINATE)
            action = self.random.choice((*ends, JobAction.RETRY, JobAction.RERUN, JobAction.FORK, JobAction.MOVE))
            wanted = RunFilter(namespace=self.random.choice(NAMESPACES), task_queue="b", workflow_type="y")
            job = Job(
                namespace=wanted.namespace,
                job_id=self._new_id(),
                action=action,
                filter=msgspec.json.encode(wanted),
                rate=self.random.choice((None, 3)),
                children=self.random.random() < 0.5,
                options=self._options(action),
                status=JobStatus.RUNNING,
                **dict.fromkeys(("matched", "done", "skipped", "failed"), 0),
                created_by="operations",
                created_at=self.clock.now(),
            )
            return lambda store: store.jobs.start(job, 3)
        first = self._ids + 1
        self._ids += 300

        async def call(store: Store) -> Any:
            numbers = itertools.count(first)
            turn = await store.jobs.run_batch(lambda: _id(next(numbers)))
            return turn.job, plain(turn.started), sorted(map(repr, turn.told)), plain(turn.woken)

        return call

    def _fire(self) -> Any:
        """Makes the schedule, fires it, or counts what it has fired."""
        create = CreateSchedule(
            namespace="default",
            schedule_id=self._schedule,
            workflow_type="x",
            task_queue="a",
            version="1",
            cron_expr="every 30s",
            input=b"[1]",
            max_catchup=3,
            overlap=self.random.choice(tuple(Overlap)),
        )
        first = self._ids + 1
        self._ids += 30

        async def call(store: Store) -> Any:
            await store.schedules.create(create)
            numbers = itertools.count(first)
            fired = await store.schedules.fire(100, lambda: _id(next(numbers)))
            folded = await store.schedules.fold_ends(100)
            return plain(fired.runs), sorted(map(repr, fired.told)), plain(fired.woken), folded

        return call

    def _look_at_schedule(self) -> Any:
        async def call(store: Store) -> Any:
            return await store.schedules.get("default", self._schedule), await store.schedules.skips(
                "default", self._schedule, 100
            )

        return call

    def _expire_workers(self) -> Any:
        return lambda store: store.workers.expire(100, 60 * SECOND)

    def _prune(self) -> Any:
        async def call(store: Store) -> Any:
            deleted, cursor = await store.duties.prune_runs(1000, None)
            return deleted, cursor is None, await store.workers.prune(1000)

        if self.random.random() < 0.2:
            self.clock.advance(30 * 86_400 * SECOND)
        return call

    def _list_runs(self) -> Any:
        filter = RunFilter(
            namespace=self.random.choice(NAMESPACES),
            status=self.random.choice((None, None, RunStatus.PENDING, RunStatus.COMPLETED)),
            workflow_type=self.random.choice((None, "x")),
            task_queue=self.random.choice((None, "a")),
            created_after=self.random.choice((None, self.clock.now() - 60 * SECOND)),
        )
        cursor = None
        if self._runs and self.random.random() < 0.7:
            cursor = Cursor(self.random.choice(self._runs)[1], backward=self.random.random() < 0.5)
        return lambda store: store.runs.search(filter, cursor, 5)

    def _get_by_external_id(self) -> Any:
        namespace, external_id = self.random.choice(NAMESPACES), self._external_id()

        async def look(store: Store) -> Any:
            return await store.runs.find(namespace, external_id), await store.runs.get_by_external_id(
                namespace, external_id
            )

        return look

    # Their parts.

    def _apply(self, writes: list[Write]) -> Any:
        self._sent.append(writes)
        return lambda store: store.work.apply(writes)

    def _new_id(self) -> str:
        self._ids += 1
        return _id(self._ids)

    def _external_id(self) -> str:
        return f"order-{self.random.randint(1, 12)}"

    def _payload(self) -> bytes:
        return bytes([self.random.randint(0, 255)]) * self.random.choice((0, 3, 1024, 1025, 3000))

    def _new_start(self) -> StartRun:
        choice = self.random.choice
        namespace, run_id = choice(NAMESPACES), self._new_id()
        later = self.random.random() < 0.2
        lease = None
        if not later and self.random.random() < 0.2:
            lease = BirthLease(worker_id=choice(self._workers), token=self._new_id(), length=20 * SECOND)
            self._leases.append((namespace, run_id, lease.token))
            self._holders[lease.token] = lease.worker_id
        external = self.random.random() < 0.3
        self._runs.append((namespace, run_id))
        if lease is None and not later and not external and self.random.random() < 0.2:
            debounce = StartDebounce(
                key=choice(("", "k")), wait=choice((SECOND, 20 * SECOND)), most=choice((None, 30 * SECOND))
            )
            return StartRun(
                namespace=namespace,
                run_id=run_id,
                workflow_type=choice(TYPES),
                task_queue=choice(("a", "a", "a", "b")),
                version=choice(("1", "2")),
                input=self._payload(),
                priority=choice((0, 1)),
                timeout=choice((None, 60 * SECOND)),
                deadline_at=choice((None, self.clock.now() + 300 * SECOND)),
                debounce=debounce,
            )
        return StartRun(
            namespace=namespace,
            run_id=run_id,
            workflow_type=choice(TYPES),
            task_queue=choice(QUEUES),
            version=choice(("1", "2")),
            input=choice((b"1", b"2" * 2000)) if external else self._payload(),
            external_id=self._external_id() if external else None,
            priority=choice((0, 0, 1, 5, 1000)),
            delay=choice((SECOND, 20 * SECOND)) if later else 0,
            timeout=choice((None, None, 60 * SECOND, 600 * SECOND)),
            deadline_at=choice((None, None, self.clock.now() + 300 * SECOND)),
            retry_policy=choice((None, b"policy")),
            lease_length=choice((None, None, 5 * SECOND)),
            lease=lease,
            on_conflict=choice((OnConflict.RETURN, OnConflict.RETURN, *OnConflict)) if external else OnConflict.RETURN,
        )

    def _new_chunk(self) -> Chunk:
        namespace, run_id, token = self.random.choice(self._leases[-8:])
        if self.random.random() < 0.05:
            token = self._new_id()
        operations: list[Operation] = [self._new_step() for _ in range(self.random.randint(0, 4))]
        if self.random.random() < 0.25:
            operations += [self._new_value() for _ in range(self.random.randint(1, 3))]
        if self.random.random() < 0.25:
            operations.append(self._new_spawn(namespace))
        if self.random.random() < 0.1:
            operations.append(self._new_take())
        if self.random.random() < 0.35:
            operations.append(self._new_ending())
        return Chunk(namespace=namespace, run_id=run_id, token=token, operations=tuple(operations))

    def _new_step(self) -> Operation:
        self._seq += 1
        now = self.clock.now()
        step_id = self.random.choice(STEPS)
        common: dict[str, Any] = {
            "step_id": step_id,
            "attempt": self.random.randint(1, 3),
            "kind": self.random.choice((StepKind.FUNCTION, StepKind.SLEEP)),
            "started_at": now - self._seq % 7,
            "input": self.random.choice((None, b"1", f"{step_id} {self._seq}".encode())),
            "input_hash": self.random.randint(-(2**63), 2**63 - 1),
        }
        match self.random.randint(0, 5):
            case 0:
                return StartStep(**common, timeout_at=self.random.choice((None, now + 10 * SECOND)))
            case 1:
                return CancelStep(**common, finished_at=now)
            case 2:
                return FailStep(**common, finished_at=now, retry_at=now + SECOND, error=b"again")
            case 3:
                return FailStep(**common, finished_at=now, completed_seq=self._seq, error=self._payload())
            case _:
                return CompleteStep(**common, finished_at=now, completed_seq=self._seq, output=self._payload())

    def _new_spawn(self, namespace: str) -> SpawnChild:
        choice, run_id = self.random.choice, self._new_id()
        self._runs.append((namespace, run_id))
        child = ChildStart(
            run_id=run_id,
            workflow_type=choice(TYPES),
            task_queue=choice(QUEUES),
            version="1",
            external_id=self._external_id() if self.random.random() < 0.3 else None,
            timeout=choice((None, 60 * SECOND)),
            policy=choice((ParentPolicy.CANCEL, ParentPolicy.ABANDON, ParentPolicy.TERMINATE)),
            on_conflict=choice((OnConflict.FAIL, OnConflict.RESTART_FINISHED, OnConflict.RESTART_FAILED)),
        )
        return SpawnChild(
            step_id=choice(CHILDREN),
            kind=StepKind.CHILD_WORKFLOW,
            started_at=self.clock.now(),
            input=self._payload(),
            child=child,
        )

    def _new_take(self) -> TakeOutcome:
        self._seq += 1
        now = self.clock.now()
        return TakeOutcome(
            step_id=self.random.choice(CHILDREN),
            kind=StepKind.CHILD_WORKFLOW,
            started_at=now,
            finished_at=now,
            completed_seq=self._seq,
        )

    def _new_value(self) -> SetValue:
        self._seq += 1
        number = max(0, self._seq - self.random.choice((0, 0, 5)))
        return SetValue(name=self.random.choice("abc"), value=self._payload(), number=number)

    def _new_ending(self) -> Operation:
        now = self.clock.now()
        later = now + self.random.choice((-SECOND, SECOND, 20 * SECOND))
        match self.random.randint(0, 8):
            case 8:
                return ContinueRun(input=self._payload(), version=self.random.choice((None, "2")))
            case 7:
                return EndCancelledRun(error=self._payload())
            case 0:
                return CompleteRun(output=self._payload())
            case 1:
                return FailRun(error=self._payload())
            case 2:
                keep = max(0, self._seq - self.random.randint(0, 50))
                return RetryRun(available_at=later, keep_seq=keep, error=b"no")
            case 3:
                return HandBackRun(available_at=self.random.choice((None, later)))
            case _:
                return ParkRun(available_at=later, inbox_seq=self.random.choice((0, 0, 0, -1)))


CALLS = {
    "start": 20,
    "repeat": 8,
    "chunks": 40,
    "claim": 20,
    "repeat_poll": 4,
    "heartbeats": 8,
    "register": 2,
    "deregister": 1,
    "recover": 4,
    "time_out_steps": 3,
    "time_out_runs": 3,
    "request": 8,
    "end_cancelled_runs": 3,
    "expire_workers": 1,
    "prune": 1,
    "list_runs": 5,
    "get_by_external_id": 3,
    "fork": 3,
    "signal": 6,
    "cascade_ends": 6,
    "flow": 2,
    "move": 2,
    "job": 4,
    "fire": 4,
    "look_at_schedule": 1,
}


async def _one_at_a_time(end: Callable[[int], Awaitable[Changed]]) -> Changed:
    """Ends what is due. A parent and its child that end together may or may not tell each other: that is open."""
    done = Changed([], [])
    while (changed := await end(1)).runs:
        done.runs.extend(changed.runs)
        done.woken.extend(changed.woken)
    return done


def _id(number: int) -> str:
    return f"00000000-0000-7000-8000-{number:012x}"


@pytest.mark.parametrize("apart", [False, True], ids=["one batch", "one by one"])
async def test_what_an_attempt_was_given_stays_when_it_has_ended(
    stores: tuple[VirtualClock, tuple[Store, Store]], apart: bool
) -> None:
    clock, pair = stores
    now = clock.now()
    run_id, token = (f"00000000-0000-7000-8000-00000000000{number}" for number in (1, 2))
    birth = BirthLease(worker_id=token, token=token, length=LEASE)
    start = StartRun(
        namespace="default", run_id=run_id, workflow_type="x", task_queue="a", version="1", input=b"1", lease=birth
    )

    def failed(name: str, input: bytes | None = None) -> FailStep:
        return FailStep(step_id=name, started_at=now, finished_at=now, retry_at=now, input=input, error=b"no")

    def begun(name: str, input: bytes) -> StartStep:
        return StartStep(step_id=name, started_at=now, input=input)

    histories = [
        [failed("silent"), begun("silent", b"late"), failed("silent")],
        [failed("told", b"first"), begun("told", b"late"), failed("told", b"second")],
        [begun("usual", b"first"), failed("usual"), failed("usual", b"second")],
    ]
    found = []
    for store in pair:
        await store.work.apply([start])
        for first, *others in histories:
            for part in [[first], *([[other] for other in others] if apart else [others])]:
                chunk = Chunk(namespace="default", run_id=run_id, token=token, operations=tuple(part))
                await store.work.apply([chunk])
        found.append({step.step_id: step.input for step in await store.runs.steps("default", run_id)})
    assert found[0] == found[1] == {"silent": None, "told": b"first", "usual": b"first"}
