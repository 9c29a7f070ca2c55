"""What people change waits out an outage of the database, whichever call it is, and is done once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from kagzi.api.operations import RepeatRun, TerminateRun
from kagzi.api.schedules import CreateSchedule, UpdateSchedule
from kagzi.api.versions import CheckedRun
from kagzi.core.instant import SECOND
from kagzi.engine.local import LocalEngine
from kagzi.engine.settings import EngineSettings
from kagzi.errors import NotFound, Unavailable
from kagzi.store.sqlite import SqliteStore
from tests.engine.support import database_now, new_engine, new_registration, new_start, run

SCHEDULE: Final = "00000000-0000-7000-8000-0000000000a1"
RUN: Final = "00000000-0000-7000-8000-0000000000a2"
FIRED: Final = "00000000-0000-7000-8000-0000000000a3"
MINUTE: Final = 60 * SECOND


def _create(engine: LocalEngine) -> Awaitable[Any]:
    return engine.schedules.create(
        CreateSchedule(
            namespace="default",
            schedule_id=SCHEDULE,
            name="nightly",
            workflow_type="order",
            task_queue="shop",
            cron_expr="every 1m",
        )
    )


async def _runs_of(engine: LocalEngine) -> list[str]:
    return [run.run_id for run in (await engine.schedules.runs("default", SCHEDULE)).items]


async def _is_deleted(engine: LocalEngine) -> bool:
    with pytest.raises(NotFound):
        await engine.schedules.get("default", SCHEDULE)
    return True


# The call of the store that fails, the change, and what is there afterwards.
CHANGES: Final[dict[str, tuple[str, Callable[[LocalEngine], Awaitable[Any]], Callable[[LocalEngine], Any]]]] = {
    "a schedule is created": ("schedules.create", _create, lambda engine: engine.schedules.get("default", SCHEDULE)),
    "a schedule is changed": (
        "schedules.update",
        lambda engine: engine.schedules.update(
            UpdateSchedule(namespace="default", schedule_id=SCHEDULE, enabled=False)
        ),
        lambda engine: engine.schedules.get("default", SCHEDULE),
    ),
    "a schedule is triggered": (
        "schedules.trigger",
        lambda engine: engine.schedules.trigger("default", "nightly", FIRED),
        _runs_of,
    ),
    "a schedule is caught up with": (
        "schedules.backfill",
        lambda engine: engine.schedules.backfill("default", SCHEDULE, database_now() - 3 * MINUTE, database_now()),
        _runs_of,
    ),
    "a schedule is deleted": (
        "schedules.delete",
        lambda engine: engine.schedules.delete("default", "nightly"),
        _is_deleted,
    ),
    "runs are moved": (
        "versions.move_runs",
        lambda engine: engine.versions.move("default", "order", "1", "2", force=True),
        lambda engine: engine.workflows.get("default", RUN),
    ),
    "checked runs are moved": (
        "versions.move_checked_runs",
        lambda engine: engine.versions.move_checked(
            "default", "order", "1", "2", [CheckedRun(run_id=RUN, executions=0)]
        ),
        lambda engine: engine.workflows.get("default", RUN),
    ),
    "a version becomes the default": (
        "versions.set_default",
        lambda engine: engine.versions.set_default("default", "order", "2", force=True),
        lambda engine: engine.versions.list("default", "order"),
    ),
    "a run is done again": (
        "runs.facts_of",
        lambda engine: engine.workflows.repeat(
            RepeatRun(namespace="default", run_id=FIRED, of_run_id=RUN, keep_steps=False)
        ),
        lambda engine: engine.workflows.get("default", FIRED),
    ),
}


async def _changed(change: str, *, lost: str = "", tries: int = 0) -> Any:
    store = SqliteStore(None, now=database_now, inline=True)
    async with new_engine(store) as engine:
        await engine.workers.register(new_registration())
        await engine.workflows.start(new_start(engine, run_id=RUN, external_id="r"))
        named, make, look = CHANGES[change]
        if change != "a schedule is created":
            await _create(engine)
        if change == "a run is done again":
            await engine.workflows.terminate(TerminateRun(namespace="default", run_id=RUN, reason="no more"))
        noun, _, verb = named.partition(".")
        _break(getattr(store, noun), verb, lost, tries)
        await make(engine)
        return await look(engine)


def _break(part: Any, verb: str, lost: str, tries: int) -> None:
    """Loses the question or the answer of the first tries."""
    method = getattr(part, verb)
    left = [tries]

    async def ask(*args: Any, **named: Any) -> Any:
        if left[0] and lost == "question":
            left[0] -= 1
            raise Unavailable("lost")
        answer = await method(*args, **named)
        if left[0]:
            left[0] -= 1
            raise Unavailable("lost")
        return answer

    setattr(part, verb, ask)


@pytest.mark.parametrize("lost", ["question", "answer"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_made_again_until_it_is_answered_and_done_once(change: str, lost: str) -> None:
    undisturbed = run(lambda: _changed(change))
    disturbed = run(lambda: _changed(change, lost=lost, tries=4))
    assert _without_times(disturbed) == _without_times(undisturbed)


def test_patience_ends() -> None:
    async def main() -> float:
        store = SqliteStore(None, now=database_now, inline=True)
        async with new_engine(store, settings=EngineSettings(patience=5 * SECOND)) as engine:
            _break(store.schedules, "create", "question", 10**9)
            began = asyncio.get_running_loop().time()
            with pytest.raises(Unavailable):
                await _create(engine)
            return asyncio.get_running_loop().time() - began

    assert 5 <= run(main) <= 9


def _without_times(found: Any) -> Any:
    """What is there, but for the moments at which it came about."""
    if isinstance(found, list | bool):
        return len(found) if isinstance(found, list) else found
    return {
        name: value
        for name in found.__struct_fields__
        if not name.endswith("_at") and not isinstance(value := getattr(found, name), tuple)
    }
