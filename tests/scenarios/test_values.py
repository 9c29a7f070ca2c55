"""Values on their way through a run: they arrive as they were, or are refused with a reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pydantic
import pytest

from kagzi import InvalidRequest, Kagzi, NotSerializable, WorkflowFailed
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
