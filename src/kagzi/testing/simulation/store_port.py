"""The store as a process of the simulated world sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from kagzi.api.operations import Write
from kagzi.store.migrate import Migration
from kagzi.store.protocol.changes import Queue, RunKey
from kagzi.store.protocol.nouns import NOUNS, call_name
from kagzi.store.protocol.store import Store
from kagzi.store.sqlite.schema import known_migrations
from kagzi.testing.simulation.network import Network
from kagzi.testing.simulation.process import Process


def store_port(network: Network, process: Process) -> Store:
    """Returns the store as one process sees it, across the network."""
    return cast("Store", _StorePort(network, process))


class _StorePort:
    page_secret = b"simulated"

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process
        for noun in NOUNS:
            setattr(self, noun, _Noun(network, process, noun))
        self.wakeups = _Wakeups(network, process)

    async def open(self) -> None:
        await self._network.ask(self._process, "overview.horizon", ((),))

    async def close(self) -> None:
        """The database lives on."""

    @property
    def schema_version(self) -> int:
        return len(known_migrations())

    async def missing_migrations(self) -> tuple[Migration, ...]:
        return ()

    async def missing_indexes(self) -> tuple[str, ...]:
        return ()

    async def build_indexes(self) -> None: ...

    async def write_trouble(self) -> str | None:
        return None

    def sibling(self) -> Store:
        return store_port(self._network, self._process)


class _Noun:
    """One noun of the store. What travels is a copy: the sender may go on with its list."""

    lanes = 1

    def __init__(self, network: Network, process: Process, noun: str) -> None:
        self._network = network
        self._process = process
        self._noun = noun

    def lane_of(self, write: Write) -> int:  # noqa: ARG002
        return 0

    def __getattr__(self, verb: str) -> Any:
        if verb not in NOUNS[self._noun]:
            raise AttributeError(f"{self._noun} has no {verb}")
        name = call_name(self._noun, verb)

        async def asked(*args: Any) -> Any:
            copied = tuple(tuple(each) if isinstance(each, list) else each for each in args)
            return await self._network.ask(self._process, name, copied)

        setattr(self, verb, asked)
        return asked


class _Wakeups:
    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process

    async def listen(
        self,
        on_work: Callable[[Queue], None],
        on_finished: Callable[[str, str], None],
        on_unknown: Callable[[], None],
        on_news: Callable[[str, str], None] | None = None,  # noqa: ARG002 (heartbeats tell the same)
    ) -> None:
        self._network.listen(self._process, on_work, on_finished, on_unknown)

    async def announce(
        self,
        work: Sequence[Queue],
        finished: Sequence[RunKey],
        news: Sequence[RunKey] = (),  # noqa: ARG002
    ) -> None:
        self._network.announce(self._process, work, finished)
