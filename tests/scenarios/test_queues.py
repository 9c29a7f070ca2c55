"""Pausing queues, workflows and namespaces, asked at every home."""

from __future__ import annotations

import asyncio

import pytest

from kagzi import InvalidRequest, Kagzi, RunStatus
from kagzi.api.explanation import explain
from kagzi.clock import SystemClock
from kagzi.connect import connect


async def settles_pending(app: Kagzi, run_id: str) -> None:
    """Longer than it takes to be born, found or woken."""
    await asyncio.sleep(0.3)
    assert (await app.engine.workflows.get("default", run_id)).status is RunStatus.PENDING


async def test_nothing_of_what_is_paused_is_handed_out_until_it_is_resumed(home: str) -> None:
    app = Kagzi(home)

    @app.workflow(name="newsletter", queue="mail")
    async def newsletter(to: str) -> str:
        return to

    engine = connect(home)
    await engine.open()
    try:
        async with app, app.worker(queues=["mail"]):
            first = await newsletter.start("ann")
            assert await first.result(timeout=20) == "ann"
            paused = await app.queues.pause("mail", reason="the provider is down")
            assert await app.queues.pause("mail", reason="again") == paused
            run_id = (await newsletter.start("bob")).id
            await settles_pending(app, run_id)
            (queue,) = await app.queues.list()
            assert (queue.name, queue.pending, queue.paused) == ("mail", 1, paused)
            run = await engine.workflows.get("default", run_id)
            sentence = str(await explain(engine, run, SystemClock().now()))
            assert sentence.startswith(f"Waiting: queue mail was paused by {paused.by} at ")
            assert sentence.endswith(": the provider is down.")
            await app.queues.resume("mail")
            assert await app.handle(run_id).result(timeout=20) == "bob"

            for about in ({"workflow": "newsletter"}, {"everything": True}):
                await app.limits.pause(**about)
                assert [each.paused is not None for each in await app.limits.list()] == [True]
                run_id = (await newsletter.start("cid")).id
                await settles_pending(app, run_id)
                await app.limits.resume(**about)
                assert await app.handle(run_id).result(timeout=20) == "cid"
            assert await app.limits.list() == []
            with pytest.raises(InvalidRequest, match="say queue="):
                await app.limits.pause(queue="mail", everything=True)
    finally:
        await engine.close()
