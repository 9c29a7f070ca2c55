"""Limits of how many runs run at once, asked at every home."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import kagzi
from kagzi import InvalidRequest, Kagzi, Limit, Rate, RunStatus
from kagzi.api.explanation import explain
from kagzi.clock import SystemClock
from kagzi.testing import run_virtually


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
    for path in ("tenant.", ".tenant", "tenant..id"):
        with pytest.raises(InvalidRequest, match="must be a parameter or a path into one"):
            Limit(5, key=path)
    with pytest.raises(InvalidRequest, match="key 'tenant' of a limit of one is none of its parameters"):

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


async def test_numbers_that_are_none_are_told_at_every_home(home: str) -> None:
    app = Kagzi(home)
    async with app:
        for field in ("concurrency", "key_concurrency"):
            for wrong in (1.5, "5", True):
                with pytest.raises(InvalidRequest, match=f"{field} must be a whole number"):
                    await app.limits.set(queue="mail", **{field: wrong})  # type: ignore[arg-type]


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


async def test_runs_begin_no_more_often_than_their_rate_and_all_of_them_do(home: str) -> None:
    app = Kagzi(home)

    @app.workflow(name="look_up", rate=Rate(20, "1s", burst=3))
    async def look_up() -> None:
        await kagzi.sleep(1.1)  # parked; to go on takes no turn

    @app.workflow(name="mail", queue="mail")
    async def mail() -> int:
        return 1

    async with app, app.worker(queues=["default", "mail"], concurrency=20):
        await app.limits.set(queue="mail", rate=Rate(1, "1h", burst=2))
        runs = [await look_up.start() for _ in range(30)]
        mails = [await mail.start() for _ in range(3)]
        await asyncio.gather(*[run.result(timeout=60) for run in runs])
        began = [(await run.get()).started_at for run in runs]
        first, last = min(filter(None, began)), max(filter(None, began))
        assert last - first > timedelta(seconds=0.5)  # 27 behind the burst, 50 ms each
        done, pending = [], []
        for run in mails:
            try:
                done.append(await run.result(timeout=60 if len(done) < 2 else 0.1))
            except TimeoutError:
                pending.append(run)
        assert (len(done), len(pending)) == (2, 1)
        shown = {limit.name: limit for limit in await app.limits.list()}
        assert (shown["look_up"].rate, shown["mail"].rate) == (Rate(20, "1s", burst=3), Rate(1, "1h", burst=2))
        await app.limits.clear(queue="mail")
        assert await pending[0].result(timeout=60) == 1


async def test_keys_that_take_turns_all_get_theirs(home: str) -> None:
    app = Kagzi(home)
    order: list[str] = []

    @app.workflow(name="import_file", fair="tenant", rate=Rate(1000, "1s", burst=100, key="tenant"))
    async def import_file(tenant: str) -> None:
        order.append(tenant)

    async with app:
        runs = [await import_file.start("many") for _ in range(40)]
        runs += [await import_file.start("few") for _ in range(2)]
        async with app.worker(concurrency=1):
            await asyncio.gather(*[run.result(timeout=60) for run in runs])
    assert len(order) == 42
    assert order[:10].count("few") == 2


def test_wrong_rates_and_turns_are_refused_where_they_are_written() -> None:
    app = Kagzi("memory://")
    for wrong in ((0, "1m"), (1, "0s"), (1, "400d"), (True, "1m")):
        with pytest.raises(InvalidRequest):
            Rate(*wrong)
    with pytest.raises(InvalidRequest, match="burst"):
        Rate(1, "1s", burst=0)
    with pytest.raises(InvalidRequest, match="one key"):

        @app.workflow(name="one", concurrency=Limit(5, key="tenant"), fair="account")
        async def one(tenant: str, account: str) -> None: ...

    with pytest.raises(InvalidRequest, match=r"key 'tenant' of the turns \(fair\) of two is none of its parameters"):

        @app.workflow(name="two", fair="tenant")
        async def two(order: str) -> None: ...

    with pytest.raises(InvalidRequest, match="must be a Rate"):

        @app.workflow(name="three", rate=5)  # type: ignore[call-overload]
        async def three() -> None: ...


@pytest.mark.parametrize("queue", [None, "elsewhere"])
def test_a_parent_under_a_limit_keeps_no_slot_for_children_that_need_it(queue: str | None) -> None:
    """Else each generation would wait for a second of the one above it."""
    app = Kagzi("memory://")

    @app.workflow(name="chain", concurrency=Limit(1, name="line"))
    async def chain(generations: int) -> int:
        return 1 + (await other.options(queue=queue).run(generations - 1) if generations else 0)

    @app.workflow(name="other", concurrency=Limit(1, name="line"))
    async def other(generations: int) -> int:
        return 1 + (await chain.options(queue=queue).run(generations - 1) if generations else 0)

    async def main() -> tuple[int, float]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        return await (await chain.start(6)).result(), loop.time() - began

    generations, took = run_virtually(app, main, queues=("default", "elsewhere"))
    assert generations == 7
    assert took < 0.5


def test_a_parent_under_a_limit_waits_for_other_children_for_a_second_in_all() -> None:
    app = Kagzi("memory://")

    @app.workflow(queue="elsewhere")
    async def slow(seconds: float) -> None:
        await asyncio.sleep(seconds)

    @app.workflow(concurrency=Limit(1))
    async def parent() -> list[str]:
        for _ in range(6):
            await slow.run(0.4)  # each of them soon enough to be waited for
        return []

    @app.workflow(name="next", concurrency=Limit(1, name="parent"))
    async def following() -> float:
        return kagzi.now().timestamp()

    async def main() -> tuple[float, int]:
        run = await parent.start()
        await asyncio.sleep(0.1)
        later = await following.start()
        began = await later.result() - (await run.get()).created_at.timestamp()
        await run.result()
        return began, (await run.get()).executions

    began, executions = run_virtually(app, main, queues=("default", "elsewhere"))
    assert 1 <= began < 1.3  # when the parent lets go of its slot, and not after all its children
    assert 2 <= executions < 7  # it does not park for each of them
