"""An app that is opened in one event loop and used in another: an error at once that names both uses."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kagzi import InvalidRequest, Kagzi, Retry, WorkflowFailed

FOR_EVER = 20  # seconds, after which such a use counts as waiting for ever


def shop(url: str) -> Kagzi:
    app = Kagzi(url)

    @app.workflow
    async def order() -> int:
        return 1

    return app


async def in_another_loop(use: Callable[[], Awaitable[Any]]) -> str:
    """The words with which this use was refused."""

    async def bounded() -> None:
        async with asyncio.timeout(FOR_EVER):
            await use()

    with pytest.raises(InvalidRequest) as caught:
        await asyncio.to_thread(asyncio.run, bounded())
    return str(caught.value)


async def uses_elsewhere(app: Kagzi) -> None:
    order = app.find_workflow("order", "1")
    assert order is not None

    async def hosts_a_worker() -> None:
        async with app.worker():
            pass

    async with app:  # opened here
        run = await order.start()
        uses: list[Callable[[], Awaitable[Any]]] = [
            order.start,
            order.run,
            run.result,
            run.status,
            run.cancel,
            app.runs,
            app.health,
            app.open,
            app.close,
            hosts_a_worker,
            lambda: app.find("x"),
        ]
        for use in uses:
            words = await in_another_loop(use)
            named = re.findall(r"test_event_loops\.py:(\d+) in (\w+)", words)
            assert named[0] == (str(line_of("# opened here")), "uses_elsewhere"), words
            assert named[1][1] in ("bounded", "hosts_a_worker", "<lambda>"), words
        assert await run.status() == "PENDING"  # the app is as it was
        assert app.handle(run.id).id == run.id


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(text))


async def test_every_use_in_another_loop_is_refused(home: str) -> None:
    await uses_elsewhere(shop(home))


async def test_every_use_of_an_app_in_memory_in_another_loop_is_refused() -> None:
    await uses_elsewhere(shop("memory://"))


def test_an_app_whose_loop_has_ended_says_so() -> None:
    app = shop("memory://")
    with asyncio.Runner() as first:
        first.run(app.open())
        first.run(app.health())
    with pytest.raises(InvalidRequest, match="which has ended without closing the app"):
        asyncio.run(app.health())


async def test_an_app_may_be_opened_in_one_loop_after_the_other(tmp_path: Path) -> None:
    app = shop(f"sqlite:///{tmp_path / 'kagzi.db'}")

    async def look() -> int:
        async with app:
            return len((await app.runs()).items)

    assert await asyncio.to_thread(asyncio.run, look()) == 0
    assert await look() == 0


async def test_the_app_is_not_for_workflow_code() -> None:
    app = Kagzi("memory://")

    @app.workflow(retry=Retry.none)
    async def looks() -> int:
        return len((await app.runs()).items)

    async with app, app.worker():
        with pytest.raises(WorkflowFailed, match=r"belongs in a step .*test_event_loops\.py:\d+ in looks"):
            await looks.run()
