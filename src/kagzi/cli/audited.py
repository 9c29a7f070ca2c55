"""Writes changes to the audit log that a person makes at the database itself. Through a server, the server writes
them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kagzi.api.engine import Engine
from kagzi.core.audit import OK, AuditEntry
from kagzi.engine.local import LocalEngine
from kagzi.errors import KagziError
from kagzi.owners import user_name


def actor() -> str:
    """Returns the name of the user who runs this command, for the audit log."""
    return f"cli:{user_name()}"


@asynccontextmanager
async def audited(engine: Engine, action: str, *, namespace: str | None, target: str) -> AsyncIterator[None]:
    """Leaves an entry about what the block does, whether it succeeds or not."""
    result = OK
    try:
        yield
    except KagziError as error:
        result = error.code
        raise
    finally:
        if isinstance(engine, LocalEngine):
            await engine.audit.write(
                AuditEntry(
                    actor=actor(),
                    action=action,
                    namespace=namespace,
                    target=target,
                    request_id="",
                    peer="",
                    result=result,
                )
            )
