"""Answers that cost much are kept for as long as that is worth it."""

from __future__ import annotations

import asyncio

import pytest

from kagzi.engine.remembered import LARGE, Remembered
from tests.engine.support import run


class Question:
    """Takes a second. Answers with that many rows, and how often it was asked."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.asked = 0
        self.fails = False

    async def ask(self) -> tuple[int, int]:
        self.asked += 1
        number = self.asked
        await asyncio.sleep(1)
        if self.fails:
            raise ValueError("no answer")
        return self.rows, number


def remembered(least: float = 0.0) -> Remembered[str, tuple[int, int]]:
    return Remembered(lambda answer: answer[0], least=least)


def test_what_was_cheap_is_asked_every_time() -> None:
    async def story() -> None:
        question, known = Question(LARGE - 1), remembered()
        assert [(await known.get("a", question.ask))[1] for _ in range(3)] == [1, 2, 3]

    run(story)


def test_what_costs_much_is_asked_once_and_anew_while_nobody_waits() -> None:
    async def story() -> None:
        question, known = Question(LARGE), remembered()
        assert await asyncio.gather(*[known.get("a", question.ask) for _ in range(5)]) == [(LARGE, 1)] * 5
        for seconds, number in ((3, 1), (3, 1), (2, 2), (60, 3)):  # old and asked anew; new; too old to be of use
            await asyncio.sleep(seconds)
            assert (await known.get("a", question.ask))[1] == number
        known.forget()
        assert (await known.get("a", question.ask))[1] == 4

    run(story)


def test_a_failure_is_told_to_those_who_wait_and_kept_by_nobody() -> None:
    async def story() -> None:
        question, known = Question(1), remembered(5.0)
        question.fails = True
        with pytest.raises(ValueError, match="no answer"):
            await known.get("a", question.ask)
        question.fails = False
        assert (await known.get("a", question.ask))[1] == 2
        assert (await known.get("b", question.ask))[1] == 3  # of another key
        assert (await known.get("a", question.ask))[1] == 2

    run(story)
