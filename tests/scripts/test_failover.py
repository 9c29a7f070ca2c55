"""`make failover`, as far as it goes without a cluster."""

from __future__ import annotations

from typing import Any

from kagzi.errors import NotFound
from scripts.failover import CALLERS, Load


class LossyChain:
    """Acknowledges starts; what became of every third of them was lost with the primary."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._starts = 0

    def options(self, *, id: str) -> LossyChain:
        return self

    async def start(self, tag: str) -> Any:
        self._starts += 1
        if self._starts >= 3 * CALLERS:
            self._load.stop()
        return LossyRun(lost=self._starts % 3 == 0)


class LossyRun:
    def __init__(self, *, lost: bool) -> None:
        self._lost = lost

    async def result(self, timeout: float) -> int:
        if self._lost:
            raise NotFound("there is no run")
        return 15


async def test_callers_go_on_after_an_acknowledged_start_was_lost() -> None:
    load = Load("memory://")
    load._chain = LossyChain(load)  # type: ignore[assignment]

    await load.run()

    lost = load.started.keys() - load.finished.keys()
    assert len(lost) == len(load.started) // 3 > CALLERS / 2
