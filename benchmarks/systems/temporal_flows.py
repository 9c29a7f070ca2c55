"""The workflows of all systems as Temporal's users write them; they have the names that they have in the others."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta

from temporalio import activity, workflow

from benchmarks.systems.driver import CHILDREN

A_MINUTE = timedelta(minutes=1)

fired: list[tuple[float, float]] = []  # for when, and when its activity began


@activity.defn
async def add_one(x: int) -> int:
    return x + 1


@activity.defn
async def note(nominal: float) -> None:
    fired.append((nominal, time.time()))


@workflow.defn
class one_step:
    @workflow.run
    async def run(self, x: int) -> int:
        return await workflow.execute_activity(add_one, x, start_to_close_timeout=A_MINUTE)


@workflow.defn
class family:
    @workflow.run
    async def run(self, x: int) -> int:
        children = (workflow.execute_child_workflow(one_step.run, x + i) for i in range(CHILDREN))
        return sum(await asyncio.gather(*children))


@workflow.defn
class told:
    def __init__(self) -> None:
        self._found: int | None = None

    @workflow.signal
    def go(self, x: int) -> None:
        self._found = x

    @workflow.run
    async def run(self, x: int) -> int:  # noqa: ARG002
        await workflow.wait_condition(lambda: self._found is not None)
        assert self._found is not None
        return self._found


@workflow.defn
class tick:
    @workflow.run
    async def run(self) -> None:
        # A firing has the time it is for at the end of its id.
        nominal = datetime.fromisoformat(workflow.info().workflow_id[-20:])
        await workflow.execute_activity(note, nominal.timestamp(), start_to_close_timeout=A_MINUTE)


FLOWS = (one_step, family, told, tick)
ACTIVITIES = (add_one, note)
