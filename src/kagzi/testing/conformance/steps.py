"""Recording steps, and setting them aside when a run is tried anew."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from kagzi.api.operations import CancelStep, ChunkAnswer, CompleteRun, HandBackRun, Operation, RetryRun
from kagzi.core.instant import SECOND
from kagzi.core.limits import STEP_ID_BYTES
from kagzi.core.run import RunStatus
from kagzi.core.step import Step, StepKind, StepStatus
from kagzi.testing.conformance.bench import Bench


class TestSteps:
    async def test_every_field_comes_back(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        now = bench.now()
        await bench.done(
            claim,
            bench.completed(
                "scope/charge#2",
                7,
                attempt=3,
                kind=StepKind.SLEEP,
                started_at=now - 5,
                finished_at=now + 5,
                input=b"[1]",
                input_hash=-(2**63),
                output=b"\x00\xff",
            ),
        )

        (step,) = await bench.steps(claim.run_id)

        assert step == Step(
            step_id="scope/charge#2",
            attempt=3,
            kind=StepKind.SLEEP,
            status=StepStatus.COMPLETED,
            completed_seq=7,
            started_at=now - 5,
            finished_at=now + 5,
            retry_at=None,
            input_hash=-(2**63),
            output=b"\x00\xff",
            error=None,
            input=b"[1]",
        )
        # Without payloads, and one step alone.
        namespace = claim.namespace
        light = replace(step, input=None, output=None)
        assert await bench.store.runs.steps(namespace, claim.run_id, False) == [light]
        assert await bench.store.runs.steps(namespace, claim.run_id, True, "scope/charge#2") == [step]
        assert await bench.store.runs.steps(namespace, claim.run_id, True, "charge#2") == []

    async def test_the_longest_ids_fit_into_every_key(self, bench: Bench) -> None:
        """Of four bytes a character, and such that nothing is gained by compressing them."""
        chance = Random(1)

        def name(characters: int) -> str:
            return "".join(chr(chance.randrange(0x10000, 0x110000)) for _ in range(characters))

        namespace, queue, external_id, step_id = [name(size) for size in (255, 255, 255, STEP_ID_BYTES // 4)]
        run_id = await bench.start(namespace=namespace, task_queue=queue, external_id=external_id, version=name(255))
        (claim,) = await bench.claims(namespace=namespace, queues=(queue,))
        await bench.done(claim, bench.begun(step_id, timeout=SECOND), bench.completed(step_id, 1))
        (step,) = await bench.steps(run_id, namespace)
        assert step.step_id == step_id
        assert await bench.store.runs.get_by_external_id(namespace, external_id) is not None

    async def test_a_slow_step_shows_as_running_and_then_as_ended(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.done(claim, bench.begun("charge", input=b"[1]"))
        (running,) = await bench.steps(claim.run_id)
        assert (running.status, running.completed_seq, running.finished_at) == ("RUNNING", None, None)

        bench.clock.advance(SECOND)
        await bench.done(claim, bench.completed("charge", 1, started_at=running.started_at))

        (ended,) = await bench.steps(claim.run_id)
        assert (ended.status, ended.completed_seq) == ("COMPLETED", 1)
        assert (ended.started_at, ended.finished_at) == (running.started_at, bench.now())
        assert ended.input == b"[1]"  # said when it began, and not again

    async def test_a_late_start_changes_nothing_once_the_step_has_ended(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        late = bench.begun("charge", timeout=SECOND)
        await bench.done(claim, bench.completed("charge", 1))
        before = await bench.steps(claim.run_id)

        await bench.done(claim, late)

        assert await bench.steps(claim.run_id) == before

    async def test_start_and_end_in_one_chunk_are_one_row(self, bench: Bench) -> None:
        claim = await bench.started_claim()

        await bench.done(claim, bench.begun("charge", input=b"[1]"), bench.completed("charge", 1))

        (step,) = await bench.steps(claim.run_id)
        assert step.status is StepStatus.COMPLETED
        assert step.input == b"[1]"  # as if they had come one after the other

    @pytest.mark.parametrize("same_batch", [True, False])
    async def test_a_completed_step_is_never_overwritten(self, bench: Bench, same_batch: bool) -> None:
        claim = await bench.started_claim()
        first = bench.completed("charge", 1, output=b"first")
        others: list[Operation] = [
            bench.completed("charge", 2, output=b"second"),
            bench.failed("charge", completed_seq=3),
            bench.failed("charge", retry_at=bench.now()),
            CancelStep(step_id="charge", started_at=bench.now()),
            bench.begun("charge"),
        ]
        if same_batch:
            await bench.done(claim, first, *others)
        else:
            await bench.done(claim, first)
            for other in others:
                await bench.done(claim, other)

        (step,) = await bench.steps(claim.run_id)
        assert (step.status, step.output, step.completed_seq) == ("COMPLETED", b"first", 1)

    async def test_a_final_failure_is_never_overwritten(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.done(claim, bench.failed("charge", completed_seq=1, error=b"first"))

        await bench.done(claim, bench.completed("charge", 2), bench.begun("charge"))

        (step,) = await bench.steps(claim.run_id)
        assert (step.status, step.error, step.completed_seq) == ("FAILED", b"first", 1)

    async def test_attempts_are_rows_of_their_own(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        retry_at = bench.now() + SECOND
        await bench.done(claim, bench.failed("charge", attempt=1, retry_at=retry_at, error=b"one"))
        bench.clock.advance(SECOND)
        await bench.done(claim, bench.completed("charge", 1, attempt=2))

        second, first = await bench.steps(claim.run_id)  # the event, then what was no event

        assert (first.attempt, first.status, first.error) == (1, "FAILED", b"one")
        assert (first.completed_seq, first.retry_at) == (None, retry_at)
        assert (second.attempt, second.status, second.completed_seq) == (2, "COMPLETED", 1)

    async def test_a_cancelled_step_is_no_event(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.done(claim, bench.begun("charge"))
        await bench.done(claim, CancelStep(step_id="charge", started_at=bench.now(), finished_at=bench.now()))

        (step,) = await bench.steps(claim.run_id)
        assert (step.status, step.completed_seq) == ("CANCELLED", None)

    async def test_an_event_prevails_over_an_earlier_cancellation(self, bench: Bench) -> None:
        """Code that changed between two leases may want the step after all; its result must not be lost."""
        claim = await bench.started_claim()
        await bench.done(claim, CancelStep(step_id="charge", started_at=bench.now()), HandBackRun())
        again = await bench.claim(claim.run_id)

        await bench.done(again, bench.completed("charge", 1))

        (step,) = await bench.steps(claim.run_id)
        assert (step.status, step.completed_seq) == ("COMPLETED", 1)

    async def test_a_later_lease_shows_its_own_attempt(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.done(claim, bench.begun("charge"))
        await bench.crash(claim)
        again = await bench.claim(claim.run_id)
        await bench.done(again, bench.begun("charge"))

        (step,) = await bench.steps(claim.run_id)
        assert (step.status, step.started_at) == ("RUNNING", bench.now())

    async def test_events_come_first_in_their_order_then_the_others_by_start(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        now = bench.now()
        await bench.done(
            claim,
            bench.failed("x", started_at=now + 30),
            bench.failed("w", started_at=now + 20, retry_at=now + 40),
            bench.completed("c", 10, started_at=now + 1),
            bench.completed("a", 2, started_at=now + 9),
            bench.completed("b", 9, started_at=now + 5),
        )

        assert [step.step_id for step in await bench.steps(claim.run_id)] == ["a", "b", "c", "w", "x"]
        await bench.done(claim, HandBackRun())
        history = (await bench.claim(claim.run_id)).history
        assert [step.step_id for step in history] == ["a", "b", "c", "w", "x"]

    async def test_history_carries_results_without_inputs(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.done(
            claim,
            bench.completed("a", 1, output=None, input=b"in"),
            bench.completed("b", 2, output=b""),
            bench.failed("c", completed_seq=3, error=b"boom"),
            bench.begun("d"),
            HandBackRun(),
        )

        history = (await bench.claim(claim.run_id)).history

        assert [(step.step_id, step.output, step.error) for step in history] == [
            ("a", None, None),
            ("b", b"", None),
            ("c", None, b"boom"),
            ("d", None, None),
        ]
        assert {step.input for step in history} == {None}

    async def test_histories_of_a_claim_do_not_mix(self, bench: Bench) -> None:
        await bench.apply([bench.start_run() for _ in range(3)])
        claims = await bench.claims()
        for number, claim in enumerate(claims):
            operations = [bench.completed(f"{claim.run_id}-{seq}", seq) for seq in range(1, number + 2)]
            await bench.done(claim, *operations, HandBackRun())

        for claim in await bench.claims():
            assert all(step.step_id.startswith(claim.run_id) for step in claim.history)
            assert [step.completed_seq for step in claim.history] == list(range(1, len(claim.history) + 1))

    async def test_a_long_history_keeps_its_order(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        for start in range(0, 1000, 250):
            operations = [bench.completed(f"s{seq}", seq) for seq in range(start + 250, start, -1)]
            await bench.done(claim, *operations)
        await bench.done(claim, HandBackRun())

        history = (await bench.claim(claim.run_id)).history

        assert [step.completed_seq for step in history] == list(range(1, 1001))

    async def test_one_name_in_two_runs_is_two_steps(self, bench: Bench) -> None:
        one, two = await bench.started_claim(), await bench.started_claim()
        await bench.apply(
            [
                bench.chunk(one, bench.completed("charge", 1, output=b"one")),
                bench.chunk(two, bench.completed("charge", 1, output=b"two")),
            ]
        )

        assert [step.output for step in await bench.steps(one.run_id)] == [b"one"]
        assert [step.output for step in await bench.steps(two.run_id)] == [b"two"]


class TestRunRetries:
    async def test_a_retry_counts_and_waits(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        due = bench.now() + 5 * SECOND

        await bench.done(claim, RetryRun(available_at=due, keep_seq=0, error=b"boom"))

        run = await bench.run(claim.run_id)
        assert (run.status, run.attempts, run.available_at) == (RunStatus.PENDING, 1, due)
        assert (run.error, run.finished_at) == (b"boom", None)
        assert await bench.claims() == ()
        bench.clock.set(due)
        again = await bench.claim(claim.run_id)
        assert (again.attempts, again.executions, again.crashes) == (1, 2, 0)

    async def test_what_comes_after_the_kept_events_is_set_aside(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.done(
            claim,
            bench.completed("kept", 1),
            bench.failed("flaky", attempt=1, retry_at=bench.now()),
            bench.failed("flaky", attempt=2, completed_seq=2),
            bench.begun("slow"),
            RetryRun(available_at=bench.now(), keep_seq=1, error=b"boom"),
        )

        again = await bench.claim(claim.run_id)

        assert [step.step_id for step in again.history] == ["kept"]
        # People still see all of it, and none of it as an event.
        rows = {(step.step_id, step.attempt): step for step in await bench.steps(claim.run_id)}
        assert set(rows) == {("kept", 1), ("flaky~1", 1), ("flaky~1", 2), ("slow~1", 1)}
        assert rows["kept", 1].completed_seq == 1
        assert rows["flaky~1", 2].error == b"no"
        assert {step.completed_seq for key, step in rows.items() if key[0] != "kept"} == {None}

    async def test_the_same_steps_are_recorded_anew(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        for generation in (1, 2):
            await bench.done(
                claim,
                bench.failed("flaky", completed_seq=1, error=b"%d" % generation),
                RetryRun(available_at=bench.now(), keep_seq=0, error=b"boom"),
            )
            claim = await bench.claim(claim.run_id)
            assert claim.history == ()
        await bench.done(claim, bench.completed("flaky", 1), CompleteRun(output=b"1"))

        run, steps = await bench.state(claim.run_id)

        assert (run.status, run.attempts, run.error) == (RunStatus.COMPLETED, 2, None)
        assert [(step.step_id, step.completed_seq) for step in steps[:1]] == [("flaky", 1)]
        assert {(step.step_id, step.error) for step in steps[1:]} == {("flaky~1", b"1"), ("flaky~2", b"2")}

    async def test_a_step_set_aside_while_running_cannot_time_out(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.done(
            claim,
            bench.begun("slow", timeout=SECOND),
            RetryRun(available_at=bench.now(), keep_seq=0, error=b"boom"),
        )
        again = await bench.claim(claim.run_id)
        bench.clock.advance(2 * SECOND)

        assert (await bench.store.duties.time_out_steps(100, 0)).runs == []
        await bench.done(again, CompleteRun(output=b"1"))

    async def test_a_stale_retry_sets_nothing_aside(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await bench.done(claim, bench.completed("kept", 1))
        before = await bench.state(claim.run_id)
        retry = RetryRun(available_at=bench.now(), keep_seq=0, error=b"boom")

        assert await bench.send(claim, retry, token=bench.new_id()) is ChunkAnswer.LEASE_LOST
        assert await bench.state(claim.run_id) == before
