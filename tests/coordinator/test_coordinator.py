from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from typing import Any

import pytest

from kagzi.api.keys import AuditFilter
from kagzi.api.operations import ChunkAnswer, StartStep
from kagzi.api.workers import Heartbeat
from kagzi.api.workflows import RunFilter
from kagzi.coordinator.duties import crash_backoff, duties
from kagzi.core.audit import AUDIT_RETENTION, OK, AuditEntry
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.core.worker import WorkerStatus
from kagzi.engine.settings import EngineSettings
from kagzi.engine.unserved import UnservedLooks
from kagzi.errors import Unavailable
from kagzi.store.protocol.changes import Recovered
from kagzi.store.sqlite.audit import append_audit
from tests.engine.support import (
    OTHER_WORKER,
    WORKER,
    chunk,
    claim_one,
    complete,
    completed_step,
    count_calls,
    database_now,
    new_engine,
    new_poll,
    new_registration,
    new_start,
    run,
)


def test_the_first_crash_costs_no_time_and_later_ones_more_and_more() -> None:
    assert [crash_backoff(n) // SECOND for n in range(1, 12)] == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert crash_backoff(10**6) == 60 * SECOND


# The loop.


def test_a_run_whose_worker_vanished_goes_on_elsewhere_as_its_lease_ends() -> None:
    async def main() -> None:
        async with new_engine(coordinate=True) as engine:
            started = await engine.workflows.start(new_start(engine))
            old = await claim_one(engine)
            claim = await claim_one(engine, 2, worker_id=OTHER_WORKER)
            assert (claim.run_id, claim.crashes) == (started.run_id, 1)
            assert 30 <= asyncio.get_running_loop().time() < 30.1
            assert await engine.workers.commit(chunk(old, complete())) is ChunkAnswer.LEASE_LOST

    run(main)


def test_a_run_that_is_heartbeated_keeps_its_lease() -> None:
    async def main() -> None:
        async with new_engine(coordinate=True) as engine:
            await engine.workers.register(new_registration())
            await engine.workflows.start(new_start(engine))
            claim = await claim_one(engine)
            calls = count_calls(engine.store)  # type: ignore[arg-type]
            for _ in range(30):
                await asyncio.sleep(10)
                heartbeat = Heartbeat(worker_id=WORKER, held=((claim.run_id, claim.token),), heard=1)
                assert (await engine.workers.heartbeat(heartbeat)).lost == ()
            assert await engine.workers.commit(chunk(claim, complete())) is ChunkAnswer.DONE
            # Duties run when something is due, not blindly: here only at their long interval.
            assert calls["duties.recover_runs"] <= 6
            assert calls["workers.expire"] <= 6

    run(main)


def test_a_poison_run_fails_after_max_crashes_with_growing_pauses() -> None:
    async def main() -> None:
        settings = EngineSettings(lease=3 * SECOND, max_crashes=4)
        async with new_engine(coordinate=True, settings=settings) as engine:
            started = await engine.workflows.start(new_start(engine))
            waiting = asyncio.create_task(engine.workflows.wait("default", started.run_id, 600 * SECOND))
            loop = asyncio.get_running_loop()
            at = []
            for number in range(1, 5):
                await claim_one(engine, number)
                at.append(loop.time())
            pauses = [b - a - 3 for a, b in pairwise(at)]
            assert 0 <= pauses[0] < 0.1
            assert 0.5 <= pauses[1] < 1.6  # a second, more or less
            assert 1.0 <= pauses[2] < 3.1  # two seconds, more or less
            finished = await waiting
            assert (finished.status, finished.crashes) == (RunStatus.FAILED, 4)
            assert loop.time() - at[-1] < 3.2

    run(main)


def test_crashes_with_progress_in_between_do_not_add_up() -> None:
    async def main() -> None:
        settings = EngineSettings(lease=3 * SECOND, max_crashes=2)
        async with new_engine(coordinate=True, settings=settings) as engine:
            started = await engine.workflows.start(new_start(engine))
            for number in range(1, 6):
                claim = await claim_one(engine, number)
                assert claim.crashes <= 1
                await engine.workers.commit(chunk(claim, completed_step(number)))
            claim = await claim_one(engine, 6)
            await engine.workers.commit(chunk(claim, complete()))
            assert (await engine.workflows.get("default", started.run_id)).status is RunStatus.COMPLETED

    run(main)


def test_a_deadline_ends_runs_in_every_live_state_on_time() -> None:
    async def main() -> None:
        async with new_engine(coordinate=True) as engine:
            running = await engine.workflows.start(new_start(engine, timeout=7 * SECOND))
            claim = await claim_one(engine)
            pending = await engine.workflows.start(new_start(engine, timeout=7 * SECOND))
            delayed = await engine.workflows.start(new_start(engine, timeout=7 * SECOND, delay=100 * SECOND))
            for started in (running, pending, delayed):
                found = await engine.workflows.wait("default", started.run_id, 60 * SECOND)
                assert found.status is RunStatus.TIMED_OUT
            assert 7 <= asyncio.get_running_loop().time() < 8.1
            assert await engine.workers.commit(chunk(claim, complete())) is ChunkAnswer.LEASE_LOST

    run(main)


def test_a_step_its_worker_did_not_end_is_timed_out_and_the_run_goes_on() -> None:
    async def main() -> None:
        settings = EngineSettings(lease=600 * SECOND, step_grace=2 * SECOND)
        async with new_engine(coordinate=True, settings=settings) as engine:
            await engine.workflows.start(new_start(engine))
            claim = await claim_one(engine)
            now = database_now()
            await engine.workers.commit(
                chunk(claim, StartStep(step_id="slow", started_at=now, timeout_at=now + 3 * SECOND))
            )
            again = await claim_one(engine, 2)
            assert again.run_id == claim.run_id
            assert 5 <= asyncio.get_running_loop().time() < 6.1
            assert [(s.step_id, s.status.value) for s in again.history] == [("slow", "FAILED")]

    run(main)


def test_a_silent_worker_is_offline_after_its_time() -> None:
    async def main() -> None:
        async with new_engine(coordinate=True) as engine:
            await engine.workers.register(new_registration())
            await asyncio.sleep(29)
            assert (await engine.store.workers.rows("default"))[0].status is WorkerStatus.ONLINE
            await asyncio.sleep(2)
            assert (await engine.store.workers.rows("default"))[0].status is WorkerStatus.OFFLINE

    run(main)


def test_history_is_pruned_past_its_retention(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        # Two months of looking once a second would be a long test.
        settings = EngineSettings(duty_batch=2, duty_limit=2, tick=3600 * SECOND, duty_interval=3600 * SECOND)
        async with new_engine(coordinate=True, settings=settings) as engine:
            for _ in range(5):
                await engine.workflows.start(new_start(engine))
            kept = await engine.workflows.start(new_start(engine, task_queue="other"))
            for number in range(1, 6):
                await engine.workers.commit(chunk(await claim_one(engine, number, limit=1), complete()))
            await asyncio.sleep(29 * 86400)
            assert await engine.store._database.read(_count) == 6  # type: ignore[attr-defined]
            await asyncio.sleep(2 * 86400)
            assert await engine.store._database.read(_count) == 1  # type: ignore[attr-defined]
            await engine.workflows.get("default", kept.run_id)

    with caplog.at_level(logging.INFO, "kagzi.coordinator"):
        run(main)
    assert sum("past their retention" in record.message for record in caplog.records) >= 1


def test_the_audit_log_is_pruned_past_its_retention() -> None:
    async def main() -> None:
        settings = EngineSettings(duty_batch=2, duty_limit=2, tick=3600 * SECOND, duty_interval=3600 * SECOND)
        async with new_engine(coordinate=True, settings=settings) as engine:
            entry = AuditEntry(
                actor="cli:me", action="test", namespace=None, target="", request_id="", peer="", result=OK
            )
            now = (await engine.store.overview.survey(SECOND)).now
            # Written almost that long ago: to wait for it would be a long test.
            almost = now - AUDIT_RETENTION + 86400 * SECOND
            await engine.store._database.write(  # type: ignore[attr-defined]
                lambda connection: append_audit(connection, [entry] * 5, almost)
            )
            await asyncio.sleep(86400 - 3600)
            assert len((await engine.audit.list(AuditFilter())).items) == 5
            await asyncio.sleep(2 * 3600)
            assert (await engine.audit.list(AuditFilter())).items == ()

    run(main)


def _count(connection: Any) -> int:
    count: int = connection.execute("SELECT count(*) FROM workflow_runs").fetchone()[0]
    return count


def test_a_duty_with_more_to_do_than_it_may_goes_on_at_once() -> None:
    async def main() -> None:
        settings = EngineSettings(duty_batch=3, duty_limit=6, lease=5 * SECOND)
        async with new_engine(coordinate=True, settings=settings) as engine:
            for _ in range(10):
                await engine.workflows.start(new_start(engine))
            assert len((await engine.workers.poll(new_poll())).claims) == 10
            await asyncio.sleep(5.5)
            assert len((await engine.workers.poll(new_poll(2))).claims) == 10

    run(main)


def test_a_duty_that_fails_is_logged_once_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with new_engine(coordinate=True, settings=EngineSettings(lease=3 * SECOND)) as engine:
            store = engine.store
            recover = store.duties.recover_runs
            tries = 0

            async def down(*_: Any) -> Any:
                nonlocal tries
                tries += 1
                raise Unavailable("down")

            store.duties.recover_runs = down  # type: ignore[method-assign]
            await engine.workflows.start(new_start(engine))
            overdue = await engine.workflows.start(new_start(engine, timeout=20 * SECOND, delay=100 * SECOND))
            await claim_one(engine)
            found = await engine.workflows.wait("default", overdue.run_id, 60 * SECOND)
            assert found.status is RunStatus.TIMED_OUT
            assert 3 <= tries <= 10
            store.duties.recover_runs = recover  # type: ignore[method-assign]
            began = asyncio.get_running_loop().time()
            await claim_one(engine, 2)
            assert asyncio.get_running_loop().time() - began < 30

    with caplog.at_level(logging.WARNING, "kagzi.coordinator"):
        run(main)
    assert sum("failed: down" in record.message for record in caplog.records) == 1


def test_two_coordinators_recover_a_run_once() -> None:
    async def main() -> None:
        async with new_engine(coordinate=True) as engine:
            async with new_engine(engine.store.sibling(), coordinate=True) as other:  # type: ignore[arg-type]
                await engine.workflows.start(new_start(engine))
                await claim_one(engine)
                claim = await claim_one(other, 2, worker_id=OTHER_WORKER)
                assert (claim.crashes, claim.executions) == (1, 2)

    run(main)


# The ticks by themselves.


def test_each_duty_is_a_bounded_tick() -> None:
    async def main() -> None:
        settings = EngineSettings(lease=3 * SECOND, duty_batch=1, duty_limit=1)
        async with new_engine(settings=settings) as engine:
            changed: list[Recovered] = []
            new_id = engine._ids.run_id
            hear = changed.extend
            submit, limits = engine._opened._lanes.submit, engine._opened.limits
            table = duties(
                engine.store,
                settings,
                lambda done: hear(done.runs),
                lambda: 0.5,
                new_id,
                lambda _: None,
                submit,
                limits,
                UnservedLooks(engine.store, engine._opened.wakeups, engine._opened.polls, settings.worker_stale),
            )
            tick = {duty.name: duty.tick for duty in table}
            await engine.workers.register(new_registration())
            await engine.workflows.start(new_start(engine, timeout=50 * SECOND))
            await engine.workflows.start(new_start(engine, timeout=50 * SECOND))
            await claim_one(engine, 1, limit=1)
            await claim_one(engine, 2, limit=1)
            assert not await tick["recover runs"]()
            await asyncio.sleep(4)
            # Each handles one run and says that there may be more; the third finds nothing.
            assert [await tick["recover runs"]() for _ in range(3)] == [True, True, False]
            assert [run.status for run in changed] == [RunStatus.PENDING] * 2
            assert not await tick["expire workers"]()
            await asyncio.sleep(50)
            assert [await tick["expire workers"]() for _ in range(2)] == [True, False]
            assert [await tick["time out runs"]() for _ in range(3)] == [True, True, False]
            assert [run.status for run in changed[2:]] == [RunStatus.TIMED_OUT] * 2
            await asyncio.sleep(31 * 86400)
            assert await tick["prune history"]()
            assert len((await engine.workflows.list(RunFilter(namespace="default"))).items) == 1
            while await tick["prune history"]():
                pass
            assert (await engine.workflows.list(RunFilter(namespace="default"))).items == ()

    run(main)
