from __future__ import annotations

import asyncio
import time

from tests.ports.slices import BOUND_MS, allowed_ms, slices


def _compute(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def test_what_computes_on_the_loop_is_seen_and_what_waits_or_is_in_a_thread_is_not() -> None:
    with slices() as seen:
        await asyncio.sleep(0)
        seen.reset()
        await asyncio.sleep(0.05)
        await asyncio.to_thread(_compute, 0.05)
        await asyncio.sleep(0)
        assert seen.longest_ms < 40
        seen.reset()
        asyncio.get_running_loop().call_soon(_compute, 0.05)
        await asyncio.sleep(0.01)
        assert seen.longest_ms >= 50
        assert "_compute" in seen.what
    assert allowed_ms() >= BOUND_MS
