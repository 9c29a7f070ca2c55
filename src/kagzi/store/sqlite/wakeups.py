"""Wake-ups across processes. SQLite says that another process has written, not what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from kagzi.store.protocol.changes import Queue, RunKey
from kagzi.store.sqlite.connection import Database


class Wakeups:
    """See `store.protocol.wakeups.Wakeups`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._listening: list[asyncio.Future[None]] = []

    async def listen(
        self,
        on_work: Callable[[Queue], None],  # noqa: ARG002
        on_finished: Callable[[str, str], None],  # noqa: ARG002
        on_unknown: Callable[[], None],
        on_news: Callable[[str, str], None] | None = None,  # noqa: ARG002
    ) -> None:
        stop = self._database.watch(on_unknown)
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listening.append(closed)
        try:
            await closed
        finally:
            self._listening.remove(closed)
            stop()

    async def announce(self, work: Sequence[Queue], finished: Sequence[RunKey], news: Sequence[RunKey] = ()) -> None:
        """Nothing to do: the commit itself is what other processes notice."""

    def stop_listening(self) -> None:
        for closed in self._listening:
            if not closed.done():
                closed.set_result(None)
