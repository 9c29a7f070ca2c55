"""Claims: leasing due runs to a worker, with what it has to know of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kagzi.api.workers import Claim, Poll, Polled
from kagzi.core.carried import TO_WORKER
from kagzi.core.instant import Instant, Span
from kagzi.store.columns import reader
from kagzi.store.postgres.handlers import read_failed_inputs
from kagzi.store.postgres.lines import claim_limited
from kagzi.store.postgres.run_rows import text_of
from kagzi.store.postgres.signals import read_inboxes
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.postgres.steps import read_histories

if TYPE_CHECKING:
    import asyncpg

    from kagzi.store.postgres.connection import Connection

_CLAIM_RUNS = STATEMENTS["claim_runs"]
_CLAIM_RUNS_PAST_LIMITS = STATEMENTS["claim_runs_past_limits"]
_READ_INPUTS = STATEMENTS["read_inputs"]


_claim_of = reader(
    Claim,
    """
    _ _ workflow_type version task_queue external_id _ started_at lease attempts executions crashes inbox_seq token
    cancel_requested origin_run_id scheduled_for timezone family depth handles_run_id incarnation executions_before
    woken lineage
    """,
    TO_WORKER,
    read={"token": str, "origin_run_id": text_of, "handles_run_id": text_of},
    given=("namespace", "run_id", "input", "history", "failed_input", "limited", "inbox"),
)


async def claim_runs(
    connection: Connection, poll: Poll, lease: Span, now: Instant | None, limited: set[str] | None = None
) -> Polled:
    """Leases due runs. `limited` are the namespaces that had limits when they were last polled: where that has changed
    since, the statement says so, and the other one is asked. What it saves is a round trip, or much of a statement."""
    rows = await _ask(connection, poll, lease, now, set() if limited is None else limited)
    time: Instant = rows[0]["now"]
    candidates: int = rows[0]["candidates"]
    if rows[0]["run_id"] is None:
        rows = []
    more = held = False
    if candidates:
        # Who finds fewer than it may claim has seen everything that is due: nothing is behind what was held.
        whole = len(rows) + candidates >= poll.limit
        under_limits, more, held = await claim_limited(connection, poll, candidates, lease, now)
        more = more and whole
        rows = sorted([*rows, *under_limits], key=lambda row: (row["place"], row["run_id"]))
    if not rows:
        return Polled(now=time, claims=(), more=more, held=held)
    run_ids = [str(row["run_id"]) for row in rows]
    begun = [run_id for run_id, row in zip(run_ids, rows, strict=True) if not row["fresh"]]
    histories = await read_histories(connection, poll.namespace, begun) if begun else {}
    apart = [run_id for run_id, row in zip(run_ids, rows, strict=True) if row["input"] is None]
    inputs: dict[str, bytes] = {}
    if apart:
        found = await connection.fetch(_READ_INPUTS, poll.namespace, apart)
        inputs = {str(row["run_id"]): row["data"] for row in found}
    handling = [run_id for run_id, row in zip(run_ids, rows, strict=True) if row["handles_run_id"] is not None]
    failed = await read_failed_inputs(connection, poll.namespace, handling) if handling else {}
    told = [run_id for run_id, row in zip(run_ids, rows, strict=True) if row["inbox_seq"] > 0]
    inboxes = await read_inboxes(connection, poll.namespace, told) if told else {}
    claims = [
        _claim_of(
            row,
            poll.namespace,
            run_id,
            inputs.get(run_id) or row["input"],
            tuple(histories.get(run_id, ())),
            failed.get(run_id),
            row["limited"],
            inboxes.get(run_id),
        )
        for row, run_id in zip(rows, run_ids, strict=True)
    ]
    return Polled(now=time, claims=tuple(claims), more=more, held=held)


async def _ask(
    connection: Connection, poll: Poll, lease: Span, now: Instant | None, limited: set[str]
) -> list[asyncpg.Record]:
    arguments = (
        now,
        lease,
        poll.namespace,
        poll.worker_id,
        poll.token,
        poll.number,
        sorted(set(poll.queues)),
        poll.limit,
        [type.name for type in poll.types if type.version is None],
        # The length makes the pair unambiguous, whatever characters names and versions hold.
        [f"{len(type.name)}:{type.name}{type.version}" for type in poll.types if type.version is not None],
    )
    if poll.namespace not in limited:
        rows = await connection.fetch(_CLAIM_RUNS, *arguments)
        if not rows[0]["limits"]:
            return rows
        limited.add(poll.namespace)
    rows = await connection.fetch(_CLAIM_RUNS_PAST_LIMITS, *arguments)
    if not rows[0]["limits"]:
        limited.discard(poll.namespace)
    return rows
