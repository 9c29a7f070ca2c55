from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from kagzi.api.operations import RepeatRun, SendSignal, StartRun, TerminateRun
from kagzi.api.workflows import RunFilter
from kagzi.core.conflict import OnConflict
from kagzi.core.instant import SECOND
from kagzi.core.page import made_at
from kagzi.core.run import RunStatus
from kagzi.core.step import Step, StepKind, StepStatus
from kagzi.engine.forks import step_to_fork_from
from kagzi.engine.settings import EngineSettings
from kagzi.errors import Conflict, InvalidRequest, NamespaceDisabled, NotFound, PayloadTooLarge, Unavailable
from kagzi.store import searching
from tests.engine.support import (
    SlotWorker,
    chunk,
    claim_one,
    complete,
    completed_step,
    count_calls,
    fail,
    new_engine,
    new_poll,
    new_start,
    park,
    run,
)

UNKNOWN = "0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a44"


def test_a_started_run_is_there_and_pending() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            started = await engine.workflows.start(new_start(engine, external_id="order-1", input=b"[1]"))
            found = await engine.workflows.get("default", started.run_id)
            assert found.status is RunStatus.PENDING
            assert found.input == b"[1]"
            assert await engine.workflows.get_by_external_id("default", "order-1") == found
            assert await engine.workflows.get("default", started.run_id.upper()) == found

    run(main)


def test_the_same_id_gives_the_same_run_and_another_input_is_a_conflict() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            first = await engine.workflows.start(new_start(engine, external_id="a", input=b"1"))
            again = await engine.workflows.start(new_start(engine, external_id="a", input=b"1"))
            assert (again.run_id, again.already_exists) == (first.run_id, True)
            with pytest.raises(Conflict):
                await engine.workflows.start(new_start(engine, external_id="a", input=b"2"))

    run(main)


def test_a_new_namespace_comes_into_being_with_its_first_run() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            calls = count_calls(engine.store)  # type: ignore[arg-type]
            for _ in range(3):
                await engine.workflows.start(new_start(engine, namespace="tenant"))
            assert calls["namespaces.ensure"] == 1
            page = await engine.workflows.list(RunFilter(namespace="tenant"))
            assert len(page.items) == 3
            assert (await engine.workflows.list(RunFilter())).items == ()

    run(main)


@pytest.mark.parametrize("keep_steps", [True, False])
def test_a_finished_run_is_not_repeated_in_a_disabled_namespace(keep_steps: bool) -> None:
    async def main() -> None:
        async with new_engine() as engine:
            started = await engine.workflows.start(new_start(engine))
            claim = await claim_one(engine)
            await engine.workers.commit(chunk(claim, fail()))
            await engine.namespaces.enable("default", False)
            repeat = RepeatRun(namespace="default", run_id=UNKNOWN, of_run_id=started.run_id, keep_steps=keep_steps)

            with pytest.raises(NamespaceDisabled):
                await engine.workflows.repeat(repeat)

            assert len((await engine.workflows.list(RunFilter())).items) == 1

    run(main)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"namespace": ""}, "namespace"),
        ({"namespace": "a\0b"}, "namespace"),
        ({"workflow_type": "x" * 256}, "workflow type"),
        ({"workflow_type": None}, "workflow type"),
        ({"workflow_type": ["order"]}, "workflow type"),
        ({"task_queue": "\ud800"}, "task queue"),
        ({"version": ""}, "version"),
        ({"run_id": "42"}, "run id"),
        ({"run_id": UNKNOWN.upper()}, "run id"),
        ({"run_id": None}, "run id"),
        ({"external_id": "a\0"}, "^id "),
        ({"external_id": ""}, "^id "),
        ({"priority": 1001}, "priority"),
        ({"priority": -1}, "priority must be between 0 and 1,000"),
        ({"priority": True}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"delay": -1}, "delay must not be negative"),
        ({"delay": 10**20}, "delay must be from 0ms to 1000 years"),
        ({"delay": float("nan")}, "delay"),
        ({"start_at": -1}, "start_at must lie between the years"),
        ({"start_at": 10**20}, "start_at"),
        ({"delay": 1, "start_at": 1}, "delay and start_at are both given"),
        ({"timeout": 0}, "timeout must be longer than 0"),
        ({"timeout": -5 * SECOND}, "timeout must be longer than 0, not -5s"),
        ({"deadline_at": 2**70}, "deadline"),
        ({"lease_length": 1}, "heartbeat timeout must be from 100ms to 1d, not 0.001ms"),
        ({"retry_policy": "x"}, "retry policy"),
        ({"input": "text"}, "input of order"),
        ({"input": None}, "input of order"),
    ],
)
def test_a_bad_start_names_the_field_and_writes_nothing(fields: dict[str, Any], message: str) -> None:
    async def main() -> None:
        async with new_engine() as engine:
            calls = count_calls(engine.store)  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match=message):
                await engine.workflows.start(new_start(engine, **fields))
            assert not calls

    run(main)


def test_an_oversize_input_is_refused() -> None:
    async def main() -> None:
        async with new_engine(settings=EngineSettings(payload_bytes=100)) as engine:
            await engine.workflows.start(new_start(engine, input=b"x" * 100))
            with pytest.raises(PayloadTooLarge, match="input of order is 101 bytes"):
                await engine.workflows.start(new_start(engine, input=b"x" * 101))

    run(main)


def test_unknown_runs_are_not_found_and_malformed_ids_invalid() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            started = await engine.workflows.start(new_start(engine))
            for namespace, run_id in (("default", UNKNOWN), ("other", started.run_id)):
                with pytest.raises(NotFound):
                    await engine.workflows.get(namespace, run_id)
                with pytest.raises(NotFound):
                    await engine.workflows.steps(namespace, run_id)
                with pytest.raises(NotFound):
                    await engine.workflows.wait(namespace, run_id, SECOND)
            with pytest.raises(NotFound):
                await engine.workflows.get_by_external_id("default", "nobody")
            for bad in ("", "42", UNKNOWN + "0", "'; DROP TABLE", "\0" * 36, None):
                with pytest.raises(InvalidRequest, match="run id"):
                    await engine.workflows.get("default", bad)  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match="timeout"):
                await engine.workflows.wait("default", started.run_id, -1)
            assert await engine.workflows.steps("default", started.run_id) == ()

    run(main)


# Pages.


def test_pages_go_both_ways_and_visit_each_run_once() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            ids = [(await engine.workflows.start(new_start(engine))).run_id for _ in range(7)][::-1]
            list_runs = engine.workflows.list
            first = await list_runs(RunFilter(), page_size=3)
            assert first.prev is None
            second = await list_runs(RunFilter(), page_size=3, page_token=first.next)
            third = await list_runs(RunFilter(), page_size=3, page_token=second.next)
            assert third.next is None
            pages = [first, second, third]
            assert [item.run_id for page in pages for item in page.items] == ids
            back = await list_runs(RunFilter(), page_size=3, page_token=third.prev)
            assert back.items == second.items
            front = await list_runs(RunFilter(), page_size=3, page_token=back.prev)
            assert front.items == first.items
            assert front.prev is None
            assert (await list_runs(RunFilter(), page_size=3, page_token=front.next)).items == second.items
            newer = await list_runs(RunFilter(), page_size=3, page_token=second.prev)
            assert newer.items == first.items

    run(main)


def test_a_page_that_was_searched_in_vain_leads_on_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "BITES", (1, 2))

    async def main() -> None:
        async with new_engine() as engine:
            kinds = ["rare", "x", "x", "x", "x", "rare", "x", "x", "x"]
            ids = [(await engine.workflows.start(new_start(engine, workflow_type=kind))).run_id for kind in kinds]
            rare = RunFilter(workflow_type="rare")
            page = await engine.workflows.list(rare, page_size=5)
            assert (page.items, page.prev) == ((), None)
            assert page.searched_until is not None
            assert page.searched_until == made_at(ids[6])
            pages = [page]
            while page.next is not None:
                page = await engine.workflows.list(rare, page_size=5, page_token=page.next)
                pages.append(page)
            found = [[item.run_id for item in each.items] for each in pages]
            assert found == [[], [ids[5]], [ids[0]], []]
            assert pages[-1].searched_until is None

            back = []
            while page.prev is not None:
                page = await engine.workflows.list(rare, page_size=5, page_token=page.prev)
                back += [item.run_id for item in page.items]
            assert back == [ids[0], ids[5]]

    run(main)


def test_a_page_beyond_the_last_row_leads_back() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            for _ in range(4):
                await engine.workflows.start(new_start(engine))
            first = await engine.workflows.list(RunFilter(), page_size=2)
            second = await engine.workflows.list(RunFilter(), page_size=2, page_token=first.next)
            for item in second.items:
                await engine.store._database.write(  # type: ignore[attr-defined]
                    lambda c, item=item: c.execute("DELETE FROM workflow_runs WHERE run_id = ?", (item.run_id,))
                )
            gone = await engine.workflows.list(RunFilter(), page_size=2, page_token=first.next)
            assert (gone.items, gone.next) == ((), None)
            back = await engine.workflows.list(RunFilter(), page_size=2, page_token=gone.prev)
            assert back.items == first.items

    run(main)


def test_forged_and_foreign_page_tokens_are_refused() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            for _ in range(3):
                await engine.workflows.start(new_start(engine))
            token = (await engine.workflows.list(RunFilter(), page_size=1)).next
            assert token is not None
            with pytest.raises(InvalidRequest, match="page token"):
                await engine.workflows.list(RunFilter(task_queue="shop"), page_token=token)
            for forged in ("x", token[:-2], token + "AA", "é", "\0", "a" * 5000):
                with pytest.raises(InvalidRequest, match="page token"):
                    await engine.workflows.list(RunFilter(), page_token=forged)
            with pytest.raises(InvalidRequest, match="page token"):
                await engine.workflows.list(RunFilter(), page_token=3)  # type: ignore[arg-type]

    run(main)


@pytest.mark.parametrize("size", [0, -1, 101, 2**31, True, "20", 1.5])
def test_page_sizes_are_bounded(size: Any) -> None:
    async def main() -> None:
        async with new_engine() as engine:
            with pytest.raises(InvalidRequest, match="page size"):
                await engine.workflows.list(RunFilter(), page_size=size)

    run(main)


@pytest.mark.parametrize(
    "filter",
    [
        RunFilter(namespace="\0"),
        RunFilter(status="DONE"),  # type: ignore[arg-type]
        RunFilter(workflow_type=""),
        RunFilter(task_queue="x" * 300),
        RunFilter(created_after=-1),
        RunFilter(created_before=2**70),
    ],
)
def test_bad_filters_are_refused(filter: RunFilter) -> None:
    async def main() -> None:
        async with new_engine() as engine:
            with pytest.raises(InvalidRequest):
                await engine.workflows.list(filter)

    run(main)


# Waiting for results.


def test_a_result_reaches_a_waiter_in_the_process_without_a_query() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            started = await engine.workflows.start(new_start(engine, timeout=100 * SECOND, priority=3, input=b"[]"))
            claim = await claim_one(engine)
            calls = count_calls(engine.store)  # type: ignore[arg-type]
            waiting = asyncio.create_task(engine.workflows.wait("default", started.run_id, 60 * SECOND))
            await asyncio.sleep(0)
            await engine.workers.commit(chunk(claim, completed_step(), complete(b"7")))
            finished = await waiting
            assert calls["runs.get"] == calls["runs.finished_of"] == 0
            assert finished.output == b"7"
            assert finished == await engine.workflows.get("default", started.run_id)

    run(main)


def test_many_who_wait_for_runs_of_other_processes_share_their_looks() -> None:
    async def main() -> None:
        async with new_engine() as engine, new_engine(engine.store.sibling()) as other:  # type: ignore[arg-type]
            started = [await engine.workflows.start(new_start(engine)) for _ in range(50)]
            calls = count_calls(engine.store)  # type: ignore[arg-type]
            waiting = [
                asyncio.create_task(engine.workflows.wait("default", each.run_id, 60 * SECOND)) for each in started
            ]
            claims = (await other.workers.poll(new_poll(limit=50, worker_id=UNKNOWN))).claims
            assert len(claims) == 50
            for claim in claims:
                await other.workers.commit(chunk(claim, complete(claim.run_id.encode())))
            outputs = [(await each).output for each in waiting]
            assert outputs == [each.run_id.encode() for each in started]
            # One look each before waiting and after would have been a hundred.
            assert calls["runs.get"] + calls["runs.get_many"] <= 20

    run(main)


def test_waiting_for_a_run_just_started_beside_a_worker_asks_nothing_and_misses_nothing() -> None:
    async def main() -> None:
        async with new_engine() as engine, new_engine(engine.store.sibling()) as other:  # type: ignore[arg-type]
            polling = asyncio.create_task(engine.workers.poll(new_poll(wait=SECOND)))
            await asyncio.sleep(0)
            calls = count_calls(engine.store)  # type: ignore[arg-type]
            started = await engine.workflows.start(new_start(engine))
            waiting = asyncio.create_task(engine.workflows.wait("default", started.run_id, 60 * SECOND))
            (claim,) = (await polling).claims
            await engine.workers.commit(chunk(claim, complete()))
            await waiting
            assert calls["runs.get"] == 0
            # Another process was faster, and its notification got lost.
            started = await engine.workflows.start(new_start(engine))
            claim = await claim_one(other, worker_id=UNKNOWN)
            await other.workers.commit(chunk(claim, complete()))
            began = asyncio.get_running_loop().time()
            assert (await engine.workflows.wait("default", started.run_id, 60 * SECOND)).output == b"42"
            assert asyncio.get_running_loop().time() - began < 1.1

    run(main)


def test_what_a_waiter_gets_from_memory_equals_the_record_also_after_a_sleep() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            worker = SlotWorker(1)
            engine.workers.attach(worker, "default", ("shop",))
            started = await engine.workflows.start(new_start(engine, external_id="x", deadline_at=2**57))
            await asyncio.sleep(0)
            waiting = asyncio.create_task(engine.workflows.wait("default", started.run_id, 60 * SECOND))
            await asyncio.sleep(3)
            await engine.workers.commit(chunk(worker.adopted[0], park(5)))
            worker.slots = 1
            claim = await claim_one(engine)
            await engine.workers.commit(chunk(claim, complete()))
            finished = await waiting
            assert finished.executions == 2
            assert finished == await engine.workflows.get("default", started.run_id)

    run(main)


def test_a_failed_run_is_read_from_the_database() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            started = await engine.workflows.start(new_start(engine))
            claim = await claim_one(engine)
            waiting = asyncio.create_task(engine.workflows.wait("default", started.run_id, 60 * SECOND))
            await asyncio.sleep(0)
            await engine.workers.commit(chunk(claim, fail(b'{"type":"x"}')))
            finished = await waiting
            assert (finished.status, finished.error) == (RunStatus.FAILED, b'{"type":"x"}')

    run(main)


def test_waiting_ends_with_the_timeout_and_shows_the_run_as_it_is() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            started = await engine.workflows.start(new_start(engine))
            loop = asyncio.get_running_loop()
            found = await engine.workflows.wait("default", started.run_id, 5 * SECOND)
            assert found.status is RunStatus.PENDING
            assert loop.time() == pytest.approx(5.0, abs=0.01)
            assert (await engine.workflows.wait("default", started.run_id, 0)).status is RunStatus.PENDING
            assert engine.results.expected_runs() == []

    run(main)


def test_long_waits_end_with_their_timeout_too_or_little_later() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            started = await engine.workflows.start(new_start(engine))
            loop = asyncio.get_running_loop()
            for seconds in (60, 600):
                before = loop.time()
                found = await engine.workflows.wait("default", started.run_id, seconds * SECOND)
                assert found.status is RunStatus.PENDING
                assert seconds <= loop.time() - before <= seconds + 2.5
            assert engine.results.expected_runs() == []

    run(main)


def test_a_long_wait_ends_in_time_while_the_database_is_away() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            started = await engine.workflows.start(new_start(engine))
            waiting = asyncio.create_task(engine.workflows.wait("default", started.run_id, 60 * SECOND))
            await asyncio.sleep(1)

            async def down(*_: Any) -> Any:
                raise Unavailable("the database is away")

            store: Any = engine.store
            store.overview.horizon = store.runs.finished_of = store.runs.get = down
            before = asyncio.get_running_loop().time()
            with pytest.raises(Unavailable, match="the database is away"):
                await waiting
            assert asyncio.get_running_loop().time() - before <= 63

    run(main)


def test_a_finished_run_is_returned_at_once() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            started = await engine.workflows.start(new_start(engine))
            await engine.workers.commit(chunk(await claim_one(engine), complete()))
            found = await engine.workflows.wait("default", started.run_id, 60 * SECOND)
            assert found.status is RunStatus.COMPLETED
            assert asyncio.get_running_loop().time() < 0.1

    run(main)


@pytest.mark.parametrize(("after", "within"), [(4.5, 1.1), (60.5, 2.1)])
def test_a_run_finished_by_another_process_is_found_without_notifications(after: float, within: float) -> None:
    async def main() -> None:
        async with new_engine() as engine:
            other = new_engine(engine.store.sibling())  # type: ignore[arg-type]
            await other.open()
            started = await engine.workflows.start(new_start(engine))
            waiting = asyncio.create_task(engine.workflows.wait("default", started.run_id, 600 * SECOND))
            claim = await claim_one(other)
            await asyncio.sleep(after)
            began = asyncio.get_running_loop().time()
            await other.workers.commit(chunk(claim, complete()))
            assert (await waiting).status is RunStatus.COMPLETED
            assert asyncio.get_running_loop().time() - began < within
            await other.close()

    run(main)


def test_a_run_that_was_driven_here_and_then_elsewhere_is_not_waited_for_in_vain() -> None:
    async def main() -> None:
        async with new_engine(coordinate=True) as engine:
            other = new_engine(engine.store.sibling())  # type: ignore[arg-type]
            await other.open()
            started = await engine.workflows.start(new_start(engine))
            await claim_one(engine)  # and never heard of again
            waiting = asyncio.create_task(engine.workflows.wait("default", started.run_id, 600 * SECOND))
            await asyncio.sleep(0)
            claim = await claim_one(other, number=2, worker_id=UNKNOWN)
            await other.workers.commit(chunk(claim, complete()))
            assert (await waiting).status is RunStatus.COMPLETED
            assert asyncio.get_running_loop().time() < 33
            await other.close()

    run(main)


def test_many_waiters_are_all_woken_and_a_cancelled_one_is_forgotten() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            started = await engine.workflows.start(new_start(engine))
            waiting = [
                asyncio.create_task(engine.workflows.wait("default", started.run_id, 60 * SECOND)) for _ in range(5)
            ]
            await asyncio.sleep(0.1)
            waiting[2].cancel()
            await asyncio.sleep(0)
            await engine.workers.commit(chunk(await claim_one(engine), complete()))
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert sum(isinstance(result, asyncio.CancelledError) for result in results) == 1
            assert engine.results.expected_runs() == []

    run(main)


def test_closing_the_engine_releases_waiters_and_polls() -> None:
    async def main() -> None:
        engine = new_engine(coordinate=True)
        await engine.open()
        started = await engine.workflows.start(new_start(engine, task_queue="elsewhere"))
        waiting = asyncio.create_task(engine.workflows.wait("default", started.run_id, 600 * SECOND))
        polling = asyncio.create_task(engine.workers.poll(new_poll()))
        await asyncio.sleep(3)
        workers = engine.workers
        await engine.close()
        assert (await polling).claims == ()
        with pytest.raises(Unavailable):
            await waiting
        with pytest.raises(Unavailable):
            await workers.poll(new_poll(2))
        with pytest.raises(Unavailable):
            _ = engine.workflows

    run(main)


@pytest.mark.parametrize(
    ("runs", "attached", "expected"),
    [
        (1, False, ["end", "commit"]),
        (2, False, ["commit", "commit", "end", "end"]),  # together: whoever shares a call has more to do
        (1, True, ["commit", "end"]),  # a worker of this process frees its slot first
    ],
)
def test_who_waits_for_a_run_alone_hears_of_its_end_before_the_one_who_wrote_it(
    runs: int, attached: bool, expected: list[str]
) -> None:
    async def main() -> None:
        async with new_engine() as engine:
            started = [await engine.workflows.start(new_start(engine)) for _ in range(runs)]
            claims = (await engine.workers.poll(new_poll(limit=runs))).claims
            if attached:
                engine.workers.attach(SlotWorker(1), "default", ("elsewhere",))
            order: list[str] = []
            for each in started:
                end = engine.workflows.expect("default", each.run_id)
                assert end is not None
                end.then(lambda _: order.append("end"))
            commits = [engine.workers.commit(chunk(claim, complete())) for claim in claims]
            for commit in commits:
                commit.then(lambda _: order.append("commit"))
            for commit in commits:
                await commit
            await asyncio.sleep(0)
            assert order == expected

    run(main)


def test_the_end_of_a_run_that_is_not_driven_here_does_not_pass_by() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            started = await engine.workflows.start(new_start(engine, task_queue="elsewhere"))
            assert engine.workflows.expect("default", started.run_id) is None
            assert engine.workflows.expect("default", UNKNOWN) is None
            assert engine.results.expected_runs() == []

    run(main)


def test_an_end_that_nobody_expects_any_more_is_not_kept() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            started = await engine.workflows.start(new_start(engine))
            await claim_one(engine)
            end = engine.workflows.expect("default", started.run_id)
            assert end is not None
            assert engine.results.expected_runs() == [("default", started.run_id)]
            engine.workflows.unexpect("default", started.run_id, end)
            assert engine.results.expected_runs() == []

    run(main)


def test_a_signal_by_id_goes_to_the_run_that_has_the_id_when_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run that was found ends and is restarted before the signal comes to it."""

    async def main() -> None:
        async with new_engine() as engine:
            old = await engine.workflows.start(new_start(engine, external_id="order-1"))
            restart: StartRun = replace(
                new_start(engine, external_id="order-1"), on_conflict=OnConflict.RESTART_FINISHED
            )
            find = engine.store.runs.find
            looks = 0

            async def look(namespace: str, external_id: str) -> Any:
                nonlocal looks
                looks += 1
                run_id = await find(namespace, external_id)
                if looks == 1:
                    await engine.workflows.terminate(TerminateRun(namespace="default", run_id=run_id, reason="over"))
                    assert not (await engine.workflows.start(restart)).already_exists
                return run_id

            monkeypatch.setattr(engine.store.runs, "find", look)
            signal = SendSignal(namespace="default", external_id="order-1", name="x", value=b"1", key="k")
            answer = await engine.workflows.signal(signal)
            assert answer.run_id == restart.run_id != old.run_id

    run(main)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("a/charge", "a/charge"),
        ("ship", "b/ship"),
        ("charge", "has several steps 'charge'; name one of a/charge, b/charge"),
        ("mail", "step 'mail' of run R has not ended.*the last that has is b/ship"),
        ("nobody", "has no step 'nobody'; those that have ended are a/charge, b/charge, b/ship"),
    ],
)
def test_a_fork_begins_at_a_step_that_is_named_without_doubt(asked: str, meant: str) -> None:
    steps = [
        Step(
            step_id=step_id,
            kind=StepKind.FUNCTION,
            attempt=1,
            status=StepStatus.RUNNING if number is None else StepStatus.COMPLETED,
            completed_seq=number,
            started_at=0,
            finished_at=number,
            retry_at=None,
            input_hash=0,
            output=None,
            error=None,
        )
        for step_id, number in (("a/charge", 1), ("b/charge", 2), ("b/ship", 3), ("b/mail", None))
    ]
    if " " not in meant:
        assert step_to_fork_from("R", asked, steps) == meant
        return
    with pytest.raises((InvalidRequest, NotFound), match=meant) as caught:
        step_to_fork_from("R", asked, steps)
    assert isinstance(caught.value, InvalidRequest) == ("several" in meant)
