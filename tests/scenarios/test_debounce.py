"""Debounced starts at every home, and what is refused of them."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import pytest

import kagzi
from kagzi import Debounce, InvalidRequest, Kagzi, Signal
from kagzi.sdk.debounce import check_declared


async def test_many_starts_become_one_run_with_the_last_input(home: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kagzi.engine")
    app = Kagzi(home)

    @app.workflow
    async def index(document: str, words: int) -> int:
        return words

    @app.workflow(debounce=Debounce("1s", most="1m", key="document"))
    async def publish(document: str, words: int) -> int:
        return words

    async with app, app.worker():
        wait = Debounce(1, key="d-7")
        first = await index.options(debounce=wait).start("d-7", 1)
        runs = [await index.options(debounce=wait).start("d-7", words) for words in range(2, 5)]
        assert (first.already_exists, {run.already_exists for run in runs}) == (False, {True})
        assert {run.id for run in runs} == {first.id}
        record = await first.get()
        kept = record.debounced
        assert kept is not None
        assert (kept.key, kept.starts, str(kept)) == ("d-7", 4, "4 starts of key 'd-7'")
        assert (kept.first_at, kept.last_at >= kept.first_at) == (record.created_at, True)
        joins = [line for line in caplog.messages if f"joined run {first.id}" in line]
        assert len(joins) == 3
        assert joins[-1].startswith(f"start {kept.last_start_id} of index joined")
        apart = [await publish.start(document, 1) for document in ("a", "b")]
        joined = await publish.start("b", 9)
        assert (joined.id, joined.already_exists) == (apart[1].id, True)
        by_itself = await publish.options(debounce=False).start("b", 3)
        alone, kept = await by_itself.result(timeout=60), (await by_itself.get()).debounced
        assert [await run.result(timeout=60) for run in (first, runs[-1], *apart, joined)] == [4, 4, 1, 9, 9]
        assert (alone, kept) == (3, None)
        after = await publish.start("b", 10)
        assert not after.already_exists
        assert await after.result(timeout=60) == 10


async def test_what_a_debounced_start_cannot_be() -> None:
    app = Kagzi("memory://")

    @app.workflow(debounce=Debounce("1s", key="document"))
    async def index(document: str) -> str:
        return document

    @app.workflow
    async def spawns() -> str:
        child = await index.options(debounce=Debounce("1s")).spawn("d")
        return await child.result()

    async with app, app.worker():
        for given in (
            {"id": "d-7"},
            {"id": "d-7", "signal": Signal("changed")},
            {"delay": "1s"},
            {"start_at": datetime.now(UTC)},
        ):
            with pytest.raises(InvalidRequest, match=r"debounce and \w+ do not go together"):
                await index.options(**given).start("d-7")
        assert await index.options(debounce=False, id="d-7").run("d-7") == "d-7"
        assert [run async for run in app.search(workflow="index", status="PENDING")] == []
        with pytest.raises(kagzi.WorkflowFailed, match=r"debounce= is for index\.start"):
            await spawns.run()
        with pytest.raises(InvalidRequest, match="schedules have overlap="):
            await app.schedules.create("n", index.options(debounce=Debounce("1s")), "d", cron="@daily")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Debounce(0), "the wait of a Debounce must be longer than 0"),
        (lambda: Debounce("soon"), "the wait of a Debounce"),
        (lambda: Debounce("30s", most="10s"), "must not be shorter than its wait of 30s"),
        (lambda: Debounce("30s", key=True), "must be text, a whole number or a function"),
        (lambda: Debounce("30s", key=""), "the key of a Debounce"),
        (lambda: _declare(Debounce("30s", key="page")), "is none of its parameters: document"),
        (lambda: _declare(Debounce("30s", key="document.")), "must be a parameter or a path into one"),
        (lambda: check_declared(Debounce("30s", key="page"), "index", []), "it has none; leave the key out"),
        (lambda: _declare("30s"), "must be a Debounce"),
        (lambda: _declare(None).options(debounce=True), "or False for none"),
        (lambda: _declare(None).options(debounce="30s"), "must be a Debounce"),
    ],
)
def test_what_is_refused_where_it_is_written(make: object, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        make()  # type: ignore[operator]


def _declare(debounce: object) -> kagzi.Workflow[..., str]:
    @Kagzi("memory://").workflow(debounce=debounce)  # type: ignore[arg-type]
    async def index(document: str) -> str:
        return document

    return index
