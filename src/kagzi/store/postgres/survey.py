"""How much there is of everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kagzi.core.instant import Instant
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.protocol import MOST_SURVEYED, Survey

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

_SURVEY = STATEMENTS["survey"]


async def survey(connection: Connection, now: Instant | None) -> Survey:
    (row,) = await connection.fetch(_SURVEY, now, MOST_SURVEYED)
    return Survey(**dict(row))
