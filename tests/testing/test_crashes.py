"""`crash_everywhere`: what it finds, what it leaves alone, and what mistakes get."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

import kagzi
from examples.testing import shop
from kagzi import Kagzi, Retry
from kagzi.errors import InvalidRequest
from kagzi.testing import CrashReport, NotCrashSafe, crash_everywhere

app = Kagzi("memory://")
seen: list[str] = []
moments: list[timedelta] = []
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


@app.resource
def desk() -> Iterator[str]:
    yield "a desk"


@app.step(retry=Retry.none)
async def breaks(name: str) -> None:
    seen.append(name)
    raise ValueError(name)


@app.step
async def about(now: datetime) -> str:
    moments.append(abs(kagzi.now() - now))
    return desk()


@app.workflow
async def settled() -> list[str]:
    """Signals that come once, resources, and the time of bodies."""
    first = await kagzi.wait_signal("go", str)
    told = await about(kagzi.now())
    await kagzi.sleep("night", "8h")
    later = await about(kagzi.now())
    second = await kagzi.wait_signal("go", str, timeout="1d", default="nobody")
    return [first, told, later, second]


@app.workflow
async def tries() -> None:
    with contextlib.suppress(ValueError):
        await breaks("once more")


@app.workflow
async def wanders() -> None:
    await once("a")
    await once(str(next(counter)))
    await once("b")


@app.workflow
async def decides_by_a_step() -> None:
    await (once("even") if await counted() % 2 else twice("odd"))


@app.workflow
async def opens_a_file() -> None:
    with open(__file__):
        await once("a")


@app.workflow
async def notes_what_differs() -> None:
    await note()


@app.step
async def note() -> None:
    seen.append(str(next(counter)))


def test_a_workflow_that_survives_everything(caplog: pytest.LogCaptureFixture) -> None:
    """Retries, sleeps, signals, `def` steps, a group and a `def` child with a timeout."""
    with caplog.at_level(logging.WARNING):
        report = crash_everywhere(careful, effects=seen, signals=[("go", True)])
    assert report.crashes == 2 * report.recorded
    assert report.recorded >= 6
    assert [record for record in caplog.records if "is let go of" in record.getMessage()] == []
    assert crash_everywhere(always_fails, effects=seen, signals=[("go", True)]) == CrashReport(recorded=1, crashes=2)
    assert seen == []


def test_each_trial_begins_alike_and_leaves_the_app_as_it_was() -> None:
    """Signals come once, resources are open, bodies have the virtual time, and what effects hold is put back."""
    ids = app._ids
    box = {"boxes": {"a": ["b"]}}
    book = Kagzi("memory://")

    @book.step
    async def enter() -> None:
        if "c" not in box["boxes"]["a"]:
            box["boxes"]["a"].append("c")

    @book.workflow
    async def once_each() -> int:
        await enter()
        return len(box["boxes"]["a"])

    assert crash_everywhere(once_each, effects=box).crashes == 2
    assert box == {"boxes": {"a": ["b"]}}
    assert crash_everywhere(settled, signals=[("go", "yes")]).crashes > 8
    assert app._ids is ids
    assert moments
    assert max(moments) < timedelta(minutes=1)


def test_the_step_whose_effect_is_doubled_is_named_and_no_other() -> None:
    with pytest.raises(NotCrashSafe) as found:
        crash_everywhere(careless, effects=seen)
    assert any("step 'twice' is not idempotent" in problem for problem in found.value.problems)
    assert not any("step 'once' is" in problem for problem in found.value.problems)
    with pytest.raises(NotCrashSafe, match="step 'thank' is not idempotent"):
        crash_everywhere(shop.doubled, "ada", 1, effects=lambda: list(shop.mails), reset=shop.mails.clear)
    with pytest.raises(NotCrashSafe, match="step 'breaks' is not idempotent"):
        crash_everywhere(tries, effects=seen)


def test_what_is_not_deterministic_is_told_apart() -> None:
    with pytest.raises(NotCrashSafe, match="not_deterministic is not deterministic: without a crash it came to"):
        crash_everywhere(shop.not_deterministic)
    with pytest.raises(NotCrashSafe, match="after a crash it was executed again and did something else"):
        crash_everywhere(wanders, effects=lambda: None, reset=seen.clear)
    with pytest.raises(
        NotCrashSafe, match=r"opens_a_file is not deterministic: .* has open\('.*test_crashes\.py'\) at"
    ):
        crash_everywhere(opens_a_file)


def test_effects_of_bodies_that_run_side_by_side_have_no_order() -> None:
    tosses: list[str] = []

    @app.step
    async def toss() -> None:
        tosses.append("again")

    @app.step
    async def one_of_two(name: str) -> None:
        await asyncio.sleep(0.01 if (name == "a") is (len(tosses) == 1) else 0.02)
        if name not in seen:
            seen.append(name)

    @app.workflow
    async def side_by_side() -> None:
        await toss()
        await asyncio.gather(one_of_two("a"), one_of_two("b"))

    def reset() -> None:
        seen.clear()
        tosses.clear()

    assert crash_everywhere(side_by_side, effects=lambda: list(seen), reset=reset).crashes > 2


def test_what_differs_without_a_crash_cannot_be_compared() -> None:
    with pytest.raises(NotCrashSafe, match="what step 'counted' returns"):
        crash_everywhere(counts)
    with pytest.raises(NotCrashSafe, match="what step 'counted' returns"):
        crash_everywhere(decides_by_a_step, effects=lambda: None, reset=seen.clear)
    with pytest.raises(NotCrashSafe, match=r"two runs of notes_what_differs .* are different: nothing can be compared"):
        crash_everywhere(notes_what_differs, effects=seen)


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
    with app, pytest.raises(InvalidRequest, match="opens the app itself"):
        crash_everywhere(counts)
