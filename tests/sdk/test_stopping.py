"""A worker that stops while its engine is slow."""

from __future__ import annotations

import asyncio

import pytest

from kagzi import Kagzi
from kagzi.api.workers import Poll, Polled
from kagzi.engine.seen_through import seen_through
from kagzi.errors import SchemaMismatch
from tests.engine.support import run
from tests.sdk.test_headstart import Claims, worker_of


class SlowClaims(Claims):
    """Its claims take so long, and come to their end whoever goes away."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.claimed = False
        self.deregistered_behind_claim: bool | None = None

    async def poll(self, _: Poll) -> Polled:
        await seen_through(self._claim())
        return Polled(now=0, claims=())

    async def _claim(self) -> None:
        await asyncio.sleep(self.seconds)
        self.claimed = True

    async def deregister(self, _: str) -> None:
        self.deregistered_behind_claim = self.claimed


@pytest.mark.parametrize(("takes", "stopped_after"), [(2, 1), (3600, 3)])
def test_a_claim_under_way_is_waited_for_but_not_for_ever(takes: float, stopped_after: float) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        service = SlowClaims(takes)
        worker = worker_of(service, Kagzi("memory://"))
        await worker.start()
        await asyncio.sleep(1)
        began = loop.time()
        await worker.stop()
        assert loop.time() - began == pytest.approx(stopped_after, abs=0.01)
        assert service.deregistered_behind_claim is (takes == 2)

    run(main)


class GoneDatabase(Claims):
    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def poll(self, _: Poll) -> Polled:
        self.asked += 1
        raise SchemaMismatch("orders.db was deleted")


def test_a_worker_stops_when_its_database_is_another_one() -> None:
    async def main() -> None:
        service = GoneDatabase()
        worker = worker_of(service, Kagzi("memory://"))
        await worker.start()
        await asyncio.sleep(60)
        assert (worker.draining, service.asked) == (True, 1)
        assert isinstance(worker.refusal, SchemaMismatch)
        await worker.stop()

    run(main)
