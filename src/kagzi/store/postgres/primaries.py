"""Leaves a primary that another server has taken the place of.

After a failover the old primary should be down or read-only. One that nobody has fenced goes on taking writes beside
the new one, no connection to it breaks, and what it acknowledges is lost. So a process whose URL names several servers
looks at the others now and then: a promotion begins a new timeline, and of two primaries of one cluster the one on the
higher timeline is right.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

import asyncpg
from msgspec import Struct

from kagzi.store.postgres.connection import Connector, logger
from kagzi.store.postgres.pool import hang_up

_LOOK_SECONDS: Final = 15.0  # a quarter more or less
_ANSWER_SECONDS: Final = 3.0
_PLACE: Final = """
SELECT (SELECT system_identifier FROM pg_control_system())::text,
       CASE WHEN NOT pg_is_in_recovery() THEN pg_walfile_name(pg_current_wal_lsn()) END
"""


class _Place(Struct, frozen=True):
    """Where a primary is in the history of its cluster."""

    cluster: str
    timeline: int


class Primaries:
    """Watches over the connectors of a store, which all lead to the same servers."""

    def __init__(self, connectors: Sequence[Connector], chance: random.Random) -> None:
        self._connectors = connectors
        self._chance = chance
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        if len(self._connectors[0].servers) > 1:
            self._watching = asyncio.get_running_loop().create_task(self._watch(), name="kagzi-primaries")

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    async def look(self) -> None:
        """Goes over to the newest primary."""
        used, *others = self._connectors[0].servers
        here, *elsewhere = await asyncio.gather(*[_place_of(server) for server in (used, *others)])
        if here is None:
            return  # it takes no writes, or does not answer: whoever uses it finds out
        newest, server = here, used
        for place, other in zip(elsewhere, others, strict=True):
            if place is not None and place.cluster == here.cluster and place.timeline > newest.timeline:
                newest, server = place, other
        if server == used:
            return
        logger.warning(
            "PostgreSQL at %s still takes writes, but another server has been promoted since (timeline %d after %d): "
            "going over to that one. Fence the old primary",
            self._connectors[0].where,
            newest.timeline,
            here.timeline,
        )
        for connector in self._connectors:
            connector.go_over_to(server)

    async def _watch(self) -> None:
        while True:
            try:
                await self.look()
            except Exception as error:
                logger.warning("could not look for a newer primary: %s", type(error).__name__)
            await asyncio.sleep(_LOOK_SECONDS * self._chance.uniform(0.75, 1.25))


async def _place_of(server: str) -> _Place | None:
    """Returns where this server is; None if it is no primary or cannot be asked."""
    try:
        connection = await asyncpg.connect(
            server, timeout=_ANSWER_SECONDS, statement_cache_size=0, server_settings={"application_name": "kagzi"}
        )
    except Exception:
        return None
    try:
        found = await connection.fetchrow(_PLACE, timeout=_ANSWER_SECONDS)
    except Exception:
        return None
    finally:
        await hang_up(connection)
    if found is None or found[1] is None:
        return None
    return _Place(cluster=found[0], timeline=int(found[1][:8], 16))
