"""Several versions of one workflow: which one a start gets, and which can be removed."""

from __future__ import annotations

import asyncio

import pytest

from kagzi import InvalidRequest, Kagzi, RunStatus, VersionRecord
from kagzi.api.operations import StartRun
from kagzi.clock import SystemClock
from kagzi.ids import RandomIds

IDS = RandomIds(SystemClock().now)


def app_with(home: str, *versions: str) -> Kagzi:
    app = Kagzi(home)
    for version in versions:

        @app.workflow(name="checkout", version=version)
        async def checkout(answer: str = version) -> str:
            return answer

    return app


async def start_by_name(app: Kagzi, version: str | None = None) -> str:
    """As commands and HTTP do; returns the id of the run."""
    start = StartRun(
        namespace="default",
        run_id=IDS.run_id(),
        workflow_type="checkout",
        task_queue="default",
        version=version,
        input=b"[]",
    )
    return (await app.engine.workflows.start(start)).run_id


async def version_by_name(app: Kagzi) -> str:
    run_id = await start_by_name(app)
    return (await app.engine.workflows.get("default", run_id)).version


async def by_version(app: Kagzi) -> dict[str | None, VersionRecord]:
    return {each.version: each for each in await app.versions("checkout")}


async def until_it_is(app: Kagzi, version: str) -> None:
    """What was looked up counts for a second."""
    async with asyncio.timeout(10):
        while await version_by_name(app) != version:
            await asyncio.sleep(0.05)


async def test_starts_by_name_get_the_newest_version_until_somebody_sets_a_default(home: str) -> None:
    async with app_with(home, "1") as old, app_with(home, "1", "2") as new:
        assert await old.versions("checkout") == ()
        assert await version_by_name(old) == "1"
        async with old.worker():
            async with new.worker():
                await until_it_is(old, "2")
                run = old.handle(await start_by_name(old))
                assert await run.result(timeout=20) == "2"
                named = old.handle(await start_by_name(old, "1"))
                assert await named.result(timeout=20) == "1"
                await new.set_default_version("checkout", "1")
                await until_it_is(old, "1")
                assert (await by_version(new))["1"].chosen
            # Remembered when its workers are away.
            await old.set_default_version("checkout", "2")
            await until_it_is(old, "2")
            waiting = old.handle(await start_by_name(old))
            await asyncio.sleep(0.1)
            assert await waiting.status() is RunStatus.PENDING
            await old.set_default_version("checkout", None)
            await until_it_is(old, "2")
            assert not (await by_version(old))["2"].chosen


async def test_starts_in_python_get_the_version_they_are_called_on(home: str) -> None:
    async with app_with(home, "1", "2") as app, app.worker():
        await app.set_default_version("checkout", "2")
        checkout = app.find_workflow("checkout", "1")
        assert checkout is not None
        assert await checkout.run() == "1"
        assert await checkout.options(version="2").run() == "2"


async def test_a_default_that_no_worker_has_offered_is_refused_unless_forced(home: str) -> None:
    async with app_with(home, "1", "2") as app:
        with pytest.raises(InvalidRequest, match="no worker has ever offered workflow checkout in namespace default"):
            await app.set_default_version("checkout", "2")
        async with app.worker():
            with pytest.raises(InvalidRequest, match=r"version 3 of workflow checkout .* known are 2, 1"):
                await app.set_default_version("checkout", "3")
            for wrong in ("", "v" * 256, "\0"):
                with pytest.raises(InvalidRequest, match="version"):
                    await app.set_default_version("checkout", wrong)
            with pytest.raises(InvalidRequest, match="workflow must be a workflow or the name of one, not 7"):
                await app.set_default_version(7, "1")  # type: ignore[arg-type]
            await app.set_default_version("checkout", "3", force=True)
            assert await version_by_name(app) == "3"
            found = await by_version(app)
            assert (found["3"].first_seen_at, found["3"].default, found["3"].pending) == (None, True, 1)
            assert [each.version for each in await app.versions()] == [each.version for each in found.values()]


async def test_a_version_that_no_run_needs_can_be_retired(home: str) -> None:
    async with app_with(home, "1", "2") as app:
        run = app.handle(await start_by_name(app, "1"))
        assert [each.pending for each in await app.versions("checkout")] == [1]
        async with app.worker():
            assert await run.result(timeout=20) == "1"
            found = await by_version(app)
            assert {version: each.can_be_retired for version, each in found.items()} == {"1": True, "2": False}
            assert {version: each.workers_online for version, each in found.items()} == {"1": 1, "2": 1}
            assert found["1"].queues == ("default",)
