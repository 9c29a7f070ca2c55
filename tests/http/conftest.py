from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kagzi.engine.local import LocalEngine
from tests.http.support import Client, engine_on, serving


@pytest.fixture
async def engine(url: str) -> AsyncIterator[LocalEngine]:
    async with engine_on(url) as made:
        yield made


@pytest.fixture
async def client(engine: LocalEngine) -> AsyncIterator[Client]:
    async with serving(engine) as port, Client(port.url) as made:
        yield made


@pytest.fixture
async def memory() -> AsyncIterator[LocalEngine]:
    async with engine_on("memory://") as made:
        yield made


@pytest.fixture
async def quick(memory: LocalEngine) -> AsyncIterator[Client]:
    """Where the database makes no difference."""
    async with serving(memory) as port, Client(port.url) as made:
        yield made
