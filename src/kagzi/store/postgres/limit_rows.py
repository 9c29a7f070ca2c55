"""Turns rows of limits into records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kagzi.core.flow import FlowLimit, Scope
from kagzi.core.rate import decode_rate

if TYPE_CHECKING:
    import asyncpg


def limit_of(row: asyncpg.Record) -> FlowLimit:
    return FlowLimit(
        namespace=row["namespace"],
        scope=Scope(row["scope"]),
        name=row["name"],
        paused_at=row["paused_at"],
        paused_by=row["paused_by"] or "",
        pause_reason=row["pause_reason"] or "",
        concurrency=row["concurrency"],
        declared=row["declared"],
        key_concurrency=row["key_concurrency"],
        key_declared=row["key_declared"],
        shares=row["shares"],
        rate=decode_rate(row["rate"]),
        rate_declared=decode_rate(row["rate_declared"]),
        key_rate=decode_rate(row["key_rate"]),
        key_rate_declared=decode_rate(row["key_rate_declared"]),
        fair=row["fair"],
    )
