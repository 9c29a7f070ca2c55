"""What users write, with the types they must get. Checked by test_typing.py, never run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, assert_type

import kagzi
from kagzi import Context, Handle, Kagzi, Retry, Step, Workflow, run_step

T = TypeVar("T")

app = Kagzi("memory://")


@dataclass
class Order:
    id: str
    cents: int


@app.step
def charge(order: Order) -> str:
    return f"pay_{order.id}"


@app.step
async def reserve(sku: str, *, qty: int = 1) -> bool:
    return qty > len(sku)


@app.step(retry=Retry(attempts=3, first="1s", give_up_on=(ValueError, "shop.CardDeclined")), timeout="30s")
def weigh(order: Order, factor: float = 1.0) -> float:
    return order.cents * factor


@app.step(name="ship-it", timeout=timedelta(seconds=30))
async def ship(order: Order, skus: list[str]) -> dict[str, int]:
    return {order.id: len(skus)}


@app.step()
async def ping() -> None: ...


@app.workflow
async def send_receipt(order_id: str) -> int:
    return len(order_id)


@app.workflow(version="2", queue="shop", timeout="1h", retry=Retry.fixed("5s", attempts=10))
async def checkout(order: Order, skus: list[str], *, express: bool = False) -> dict[str, str]:
    payment = await charge(order)
    assert_type(payment, str)
    assert_type(await reserve("a", qty=2), bool)
    assert_type(await reserve.options(key="a", timeout="5s", retry=Retry.none)("a"), bool)
    assert_type(await weigh(order), float)
    assert_type(await send_receipt.run(order.id), int)
    assert_type(await asyncio.gather(*(send_receipt.run(sku) for sku in skus)), list[int])
    child = await send_receipt.options(key="a", on_parent_end="abandon").spawn(order.id)
    assert_type(child, kagzi.ChildRun[int])
    assert_type(await child.result(timeout="1h"), int)
    assert_type(await child.result(default=None), int | None)
    assert_type(await child.cancel(), bool)
    assert_type(await weigh(order, factor=2.0), float)
    assert_type(await ship(order, skus), dict[str, int])
    assert_type(await ping(), None)

    both = await asyncio.gather(charge(order), reserve("a"))
    assert_type(both, tuple[str, bool])
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        tasks = [group.create_task(reserve(sku), name=sku) for sku in skus]
    assert_type([task.result() for task in tasks], list[bool])

    assert_type(await run_step("label", lambda: f"LBL-{order.id}"), str)
    assert_type(await run_step("plain", plain, 1, b="x"), list[str])
    assert_type(await run_step("coroutine", coroutine, 1), bytes)
    assert_type(await run_step("again", charge, order), str)
    assert_type(await kagzi.run_step("length", len, "abc"), int)

    assert_type(await send_receipt(order.id), int)
    await kagzi.sleep("1 day")
    await kagzi.sleep("wait", timedelta(days=1))
    assert_type(kagzi.now(), datetime)
    return {"payment": payment, "express": str(express)}


@app.workflow
async def with_context(ctx: Context, order: Order, *, retries: int = 0) -> str:
    assert_type(ctx.now(), datetime)
    return order.id * retries


@app.workflow(name="named")
async def with_context_too(ctx: kagzi.Context) -> int:
    return len(ctx.run_id)


@app.workflow
async def nothing() -> None: ...


def plain(a: int, b: str) -> list[str]:
    return [b] * a


async def coroutine(a: int) -> bytes:
    return bytes(a)


async def identity(value: T) -> T:
    return value


def takes_step(step: Step[[Order], str]) -> None:
    assert_type(step.name, str)


def takes_workflow(workflow: Workflow[[str], int]) -> None:
    assert_type(workflow.version, str)


async def main() -> None:
    order = Order("42", 999)
    call: Coroutine[Any, Any, str] = charge(order)
    assert_type(await asyncio.create_task(call), str)
    takes_step(charge)
    takes_workflow(send_receipt)
    async with app:
        run = await checkout.options(id="order-42", queue="shop", priority=3).start(order, ["a"], express=True)
        assert_type(run, Handle[dict[str, str]])
        assert_type(run.id, str)
        assert_type(await run.result(timeout=60), dict[str, str])
        assert_type(await app.find("order-42"), Handle[Any])
        assert_type(await app.find("order-42", checkout), Handle[dict[str, str]])
        record = await run.get()
        assert_type((record.id, record.queue, record.workflow), tuple[str | None, str, str])
        assert_type(await (await with_context.start(order, retries=2)).result(), str)
        assert_type(await (await with_context_too.start()).result(), int)
        assert_type(await nothing.run(), None)
        assert_type(await send_receipt.run("x"), int)
        later = send_receipt.options(delay="5m", deadline=datetime.now(UTC), on_conflict="fail", version="2")
        assert_type(await later.start("x"), Handle[int])
        assert_type(await send_receipt.options(start_at=datetime.now(UTC)).start("x"), Handle[int])
        assert_type(await run_step("identity", identity, 3), int)
        assert_type(await run_step("identity", charge.fn, order, key="x", rooted=True, context="caller"), Any)
        assert_type(await run_step("shout", str.upper, "x", rooted=True), str)


@app.resource
async def pool() -> AsyncIterator[Shop]:
    yield Shop()


@app.resource
def settings() -> Iterator[dict[str, int]]:
    yield {}


def main_sync(order: Order) -> None:
    assert_type(pool(), Shop)
    assert_type(settings(), dict[str, int])
    app.lifespan(worker=True)
    with app, app.worker_sync(queues=["shop"]):
        run = send_receipt.options(id="x").start_sync("x")
        assert_type(run, Handle[int])
        assert_type(run.result_sync(timeout=60), int)
        assert_type(run.retry_sync(), Handle[int])
        assert_type(run.value_sync("stage", str), str)
        assert_type(run.value_sync("stage", str, default=None), str | None)
        assert_type(send_receipt.run_sync("x"), int)
        assert_type(in_order.start_sync(order), Handle[str])
        assert_type(app.find_sync("x", send_receipt), Handle[int])
        assert_type(charge.options(id="x").start_sync(order), Handle[str])
        assert_type(app.schedules.create_sync("nightly", send_receipt, "x", cron="0 2 * * *").id, str)
    app.run_worker(queues=["shop"], concurrency=100)


@app.workflow
def in_order(ctx: Context, order: Order) -> str:
    payment = charge.call(order)
    assert_type(payment, str)
    assert_type(reserve.call("a", qty=2), bool)
    kagzi.sleep("1 day")
    kagzi.sleep("wait a day", timedelta(days=1))
    kagzi.sleep_until(kagzi.now() + timedelta(days=1))
    ctx.sleep("wait a day", "1 day")
    assert_type(send_receipt.call(order.id), int)
    return payment


async def use_in_order(order: Order) -> None:
    run = await in_order.start(order)
    assert_type(await run.result(), str)
    waited = await asyncio.gather(kagzi.sleep("1s"), charge(order))
    assert_type(waited, tuple[None, str])


@app.step
def in_a_thread(order: Order) -> str:
    kagzi.sleep("200ms")
    return charge.call(order)


class Shop:
    def price(self, cents: int) -> str:
        return str(cents)

    async def close(self) -> None: ...


shop = Shop()
price = app.step(shop.price)
close = app.workflow(shop.close)


def outside(order: Order) -> None:
    assert_type(charge.call(order), str)
    assert_type(asyncio.run(reserve("a")), bool)
    assert_type(price.call(3), str)
    takes_bound(price)


def takes_bound(step: Step[[int], str]) -> None:
    assert_type(step.name, str)


async def use_methods() -> None:
    assert_type(await price(3), str)
    assert_type(await close.run(), None)
