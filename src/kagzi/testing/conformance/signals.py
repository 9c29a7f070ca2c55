"""Signals: sent to live runs, kept in order, taken once."""

from __future__ import annotations

import msgspec
import pytest

from kagzi.api.operations import (
    BirthLease,
    Chunk,
    ChunkAnswer,
    CompleteRun,
    Operation,
    ParkRun,
    RepeatRun,
    RetryRun,
    SendSignal,
    SignalAnswer,
    Started,
    TakeSignal,
)
from kagzi.api.workers import INBOX_BYTES, INBOX_READ, Claim, Inbox
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.core.signal import Signal
from kagzi.core.step import StepKind
from kagzi.errors import Conflict, InvalidRequest, LimitExceeded, NotFound
from kagzi.store.postgres import signals as postgres_signals
from kagzi.store.sqlite import signals as sqlite_signals
from kagzi.testing.conformance.bench import LEASE, NAMESPACE, QUEUE, Bench

FAR = 1000 * SECOND


def signal(
    run_id: str, name: str = "approved", value: bytes = b"true", key: str = "k1", namespace: str = NAMESPACE
) -> SendSignal:
    return SendSignal(namespace=namespace, run_id=run_id, name=name, value=value, key=key)


async def sent(bench: Bench, write: SendSignal) -> SignalAnswer:
    answer = await bench.answer(write)
    assert isinstance(answer, SignalAnswer), answer
    return answer


async def inbox(bench: Bench, claim: Claim, *names: str) -> Inbox:
    found = await bench.store.signals.read_inbox(
        claim.namespace, claim.run_id, claim.token, names or ("approved",), 100
    )
    assert found is not None
    return found


def take(bench: Bench, seq: int, key: str = "k1", value: bytes = b"true") -> TakeSignal:
    return TakeSignal(
        step_id=f"@@approved#{seq}",
        kind=StepKind.SIGNAL,
        completed_seq=seq,
        started_at=bench.now(),
        finished_at=bench.now(),
        output=value,
        signal=key,
    )


class TestSignals:
    async def test_signals_wait_in_order_until_they_are_taken(self, bench: Bench) -> None:
        run_id = await bench.start()
        bench.clock.advance(1)
        answer = await sent(bench, signal(run_id))
        assert answer == SignalAnswer(
            run_id=run_id, seq=1, status=RunStatus.PENDING, task_queue=QUEUE, available_at=answer.available_at
        )
        claim = await bench.claim()
        assert claim.inbox_seq == 1
        assert (await sent(bench, signal(run_id, "paid", b"5", "k2"))).status is RunStatus.RUNNING
        assert (await sent(bench, signal(run_id, "approved", b"false", "k3"))).seq == 3
        found = await inbox(bench, claim)
        assert (found.inbox_seq, found.cancel_requested) == (3, False)
        assert [(one.key, one.seq, one.value) for one in found.signals] == [("k1", 1, b"true"), ("k3", 3, b"false")]
        assert found.signals[0].sent_at == bench.now()
        assert [one.key for one in (await inbox(bench, claim, "paid", "other")).signals] == ["k2"]
        assert (await inbox(bench, claim, "other")).signals == ()

        assert await bench.send(claim, take(bench, 1)) is ChunkAnswer.DONE
        assert [one.key for one in (await inbox(bench, claim)).signals] == ["k3"]
        assert [(one.key, one.taken_seq) for one in await bench.store.signals.page(NAMESPACE, run_id, 0, 10)] == [
            ("k1", 1),
            ("k2", None),
            ("k3", None),
        ]
        (step,) = [step for step in await bench.store.runs.steps(NAMESPACE, run_id)]
        assert (step.kind, step.output, step.completed_seq) == (StepKind.SIGNAL, b"true", 1)

    async def test_a_chunk_that_comes_twice_takes_once(self, bench: Bench) -> None:
        run_id = await bench.start()
        claim = await bench.claim()
        await sent(bench, signal(run_id))
        for _ in range(2):
            assert await bench.send(claim, take(bench, 1)) is ChunkAnswer.DONE

    async def test_a_signal_is_taken_once(self, bench: Bench) -> None:
        run_id = await bench.start()
        claim = await bench.claim()
        await sent(bench, signal(run_id))
        assert await bench.send(claim, take(bench, 1)) is ChunkAnswer.DONE
        for wrong in (take(bench, 2), take(bench, 2, "unknown")):
            answer = await bench.answer(bench.chunk(claim, wrong, CompleteRun(output=b"1")))
            assert isinstance(answer, InvalidRequest)
        assert (await bench.run(run_id)).status is RunStatus.RUNNING
        assert [step.completed_seq for step in await bench.store.runs.steps(NAMESPACE, run_id)] == [1]

    async def test_a_stale_holder_takes_nothing(self, bench: Bench) -> None:
        run_id = await bench.start()
        claim = await bench.claim()
        await sent(bench, signal(run_id))
        bench.clock.advance(LEASE + 1)
        await bench.store.duties.recover_runs(10, 9, lambda _: 0)
        assert await bench.send(claim, take(bench, 1)) is ChunkAnswer.LEASE_LOST
        assert await bench.store.signals.read_inbox(NAMESPACE, run_id, claim.token, ("approved",), 10) is None
        assert [one.key for one in (await inbox(bench, await bench.claim())).signals] == ["k1"]

    async def test_a_key_makes_a_repeat_harmless(self, bench: Bench) -> None:
        run_id = await bench.start()
        first = await sent(bench, signal(run_id))
        again = await sent(bench, signal(run_id, value=b"9"))
        assert (again.seq, again.repeated, first.repeated) == (first.seq, True, False)
        answers = await bench.apply([signal(run_id, key="k2"), signal(run_id, key="k2")])
        assert [(answer.seq, answer.repeated) for answer in answers if isinstance(answer, SignalAnswer)] == [
            (2, False),
            (2, True),
        ]
        conflict = await bench.answer(signal(run_id, "paid"))
        assert isinstance(conflict, Conflict)
        assert "'approved' with the key 'k1'" in str(conflict)
        assert len(await bench.store.signals.page(NAMESPACE, run_id, 0, 10)) == 2

    async def test_a_finished_run_takes_none(self, bench: Bench) -> None:
        run_id = await bench.start()
        claim = await bench.claim()
        await sent(bench, signal(run_id))
        await bench.send(claim, CompleteRun(output=b"1"))
        refused = await bench.answer(signal(run_id, key="k2"))
        assert isinstance(refused, Conflict)
        assert "is COMPLETED and takes no signals" in str(refused)
        again = await sent(bench, signal(run_id))
        assert (again.repeated, again.status) == (True, RunStatus.COMPLETED)

    @pytest.mark.parametrize("namespace", [NAMESPACE, "elsewhere"])
    async def test_there_is_no_such_run(self, bench: Bench, namespace: str) -> None:
        run_id = await bench.start()
        other = run_id if namespace != NAMESPACE else bench.new_id()
        assert isinstance(await bench.answer(signal(other, namespace=namespace)), NotFound)
        assert await bench.store.signals.page(NAMESPACE, run_id, 0, 10) == []

    async def test_an_inbox_may_be_full(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (postgres_signals, sqlite_signals):
            monkeypatch.setattr(module, "MOST_UNTAKEN", 2)
        run_id = await bench.start()
        for key in ("k1", "k2"):
            await sent(bench, signal(run_id, key=key))
        assert isinstance(await bench.answer(signal(run_id, key="k3")), LimitExceeded)
        claim = await bench.claim()
        await bench.send(claim, take(bench, 1))
        assert (await sent(bench, signal(run_id, key="k3"))).seq == 3

    @pytest.mark.parametrize(
        ("waiting_for", "wakes"),
        [
            (("s:approved",), True),
            (("s:*",), True),
            (("s:paid", "s:approved"), True),
            (("s:paid",), False),
            ((), False),
        ],
    )
    async def test_a_parked_run_is_woken_by_what_it_waits_for(
        self, bench: Bench, waiting_for: tuple[str, ...], wakes: bool
    ) -> None:
        run_id = await bench.start(priority=1)
        claim = await bench.claim()
        park = ParkRun(available_at=bench.now() + FAR, inbox_seq=0, waiting_for=waiting_for)
        assert await bench.send(claim, park) is ChunkAnswer.DONE
        bench.clock.advance(SECOND)
        answer = await sent(bench, signal(run_id))
        assert answer.status is RunStatus.SLEEPING
        assert (answer.available_at == bench.now()) is wakes
        assert len(await bench.claims()) == wakes

    async def test_nobody_parks_past_a_signal(self, bench: Bench) -> None:
        run_id = await bench.start()
        claim = await bench.claim()
        await sent(bench, signal(run_id))
        park = ParkRun(available_at=bench.now() + FAR, inbox_seq=0, waiting_for=("s:approved",))
        assert await bench.send(claim, park) is ChunkAnswer.NEWS
        seen = ParkRun(available_at=bench.now() + FAR, inbox_seq=1, waiting_for=("s:other",))
        assert await bench.send(claim, seen) is ChunkAnswer.DONE

    @pytest.mark.parametrize("same_batch", [True, False])
    async def test_a_run_that_is_born_running_hears_of_a_signal(self, bench: Bench, same_batch: bool) -> None:
        """Its holder has never read an inbox: it is told by a heartbeat, and cannot park past the signal."""
        lease = BirthLease(worker_id=bench.worker_id, token=bench.new_id(), length=LEASE)
        start = bench.start_run(lease=lease)
        write = signal(start.run_id)
        answers = (
            await bench.apply([start, write]) if same_batch else [await bench.answer(start), await sent(bench, write)]
        )
        born, told = answers
        assert isinstance(born, Started)
        assert isinstance(told, SignalAnswer)
        assert (born.born, told.status, told.seq) == (True, RunStatus.RUNNING, 1)

        def chunk(*operations: Operation) -> Chunk:
            return Chunk(namespace=NAMESPACE, run_id=start.run_id, token=lease.token, operations=operations)

        beat = bench.heartbeat()
        held = msgspec.structs.replace(beat, held=((start.run_id, lease.token),))
        (beaten,) = await bench.store.workers.heartbeats([held])
        assert beaten.answer.news == ((start.run_id, 1),)
        park = ParkRun(available_at=bench.now() + FAR, inbox_seq=0, waiting_for=("s:approved",))
        assert await bench.answer(chunk(park)) is ChunkAnswer.NEWS
        found = await bench.store.signals.read_inbox(NAMESPACE, start.run_id, lease.token, ("approved",), 100)
        assert found is not None
        assert [one.key for one in found.signals] == ["k1"]
        assert await bench.answer(chunk(take(bench, 1), CompleteRun(output=b"1"))) is ChunkAnswer.DONE

    async def test_a_claim_brings_the_signals_that_were_not_taken(self, bench: Bench) -> None:
        """All of them or, if they are too many or too large for a claim, none: then they are read."""
        runs = {name: await bench.start() for name in ("none", "some", "taken", "many", "large")}
        for key, name in (("k1", "approved"), ("k2", "paid")):
            await sent(bench, signal(runs["some"], name, key.encode(), key))
            await sent(bench, signal(runs["taken"], key=key))
        for number in range(INBOX_READ + 1):
            await sent(bench, signal(runs["many"], key=f"k{number}"))
        await sent(bench, signal(runs["large"], value=b"1" * INBOX_BYTES))

        async def claims() -> dict[str, Claim]:
            by_id = {claim.run_id: claim for claim in await bench.claims(limit=5)}
            return {name: by_id[run_id] for name, run_id in runs.items()}

        found = await claims()
        some = found["some"].inbox
        assert some is not None
        assert [(one.key, one.name, one.value, one.seq) for one in some] == [
            ("k1", "approved", b"k1", 1),
            ("k2", "paid", b"k2", 2),
        ]
        assert found["none"].inbox in (None, ())
        assert found["many"].inbox is None
        assert found["large"].inbox == (await inbox(bench, found["large"])).signals, "it just fits"
        await sent(bench, signal(runs["large"], key="k2"))
        park = ParkRun(available_at=bench.now(), inbox_seq=INBOX_READ + 1)
        await bench.send(found["taken"], take(bench, 1), take(bench, 2, "k2"), park)
        await bench.send(found["many"], take(bench, 1, "k0"), park)
        for name in ("none", "some", "large"):
            await bench.send(found[name], park)
        found = await claims()
        assert found["taken"].inbox == ()
        assert found["some"].inbox == some
        assert [one.key for one in found["many"].inbox or ()] == [f"k{number}" for number in range(1, INBOX_READ + 1)]
        assert found["large"].inbox is None

    async def test_a_retry_of_the_run_gives_signals_back(self, bench: Bench) -> None:
        run_id = await bench.start()
        claim = await bench.claim()
        for key in ("k1", "k2"):
            await sent(bench, signal(run_id, key=key))
        await bench.send(claim, take(bench, 1), take(bench, 2, "k2"))
        retry = RetryRun(available_at=bench.now(), keep_seq=1, error=b"no")
        assert await bench.send(claim, retry) is ChunkAnswer.DONE
        assert [one.key for one in (await inbox(bench, await bench.claim())).signals] == ["k2"]

    @pytest.mark.parametrize("keep_steps", [True, False])
    async def test_a_repeated_run_gets_what_was_not_taken(self, bench: Bench, keep_steps: bool) -> None:
        run_id = await bench.start()
        claim = await bench.claim()
        for key in ("k1", "k2"):
            await sent(bench, signal(run_id, key=key))
        await bench.send(claim, take(bench, 1), CompleteRun(output=b"1"))
        new = bench.new_id()
        repeat = RepeatRun(namespace=NAMESPACE, run_id=new, of_run_id=run_id, keep_steps=keep_steps)
        assert isinstance(await bench.answer(repeat), Started)
        claim = await bench.claim()
        assert [one.key for one in (await inbox(bench, claim)).signals] == (["k2"] if keep_steps else [])
        assert claim.inbox_seq == (2 if keep_steps else 0)

    async def test_a_repeated_run_that_is_tried_again_takes_again_what_it_kept(self, bench: Bench) -> None:
        claim = await bench.started_claim()
        await sent(bench, signal(claim.run_id))
        await bench.send(claim, take(bench, 1), CompleteRun(output=b"1"))
        new = bench.new_id()
        repeat = RepeatRun(namespace=NAMESPACE, run_id=new, of_run_id=claim.run_id, keep_steps=True)
        assert isinstance(await bench.answer(repeat), Started)
        claim = await bench.claim(new)
        assert (await inbox(bench, claim)).signals == ()
        # Whoever sends it once more is heard once.
        assert (await sent(bench, signal(new))).repeated
        await bench.done(claim, RetryRun(available_at=bench.now(), keep_seq=0, error=b"no"))
        assert [one.key for one in (await inbox(bench, await bench.claim())).signals] == ["k1"]

    async def test_signals_go_with_their_run(self, bench: Bench) -> None:
        run_id = await bench.start()
        claim = await bench.claim()
        await sent(bench, signal(run_id))
        await bench.send(claim, CompleteRun(output=b"1"))
        bench.clock.advance(31 * 86400 * SECOND)
        await bench.store.duties.prune_runs(100, None)
        assert await bench.store.signals.page(NAMESPACE, run_id, 0, 10) == []

    async def test_signals_are_listed_from_a_number_on(self, bench: Bench) -> None:
        run_id = await bench.start()
        for number in range(5):
            await sent(bench, signal(run_id, key=f"k{number}"))

        async def keys(after: int, limit: int) -> list[str]:
            return [one.key for one in await bench.store.signals.page(NAMESPACE, run_id, after, limit)]

        assert await keys(0, 3) == ["k0", "k1", "k2"]
        assert await keys(3, 3) == ["k3", "k4"]
        listed = await bench.store.signals.page(NAMESPACE, run_id, 4, 3)
        assert listed == [Signal(key="k4", seq=5, name="approved", value=b"true", sent_at=bench.now())]
