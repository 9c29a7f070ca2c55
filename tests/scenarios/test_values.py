"""Values on their way through a run: they arrive as they were, or are refused with a reason."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pydantic
import pytest

from kagzi import InvalidRequest, Kagzi, NonRetryable, NotSerializable, WorkflowFailed
from tests.scenarios.conftest import Stage


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr


@dataclass
class Shape:
    name: str


@dataclass
class Circle(Shape):
    radius: float = 1.0


class CardDeclined(NonRetryable):
    def __init__(self, amount: Decimal, shape: Shape) -> None:
        super().__init__(f"{amount} was declined")
        self.amount = amount
        self.shape = shape
        self.at = {"seen": datetime(2026, 5, 4, tzinfo=UTC)}
        self.client = object()


def test_attributes_of_an_exception_reach_the_workflow(stage: Stage) -> None:
    app = Kagzi("memory://")

    @app.step
    async def charge() -> None:
        raise CardDeclined(Decimal("9.90"), Shape("card"))

    @app.step
    async def refund(amount: Decimal) -> str:
        return f"refunded {amount + 1}"

    @app.workflow
    async def checkout(nap: float) -> tuple[str, str, int]:
        try:
            await charge()
        except CardDeclined as declined:
            await asyncio.sleep(nap)  # long enough to be parked: replay sees the same
            return await refund(declined.amount), declined.shape.name, declined.at["seen"].year
        return "", "", 0

    @app.workflow
    async def careless() -> None:
        try:
            await charge()
        except CardDeclined as declined:
            print(declined.client)

    async def main() -> None:
        assert await checkout.run(0.0) == ("refunded 10.90", "card", 2026)
        assert await checkout.run(1.1) == ("refunded 10.90", "card", 2026)
        with pytest.raises(
            WorkflowFailed, match=r"no attribute 'client'\. The step raised it with one, a object, "
        ) as no:
            await careless.run()
        assert isinstance(no.value.__cause__, AttributeError)

    stage.run(app, main)


def test_what_would_arrive_as_something_else_is_refused(stage: Stage) -> None:
    app = Kagzi("memory://")
    seen: list[Any] = []

    @app.step
    async def log_in(login: Login) -> None:
        seen.append(login)

    @app.step
    async def draw(shape: Shape) -> Shape:
        return Circle(shape.name, 2.0)

    @app.workflow
    async def enter(login: Login | None) -> None:
        await log_in(Login(user="ada", password=pydantic.SecretStr("hunter2")))

    @app.workflow
    async def paint(how: str) -> Shape:
        if how == "argument":
            await draw(Circle("c"))
        if how == "step":
            await draw(Shape("s"))
        return Circle("c")

    @app.workflow
    async def total(items: list[int]) -> int:
        return sum(items)

    async def main() -> None:
        with pytest.raises(NotSerializable, match=r"'login' of enter .* \$\.password is a pydantic.types.SecretStr"):
            await enter.start(Login(user="ada", password=pydantic.SecretStr("hunter2")))
        with pytest.raises(WorkflowFailed, match=r"'login' of log_in .* \$\.password is a pydantic.types.SecretStr"):
            await enter.run(None)
        for how, what in [
            ("argument", "argument 'shape' of draw"),
            ("step", "the result of draw"),
            ("result", "the result of paint"),
        ]:
            with pytest.raises(WorkflowFailed, match=rf"{what} .*Circle that comes back as .*Shape without radius"):
                await paint.run(how)
        with pytest.raises(InvalidRequest, match=r"'items' of total cannot be read as list\[int\]"):
            await total.start(5)  # type: ignore[arg-type]

    stage.run(app, main)
    assert seen == []
