"""Which version a start gets that names none: what is asked of the database, and when."""

from __future__ import annotations

import asyncio

import pytest

from kagzi.core.versions import FIRST_VERSION, Resolved
from kagzi.core.worker import WorkflowType
from kagzi.errors import Unavailable
from tests.engine.support import SlotWorker, count_calls, new_engine, new_registration, new_start, run


def test_a_start_that_names_a_version_asks_nothing() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            calls = count_calls(engine.store)  # type: ignore[arg-type]
            started = await engine.workflows.start(new_start(engine, version="7"))
            assert (await engine.workflows.get("default", started.run_id)).version == "7"
            assert calls["versions.resolve"] == 0

    run(main)


def test_starts_that_name_none_ask_once_a_second_for_all() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            calls = count_calls(engine.store)  # type: ignore[arg-type]
            await asyncio.gather(*(engine.workflows.start(new_start(engine, version=None)) for _ in range(100)))
            assert calls["versions.resolve"] == 1
            await asyncio.sleep(0.9)
            await engine.workflows.start(new_start(engine, version=None))
            assert calls["versions.resolve"] == 1
            await asyncio.sleep(0.2)
            await engine.workflows.start(new_start(engine, version=None))
            assert calls["versions.resolve"] == 2
            await engine.workflows.start(new_start(engine, workflow_type="other", version=None))
            assert calls["versions.resolve"] == 3

    run(main)


def test_a_new_version_is_used_within_a_second_and_a_default_set_here_at_once() -> None:
    async def main() -> None:
        async with new_engine() as engine:

            async def version() -> str:
                started = await engine.workflows.start(new_start(engine, version=None))
                return (await engine.workflows.get("default", started.run_id)).version

            assert await version() == FIRST_VERSION
            await engine.workers.register(new_registration(types=(WorkflowType("order", "2"),)))
            assert await version() == FIRST_VERSION
            await asyncio.sleep(1.1)
            assert await version() == "2"
            await engine.versions.set_default("default", "order", "9", force=True)
            assert await version() == "9"
            await engine.versions.set_default("default", "order", None)
            assert await version() == "2"

    run(main)


def test_an_answer_that_a_new_default_has_overtaken_is_not_kept() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            ask, asked = engine.store.versions.resolve, asyncio.Event()

            async def slow(namespace: str, workflow_type: str, version: str | None = None) -> Resolved:
                found = await ask(namespace, workflow_type, version)
                asked.set()
                await asyncio.sleep(0.1)
                return found

            engine.store.versions.resolve = slow  # type: ignore[method-assign]
            early = asyncio.ensure_future(engine.versions.resolve("default", "order"))
            await asked.wait()
            await engine.versions.set_default("default", "order", "9", force=True)
            assert (await early).version == FIRST_VERSION
            assert (await engine.versions.resolve("default", "order")).version == "9"

    run(main)


def test_a_run_is_born_beside_a_worker_of_the_version_it_gets() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            worker = SlotWorker(1)
            engine.workers.attach(worker, "default", ("shop",))
            await engine.versions.set_default("default", "order", "2", force=True)
            await engine.workflows.start(new_start(engine, version=None))
            assert [claim.version for claim in worker.adopted] == ["2"]

    run(main)


def test_a_database_that_does_not_answer_fails_the_start_and_is_asked_again() -> None:
    async def main() -> None:
        async with new_engine() as engine:
            ask = engine.store.versions.resolve

            async def out_of_reach(namespace: str, workflow_type: str, version: str | None = None) -> str:
                raise Unavailable("out of reach")

            engine.store.versions.resolve = out_of_reach  # type: ignore[method-assign]
            with pytest.raises(Unavailable):
                await engine.workflows.start(new_start(engine, version=None))
            engine.store.versions.resolve = ask  # type: ignore[method-assign]
            await engine.workflows.start(new_start(engine, version=None))

    run(main)
