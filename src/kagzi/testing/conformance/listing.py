"""Listing runs by keyset, both ways, while others come and go."""

from __future__ import annotations

import pytest

from kagzi.api.operations import CompleteRun, FailRun
from kagzi.api.workflows import RunFilter
from kagzi.core.failure import Failure
from kagzi.core.instant import SECOND
from kagzi.core.page import Cursor
from kagzi.core.run import RunStatus
from kagzi.store import searching
from kagzi.testing.conformance.bench import NAMESPACE, QUEUE, TYPE, Bench

_NEWEST = "ffffffff-ffff-ffff-ffff-ffffffffffff"
_OLDEST = "00000000-0000-0000-0000-000000000000"


async def listed(
    bench: Bench, filter: RunFilter | None = None, cursor: Cursor | None = None, limit: int = 100
) -> list[str]:
    found = await bench.store.runs.search(filter or RunFilter(), cursor, limit)
    assert found.searched_until is None
    return [run.run_id for run in found.runs]


async def found_by(bench: Bench, filter: RunFilter, cursor: Cursor) -> list[str]:
    """What a search finds that goes on to the end, two runs at a time."""
    seen: list[str] = []
    while True:
        found = await bench.store.runs.search(filter, cursor, 2)
        seen += [run.run_id for run in found.runs]
        key = found.searched_until or (found.runs[-1].run_id if len(found.runs) == 2 else None)
        if key is None:
            return seen
        assert (key > cursor.key) is cursor.backward, "a search goes on"
        cursor = Cursor(key, cursor.backward)


class TestListing:
    async def test_newest_first(self, bench: Bench) -> None:
        ids = [await bench.start() for _ in range(5)]

        assert await listed(bench) == ids[::-1]
        assert await listed(bench, limit=2) == [ids[4], ids[3]]

    async def test_a_listed_run_is_the_run(self, bench: Bench) -> None:
        claim = await bench.started_claim(input=b"x" * 5000)
        await bench.done(claim, CompleteRun(output=b"y" * 5000))

        found = await bench.store.runs.search(RunFilter(), None, 10)
        assert found.runs == [await bench.run(claim.run_id)]

    async def test_pages_forward_and_back(self, bench: Bench) -> None:
        ids = [await bench.start() for _ in range(7)][::-1]

        assert await listed(bench, cursor=Cursor(ids[2]), limit=3) == ids[3:6]
        assert await listed(bench, cursor=Cursor(ids[5]), limit=3) == ids[6:]
        assert await listed(bench, cursor=Cursor(ids[6]), limit=3) == []
        # Backward: the nearest newer ones, nearest first.
        assert await listed(bench, cursor=Cursor(ids[4], backward=True), limit=3) == [ids[3], ids[2], ids[1]]
        assert await listed(bench, cursor=Cursor(ids[1], backward=True), limit=3) == [ids[0]]
        assert await listed(bench, cursor=Cursor(ids[0], backward=True), limit=3) == []

    async def test_a_scan_meets_each_run_once_while_others_are_inserted(self, bench: Bench) -> None:
        ids = [await bench.start() for _ in range(10)]
        seen: list[str] = []
        cursor: Cursor | None = None
        while page := await listed(bench, cursor=cursor, limit=3):
            seen += page
            cursor = Cursor(page[-1])
            await bench.start()  # newer than everything that is still to come
        assert seen == ids[::-1]

        seen = []
        cursor = Cursor(ids[0], backward=True)
        while page := await listed(bench, cursor=cursor, limit=3):
            seen += page
            cursor = Cursor(page[-1], backward=True)
        assert seen[:9] == ids[1:]
        assert len(seen) == len(set(seen)) == 13

    async def test_a_cursor_whose_run_is_gone_still_works(self, bench: Bench) -> None:
        first = await bench.start()
        gone = bench.new_id()
        last = await bench.start()

        assert await listed(bench, cursor=Cursor(gone)) == [first]
        assert await listed(bench, cursor=Cursor(gone, backward=True)) == [last]

    async def test_filters(self, bench: Bench) -> None:
        created = bench.now()
        done = await bench.started_claim()
        await bench.done(done, CompleteRun(output=b"1"))
        bench.clock.advance(SECOND)
        mail = await bench.start(workflow_type="mail", task_queue="mails")
        bench.clock.advance(SECOND)
        plain = await bench.start()

        assert await listed(bench, RunFilter(status=RunStatus.COMPLETED)) == [done.run_id]
        assert await listed(bench, RunFilter(status=RunStatus.PENDING)) == [plain, mail]
        assert await listed(bench, RunFilter(status=RunStatus.FAILED)) == []
        assert await listed(bench, RunFilter(workflow_type="mail")) == [mail]
        assert await listed(bench, RunFilter(workflow_type=TYPE, status=RunStatus.PENDING)) == [plain]
        assert await listed(bench, RunFilter(task_queue="mails")) == [mail]
        assert await listed(bench, RunFilter(task_queue=QUEUE)) == [plain, done.run_id]
        assert await listed(bench, RunFilter(created_after=created)) == [plain, mail]
        assert await listed(bench, RunFilter(created_before=created + SECOND)) == [done.run_id]
        within = RunFilter(created_after=created, created_before=created + 2 * SECOND)
        assert await listed(bench, within) == [mail]
        assert await listed(bench, within, Cursor(done.run_id, backward=True)) == [mail]

    @pytest.mark.parametrize("bites", [(1, 1), (2, 3), (3, 40)])
    async def test_a_filter_looks_at_so_many_runs_and_says_how_far_it_came(
        self, bench: Bench, bites: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ids = [await bench.start(workflow_type="rare" if number in (1, 9, 10) else "common") for number in range(12)]
        monkeypatch.setattr(searching, "BITES", bites)
        rare = RunFilter(workflow_type="rare")
        for cursor, wanted in (
            (Cursor(_NEWEST), [ids[10], ids[9], ids[1]]),
            (Cursor(_OLDEST, backward=True), [ids[1], ids[9], ids[10]]),
        ):
            seen: list[str] = []
            looked = 0
            at = cursor
            while True:
                found = await bench.store.runs.search(rare, at, 2)
                seen += [run.run_id for run in found.runs]
                if found.searched_until is not None:
                    assert len(found.runs) < 2
                    key = found.searched_until
                elif len(found.runs) == 2:
                    key = found.runs[-1].run_id
                else:
                    break
                between = [run for run in ids if key <= run < at.key or at.key < run <= key]
                assert 0 < len(between) <= sum(bites)
                looked += 1
                at = Cursor(key, cursor.backward)
            assert seen == wanted
            assert looked >= 12 // sum(bites)

    async def test_runs_without_a_filter_are_not_searched(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        ids = [await bench.start() for _ in range(5)]
        monkeypatch.setattr(searching, "BITES", (1,))

        assert await listed(bench) == ids[::-1]

    @pytest.mark.parametrize("few", [0, 2_000])
    @pytest.mark.parametrize("bites", [(1, 2), (1_000, 19_000)])
    async def test_every_filter_finds_what_it_says_both_ways(
        self, bench: Bench, bites: tuple[int, ...], few: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(searching, "BITES", bites)
        monkeypatch.setattr(searching, "LED_BITES", bites)
        monkeypatch.setattr(searching, "FEW", few)
        runs: dict[str, str] = {}
        for number, (error, tags) in enumerate(
            [
                ("shop.CardDeclined", {"batch": "7"}),
                ("bank.CardDeclined", {"batch": "7", "region": "eu"}),
                ("shop.Größe", {"batch": "77"}),
                ("shop.NotCardDeclined", {}),
            ]
        ):
            claim = await bench.started_claim(external_id=f"order-{number}", tags=tags)
            await bench.done(claim, FailRun(error=Failure(error, "no").encode()))
            runs[error] = claim.run_id
            bench.clock.advance(SECOND)
        ended = await bench.started_claim(external_id="order", tags={"batch": "8"})
        await bench.done(ended, CompleteRun(output=b"1"))
        held = await bench.started_claim(external_id="orders%", tags={"batch": "7"})
        waits = await bench.start(external_id="\U0010ffff", workflow_type="mail")
        shop, bank, size, other = runs.values()
        everything = [shop, bank, size, other, ended.run_id, held.run_id, waits]
        for filter, wanted in (
            (RunFilter(status=RunStatus.FAILED), [shop, bank, size, other]),
            (RunFilter(status=RunStatus.FAILED, or_status=RunStatus.TIMED_OUT), [shop, bank, size, other]),
            (RunFilter(status=RunStatus.COMPLETED), [ended.run_id]),
            (RunFilter(status=RunStatus.RUNNING), [held.run_id]),
            (RunFilter(status=RunStatus.PENDING), [waits]),
            (RunFilter(status=RunStatus.SLEEPING), []),
            (RunFilter(status=RunStatus.FAILED, workflow_type="mail"), []),
            (RunFilter(error="CardDeclined"), [shop, bank]),
            (RunFilter(error="shop.CardDeclined"), [shop]),
            (RunFilter(error="Größe"), [size]),
            (RunFilter(error="shop.Größe", status=RunStatus.FAILED), [size]),
            (RunFilter(error="Declined"), []),
            (RunFilter(error='CardDeclined"'), []),
            (RunFilter(error="CardDeclined", tags={"region": "eu"}), [bank]),
            (RunFilter(tags={"batch": "7"}), [shop, bank, held.run_id]),
            (RunFilter(tags={"batch": "7", "region": "eu"}), [bank]),
            (RunFilter(tags={"batch": "7"}, status=RunStatus.RUNNING), [held.run_id]),
            (RunFilter(tags={"batch": ""}), []),
            (RunFilter(id_prefix="order"), everything[:-1]),
            (RunFilter(id_prefix="order-"), everything[:4]),
            (RunFilter(id_prefix="order-1"), [bank]),
            (RunFilter(id_prefix="orders%"), [held.run_id]),
            (RunFilter(id_prefix="%"), []),
            (RunFilter(id_prefix="\U0010ffff"), [waits]),
            (RunFilter(id_prefix="order", error="CardDeclined", tags={"region": "eu"}), [bank]),
            (RunFilter(schedule_id=bench.new_id()), []),
            (RunFilter(parent_run_id=bench.new_id()), []),
            (RunFilter(created_after=bench.now() - 3 * SECOND, id_prefix="order-"), [size, other]),
            (RunFilter(created_before=bench.now() - 3 * SECOND, id_prefix="order-"), [shop]),
        ):
            assert await found_by(bench, filter, Cursor(_NEWEST)) == wanted[::-1], filter
            assert await found_by(bench, filter, Cursor(_OLDEST, backward=True)) == wanted, filter

    async def test_tags_are_forgotten_with_their_run(self, bench: Bench) -> None:
        claim = await bench.started_claim(tags={"batch": "7"})
        await bench.done(claim, CompleteRun(output=b"1"))
        bench.clock.advance(40 * 86_400 * SECOND)
        assert (await bench.store.duties.prune_runs(100, None))[0] == 1
        assert await listed(bench, RunFilter(tags={"batch": "7"})) == []

    async def test_namespaces_are_apart(self, bench: Bench) -> None:
        mine = await bench.start()
        theirs = await bench.start(namespace="tenant")

        assert await listed(bench, RunFilter(namespace=NAMESPACE)) == [mine]
        assert await listed(bench, RunFilter(namespace="tenant")) == [theirs]
        assert await listed(bench, RunFilter(namespace="tenant"), Cursor(mine, backward=True)) == [theirs]
        assert await listed(bench, RunFilter(namespace="nobody")) == []

    async def test_filter_texts_are_no_patterns(self, bench: Bench) -> None:
        await bench.start()

        for text in ("%", "_", "check%", "' OR 1=1 --", "*"):
            assert await listed(bench, RunFilter(workflow_type=text)) == []
            assert await listed(bench, RunFilter(task_queue=text)) == []
