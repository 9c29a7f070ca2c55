"""Who waits in a server for the end of which run."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

import pytest

from kagzi.api.reply import Reply
from kagzi.api.workflows import HostedWorkflows
from kagzi.core.instant import SECOND, Span
from kagzi.core.run import Run, RunStatus
from kagzi.errors import NotFound, Unavailable
from kagzi.rpc.server.services import waits as module
from kagzi.rpc.server.services.waits import Waits

SOON: Span = SECOND // 100
LONG: Span = 60 * SECOND


def run_of(run_id: str, status: RunStatus = RunStatus.COMPLETED) -> Run:
    fields: dict[str, Any] = dict.fromkeys(Run.__struct_fields__)
    return Run(**{**fields, "namespace": "default", "run_id": run_id, "status": status})


class Workflows:
    """Ends pass by for runs in `alive`; others are looked for, and found when `found` has them."""

    def __init__(self, *alive: str) -> None:
        self.alive = set(alive)
        self.expected: dict[str, Reply[Run | None]] = {}
        self.found: dict[str, asyncio.Future[Run]] = {}
        self.asked = Counter[str]()

    def expect(self, _: str, run_id: str) -> Reply[Run | None] | None:
        self.asked["expect"] += 1
        if run_id not in self.alive:
            return None
        reply: Reply[Run | None] = Reply()
        self.expected[run_id] = reply
        return reply

    def unexpect(self, _: str, run_id: str, reply: Reply[Run | None]) -> None:
        assert self.expected.pop(run_id) is reply

    async def get(self, _: str, run_id: str) -> Run:
        self.asked["get"] += 1
        return await self._found(run_id)

    async def wait(self, _: str, run_id: str, __: Span) -> Run:
        self.asked["wait"] += 1
        return await self._found(run_id)

    async def _found(self, run_id: str) -> Run:
        return await self.found.setdefault(run_id, asyncio.get_running_loop().create_future())


def waits_for(workflows: Workflows) -> Waits:
    return Waits(cast("HostedWorkflows", workflows))


async def waiting(waits: Waits, *run_ids: str) -> asyncio.Task[Any]:
    task = asyncio.create_task(waits.any_of("default", run_ids, LONG))
    await asyncio.sleep(0)
    return task


async def test_an_end_that_passes_by_is_told_and_nobody_looks_for_it() -> None:
    workflows = Workflows("one", "two")
    waits = waits_for(workflows)
    call = await waiting(waits, "one", "two")
    workflows.expected["two"].settle(run_of("two"))
    runs, unknown, trouble = await call
    assert ([run.run_id for run in runs], unknown, trouble) == (["two"], [], None)
    assert workflows.asked == {"expect": 2}
    assert len(asyncio.all_tasks()) == 1


async def test_an_end_between_two_calls_is_there_for_the_next_until_it_was_sent() -> None:
    workflows = Workflows("one")
    waits = waits_for(workflows)
    assert await waits.any_of("default", ["one"], SOON) == ([], [], None)
    workflows.expected["one"].settle(run := run_of("one"))
    for _ in range(2):
        assert await waits.any_of("default", ["one"], LONG) == ([run], [], None)
    assert workflows.asked == {"expect": 1}
    waits.sent(run)
    await waits.any_of("default", ["one"], SOON)
    assert workflows.asked == {"expect": 2}


async def test_an_end_that_was_missed_is_looked_for() -> None:
    workflows = Workflows("one")
    waits = waits_for(workflows)
    call = await waiting(waits, "one")
    workflows.expected["one"].settle(None)
    await asyncio.sleep(0)
    workflows.found["one"].set_result(run_of("one"))
    assert [run.run_id for run in (await call)[0]] == ["one"]
    assert workflows.asked == {"expect": 1, "get": 1}


async def test_a_run_that_goes_on_after_all_is_waited_for() -> None:
    workflows = Workflows("one")
    waits = waits_for(workflows)
    call = await waiting(waits, "one")
    workflows.expected["one"].settle(None)
    await asyncio.sleep(0)
    first = workflows.found.pop("one")
    first.set_result(run_of("one", RunStatus.RUNNING))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not call.done()
    workflows.found["one"].set_result(run_of("one"))
    assert [run.run_id for run in (await call)[0]] == ["one"]
    assert workflows.asked == {"expect": 1, "get": 1, "wait": 1}


@pytest.mark.parametrize(
    ("error", "unknown", "trouble"), [(NotFound("no"), ["one"], None), (Unavailable("away"), [], Unavailable)]
)
async def test_what_goes_wrong_is_said_once_and_asked_again(error: Exception, unknown: list[str], trouble: Any) -> None:
    workflows = Workflows()
    waits = waits_for(workflows)
    call = await waiting(waits, "one")
    await asyncio.sleep(0)
    workflows.found.pop("one").set_exception(error)
    runs, not_there, problem = await call
    assert (runs, not_there, None if problem is None else type(problem)) == ([], unknown, trouble)
    await waits.any_of("default", ["one"], SOON)
    assert workflows.asked == {"expect": 2, "wait": 2}
    waits.close()


async def test_what_nobody_foresaw_is_not_kept_secret() -> None:
    workflows = Workflows()
    waits = waits_for(workflows)
    call = await waiting(waits, "one")
    await asyncio.sleep(0)
    workflows.found.pop("one").set_exception(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await call


async def test_a_run_that_nobody_asks_for_any_more_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT_SECONDS", 0.02)
    workflows = Workflows("expected")
    waits = waits_for(workflows)
    await waits.any_of("default", ["expected", "looked for"], SOON)
    assert workflows.expected
    async with asyncio.timeout(10):
        while workflows.expected or len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.005)


async def test_a_closed_server_expects_nothing() -> None:
    workflows = Workflows("expected")
    waits = waits_for(workflows)
    await waits.any_of("default", ["expected", "looked for"], SOON)
    waits.close()
    await asyncio.sleep(0)
    assert not workflows.expected
    assert len(asyncio.all_tasks()) == 1
