"""How well the database, its schema, the background duties and the workers are.

Everything is read from the database, so it is true of the whole installation and not only of this process: a lease that
ended a minute ago and was not taken back tells that no coordinator runs anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from kagzi.core.duration import format_span
from kagzi.core.health import ComponentHealth, Health, HealthStatus
from kagzi.core.instant import SECOND, Span
from kagzi.core.namespace import DEFAULT_NAMESPACE
from kagzi.engine.settings import EngineSettings
from kagzi.errors import KagziError
from kagzi.store.protocol.overview import Blocker, DueRun, Horizon, Survey
from kagzi.store.protocol.store import Store

PATIENCE: Final[Span] = 5 * SECOND
SLOW_ANSWER: Final[Span] = SECOND
# Duties run the moment something is due; later than this, they have trouble, or nobody runs them.
LATE_DUTY: Final[Span] = 10 * SECOND
LOST_DUTY: Final[Span] = 60 * SECOND
# A run that is due and not claimed.
LATE_RUN: Final[Span] = 30 * SECOND
LOST_RUN: Final[Span] = 300 * SECOND

_HEALTHY, _DEGRADED, _UNHEALTHY = HealthStatus.HEALTHY, HealthStatus.DEGRADED, HealthStatus.UNHEALTHY


async def check(store: Store, settings: EngineSettings) -> Health:
    """Returns how well the installation is. Trouble with the database is part of the answer and never raised."""
    loop = asyncio.get_running_loop()
    asked = loop.time()
    try:
        async with asyncio.timeout(PATIENCE / SECOND):
            # First, since all that follows may wait for it.
            blocker = await store.overview.blocker()
            if blocker is not None and blocker.everything:
                taken = round((loop.time() - asked) * SECOND)
                return Health((database(taken), locks(blocker)), checked_at=blocker.now)
            survey = await store.overview.survey(settings.worker_stale)
            taken = round((loop.time() - asked) * SECOND)
            horizon = await store.overview.horizon(())
            trouble = await store.write_trouble()
    except TimeoutError:
        return Health((_component("database", _UNHEALTHY, f"no answer within {format_span(PATIENCE)}"),))
    except KagziError as error:
        return Health((_component("database", _UNHEALTHY, str(error)),))
    return Health(
        (
            database(taken),
            migrations(survey, store.schema_version, await store.missing_indexes()),
            coordinator(horizon, settings),
            workers(survey),
            *([] if blocker is None else [locks(blocker)]),
            *([] if trouble is None else [_component("disk", _UNHEALTHY, trouble)]),
        ),
        checked_at=survey.now,
    )


def database(taken: Span) -> ComponentHealth:
    status = _DEGRADED if taken > SLOW_ANSWER else _HEALTHY
    return _component("database", status, f"answered in {format_span(taken)}")


def locks(blocker: Blocker) -> ComponentHealth:
    if blocker.everything:
        return _component("locks", _UNHEALTHY, f"nothing can be read or written: all wait for {blocker.who}")
    return _component("locks", _DEGRADED, f"some runs wait for {blocker.who}")


def migrations(survey: Survey, known: int, unbuilt: Sequence[str] = ()) -> ComponentHealth:
    if survey.schema < known:
        return _component("migrations", _UNHEALTHY, f"at {survey.schema:04} of {known:04}; run: kagzi migrate")
    if survey.schema > known:
        newer = f"at {survey.schema:04}, newer than the {known:04} of this process; upgrade Kagzi here"
        return _component("migrations", _DEGRADED, newer)
    if unbuilt:
        return _component("migrations", _DEGRADED, f"at {known:04}; indexes are being built: {', '.join(unbuilt)}")
    return _component("migrations", _HEALTHY, f"at {known:04}, the newest")


def coordinator(horizon: Horizon, settings: EngineSettings) -> ComponentHealth:
    """Tells whether any process does the duties, by how long the most overdue one has waited."""
    overdue = {
        "a lease that ended": (horizon.lease, 0),
        "a step past its timeout": (horizon.step_timeout, settings.step_grace),
        "a run past its deadline": (horizon.deadline, 0),
        "a worker not heard of": (horizon.heartbeat, settings.worker_stale),
    }
    lags = {what: horizon.now - at - grace for what, (at, grace) in overdue.items() if at is not None}
    what, lag = max(lags.items(), key=lambda item: item[1], default=("", 0))
    if lag < LATE_DUTY:
        return _component("coordinator", _HEALTHY, "nothing is overdue")
    message = f"{what} has not been seen to for {format_span(lag)}"
    if lag < LOST_DUTY:
        return _component("coordinator", _DEGRADED, message)
    return _component("coordinator", _UNHEALTHY, f"{message}: no server, worker or app seems to be running")


def workers(survey: Survey) -> ComponentHealth:
    online = f"{survey.workers_online} online" + (
        f", {survey.workers_draining} draining" if survey.workers_draining else ""
    )
    waited = 0 if survey.oldest_due_at is None else survey.now - survey.oldest_due_at
    if waited < LATE_RUN:
        return _component("workers", _HEALTHY, online)
    message = f"{online}; the oldest due run has been waiting for {format_span(waited)}{_named(survey.oldest_due)}"
    if survey.workers_online:
        return _component("workers", _DEGRADED, message)
    if waited < LOST_RUN:
        return _component("workers", _DEGRADED, message)
    return _component("workers", _UNHEALTHY, f"{message}; start one with: kagzi worker")


def _named(run: DueRun | None) -> str:
    """Names the run, what a worker has to have for it, and who knows more."""
    if run is None:
        return ""
    elsewhere = "" if run.namespace == DEFAULT_NAMESPACE else f" -n {run.namespace}"
    return (
        f": {run.workflow_type} version {run.version} in queue {run.task_queue}; why says "
        f"`kagzi runs show {run.run_id}{elsewhere}`"
    )


def _component(name: str, status: HealthStatus, message: str) -> ComponentHealth:
    return ComponentHealth(name, status, message)
