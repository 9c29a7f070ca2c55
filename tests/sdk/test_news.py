"""What has arrived for a run that a worker holds: looked for before a wait is over, and told whatever goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import pytest

import kagzi
from kagzi import Conflict, Kagzi
from kagzi.api.workers import RunNews
from kagzi.core.instant import Span
from kagzi.engine.workers import Workers
from kagzi.sdk.worker.attempt import Attempt
from kagzi.sdk.worker.worker import Worker
from kagzi.store.sqlite.signals import Signals
from kagzi.testing import run_virtually


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Word of signals never reaches the worker."""
    monkeypatch.setattr(Worker, "hear_news", lambda *_, **__: None)
    monkeypatch.setattr(Attempt, "hear_news", lambda *_: None)


@pytest.mark.usefixtures("deaf")
@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize(("after", "expected"), [(0.3, "told"), (0.79, "told"), (0.81, "late")])
def test_a_signal_that_came_in_time_wins_although_nobody_was_told(after: float, expected: str, busy: bool) -> None:
    app = Kagzi("memory://")

    @app.step
    async def work() -> None:
        await asyncio.sleep(5)

    @app.workflow
    async def flow() -> str:
        beside = asyncio.create_task(work()) if busy else None  # the run is held, in memory or beside a body
        said = await kagzi.wait_signal("go", str, timeout="800ms", default="late")
        if beside is not None:
            await beside
        return said

    async def main() -> Any:
        run = await flow.start()
        await asyncio.sleep(after)
        with contextlib.suppress(Conflict):  # it may be over by then
            await run.signal("go", "told")
        return await run.result()

    assert run_virtually(app, main) == expected


def test_a_wait_that_nobody_answers_costs_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Kagzi("memory://")
    looks: list[Any] = []
    read = Signals.read_inbox

    async def counted(self: Signals, *args: Any) -> Any:
        looks.append(args)
        return await read(self, *args)

    monkeypatch.setattr(Signals, "read_inbox", counted)

    @app.workflow
    async def waits() -> str:
        return await kagzi.wait_signal("go", str, timeout="500ms", default="late")

    @app.workflow
    async def sleeps() -> str:
        await asyncio.sleep(0.5)
        return "slept"

    async def main() -> tuple[Any, ...]:
        return await waits.run(), len(looks), await sleeps.run(), len(looks)

    assert run_virtually(app, main) == ("late", 1, "slept", 1)


def test_a_worker_waits_for_news_again_after_an_error_that_nobody_foresaw(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = Kagzi("memory://")
    calls: list[str] = []

    async def broken(self: Workers, worker_id: str, namespace: str, wait: Span) -> tuple[RunNews, ...]:
        calls.append(worker_id)
        if len(calls) == 1:
            raise RuntimeError("nobody foresaw this")
        await asyncio.sleep(3600)
        return ()

    monkeypatch.setattr(Workers, "news", broken)

    monkeypatch.setattr(Workers, "attach", lambda *_: None)  # as behind a server

    async def main() -> None:
        await asyncio.sleep(5)

    with caplog.at_level(logging.ERROR, logger="kagzi.worker"):
        run_virtually(app, main)
    assert len(calls) == 2
    (said,) = [record for record in caplog.records if "waiting for news failed" in record.message]
    assert said.exc_info is not None
    assert "nobody foresaw this" in str(said.exc_info[1])
