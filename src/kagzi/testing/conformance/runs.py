"""Starting runs, and reading them back."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kagzi.api.operations import BirthLease, Chunk, ChunkAnswer, CompleteRun, FailRun, RepeatRun, Started
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.core.worker import WorkflowType
from kagzi.errors import Conflict
from kagzi.testing.conformance.bench import LEASE, NAMESPACE, QUEUE, TYPE, Bench

# Text that has hurt somebody before, and every byte there is.
HOSTILE_TEXTS = [
    "'; DROP TABLE workflow_runs; --",
    '"quoted" \\ back\\slash',
    "100 % of _ and $1 and ?1 and :name",
    "línea\nnueva\ttab\r",
    "日本語 🧾 \u202eright to left\u202c \u200bnothing",
    "{}", "[]", "NULL", "\U0010ffff",
]  # fmt: skip
EVERY_BYTE = bytes(range(256))


class TestRuns:
    async def test_a_started_run_is_pending_and_due_at_once(self, bench: Bench) -> None:
        start = bench.start_run(input=b"[1]", priority=3, version="7")

        answer = await bench.answer(start)

        assert answer == Started(run_id=start.run_id, available_at=bench.now())
        run = await bench.run(start.run_id)
        assert (run.namespace, run.task_queue, run.workflow_type, run.version) == (NAMESPACE, QUEUE, TYPE, "7")
        assert (run.status, run.priority, run.input) == (RunStatus.PENDING, 3, b"[1]")
        assert (run.created_at, run.available_at) == (bench.now(), bench.now())
        assert (run.attempts, run.executions, run.crashes) == (0, 0, 0)
        assert (run.started_at, run.finished_at, run.deadline_at) == (None, None, None)
        assert (run.external_id, run.worker_id, run.output, run.error) == (None, None, None, None)
        assert await bench.steps(start.run_id) == []

    async def test_tags_are_kept_with_their_run(self, bench: Bench) -> None:
        tags = {"batch": "7", "text": HOSTILE_TEXTS[0], "last": HOSTILE_TEXTS[-1]}
        alone = await bench.start(tags=tags)
        pair = [bench.start_run(tags={"batch": "8"}), bench.start_run()]
        await bench.apply(pair)

        assert (await bench.run(alone)).tags == tags
        assert [(await bench.run(start.run_id)).tags for start in pair] == [{"batch": "8"}, {}]
        await bench.done(await bench.claim(alone, limit=1), CompleteRun(output=b"1"))
        again = RepeatRun(namespace=NAMESPACE, run_id=bench.new_id(), of_run_id=alone, keep_steps=False)
        await bench.answer(again)
        assert (await bench.run(again.run_id)).tags == tags

    async def test_a_claim_brings_the_trace_of_its_start(self, bench: Bench) -> None:
        alone = await bench.start(trace_context="00-alone")
        pair = [bench.start_run(trace_context="00-pair"), bench.start_run()]
        await bench.apply(pair)
        expected = {alone: "00-alone", pair[0].run_id: "00-pair", pair[1].run_id: None}

        claims = await bench.claims()

        assert {claim.run_id: claim.trace_context for claim in claims} == expected
        (done,) = [claim for claim in claims if claim.run_id == alone]
        await bench.done(done, CompleteRun(output=b"1"))
        again = RepeatRun(namespace=NAMESPACE, run_id=bench.new_id(), of_run_id=alone, keep_steps=False)
        assert isinstance(await bench.answer(again), Started)
        assert (await bench.claim(again.run_id)).trace_context == "00-alone"

    @pytest.mark.parametrize(
        ("delay", "start_at", "expected"), [(5, None, 5), (0, 9, 9), (0, 0, 0), (0, -3600, 0), (5, -1, 5), (5, 9, 9)]
    )
    async def test_a_run_is_available_at_its_time_and_not_before_it_was_started(
        self, bench: Bench, delay: int, start_at: int | None, expected: int
    ) -> None:
        start = bench.start_run(
            delay=delay * SECOND, start_at=None if start_at is None else bench.now() + start_at * SECOND
        )

        answer = await bench.answer(start)

        assert answer == Started(run_id=start.run_id, available_at=bench.now() + expected * SECOND)
        assert (await bench.run(start.run_id)).available_at == bench.now() + expected * SECOND

    async def test_a_time_in_the_past_gives_no_place_before_others(self, bench: Bench) -> None:
        first = await bench.start()
        bench.clock.advance(SECOND)
        second = await bench.start(start_at=bench.now() - 3600 * SECOND)

        assert [await bench.claimed_ids(limit=1), await bench.claimed_ids(limit=1)] == [[first], [second]]

    @pytest.mark.parametrize(
        ("timeout", "deadline", "expected"),
        [(None, None, None), (5, None, 5), (None, 7, 7), (5, 7, 5), (9, 7, 7)],
    )
    async def test_the_earlier_of_timeout_and_deadline_counts(
        self, bench: Bench, timeout: int | None, deadline: int | None, expected: int | None
    ) -> None:
        run_id = await bench.start(
            timeout=None if timeout is None else timeout * SECOND,
            deadline_at=None if deadline is None else bench.now() + deadline * SECOND,
        )

        deadline_at = (await bench.run(run_id)).deadline_at
        assert deadline_at == (None if expected is None else bench.now() + expected * SECOND)

    async def test_a_repeated_start_changes_nothing_and_gets_the_same_answer(self, bench: Bench) -> None:
        start = bench.start_run(external_id="order-1")
        first = await bench.answer(start)
        before = await bench.state(start.run_id)
        bench.clock.advance(SECOND)

        assert await bench.answer(start) == first
        assert await bench.state(start.run_id) == before

    async def test_a_start_repeated_within_one_batch_makes_one_run(self, bench: Bench) -> None:
        start = bench.start_run()

        first, second = await bench.apply([start, start])

        assert first == second
        assert len(await bench.claims()) == 1

    async def test_a_start_repeated_after_the_run_has_moved_on_leaves_it_alone(self, bench: Bench) -> None:
        start = bench.start_run()
        await bench.answer(start)
        claim = await bench.claim()
        await bench.done(claim, CompleteRun(output=b"1"))
        before = await bench.state(start.run_id)

        answer = await bench.answer(start)

        assert isinstance(answer, Started)
        assert (answer.run_id, answer.already_exists, answer.born) == (start.run_id, False, False)
        assert answer.status is RunStatus.COMPLETED
        assert await bench.state(start.run_id) == before

    async def test_many_starts_share_a_batch(self, bench: Bench) -> None:
        starts = [bench.start_run(input=b"%d" % number) for number in range(150)]

        answers = await bench.apply(starts)

        assert [answer.run_id for answer in answers if isinstance(answer, Started)] == [
            start.run_id for start in starts
        ]
        for start in starts[::50]:
            assert (await bench.run(start.run_id)).input == start.input

    async def test_an_empty_batch_has_no_answers(self, bench: Bench) -> None:
        assert list(await bench.apply([])) == []

    async def test_an_unknown_run_is_none(self, bench: Bench) -> None:
        assert await bench.store.runs.get(NAMESPACE, bench.new_id()) is None
        assert await bench.store.runs.get_by_external_id(NAMESPACE, "nobody") is None
        assert await bench.store.runs.find(NAMESPACE, "nobody") is None
        assert await bench.store.runs.steps(NAMESPACE, bench.new_id()) == []

    @pytest.mark.parametrize("size", [0, 1023, 1024, 1025, 100_000])
    async def test_payloads_come_back_byte_for_byte_whatever_their_size(self, bench: Bench, size: int) -> None:
        data = (EVERY_BYTE * (size // 256 + 1))[:size]
        claim = await bench.started_claim(input=data)
        assert claim.input == data
        await bench.done(claim, CompleteRun(output=data[::-1]))

        run = await bench.run(claim.run_id)

        assert (run.input, run.output) == (data, data[::-1])

    async def test_payloads_of_a_batch_come_back_whatever_their_size(self, bench: Bench) -> None:
        starts = [bench.start_run(input=(EVERY_BYTE * 5)[:size]) for size in (0, 1023, 1024, 1025, 1024)]
        await bench.apply(starts)
        claims = {claim.run_id: claim for claim in await bench.claims()}
        ends = [bench.chunk(claims[start.run_id], CompleteRun(output=start.input[::-1])) for start in starts]

        assert list(await bench.apply(ends)) == [ChunkAnswer.DONE] * len(ends)

        for start in starts:
            run = await bench.run(start.run_id)
            assert (run.input, run.output) == (start.input, start.input[::-1])
            assert claims[start.run_id].input == start.input

    async def test_a_payload_of_two_mebibytes_is_stored(self, bench: Bench) -> None:
        data = EVERY_BYTE * 8192
        claim = await bench.started_claim(input=data, external_id="big")
        await bench.done(claim, bench.completed("step", 1, output=data), CompleteRun(output=data))

        run = await bench.store.runs.get_by_external_id(NAMESPACE, "big")
        assert run is not None
        assert run.input == run.output == data
        assert (await bench.steps(claim.run_id))[0].output == data

    @pytest.mark.parametrize("text", HOSTILE_TEXTS)
    async def test_text_is_stored_as_it_is(self, bench: Bench, text: str) -> None:
        await bench.store.namespaces.ensure(text)
        fields: dict[str, Any] = {"namespace": text, "task_queue": text, "workflow_type": text, "version": text}
        await bench.start(**fields, external_id=text)
        claim = await bench.claim(namespace=text, queues=(text,), types=(WorkflowType(text, text),))
        await bench.done(claim, bench.completed(text, 1), FailRun(error=text.encode()))

        assert await bench.store.runs.find(text, text) == claim.run_id
        run = await bench.store.runs.get_by_external_id(text, text)
        assert run is not None
        assert (run.namespace, run.task_queue, run.workflow_type, run.version) == (text, text, text, text)
        assert (run.external_id, run.error) == (text, text.encode())
        assert [step.step_id for step in await bench.steps(claim.run_id, text)] == [text]

    async def test_several_runs_are_read_at_once_with_large_payloads_and_small(self, bench: Bench) -> None:
        large, small = EVERY_BYTE * 8, b"[1]"
        done = await bench.started_claim(input=large)
        await bench.done(done, CompleteRun(output=large[::-1]))
        failed = await bench.started_claim(input=small)
        await bench.done(failed, FailRun(error=b"oh"))
        live = await bench.start(input=small, task_queue="later")
        there = [(NAMESPACE, run_id) for run_id in (done.run_id, failed.run_id, live)]

        found = await bench.store.runs.get_many([*there, (NAMESPACE, bench.new_id()), ("elsewhere", live)])

        one_by_one = [await bench.run(run_id) for _, run_id in there]
        assert sorted(found, key=lambda run: run.run_id) == sorted(one_by_one, key=lambda run: run.run_id)
        assert (one_by_one[0].input, one_by_one[0].output) == (large, large[::-1])
        assert await bench.store.runs.get_many([]) == []

    async def test_finished_of_names_what_has_ended_or_is_not_there(self, bench: Bench) -> None:
        live = await bench.start(task_queue="later")
        done = await bench.started_claim()
        await bench.done(done, CompleteRun(output=b"1"))
        gone = bench.new_id()
        asked = [(NAMESPACE, live), (NAMESPACE, done.run_id), (NAMESPACE, gone), ("elsewhere", live)]

        finished = await bench.store.runs.finished_of(asked)

        assert sorted(finished) == sorted([(NAMESPACE, done.run_id), (NAMESPACE, gone), ("elsewhere", live)])
        assert await bench.store.runs.finished_of([]) == []

    async def test_namespaces_are_apart(self, bench: Bench) -> None:
        await bench.store.namespaces.ensure("tenant")
        await bench.store.namespaces.ensure("tenant")
        run_id = bench.new_id()
        await bench.start(namespace="tenant", run_id=run_id, external_id="order-1", input=b"1")
        # The same ids elsewhere are other runs.
        await bench.start(namespace=NAMESPACE, run_id=run_id, external_id="order-1", input=b"2")

        assert (await bench.run(run_id, "tenant")).input == b"1"
        assert (await bench.run(run_id, NAMESPACE)).input == b"2"
        mine = await bench.claim(run_id, namespace="tenant")
        assert (mine.namespace, mine.input) == ("tenant", b"1")
        # Neither does the token of one open the other.
        foreign = Chunk(namespace=NAMESPACE, run_id=run_id, token=mine.token, operations=(CompleteRun(output=b"1"),))
        assert await bench.answer(foreign) is ChunkAnswer.LEASE_LOST
        await bench.done(mine, CompleteRun(output=b"1"))
        assert (await bench.run(run_id, NAMESPACE)).status is RunStatus.PENDING


class TestRunIds:
    """A run's own id, which its caller made."""

    @pytest.mark.parametrize("size", [1, 5000])
    @pytest.mark.parametrize(
        "other",
        [
            {"workflow_type": "refund"},
            {"external_id": "order-2"},
            {"external_id": None},
            {"task_queue": "refunds"},
            {"input": b"2"},
            {"input": b"2" * 5000},
        ],
    )
    async def test_that_of_another_run_is_a_conflict(self, bench: Bench, other: dict[str, Any], size: int) -> None:
        start = bench.start_run(external_id="order-1", input=b"1" * size)
        first = await bench.answer(start)
        before = await bench.state(start.run_id)

        refused = await bench.answer(replace(start, **other))

        assert isinstance(refused, Conflict)
        assert start.run_id in str(refused)
        assert await bench.state(start.run_id) == before
        assert await bench.store.runs.get_by_external_id(NAMESPACE, "order-2") is None
        assert await bench.answer(start) == first

    @pytest.mark.parametrize("sizes", [(1, 1), (1, 5000), (5000, 1), (5000, 5000)])
    async def test_of_two_in_one_batch_the_first_has_it(self, bench: Bench, sizes: tuple[int, int]) -> None:
        # By their ids the second would come first: that is the order in which PostgreSQL is asked for them.
        start = bench.start_run(external_id="order-2", input=b"1" * sizes[0])
        other = replace(start, workflow_type="refund", external_id="order-1", input=b"2" * sizes[1])

        first, refused, again = await bench.apply([start, other, start])

        assert first == again == Started(run_id=start.run_id, available_at=bench.now())
        assert isinstance(refused, Conflict)
        assert await bench.store.runs.get_by_external_id(NAMESPACE, "order-1") is None
        assert (await bench.claim(start.run_id)).input == start.input

    @pytest.mark.parametrize("size", [1, 5000])
    async def test_one_who_was_refused_does_not_keep_it(self, bench: Bench, size: int) -> None:
        await bench.start(external_id="order-1", task_queue="later")
        start = bench.start_run(external_id="order-2", input=b"2" * size)
        refused = replace(start, external_id="order-1", input=b"1" * size)

        conflict, answer = await bench.apply([refused, start])

        assert isinstance(conflict, Conflict)
        assert answer == Started(run_id=start.run_id, available_at=bench.now())
        assert (await bench.claim(start.run_id)).input == start.input

    async def test_one_that_is_refused_is_not_born(self, bench: Bench) -> None:
        lease = BirthLease(worker_id=bench.worker_id, token=bench.new_id(), length=LEASE)
        start = bench.start_run(lease=lease)
        await bench.answer(start)

        assert isinstance(await bench.answer(replace(start, workflow_type="refund")), Conflict)
        assert (await bench.run(start.run_id)).workflow_type == TYPE


class TestExternalIds:
    async def test_a_second_start_finds_the_first_run(self, bench: Bench) -> None:
        first = await bench.start(external_id="order-1", input=b"1")

        answer = await bench.answer(bench.start_run(external_id="order-1", input=b"1"))

        assert isinstance(answer, Started)
        assert (answer.run_id, answer.already_exists, answer.born) == (first, True, False)
        assert answer.status is RunStatus.PENDING
        assert len(await bench.claims()) == 1

    async def test_also_when_the_first_has_finished(self, bench: Bench) -> None:
        claim = await bench.started_claim(external_id="order-1")
        await bench.done(claim, FailRun(error=b"no"))

        answer = await bench.answer(bench.start_run(external_id="order-1"))

        assert isinstance(answer, Started)
        assert (answer.run_id, answer.already_exists) == (claim.run_id, True)
        assert answer.status is RunStatus.FAILED

    @pytest.mark.parametrize("size", [1, 5000])
    async def test_another_type_or_input_is_a_conflict(self, bench: Bench, size: int) -> None:
        input = b"1" * size
        first = await bench.start(external_id="order-1", input=input)

        other_input, other_type, same = await bench.apply(
            [
                bench.start_run(external_id="order-1", input=b"2" * size),
                bench.start_run(external_id="order-1", input=input, workflow_type="refund"),
                bench.start_run(external_id="order-1", input=input),
            ],
        )

        assert isinstance(other_input, Conflict)
        assert isinstance(other_type, Conflict)
        assert isinstance(same, Started)
        assert same.run_id == first
        assert (await bench.run(first)).input == input

    @pytest.mark.parametrize("size", [1, 5000])
    async def test_two_in_one_batch_make_one_run(self, bench: Bench, size: int) -> None:
        input = b"1" * size
        starts = [
            bench.start_run(external_id="order-1", input=input),
            bench.start_run(),
            bench.start_run(external_id="order-1", input=input),
            bench.start_run(external_id="order-1", input=b"2" * size),
        ]

        first, other, second, conflict = await bench.apply(starts)

        assert isinstance(first, Started)
        assert isinstance(second, Started)
        assert isinstance(other, Started)
        assert first.run_id == second.run_id == starts[0].run_id
        assert (first.already_exists, second.already_exists) == (False, True)
        assert isinstance(conflict, Conflict)
        assert (await bench.run(starts[0].run_id)).input == input
        assert await bench.store.runs.get(NAMESPACE, starts[2].run_id) is None
        assert len(await bench.claims()) == 2

    async def test_runs_without_one_never_meet(self, bench: Bench) -> None:
        assert await bench.start() != await bench.start()
        assert len(await bench.claims()) == 2


class TestBirth:
    def lease(self, bench: Bench, length: int = LEASE) -> BirthLease:
        return BirthLease(worker_id=bench.worker_id, token=bench.new_id(), length=length)

    async def test_a_run_is_born_running_under_its_lease(self, bench: Bench) -> None:
        start = bench.start_run(lease=self.lease(bench))

        answer = await bench.answer(start)

        now = bench.now()
        assert answer == Started(
            run_id=start.run_id, status=RunStatus.RUNNING, born=True, started_at=now, available_at=now
        )
        run = await bench.run(start.run_id)
        assert (run.status, run.executions, run.started_at) == (RunStatus.RUNNING, 1, now)
        assert run.worker_id == bench.worker_id
        assert await bench.claims() == ()

    @pytest.mark.parametrize("leased", [(True, True, True), (True, False, True), (False, False, False)])
    async def test_starts_of_a_batch_keep_what_is_their_own(self, bench: Bench, leased: tuple[bool, ...]) -> None:
        """Alike in everything, or in nothing: what a batch has in common may be written in another way."""
        await bench.store.namespaces.ensure("tenant")
        for namespace, alike in ((NAMESPACE, True), ("tenant", False)):
            own = [""] * 3 if alike else ["-a", "-b", "-c"]
            starts = [
                bench.start_run(
                    namespace=namespace if number else NAMESPACE,
                    task_queue=f"queue{suffix}",
                    workflow_type=f"type{suffix}",
                    version=f"1{suffix}",
                    input=suffix.encode(),
                    lease=self.lease(bench, LEASE if alike else LEASE + number) if lease else None,
                )
                for number, (suffix, lease) in enumerate(zip(own, leased, strict=True))
            ]

            answers = await bench.apply(starts)

            for start, answer, lease in zip(starts, answers, leased, strict=True):
                assert isinstance(answer, Started)
                run = await bench.run(start.run_id, start.namespace)
                assert (run.task_queue, run.workflow_type) == (start.task_queue, start.workflow_type)
                assert (run.version, run.input) == (start.version, start.input)
                assert (answer.born, run.executions, run.worker_id is not None) == (lease, int(lease), lease)
                if start.lease is not None:
                    state = await bench.store.work.read_lease(start.namespace, start.run_id, start.lease.token, False)
                    assert state is not None
                    assert (state.lease, state.worker_id) == (start.lease.length, bench.worker_id)

    async def test_a_run_that_is_due_in_the_past_is_born_now(self, bench: Bench) -> None:
        start = bench.start_run(lease=self.lease(bench), start_at=bench.now() - SECOND)

        answer = await bench.answer(start)

        now = bench.now()
        assert answer == Started(
            run_id=start.run_id, status=RunStatus.RUNNING, born=True, started_at=now, available_at=now
        )

    async def test_the_birth_lease_opens_the_run(self, bench: Bench) -> None:
        lease = self.lease(bench)
        start = bench.start_run(lease=lease)
        await bench.answer(start)

        operations = (bench.completed("charge", 1), CompleteRun(output=b"1"))
        answer = await bench.answer(
            Chunk(namespace=NAMESPACE, run_id=start.run_id, token=lease.token, operations=operations)
        )

        assert answer is ChunkAnswer.DONE
        assert (await bench.run(start.run_id)).status is RunStatus.COMPLETED

    async def test_a_repeat_is_born_too_while_the_lease_holds(self, bench: Bench) -> None:
        start = bench.start_run(lease=self.lease(bench))
        first = await bench.answer(start)

        assert await bench.answer(start) == first

    async def test_a_repeat_is_not_born_once_the_lease_is_gone(self, bench: Bench) -> None:
        start = bench.start_run(lease=self.lease(bench))
        await bench.answer(start)
        bench.clock.advance(LEASE)
        await bench.recover()

        answer = await bench.answer(start)

        assert isinstance(answer, Started)
        assert (answer.run_id, answer.born, answer.already_exists) == (start.run_id, False, False)
        assert answer.status is RunStatus.PENDING

    async def test_a_run_that_exists_already_is_not_born(self, bench: Bench) -> None:
        first = await bench.start(external_id="order-1")

        answer = await bench.answer(bench.start_run(external_id="order-1", lease=self.lease(bench)))

        assert isinstance(answer, Started)
        assert (answer.run_id, answer.born, answer.already_exists) == (first, False, True)
        assert (await bench.run(first)).status is RunStatus.PENDING

    async def test_the_lease_ends_after_its_length(self, bench: Bench) -> None:
        start = bench.start_run(lease=self.lease(bench, length=3 * SECOND))
        await bench.answer(start)

        bench.clock.advance(3 * SECOND - 1)
        assert await bench.recover() == []
        bench.clock.advance(1)
        (recovered,) = await bench.recover()
        assert recovered.run_id == start.run_id
        assert (await bench.run(start.run_id)).crashes == 1
