"""`crash_everywhere`: what it finds, what it leaves alone, and what mistakes get."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

import kagzi
from examples.testing import shop
from kagzi import Kagzi, Retry
from kagzi.errors import InvalidRequest
from kagzi.testing import CrashReport, NotCrashSafe, crash_everywhere

app = Kagzi("memory://")
seen: list[str] = []
counter = itertools.count()


@app.step(retry=Retry(attempts=2, first="1h", cap="1h"))
def once(name: str) -> str:
    if name not in seen:
        seen.append(name)
    if kagzi.attempt() == 1 and name == "retried":
        raise ConnectionError("down")
    return name


@app.step
async def twice(name: str) -> str:
    seen.append(name)
    await asyncio.sleep(0.01)
    return name


@app.step
async def counted() -> int:
    return next(counter)


@app.workflow
async def careful() -> list[str]:
    first = await once("retried")
    await kagzi.sleep("night", "8h")
    ok = await kagzi.wait_signal("go", bool, timeout="1d")
    both = await asyncio.gather(once("a"), once("b"))
    child = await plain.run()
    return [first, str(ok), *both, child]


@app.workflow(timeout="1h")
def plain() -> str:
    return once.call("c")


@app.workflow
async def careless() -> list[str]:
    return list(await asyncio.gather(twice("a"), once("b")))


@app.workflow
async def always_fails() -> None:
    await once("a")
    raise ValueError("as it should")


@app.workflow
async def counts() -> int:
    return await counted()


def test_a_workflow_that_survives_everything(caplog: pytest.LogCaptureFixture) -> None:
    """Retries, sleeps, signals, `def` steps, a group and a `def` child with a timeout."""
    with caplog.at_level(logging.WARNING):
        report = crash_everywhere(careful, effects=seen, signals=[("go", True)])
    assert report.crashes == 2 * report.recorded
    assert report.recorded >= 6
    assert [record for record in caplog.records if "is let go of" in record.getMessage()] == []
    assert crash_everywhere(always_fails, effects=seen) == CrashReport(recorded=1, crashes=2)
    assert seen == []


def test_the_step_whose_effect_is_doubled_is_named_and_no_other() -> None:
    with pytest.raises(NotCrashSafe) as found:
        crash_everywhere(careless, effects=seen)
    assert any("step 'twice' is not idempotent" in problem for problem in found.value.problems)
    assert not any("step 'once' is" in problem for problem in found.value.problems)
    with pytest.raises(NotCrashSafe, match="step 'thank' is not idempotent"):
        crash_everywhere(shop.doubled, "ada", 1, effects=lambda: list(shop.mails), reset=shop.mails.clear)


def test_what_differs_without_a_crash_cannot_be_compared() -> None:
    with pytest.raises(NotCrashSafe, match="what step 'counted' returns"):
        crash_everywhere(counts)


def test_mistakes() -> None:
    with pytest.raises(InvalidRequest, match="takes a workflow"):
        crash_everywhere(once, "a")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="reset="):
        crash_everywhere(counts, effects=lambda: 1)
    with pytest.raises(InvalidRequest, match="list, dict or set"):
        crash_everywhere(counts, effects=7)

    async def inside() -> None:
        crash_everywhere(counts)

    with pytest.raises(InvalidRequest, match="`def` test"):
        asyncio.run(inside())
