"""Claims: leasing due runs to a worker, with what it has to know of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

import msgspec

from kagzi.api.workers import Claim, Poll, Polled
from kagzi.core.carried import TO_WORKER
from kagzi.core.instant import Instant, Span
from kagzi.store.columns import reader
from kagzi.store.sqlite.limit_rows import limit_of
from kagzi.store.sqlite.lines import choose
from kagzi.store.sqlite.signals import read_all
from kagzi.store.sqlite.statements import execute
from kagzi.store.sqlite.steps import read_history

_claim_of: Final = reader(
    Claim,
    """
    run_id workflow_type version task_queue external_id input started_at lease attempts executions crashes inbox_seq
    token cancel_requested origin_run_id scheduled_for timezone family depth handles_run_id failed_input incarnation
    executions_before woken lineage limited
    """,
    TO_WORKER,
    read={"cancel_requested": bool, "family": bool, "limited": bool},
    given=("namespace", "history", "inbox"),
)
_INBOX_SEQ: Final = 11  # its place in these rows


def claim_runs(connection: sqlite3.Connection, poll: Poll, lease: Span, now: Instant) -> Polled:
    """Leases due runs, or returns again what this very poll has claimed before."""
    run_ids = _claimed_before(connection, poll)
    more = held = False
    if run_ids:
        # Its first answer was lost, so for the worker the lease begins now.
        execute(connection, "renew_leases", (poll.worker_id, _json(run_ids), now))
    else:
        limits = [limit_of(row) for row in execute(connection, "read_limits", (poll.namespace,))]
        if limits:
            run_ids, more, held = choose(connection, poll, limits, now)
        else:
            run_ids = _due(connection, poll, now)
        if not run_ids:
            return Polled(now=now, claims=(), more=more, held=held)
        execute(
            connection,
            "claim_runs",
            (poll.namespace, _json(run_ids), poll.token, poll.worker_id, poll.number, now, lease),
        )
    claims = _read_claims(connection, poll, run_ids)
    return Polled(now=now, claims=claims, more=more, held=held)


def _claimed_before(connection: sqlite3.Connection, poll: Poll) -> list[str]:
    text = execute(connection, "find_claimed_runs", (poll.worker_id, poll.namespace, poll.token)).fetchone()[0]
    return msgspec.json.decode(text, type=list[str])


def _due(connection: sqlite3.Connection, poll: Poll, now: Instant) -> list[str]:
    every_version = _json([each.name for each in poll.types if each.version is None])
    one_version = _json([(each.name, each.version) for each in poll.types if each.version is not None])
    due: list[tuple[Instant, str]] = []
    # Queue by queue, since the index is in claim order only within a queue: all queues in one statement would
    # sort everything that is due.
    for queue in dict.fromkeys(poll.queues):
        text = execute(
            connection,
            "find_due_runs",
            (poll.namespace, queue, now, poll.token, every_version, one_version, poll.limit),
        ).fetchone()[0]
        due += msgspec.json.decode(text, type=list[tuple[int, str]])
    due.sort()
    return [run_id for _, run_id in due[: poll.limit]]


def _read_claims(connection: sqlite3.Connection, poll: Poll, run_ids: Sequence[str]) -> tuple[Claim, ...]:
    rows = execute(connection, "read_claims", (poll.namespace, _json(run_ids))).fetchall()
    histories = read_history(connection, poll.namespace, run_ids)
    told = [row[0] for row in rows if row[_INBOX_SEQ] > 0]
    inboxes = {run_id: read_all(connection, (poll.namespace, run_id)) for run_id in told}
    claims = {row[0]: _claim_of(row, poll.namespace, histories.get(row[0], ()), inboxes.get(row[0])) for row in rows}
    return tuple(claims[run_id] for run_id in run_ids)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
