"""SIGTERM and Ctrl-C: finish what runs, hand the rest back, exit 0."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from kagzi import RunStatus
from kagzi.testing.postgres import PostgresServer
from tests.faults.conftest import MakeSite
from tests.faults.processes import Site, until

LEASE = 30.0  # so long that nothing here can be explained by a lease that ran out


@pytest.fixture
def site(url: str, make_site: MakeSite) -> Site:
    return make_site(url, lease=LEASE)


@pytest.mark.parametrize(
    ("url", "thread", "number"),
    [
        ("sqlite", False, signal.SIGINT),
        pytest.param("postgres", True, signal.SIGTERM, marks=pytest.mark.postgres),
    ],
    indirect=["url"],
)
async def test_a_running_step_finishes_and_is_recorded(site: Site, thread: bool, number: signal.Signals) -> None:
    async with site.program.app:
        first = await site.worker().ready()
        run = await site.program.holding.start("a", 60.0, thread)
        await site.seen("enter", tag="a")
        second = await site.worker().ready()
        first.send(number)
        await until(lambda: "drains" in first.log, "it drains")
        released = time.monotonic()
        site.program.release("a")
        assert await first.ended() == 0
        assert await run.result(timeout=60) == first.pid  # its result counts, and was not made again
        later = await site.seen("enter", phase=2)
        assert later["pid"] == second.pid
        assert later["at"] - released < LEASE / 2
        found = await run.get()
        assert (found.executions, found.crashes) == (2, 0)
    assert len(site.ledger.lines("enter", tag="a")) == 1


async def test_runs_between_steps_go_to_others_at_once(site: Site) -> None:
    """While one step keeps the worker from ending, its other runs do not wait for it."""
    async with site.program.app:
        first = await site.worker().ready()
        second = await site.worker().ready()
        await second.suspend()  # it is there as soon as it is wanted, and has nothing to do with them before
        slow = await site.program.holding.start("a", 60.0)
        others = [await site.program.chain.start(150, 0.02) for _ in range(5)]
        await site.seen("enter", tag="a")
        await until(lambda: len(site.ledger.lines("exit")) > 20, "the others are under way")
        at = first.send(signal.SIGTERM)
        second.send(signal.SIGCONT)
        results = await asyncio.gather(*(run.result(timeout=60) for run in others))
        assert results == [sum(range(150))] * 5
        assert first.process.poll() is None
        assert min(line["at"] for line in site.ledger.lines("enter", pid=second.pid)) - at < LEASE / 2
        site.program.release("a")
        assert await first.ended() == 0
        assert await slow.result(timeout=20) == first.pid
        for run in (slow, *others):
            found = await run.get()
            assert (found.status, found.crashes, found.attempts) == (RunStatus.COMPLETED, 0, 0)
    site.ledger.check_acknowledged_once()


@pytest.mark.parametrize(
    ("url", "thread"),
    [("sqlite", True), pytest.param("postgres", False, marks=pytest.mark.postgres)],
    indirect=["url"],
)
async def test_a_step_longer_than_the_grace_time_is_handed_back(site: Site, thread: bool) -> None:
    async with site.program.app:
        first = await site.worker(grace="500ms").ready()
        run = await site.program.holding.start("a", 60.0, thread)
        await site.seen("enter", tag="a")
        second = await site.worker().ready()
        at = first.send(signal.SIGTERM)
        assert await first.ended() == 0
        again = await site.seen("enter", tag="a", pid=second.pid)
        assert 0.5 <= again["at"] - at < LEASE / 2
        site.program.release("a")
        assert await run.result(timeout=20) == second.pid
        found = await run.get()
        assert (found.executions, found.crashes, found.attempts) == (2, 0, 0)
        assert [step.attempt for step in await run.steps()] == [1, 1, 1]
    if not thread:
        # The old body had stopped before the new one began.
        assert site.ledger.lines("cancelled", pid=first.pid)[0]["at"] < again["at"]


async def test_a_second_signal_stops_at_once(site: Site) -> None:
    async with site.program.app:
        first = await site.worker(grace="60s").ready()
        run = await site.program.holding.start("a", 60.0, True)
        await site.seen("enter", tag="a")
        second = await site.worker().ready()
        first.send(signal.SIGTERM)
        await until(lambda: "drains" in first.log, "it drains")
        at = first.send(signal.SIGTERM)
        await first.ended()
        assert time.monotonic() - at < 20  # long before the end of its grace time
        again = await site.seen("enter", tag="a", pid=second.pid)  # not only after the lease
        assert again["at"] - at < LEASE / 2
        site.program.release("a")
        assert await run.result(timeout=20) == second.pid


async def test_a_step_that_refuses_to_end_does_not_keep_the_process(site: Site) -> None:
    async with site.program.app:
        worker = await site.worker(grace="100ms").ready()
        await site.program.too_slow.start("stubborn")
        await site.seen("enter")
        worker.send(signal.SIGTERM)
        assert await worker.ended(30) == 0  # its body would take a minute


async def test_an_idle_worker_ends_at_once_also_on_an_interrupt(site: Site) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        worker = await site.worker().ready()
        at = worker.send(number)
        assert await worker.ended() == 0
        assert time.monotonic() - at < 20


@pytest.mark.postgres
async def test_draining_without_a_database_ends_in_bounded_time(
    make_site: MakeSite, postgres_server: PostgresServer
) -> None:
    site = make_site(postgres_server.url, lease=LEASE)
    async with site.program.app:
        worker = await site.worker(grace="1s").ready()
        await site.program.chain.start(1000, 0.02)
        await site.program.holding.start("a", 60.0)
        await site.seen("enter", tag="a")
        await asyncio.to_thread(postgres_server.stop, "immediate")
        at = worker.send(signal.SIGTERM)
        assert await worker.ended() == 0
        assert time.monotonic() - at < 40
        await asyncio.to_thread(postgres_server.start)
