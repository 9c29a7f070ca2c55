from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kagzi.engine.local import LocalEngine
from tests.dashboard.support import Browser, dashboard
from tests.http.support import engine_on


@pytest.fixture
async def engine(url: str) -> AsyncIterator[LocalEngine]:
    async with engine_on(url) as made:
        yield made


@pytest.fixture
async def memory() -> AsyncIterator[LocalEngine]:
    async with engine_on("memory://") as made:
        yield made


@pytest.fixture
async def browser(engine: LocalEngine) -> AsyncIterator[Browser]:
    async with dashboard(engine) as port, Browser(port.url) as made:
        yield made


@pytest.fixture
async def quick(memory: LocalEngine) -> AsyncIterator[Browser]:
    """Where the database makes no difference."""
    async with dashboard(memory) as port, Browser(port.url) as made:
        yield made
