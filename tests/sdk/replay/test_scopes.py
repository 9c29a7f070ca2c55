"""How steps and sleeps are named by the tasks that call them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.sdk.replay.host import step
from tests.sdk.replay.workflows import Workflow, charge, finish, value


def identities(workflow: Workflow) -> list[str]:
    _, host = finish(workflow)
    return sorted(step_id for step_id, _ in host.rows)


async def twice() -> None:
    await charge()
    await charge()


async def named_by_coroutine() -> None:
    await asyncio.gather(charge(), charge(), twice())


async def named_by_task() -> None:
    await asyncio.gather(
        asyncio.create_task(charge(), name="first"),
        asyncio.create_task(charge(), name="second"),
        asyncio.create_task(charge(), name="second"),
        asyncio.create_task(charge()),
    )


async def named_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(charge(), name="a/b#1")
        group.create_task(charge())


async def nested() -> None:
    async def outer() -> None:
        await asyncio.gather(charge(), charge())

    await asyncio.gather(outer(), charge())


async def slept() -> None:
    await asyncio.sleep(1)
    await asyncio.gather(asyncio.sleep(2), charge())
    await asyncio.sleep(3)


async def renamed() -> None:
    tasks = [asyncio.create_task(charge()) for _ in range(3)]
    tasks[1].set_name("middle")
    tasks[2].set_name("last")
    await asyncio.wait([*tasks, asyncio.create_task(charge())])


async def made_here_and_awaited_there() -> None:
    """A step's identity is fixed where it is called, not where it is awaited."""
    call = step("charge", value())
    await asyncio.gather(asyncio.create_task(_await(call), name="there"), step("charge", value()))


async def _await(call: Coroutine[Any, Any, Any]) -> Any:
    return await call


@pytest.mark.parametrize(
    ("workflow", "expected"),
    [
        (charge, ["charge"]),
        (twice, ["charge", "charge#2"]),
        (named_by_coroutine, ["charge#2/charge", "charge/charge", "twice/charge", "twice/charge#2"]),
        (named_by_task, ["charge/charge", "first/charge", "second#2/charge", "second/charge"]),
        (named_in_a_group, ["a%2Fb%231/charge", "charge/charge"]),
        (nested, ["charge/charge", "outer/charge#2/charge", "outer/charge/charge"]),
        (slept, ["@begin", "@sleep", "@sleep#2", "charge/charge", "sleep/@sleep"]),
        (renamed, ["charge#3/charge", "charge/charge", "last/charge", "middle/charge"]),
        (made_here_and_awaited_there, ["charge", "charge#2"]),
    ],
)
def test_identities(workflow: Workflow, expected: list[str]) -> None:
    assert identities(workflow) == expected
