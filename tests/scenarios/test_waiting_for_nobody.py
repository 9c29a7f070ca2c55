"""Waiting for a result that no worker can make is told in the log, once."""

from __future__ import annotations

import pytest

from kagzi import Kagzi
from kagzi.core.instant import SECOND
from kagzi.sdk import unserved


def make_app(url: str, version: str) -> Kagzi:
    app = Kagzi(url)

    @app.workflow(name="order", version=version)
    async def order() -> str:
        return version

    return app


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unserved, "PATIENCE", SECOND // 50)


@pytest.mark.usefixtures("impatient")
async def test_those_who_wait_are_told_once_that_nobody_comes(home: str, caplog: pytest.LogCaptureFixture) -> None:
    app, newer = make_app(home, "1"), make_app(home, "2")
    order = app.find_workflow("order", "1")
    assert order is not None
    async with app, newer:
        runs = [await order.start(), await order.start(), await order.options(queue="other").start()]
        later = await order.options(delay="1h").start()
        for run in (runs[0], runs[0], runs[1], later):
            with pytest.raises(TimeoutError):
                await run.result(timeout="200ms")
        async with newer.worker(queues=["other"]):
            with pytest.raises(TimeoutError):
                await runs[2].result(timeout="200ms")
        async with app.worker():
            assert await runs[0].result(timeout=20) == "1"
    told = [(record.levelname, record.getMessage()) for record in caplog.records if "waited for" in record.getMessage()]
    words = (
        f"run {runs[0].id} (order) is waited for: no worker serves queue default in namespace default of ",
        f"run {runs[2].id} (order) is waited for: no worker of queue other in namespace default of ",
    )
    assert [level for level, _ in told] == ["WARNING", "WARNING"]
    assert all(line.startswith(word) for (_, line), word in zip(told, words, strict=True))
    assert told[1][1].endswith("has workflow order, version 1, now; the run waits for one")
