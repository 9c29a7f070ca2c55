"""An outage of the database or the server, and what an app asks meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

import kagzi
from kagzi import Kagzi, Runs
from kagzi.errors import InvalidRequest, Unavailable
from kagzi.testing import run_virtually


class Outage:
    """An engine whose services are out of reach until a moment of the loop."""

    def __init__(self, engine: Any, until: float) -> None:
        self._engine = engine
        self.until = until
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        service = getattr(self._engine, name)
        if name not in ("workflows", "schedules", "jobs", "limits", "versions", "admin"):
            return service
        return _Service(self, service)


class _Service:
    def __init__(self, outage: Outage, service: Any) -> None:
        self._outage = outage
        self._service = service

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            if asyncio.get_running_loop().time() < self._outage.until:
                self._outage.refused += 1
                raise Unavailable("the database is out of reach")
            return await getattr(self._service, name)(*args, **kwargs)

        return call


app = Kagzi("memory://")


@app.workflow
async def order() -> str:
    kagzi.set_value("stage", 1)
    return await kagzi.wait_signal("approved", str)


async def _listed(runs: Any) -> list[Any]:
    return [each async for each in runs]


# By what a user writes: the app, and a handle on a run that has an id and waits.
CALLS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "app.signal": lambda it: it.app.signal("o-1", "approved", "yes"),
    "app.find": lambda it: it.app.find("o-1"),
    "app.runs": lambda it: it.app.runs(),
    "app.search": lambda it: _listed(it.app.search(status="SLEEPING")),
    "app.versions": lambda it: it.app.versions(),
    "app.set_default_version": lambda it: it.app.set_default_version("order", "1"),
    "app.move_runs": lambda it: it.app.move_runs("order", from_version="0", to_version="1"),
    "app.queues": lambda it: it.app.queues.pause("mail"),
    "app.limits": lambda it: it.app.limits.list(),
    "app.schedules.list": lambda it: it.app.schedules.list(),
    "app.jobs.preview": lambda it: it.app.jobs.preview("cancel", Runs(status="SLEEPING")),
    "schedule.info": lambda it: it.nightly.info(),
    "run.get": lambda it: it.run.get(),
    "run.steps": lambda it: it.run.steps(),
    "run.signal": lambda it: it.run.signal("approved", "yes"),
    "run.signals": lambda it: it.run.signals(),
    "run.value": lambda it: it.run.value("stage"),
    "run.fork": lambda it: it.run.fork(),
    "run.cancel": lambda it: it.run.cancel(),
    "run.terminate": lambda it: it.run.terminate(),
    "run.wake": lambda it: it.run.wake(),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_outage_is_waited_out(call: str) -> None:
    async def scenario() -> None:
        run = await order.options(id="o-1").start()
        nightly = await app.schedules.create("nightly", order, cron="@daily")
        it = SimpleNamespace(app=app, run=run, nightly=nightly)
        await asyncio.sleep(1)
        loop, engine = asyncio.get_running_loop(), app._engine
        outage = Outage(engine, loop.time() + 10)
        app._engine = outage  # type: ignore[assignment]
        try:
            await CALLS[call](it)
            assert 2 <= outage.refused <= 20, call
            outage.until = loop.time() + 3600
            begun = loop.time()
            with pytest.raises(Unavailable):
                await CALLS[call](it)
            assert 25 <= loop.time() - begun <= 31, "and no longer than a write is"
        finally:
            app._engine = engine

    run_virtually(app, scenario)


def test_an_app_that_is_closed_meanwhile_says_so_at_once() -> None:
    async def scenario() -> None:
        engine = app._engine
        app._engine = Outage(engine, asyncio.get_running_loop().time() + 3600)  # type: ignore[assignment]
        asked = asyncio.ensure_future(app.runs())
        await asyncio.sleep(0.01)
        app._engine, opening = None, app._opening
        app._opening = None
        try:
            with pytest.raises(InvalidRequest, match="not open"):
                await asked
        finally:
            app._engine, app._opening = engine, opening

    run_virtually(app, scenario)
