"""Steps in their groups, as a terminal shows them."""

from __future__ import annotations

import asyncio
import io
import sys
from typing import Any

import pytest

import kagzi
from kagzi import Kagzi
from kagzi.cli import runs
from kagzi.cli.nesting import nested
from kagzi.core.instant import SECOND
from kagzi.core.step import Step, StepKind, StepStatus
from kagzi.testing import run_virtually


def step(step_id: str, seq: int | None = None, *, began: int = 0, took: int | None = None, attempt: int = 1) -> Step:
    status = StepStatus.RUNNING if took is None else StepStatus.FAILED if seq is None else StepStatus.COMPLETED
    return Step(
        step_id=step_id,
        attempt=attempt,
        kind=StepKind.FUNCTION,
        status=status,
        completed_seq=seq,
        started_at=began * SECOND,
        finished_at=None if took is None else (began + took) * SECOND,
        retry_at=None,
        input_hash=0,
        output=None,
        error=None,
    )


def test_steps_stand_in_their_groups_in_the_order_of_their_first() -> None:
    steps = [
        step("before", 1, took=1),
        step("book/charge", 2, began=1, took=1),
        step("book/fetch/reserve", began=1, took=1),
        step("after", 3, began=9, took=1),
        step("book/fetch/reserve", 4, began=2, took=3, attempt=2),
        step("book/fetch#2/reserve", began=4),
    ]
    lines = nested(steps)
    assert [(line.label, line.step and line.step.attempt) for line in lines] == [
        ("before", 1),
        ("book", None),
        ("  charge", 1),
        ("  fetch", None),
        ("    reserve", 1),
        ("    reserve", 2),
        ("  fetch#2", None),
        ("    reserve", 1),
        ("after", 1),
    ]
    groups = {line.label.strip(): (line.ended, line.begun, line.took) for line in lines if line.step is None}
    assert groups == {"book": (2, 3, "4s"), "fetch": (1, 1, "4s"), "fetch#2": (0, 1, "-")}


def test_without_groups_nothing_is_nested() -> None:
    steps = [step("one", 1, took=1), step("two", 2, took=1)]
    assert [(line.label, line.step) for line in nested(steps)] == [("one", steps[0]), ("two", steps[1])]
    assert nested([]) == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_groups_and_other_programs_get_whole_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Kagzi("memory://")

    @app.step
    async def render(page: int) -> int:
        await asyncio.sleep(page)
        return page

    @app.workflow
    async def book() -> list[int]:
        return await kagzi.map(render, [1, 2], key=str)

    async def main() -> Any:
        run = await book.start()
        await run.result()
        return await app.engine.workflows.steps("default", run.id)

    steps = run_virtually(app, main)
    monkeypatch.setenv("NO_COLOR", "1")
    for terminal, expected in ((True, ("\nmap[1] ", "\n  render ", "1 of 1")), (False, ("map[1]/render", "COMPLETED"))):
        out = Terminal() if terminal else io.StringIO()
        monkeypatch.setattr(sys, "stdout", out)
        runs._print_steps(steps)
        monkeypatch.undo()
        assert all(words in out.getvalue() for words in expected), out.getvalue()
