"""Runs that begin again under their old id, in every home."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

import kagzi
from kagzi import Conflict, InvalidRequest, Kagzi, NotFound, Retry, WorkflowFailed
from kagzi.api.operations import StartRun
from kagzi.clock import SystemClock
from kagzi.core.run import Run, RunStatus
from kagzi.ids import RandomIds

IDS = RandomIds(SystemClock().now)
ONCE = Retry(attempts=1)


def shop() -> tuple[Kagzi, Any, dict[str, bool]]:
    app = Kagzi("memory://")
    works = {"charge": False}

    @app.step(retry=ONCE)
    async def reserve(order: int) -> int:
        return order

    @app.step(retry=ONCE)
    async def charge(order: int) -> str:
        if not works["charge"]:
            raise ValueError("no cover")
        return f"paid {order}"

    @app.workflow
    async def checkout(order: int) -> str:
        return await charge(await reserve(order))

    return app, checkout, works


async def failed(app: Kagzi, checkout: Any) -> Any:
    run = await checkout.options(id="order-42").start(42)
    with pytest.raises(WorkflowFailed):
        await run.result(timeout=60)
    return run


async def test_the_id_leads_to_the_run_that_counts(home: str) -> None:
    app, checkout, works = shop()
    app.url = home
    async with app, app.worker():
        old = await failed(app, checkout)
        # Who finds the failed run is told so.
        found = await checkout.options(id="order-42").start(42)
        assert (found.id, found.already_exists) == (old.id, True)
        with pytest.raises(WorkflowFailed, match=rf"{old.id}.*ended 20.*nothing was started.*restart_failed"):
            await found.result(timeout=60)
        with pytest.raises(Conflict, match=old.id):
            await checkout.options(id="order-42", on_conflict="fail").start(42)

        works["charge"] = True
        again = checkout.options(id="order-42", on_conflict="restart_failed")
        new = await again.start(43)  # a restart may have other input
        assert not new.already_exists
        assert await new.result(timeout=60) == "paid 43"
        same = await again.start(43)
        assert (same.id, same.already_exists) == (new.id, True)
        assert (await app.find("order-42")).id == new.id

        was, is_ = await old.get(), await new.get()
        assert (was.superseded_by, was.former_id, was.id, was.status) == (new.id, "order-42", None, RunStatus.FAILED)
        assert (is_.origin, is_.id, is_.superseded_by) == (old.id, "order-42", None)
        third = await checkout.options(id="order-42", on_conflict="restart_finished").start(44)
        assert await third.result(timeout=60) == "paid 44"
        assert (await new.get()).superseded_by == third.id


async def test_retry_and_rerun_take_the_id_over(home: str) -> None:
    app, checkout, works = shop()
    app.url = home
    async with app, app.worker():
        old = await failed(app, checkout)
        aside = await old.retry(keep_id=False)
        with pytest.raises(WorkflowFailed):
            await aside.result(timeout=60)
        assert (await app.find("order-42")).id == old.id
        assert ((await aside.get()).origin, (await old.get()).superseded_by) == (old.id, None)

        retried = await old.retry()
        with pytest.raises(WorkflowFailed):
            await retried.result(timeout=60)
        assert (await app.find("order-42")).id == retried.id
        with pytest.raises(Conflict, match=retried.id):
            await old.retry()
        works["charge"] = True
        rerun = await retried.rerun()
        assert await rerun.result(timeout=60) == "paid 42"
        assert [step.name for step in await rerun.steps()] == ["reserve", "charge"]
        same = await retried.retry()  # what was asked for has been done
        assert (same.id, same.already_exists) == (rerun.id, True)
        assert (await checkout.options(id="order-42").start(42)).id == rerun.id
        await app.find("order-42")
        with pytest.raises(NotFound):
            await app.find("order-43")


async def test_fifty_restarts_at_once_make_one_run(home: str) -> None:
    app, checkout, works = shop()
    app.url = home
    async with app:
        async with app.worker():
            old = await failed(app, checkout)
        works["charge"] = True
        again = checkout.options(id="order-42", on_conflict="restart_failed")

        runs = await asyncio.gather(*(again.start(42) for _ in range(40)), *(old.retry() for _ in range(10)))

        assert len({run.id for run in runs}) == 1
        assert sum(not run.already_exists for run in runs) == 1
        async with app.worker():
            assert await runs[0].result(timeout=60) == "paid 42"
        assert len((await app.runs()).items) == 2


async def test_a_parent_that_is_tried_again_spawns_its_child_under_the_same_id(home: str) -> None:
    app, checkout, works = shop()
    app.url = home

    @app.workflow(retry=ONCE)
    async def order(number: int) -> str:
        return str(await checkout.options(id=f"pay-{number}").run(number))

    async with app, app.worker():
        run = await order.options(id="order-7").start(7)
        with pytest.raises(WorkflowFailed, match="no cover"):
            await run.result(timeout=60)
        first = await app.find("pay-7")
        works["charge"] = True

        again = await run.retry()

        assert await again.result(timeout=60) == "paid 7"
        child = await app.find("pay-7")
        assert (await first.get()).superseded_by == child.id
        assert ((await child.get()).origin, (await child.get()).parent_run_id) == (first.id, again.id)


async def test_what_cannot_be_meant_is_refused_before_anything_is_written() -> None:
    app, checkout, _ = shop()

    @app.workflow
    async def parent() -> None:
        await checkout.options(id="x", on_conflict="return").spawn(1)

    @app.workflow
    async def unnamed() -> None:
        await checkout.options(on_conflict="restart_failed").spawn(1)

    async with app, app.worker():
        with pytest.raises(InvalidRequest, match=r'"return", "fail", "restart_finished", "restart_failed"'):
            checkout.options(id="a", on_conflict="restart")
        for choice in ("fail", "restart_finished", "restart_failed"):
            with pytest.raises(InvalidRequest, match="with an id"):
                await checkout.options(on_conflict=choice).start(1)
        with pytest.raises(WorkflowFailed, match="would not be a child"):
            await parent.run()
        with pytest.raises(WorkflowFailed, match="child with an id"):
            await unnamed.run()
        assert {run.workflow for run in (await app.runs()).items} == {"parent", "unnamed"}
        assert kagzi.Conflict is Conflict


async def test_a_cart_is_started_by_its_first_item(home: str) -> None:
    app = Kagzi(home)

    @app.workflow
    async def shopping(customer: str) -> list[str]:
        items = [customer]
        async for item in kagzi.signals("added", str):
            items.append(item)
            if item == "pay":
                break
        return items

    async def add(item: str, customer: str = "ada", **options: Any) -> Any:
        signal = kagzi.Signal("added", item)
        return await shopping.options(id="cart-7", signal=signal, **options).start(customer)

    async with app, app.worker():
        first = await add("book")
        second = await add("pen", "somebody else")  # what a live run was started with is not compared
        assert (first.already_exists, second.already_exists, second.id) == (False, True, first.id)
        with pytest.raises(Conflict, match=first.id):
            await add("ink", on_conflict="fail")
        await add("pay")
        assert await first.result(timeout=60) == ["ada", "book", "pen", "pay"]
        third = await add("lamp")  # the cart was paid: this is the next one
        assert (third.already_exists, (await third.get()).origin) == (False, first.id)
        await app.signal("cart-7", "added", "pay")
        assert await third.result(timeout=60) == ["ada", "lamp", "pay"]
        with pytest.raises(Conflict, match="COMPLETED and takes no signals"):
            await add("ink", on_conflict="restart_failed")
        for wrong, why in (
            (shopping.options(signal=kagzi.Signal("added")), "which is not given"),
            (shopping.options(id="c", signal=kagzi.Signal("added"), on_conflict="return"), "restart_finished"),
        ):
            with pytest.raises(InvalidRequest, match=why):
                await wrong.start("ada")
        with pytest.raises(InvalidRequest, match=r"kagzi\.Signal"):
            shopping.options(id="c", signal="added")  # type: ignore[arg-type]
        assert len((await app.runs()).items) == 2


async def test_a_run_is_forked_from_a_chosen_step(home: str) -> None:
    app = Kagzi(home)
    done: list[str] = []

    @app.step
    async def charge(what: str) -> str:
        done.append(what)
        return what.upper()

    @app.workflow
    async def order(name: str) -> list[str]:
        paid = [await charge(f"{name} {part}") for part in ("one", "two", "three")]
        await kagzi.wait_signal("ship")
        return paid

    @app.workflow(name="order", version="2")
    async def order_2(name: str) -> list[str]:
        paid = [await charge(f"{name} {part}") for part in ("one", "two")]
        return [*paid, "second version"]

    async with app, app.worker():
        run = await order.options(id="order-1").start("ada")
        while len(await run.steps()) < 3:
            await asyncio.sleep(0.02)
        # It is live, and does not notice.
        fork = await run.fork(from_step="charge#2")
        await fork.signal("ship")
        assert await fork.result(timeout=60) == ["ADA ONE", "ADA TWO", "ADA THREE"]
        assert done == ["ada one", "ada two", "ada three", "ada two", "ada three"]
        assert ((await fork.get()).origin, (await fork.get()).id) == (run.id, None)
        other = await run.fork(input=("bob",), version="2")
        assert await other.result(timeout=60) == ["BOB ONE", "BOB TWO", "second version"]
        kept = await run.fork(from_step="charge#2", version="2")
        assert await kept.result(timeout=60) == ["ADA ONE", "ADA TWO", "second version"]
        assert (await app.find("order-1")).id == run.id
        await run.signal("ship")
        assert await run.result(timeout=60) == ["ADA ONE", "ADA TWO", "ADA THREE"]
        third = await run.fork(from_step="charge#3", input={"name": "ada"})
        await third.signal("ship")
        assert await third.result(timeout=60) == ["ADA ONE", "ADA TWO", "ADA THREE"]
        count = len((await app.runs()).items)
        with pytest.raises(InvalidRequest, match="known are"):
            await run.fork(version="3")
        with pytest.raises(NotFound, match="charge, charge#2, charge#3"):
            await run.fork(from_step="pay")
        with pytest.raises(TypeError):
            await run.fork(input=("ada", "bob"))
        with pytest.raises(InvalidRequest, match="tuple of arguments"):
            await run.fork(input="ada")  # type: ignore[arg-type]
        assert len((await app.runs()).items) == count


async def test_runs_go_on_in_another_version(home: str) -> None:
    old, new = Kagzi(home), Kagzi(home)
    done: list[str] = []

    def define(app: Kagzi, version: str) -> Any:
        @app.step
        async def charge(order: int) -> int:
            done.append(f"charge {order} in {version}")
            return order

        @app.workflow(version=version)
        async def checkout(order: int) -> str:
            paid = await charge(order)
            await kagzi.wait_signal("ship")
            return f"{paid} by {version}"

        return checkout

    first, _ = define(old, "1"), define(new, "2")
    async with old, new:
        async with old.worker():
            runs = [await first.options(id=f"order-{number}").start(number) for number in range(3)]
            for run in runs:
                while await run.status() is not RunStatus.SLEEPING:
                    await asyncio.sleep(0.02)
        with pytest.raises(InvalidRequest, match="version 2"):
            await old.move_runs("checkout", from_version="1", to_version="2")
        async with new.worker():
            counted = await new.move_runs("checkout", from_version="1", to_version="2", dry_run=True)
            assert (counted.moved, counted.running, (await runs[0].get()).version) == (3, 0, "1")
            assert (await new.move_runs("checkout", from_version="1", to_version="2")).moved == 3
            assert (await new.move_runs("checkout", from_version="1", to_version="2")).moved == 0
            for number, run in enumerate(runs):
                await run.signal("ship")
                assert await run.result(timeout=60) == f"{number} by 2"
        assert sorted(done) == [f"charge {number} in 1" for number in range(3)]
        with pytest.raises(InvalidRequest, match="nothing to move"):
            await new.move_runs("checkout", from_version="2", to_version="2")
        with pytest.raises(InvalidRequest, match="known are"):
            await new.move_runs("checkout", from_version="1", to_version="9")


async def test_a_run_that_waits_for_another_signal_since_a_deploy(home: str) -> None:
    """The signal it waited for before wakes it; it goes on waiting in the new code, and that signal stays."""
    old, new = Kagzi(home), Kagzi(home)

    def define(app: Kagzi, name: str) -> Any:
        @app.workflow
        async def release() -> str:
            return await kagzi.wait_signal(name, str)

        return release

    def waits_for(run: Run, name: str) -> bool:
        return run.status is RunStatus.SLEEPING and f"s:{name}" in run.waiting_for

    async def until_it_waits_for(handle: Any, name: str) -> None:
        async with asyncio.timeout(60):
            while not waits_for(await new.engine.workflows.get("default", handle.id), name):
                await asyncio.sleep(0.02)

    first, _ = define(old, "approved"), define(new, "signed")
    async with old, new:
        async with old.worker():
            handles = [await first.start() for _ in range(2)]
            for handle in handles:
                await until_it_waits_for(handle, "approved")
        early, late = handles
        await early.signal("signed", "by ada")  # no code that is known waits for it: the run sleeps on
        assert waits_for(await new.engine.workflows.get("default", early.id), "approved")
        async with new.worker():
            for handle in handles:
                await handle.signal("approved", "yes")
            assert await early.result(timeout=60) == "by ada"
            await until_it_waits_for(late, "signed")
            await late.signal("signed", "by bob")
            assert await late.result(timeout=60) == "by bob"
        for handle in handles:
            assert {each.name: each.taken for each in await handle.signals()} == {"approved": False, "signed": True}


async def test_runs_that_the_other_version_does_not_replay_stay_where_they_are(home: str) -> None:
    old, new = Kagzi(home), Kagzi(home)

    def define(app: Kagzi, version: str) -> Any:
        @app.step
        async def charge(order: int) -> int:
            return order

        @app.step
        async def reserve(order: int) -> int:
            return order

        @app.workflow(version=version)
        async def checkout(order: int, note: str | None = None) -> str:
            paid = await (reserve if version == "2" and order == 1 else charge)(order)
            await kagzi.wait_signal("ship")
            return f"{paid} by {version}"

        return checkout

    first, _ = define(old, "1"), define(new, "2")
    async with old, new:
        async with old.worker():
            runs = [await first.options(id=f"order-{number}").start(number) for number in range(3)]
            for run in runs:
                while await run.status() is not RunStatus.SLEEPING:
                    await asyncio.sleep(0.02)
        unfit = await old.engine.workflows.start(  # not begun
            StartRun(
                namespace="default",
                run_id=IDS.run_id(),
                workflow_type="checkout",
                task_queue="default",
                version="1",
                input=b'["ten"]',
                external_id="unfit",
            )
        )
        moving = {"from_version": "1", "to_version": "2", "force": True}
        with pytest.raises(InvalidRequest, match="cannot check a move to checkout 2: its versions there are 1"):
            await old.move_runs("checkout", **moving, check=True)
        with pytest.raises(InvalidRequest, match="known are 1"):
            await new.move_runs("checkout", from_version="1", to_version="2", check=True)
        for dry_run, versions in ((True, ["1", "1", "1"]), (False, ["2", "1", "2"])):
            done = await new.move_runs("checkout", **moving, check=True, dry_run=dry_run)
            assert (done.moved, done.running, done.changed) == (2, 0, 0)
            assert {each.id: each.run_id for each in done.refused} == {"order-1": runs[1].id, "unfit": unfit.run_id}
            calls = {each.id: each for each in done.refused}
            refused = calls["order-1"]
            assert (refused.event, refused.recorded) == (1, "step charge COMPLETED")
            assert refused.present == "would run again: charge (new: reserve)"
            assert re.search(r"test_restarts.py:\d+ in checkout$", refused.place)
            assert (calls["unfit"].event, calls["unfit"].recorded) == (0, 'called with ["ten"]')
            assert [(await run.get()).version for run in runs] == versions
        async with old.worker(), new.worker():
            for run in runs:
                await run.signal("ship")
            assert [await run.result(timeout=60) for run in runs] == ["0 by 2", "1 by 1", "2 by 2"]
