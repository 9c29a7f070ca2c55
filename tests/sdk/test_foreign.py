"""What belongs to another app cannot be part of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import kagzi
from kagzi import Kagzi, WorkflowFailed
from kagzi.testing import run_virtually

billing = Kagzi("memory://")
done: list[int] = []


@billing.step
async def charge(cents: int) -> int:
    done.append(cents)
    return cents


@billing.workflow
async def invoice(cents: int) -> int:
    return await charge(cents)


async def both() -> None:
    await asyncio.gather(charge(1), charge(2))


CALLS: dict[str, Callable[[], Any]] = {
    "step": lambda: charge(1),
    "step with options": lambda: charge.options(key="a")(1),
    "step by another name": lambda: kagzi.run_step("pay", charge, 1),
    "steps at once": both,
    "child": lambda: invoice.run(1),
    "child with options": lambda: invoice.options(queue="mail").run(1),
    "child that is spawned": lambda: invoice.spawn(1),
    "children": lambda: kagzi.map(invoice.run, [1, 2]),
    "part of the run": lambda: invoice(1),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_step_or_child_of_another_app_is_refused_with_both_names(what: str) -> None:
    shop = Kagzi("memory://")

    @shop.workflow
    async def checkout() -> Any:
        return await CALLS[what]()

    done.clear()
    with pytest.raises(WorkflowFailed) as failed:
        run_virtually(shop, checkout.run)
    name = "charge" if "step" in what else "invoice"
    message = str(failed.value)
    assert f"{name} ({__file__}:" in message
    assert "belongs to another app than the workflow checkout that calls it (at " in message
    assert done == []


def test_a_step_of_the_own_app_or_of_none_is_not_refused() -> None:
    shop = Kagzi("memory://")

    @shop.step
    async def ship(cents: int) -> int:
        return cents

    @shop.workflow
    async def parcel(cents: int) -> int:
        return await ship(cents)

    @shop.workflow
    async def checkout() -> list[int]:
        async def inline() -> int:
            return 3

        return [await ship(1), await parcel.run(2), await kagzi.run_step("inline", inline), await parcel(4)]

    assert run_virtually(shop, checkout.run) == [1, 2, 3, 4]
