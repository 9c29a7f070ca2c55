"""One suspect at a time: a run that kills its workers must not take others along until all count as poison."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from kagzi import Kagzi
from kagzi.api.engine import Engine
from kagzi.api.operations import Chunk, ChunkAnswer, CompleteStep, HandBackRun, StartStep
from kagzi.api.reply import Reply
from kagzi.api.workers import Inbox, Poll, Polled, Registered, RunNews
from kagzi.core.instant import SECOND, Instant, Span
from kagzi.ids import RandomIds
from kagzi.sdk.worker.attempt import Attempt
from kagzi.sdk.worker.settings import WorkerSettings
from kagzi.sdk.worker.suspects import APART, TRIAL, Suspects
from kagzi.sdk.worker.worker import Worker
from tests.engine.support import run
from tests.sdk.test_heartbeat import new_claim


class Held:
    """An attempt that does nothing but remember what it was told."""

    def __init__(self, name: str, crashes: int, *, claimed_at: Span = 0) -> None:
        self.name = name
        self.claimed_at = claimed_at
        self.claim = SimpleNamespace(crashes=crashes)
        self.gone = False
        self.progress = False
        self.handed_back: list[Instant | None] = []

    def now(self) -> Instant:
        return 1_000 * SECOND

    def jitter(self) -> float:
        return 0.5

    def has_progressed(self) -> bool:
        return self.progress

    def hand_back(self, available_at: Instant | None = None) -> None:
        self.handed_back.append(available_at)


class Bench:
    def __init__(self) -> None:
        self.now: Span = 5 * SECOND
        self.begun: list[str] = []
        self.held: list[Any] = []
        self.suspects = Suspects(self._begin, lambda: self.held, lambda: self.now)

    def _begin(self, attempt: Any) -> None:
        self.begun.append(attempt.name)

    def claim(self, *attempts: Held) -> list[str]:
        """What begins at once."""
        return [cast(Any, attempt).name for attempt in self.suspects.sift(cast(list[Attempt], list(attempts)))]

    def claims_nothing(self) -> bool:
        return self.suspects.claims_nothing()

    def leave(self, attempt: Held) -> None:
        attempt.gone = True
        self.suspects.left(cast(Attempt, attempt))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_runs_that_crashed_once_are_no_suspects(bench: Bench) -> None:
    runs = [Held("new", 0), Held("once", 1), Held("once too", 1)]
    assert bench.claim(*runs) == ["new", "once", "once too"]
    assert [run.handed_back for run in runs] == [[], [], []]
    assert not bench.claims_nothing()


def test_of_several_suspects_the_least_suspicious_begins_when_all_others_are_handed_back(bench: Bench) -> None:
    worst, least, other, innocent = Held("worst", 3), Held("least", 2), Held("other", 2), Held("innocent", 0)
    assert bench.claim(worst, least, other, innocent) == []
    now = least.now()
    assert other.handed_back == [now + APART]
    assert worst.handed_back == [now + 2 * APART]
    assert (least.handed_back, innocent.handed_back) == ([], [None])  # for who has lost nothing yet may be what kills
    bench.leave(worst)
    assert bench.begun == []  # it may kill the worker before the other one is safe
    assert bench.claims_nothing()
    bench.leave(other)
    bench.leave(innocent)
    assert bench.begun == ["least"]
    assert bench.claims_nothing()


def test_a_single_suspect_begins_at_once_and_others_do_not_while_it_is_on_trial(bench: Bench) -> None:
    first, second = Held("first", 2), Held("second", 2)
    assert bench.claim(first) == ["first"]
    assert bench.claim(second, Held("innocent", 1)) == []
    assert len(second.handed_back) == 1
    bench.leave(second)
    assert bench.begun == ["innocent"]


def test_suspects_that_come_while_one_waits_to_begin_are_waited_for_too(bench: Bench) -> None:
    first, second, third = Held("first", 2), Held("second", 2), Held("third", 2)
    assert bench.claim(first, second) == []
    bench.now += 2 * TRIAL  # it has not begun, so it has not shown anything either
    assert bench.claim(third) == []
    assert len(third.handed_back) == 1
    bench.leave(second)
    assert bench.begun == []
    bench.leave(third)
    assert bench.begun == ["first"]


def test_others_have_their_turn_after_a_trial_for_as_long_as_it_took(bench: Bench) -> None:
    first = Held("first", 2)
    assert bench.claim(first) == ["first"]
    bench.now += SECOND
    bench.leave(first)
    second, other = Held("second", 2), Held("other", 0)
    assert bench.claim(second, other) == []
    assert second.handed_back == [second.now() + SECOND + APART]
    assert bench.claims_nothing()  # nor is anything else claimed before that is stored: it would begin at once
    bench.leave(second)
    assert bench.begun == ["other"]
    assert not bench.claims_nothing()
    bench.leave(other)
    bench.now += SECOND
    third, other = Held("third", 2), Held("other", 0)
    assert bench.claim(third, other) == []
    assert (third.handed_back, other.handed_back) == ([], [None])


@pytest.mark.parametrize("shown", ["it leaves", "it records something", "it has lived for a while"])
def test_a_trial_waits_for_what_may_kill_and_is_held_already(bench: Bench, shown: str) -> None:
    company = Held("company", 0, claimed_at=bench.now)
    bench.held.append(company)
    suspect, other = Held("suspect", 2), Held("other", 0)
    assert bench.claim(suspect, other) == []
    bench.leave(suspect)
    bench.leave(other)
    assert bench.begun == []
    assert bench.claims_nothing()
    if shown == "it leaves":
        company.gone = True
    elif shown == "it records something":
        company.progress = True
    else:
        bench.now += TRIAL
    assert not bench.claims_nothing()
    assert bench.claim(again := Held("suspect", 2)) == ["suspect"]
    assert again.handed_back == []


def test_one_crash_makes_a_suspect_where_the_third_is_the_last(bench: Bench) -> None:
    bench.suspects.crashes = 1
    first, second = Held("first", 1), Held("second", 1)
    assert bench.claim(first, second) == []
    assert len(second.handed_back) == 1


@pytest.mark.parametrize("end", ["it leaves", "it records something", "it has lived for a while"])
def test_a_trial_ends(bench: Bench, end: str) -> None:
    first = Held("first", 2)
    assert bench.claim(first) == ["first"]
    assert bench.claims_nothing()
    if end == "it leaves":
        bench.leave(first)
    elif end == "it records something":
        first.progress = True
    else:
        bench.now += TRIAL
    assert not bench.claims_nothing()
    assert bench.claim(Held("second", 2)) == ["second"]


def test_one_that_is_lost_before_it_could_begin_makes_room(bench: Bench) -> None:
    first, second = Held("first", 2), Held("second", 2)
    assert bench.claim(first, second) == []
    bench.leave(first)
    bench.leave(second)
    assert bench.begun == []
    assert bench.claim(Held("third", 2)) == ["third"]


def test_what_is_gone_already_is_not_tried(bench: Bench) -> None:
    gone = Held("gone", 2)
    gone.gone = True
    assert bench.claim(gone, Held("second", 2)) == ["second"]
    assert gone.handed_back == []


class NoInbox:
    """The part of an engine's worker service that tells what has arrived for runs: nothing ever does."""

    async def read_inbox(self, *_: object) -> Inbox:
        return Inbox(inbox_seq=0, cancel_requested=False, signals=())

    async def news(self, *_: object) -> tuple[RunNews, ...]:
        await asyncio.get_running_loop().create_future()
        return ()


class Claims(NoInbox):
    """An engine's worker service that has two suspects to give, and stores nothing until it is told to."""

    def __init__(self) -> None:
        self.polls = 0
        self.unsettled: list[tuple[Chunk, Reply[ChunkAnswer]]] = []

    async def register(self, _: object) -> Registered:
        return Registered(lease=60 * SECOND, heartbeat=20 * SECOND)

    async def poll(self, _: Poll) -> Polled:
        self.polls += 1
        if self.polls > 1:
            await asyncio.get_running_loop().create_future()
        claims = [replace(new_claim(name, 60 * SECOND), token=name, crashes=2) for name in ("first", "second")]
        return Polled(now=0, claims=tuple(claims))

    def commit(self, chunk: Chunk) -> Reply[ChunkAnswer]:
        reply: Reply[ChunkAnswer] = Reply()
        self.unsettled.append((chunk, reply))
        return reply

    def settle(self) -> list[Chunk]:
        settled, self.unsettled = self.unsettled, []
        for _, reply in settled:
            reply.settle(ChunkAnswer.DONE)
        return [chunk for chunk, _ in settled]

    async def drain(self, _: str) -> None: ...

    async def deregister(self, _: str) -> None: ...


class NoHeart:
    def __init__(self, *_: object) -> None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def hurry(self) -> None: ...


def test_a_worker_begins_one_suspect_once_the_other_is_safe_and_claims_nothing_until_it_has_progressed() -> None:
    app = Kagzi("memory://")
    begun: list[int] = []
    release = [asyncio.Event(), asyncio.Event()]

    @app.step
    async def hold(number: int) -> None:
        begun.append(number)
        await release[number].wait()

    @app.workflow(name="order")
    async def order() -> None:
        await hold(0)
        await hold(1)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        clock: Any = SimpleNamespace(
            now=lambda: round(loop.time() * SECOND), monotonic=lambda: round(loop.time() * SECOND)
        )
        service = Claims()
        engine = cast("Engine", SimpleNamespace(workers=service))
        settings = WorkerSettings(adopt=False, grace=0)
        worker = Worker(
            engine,
            app,
            namespace="default",
            clock=clock,
            ids=RandomIds(clock.now),
            settings=settings,
            heart=NoHeart,
        )
        await worker.start()
        await asyncio.sleep(1)
        assert (begun, service.polls) == ([], 1)
        (handed_back,) = service.settle()
        assert handed_back.run_id == "second"
        assert isinstance(handed_back.operations[-1], HandBackRun)
        await asyncio.sleep(1)
        assert (begun, service.polls) == ([0], 1)
        release[0].set()
        await asyncio.sleep(1)
        assert [type(operation) for chunk in service.settle() for operation in chunk.operations] == [StartStep]
        await asyncio.sleep(1)
        assert (begun, service.polls) == ([0], 1)  # to begin a step is no progress, and its end is not stored
        assert [type(operation) for chunk in service.settle() for operation in chunk.operations] == [CompleteStep]
        await asyncio.sleep(0.1)
        assert (begun, service.polls) == ([0, 1], 2)
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(0.1)
        service.settle()
        await stopping

    run(main)
