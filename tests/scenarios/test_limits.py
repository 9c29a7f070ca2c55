"""Limits of how many runs run at once, asked at every home."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import kagzi
from kagzi import InvalidRequest, Kagzi, Limit, RunStatus
from kagzi.api.explanation import explain
from kagzi.clock import SystemClock


class Gauge:
    """How many run at once, by key, and the most that ever did."""

    def __init__(self) -> None:
        self.now: dict[str, int] = {}
        self.most: dict[str, int] = {}

    async def work(self, *keys: str) -> None:
        for key in keys:
            self.now[key] = self.now.get(key, 0) + 1
            self.most[key] = max(self.most.get(key, 0), self.now[key])
        await asyncio.sleep(0.02)
        for key in keys:
            self.now[key] -= 1


async def test_no_more_than_the_limits_run_and_all_of_them_finish(home: str) -> None:
    app, gauge = Kagzi(home), Gauge()

    @app.step
    async def charge(tenant: str, key: str) -> None:
        await gauge.work("all", key)

    @app.workflow(concurrency=[Limit(4), Limit(2, key="tenant")])
    async def checkout(tenant: str, key: str | None = None) -> str:
        await charge(tenant, key or tenant)
        return tenant

    @app.workflow
    async def free(tenant: str) -> str:
        return tenant

    async with app, app.worker(concurrency=20), app.worker(concurrency=20):
        runs = [await checkout.start("a") for _ in range(12)]
        runs += [await checkout.start(tenant) for tenant in ("b", "c", "d")]
        runs += [await checkout.options(limit_key="a").start("e", "a")]
        assert await (await free.start("f")).result(timeout=20) == "f"
        results = [await run.result(timeout=60) for run in runs]
        assert results == ["a"] * 12 + ["b", "c", "d", "e"]
        assert gauge.most["all"] <= 4
        assert gauge.most["a"] <= 2
        (limit,) = await app.limits.list()
        assert (limit.scope, limit.name, limit.concurrency, limit.key_concurrency) == ("workflow", "checkout", 4, 2)


async def test_what_somebody_sets_counts_until_it_is_cleared(home: str) -> None:
    app, gauge = Kagzi(home), Gauge()

    @app.step
    async def deliver() -> None:
        await gauge.work("all")

    @app.workflow(name="send", queue="mail")
    async def send() -> None:
        await deliver()
        await kagzi.sleep(1.5)  # parked: it holds no slot
        await deliver()

    async with app, app.worker(queues=["mail"], concurrency=20):
        await app.limits.set(queue="mail", concurrency=1)
        runs = [await send.start() for _ in range(4)]
        await asyncio.gather(*[run.result(timeout=60) for run in runs])
        assert gauge.most["all"] == 1
        await app.limits.set(workflow="send", concurrency=2)
        cleared = await app.limits.clear(queue="mail")
        assert cleared.concurrency is None
        runs = [await send.start() for _ in range(4)]
        await asyncio.gather(*[run.result(timeout=60) for run in runs])
        assert gauge.most["all"] <= 2


async def test_wrong_limits_are_refused_where_they_are_written() -> None:
    app = Kagzi("memory://")
    for wrong in (0, 10_001, True, "5"):
        with pytest.raises(InvalidRequest):
            Limit(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="none of its parameters"):

        @app.workflow(name="one", concurrency=Limit(5, key="tenant"))
        async def one(order: str) -> None: ...

    with pytest.raises(InvalidRequest, match="one key"):

        @app.workflow(name="two", concurrency=[Limit(5, key="a"), Limit(5, key="b")])
        async def two(a: str, b: str) -> None: ...

    @app.workflow(name="three", concurrency=Limit(5, key=lambda order: order["customer"]))
    async def three(order: dict[str, str]) -> None: ...

    async with app:
        with pytest.raises(InvalidRequest, match="cannot be made"):
            await three.start({})
        with pytest.raises(InvalidRequest, match="to hand out nothing, pause it"):
            await app.limits.set(queue="mail", concurrency=0)
        with pytest.raises(InvalidRequest, match="say queue="):
            await app.limits.set(concurrency=5)


async def test_children_of_a_key_count_for_it_and_one_that_waits_says_for_what(home: str) -> None:
    app, gauge = Kagzi(home), Gauge()
    held = asyncio.Event()

    @app.step
    async def charge(account: str) -> None:
        await gauge.work("all")
        await asyncio.wait_for(held.wait(), 60)

    @app.workflow(name="charge", concurrency=Limit(1, name="stripe", key="account"))
    async def charge_flow(account: str) -> None:
        await charge(account)

    @app.workflow(name="refund", concurrency=Limit(1, name="stripe", key="account"))
    async def refund(account: str) -> None:
        await charge(account)

    @app.workflow
    async def both(account: str) -> None:
        first = await charge_flow.spawn(account)
        second = await refund.options(limit_key=account).spawn("another")
        await first.result()
        await second.result()

    async with app, app.worker(concurrency=10):
        runs = [await both.start("acme") for _ in range(2)]
        engine: Any = app.engine
        deadline = asyncio.get_running_loop().time() + 60
        said: list[str | None] = []
        while not any(text and text.startswith("Waits for a slot of stripe/acme: 1 of 1 run, ") for text in said):
            assert asyncio.get_running_loop().time() < deadline, said
            await asyncio.sleep(0.05)
            found = [run async for run in app.search(status=RunStatus.PENDING)]
            shown = [await engine.workflows.get(run.namespace, run.run_id) for run in found]
            said = [await explain(engine, run, SystemClock().now()) for run in shown]
        held.set()
        await asyncio.gather(*[run.result(timeout=60) for run in runs])
        assert gauge.most["all"] == 1
