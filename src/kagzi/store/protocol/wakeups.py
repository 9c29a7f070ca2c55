"""Wake-ups across processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kagzi.store.protocol.changes import Queue


class Wakeups(Protocol):
    """Hints between processes. Without them everything works, but more slowly."""

    async def listen(
        self,
        on_work: Callable[[Queue], None],
        on_finished: Callable[[str, str], None],
        on_unknown: Callable[[], None],
        on_news: Callable[[str, str], None] | None = None,
    ) -> None:
        """Listens to other processes until the store is closed. `on_unknown` means: anything may have changed;
        `on_news`: something has arrived for a run that is being driven."""
        ...

    async def announce(
        self, work: Sequence[Queue], finished: Sequence[tuple[str, str]], news: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Tells other processes, outside of any transaction that writes data."""
        ...
