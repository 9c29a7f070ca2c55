"""Cancelling a run on behalf of somebody outside, the same over every port."""

from __future__ import annotations

from kagzi.api.engine import HostedEngine
from kagzi.api.operations import CancelAnswer, CancelRun, TerminateRun
from kagzi.errors import NotFound


async def cancel_run(engine: HostedEngine, cancel: CancelRun) -> CancelAnswer:
    """Ask the run to end; one that is driven by a worker nobody can tell about that is ended at once."""
    answer = await engine.workflows.cancel(cancel)
    if answer.effective and not answer.status.finished and await _cannot_be_told(engine, cancel):
        terminate = TerminateRun(namespace=cancel.namespace, run_id=cancel.run_id, reason="cancelled")
        return await engine.workflows.terminate(terminate)
    return answer


async def _cannot_be_told(engine: HostedEngine, cancel: CancelRun) -> bool:
    """Whether the run is, or was last, driven by one of those workers in the field that know nothing of cancellations:
    they name no versions when they register."""
    run = await engine.workflows.get(cancel.namespace, cancel.run_id)
    if run.worker_id is None:
        return False
    try:
        worker = await engine.admin.get_worker(run.worker_id)
    except NotFound:
        return False
    return all(offered.version is None for offered in worker.types)
