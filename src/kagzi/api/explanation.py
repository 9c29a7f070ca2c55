"""`explain`: reads from an engine what the sentence about a run that does not move is made of, and no more."""

from __future__ import annotations

from collections.abc import Sequence

from kagzi.api.admin import AdminService, WorkerFilter
from kagzi.api.engine import Services
from kagzi.core.flow import FlowLimit, SlotWait
from kagzi.core.instant import Instant
from kagzi.core.run import Run, RunStatus
from kagzi.core.signal import Signal
from kagzi.core.step import Step
from kagzi.core.why import is_due, why
from kagzi.core.worker import Worker, WorkerStatus
from kagzi.errors import NotFound

_WORKERS = 100


async def explain(
    engine: Services, run: Run, now: Instant, *, steps: Sequence[Step] | None = None, signals: Sequence[Signal] = ()
) -> str | None:
    """Returns why the run is not moving; None if it has finished. Reads its steps unless they are given. Of its
    `signals` only those are spoken that are given."""
    if run.status.finished:
        return None
    admin = engine.admin
    holder: Worker | None = None
    limits: Sequence[FlowLimit] = ()
    slot: SlotWait | None = None
    serving: Sequence[Worker] = ()
    others: Sequence[Worker] = ()
    if run.status is RunStatus.RUNNING and run.worker_id is not None:
        try:
            holder = await admin.get_worker(run.worker_id, run.namespace)
        except NotFound:
            pass  # it was forgotten; the run names it still
    elif is_due(run, now):
        limits = await engine.limits.list(run.namespace)
        if any(limit.limits_runs for limit in limits):
            slot = await engine.limits.wait(run.namespace, run.run_id)
        serving = await _online(admin, run.namespace, run.task_queue)
        if not serving:
            others = await _online(admin, run.namespace, None)
    if steps is None:
        steps = () if is_due(run, now) else await engine.workflows.steps(run.namespace, run.run_id, payloads=False)
    return why(
        run,
        now=now,
        steps=steps,
        holder=holder,
        serving=serving,
        others=others,
        limits=limits,
        slot=slot,
        untaken=[signal.name for signal in signals if signal.taken_seq is None],
    )


async def _online(admin: AdminService, namespace: str, queue: str | None) -> Sequence[Worker]:
    wanted = WorkerFilter(namespace=namespace, task_queue=queue, status=WorkerStatus.ONLINE)
    return (await admin.list_workers(wanted, page_size=_WORKERS)).items
