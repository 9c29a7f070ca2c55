"""Following a run while its server comes and goes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kagzi.cli import follow
from kagzi.core.run import RunStatus
from kagzi.errors import Unavailable


class Away:
    """Answers a call with the next of these: whether it is in reach."""

    def __init__(self, *reached: bool) -> None:
        self.workflows = self
        self._reached = list(reached)

    async def wait(self, *_: object) -> Any:
        if not self._reached.pop(0):
            raise Unavailable("the server is out of reach")
        return SimpleNamespace(status=RunStatus.RUNNING if self._reached else RunStatus.COMPLETED)


async def test_a_server_that_is_away_is_told_of_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(follow, "_AGAIN_SECONDS", 0)
    engine: Any = Away(*[False] * 120, True, False, True)
    await follow.wait_for(engine, "default", "run", None)
    assert capsys.readouterr().err.splitlines() == [
        "the server is out of reach; trying again",
        "the server is out of reach (10 times in a row); trying again",
        "the server is out of reach (100 times in a row); trying again",
        "it is in reach again",
        "the server is out of reach; trying again",
        "it is in reach again",
    ]
