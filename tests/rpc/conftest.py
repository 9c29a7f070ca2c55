from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.rpc.guarded import Guarded, guarded


@pytest.fixture
async def server(url: str) -> AsyncIterator[Guarded]:
    async with guarded(url) as made:
        yield made


@pytest.fixture
async def light() -> AsyncIterator[Guarded]:
    async with guarded("memory://") as made:
        yield made
