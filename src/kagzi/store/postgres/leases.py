"""Reading a lease: a held run with its history, for its holder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kagzi.api.workers import LeaseState
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.postgres.steps import read_histories

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

_CONFIRM_LEASE = STATEMENTS["confirm_lease"]
_READ_LEASE = STATEMENTS["read_lease"]


async def read_lease(
    connection: Connection, namespace: str, run_id: str, token: str, confirm: bool, now: Instant | None
) -> LeaseState | None:
    row = await connection.fetchrow(_READ_LEASE, namespace, run_id, token, now)
    if row is None:
        return None
    confirmed = row["confirmed"]
    if confirm and not confirmed:
        await connection.execute(_CONFIRM_LEASE, namespace, run_id, token, now)
        confirmed = True
    # After the run's row, as with a claim: what was recorded before that look is seen.
    histories = await read_histories(connection, namespace, [run_id])
    return LeaseState(
        namespace=namespace,
        run_id=run_id,
        token=token,
        worker_id=str(row["worker_id"]),
        status=RunStatus(row["status"]),
        now=row["now"],
        confirmed=confirmed,
        input=row["input"],
        lease=row["lease_length"],
        attempts=row["attempts"],
        inbox_seq=row["inbox_seq"],
        retry_policy=row["retry_policy"],
        history=tuple(histories[run_id]),
        failed_input=row["failed_input"],
        depth=row["depth"],
        incarnation=row["incarnation"],
    )
