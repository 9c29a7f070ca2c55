"""Asking an engine what was started when a run has failed."""

from __future__ import annotations

from kagzi.api.engine import Services
from kagzi.core.failed_run import FAILURE_HANDLER
from kagzi.core.run import Run, RunStatus
from kagzi.errors import NotFound
from kagzi.ids import derived_run_id


async def failure_handlers(engine: Services, run: Run) -> tuple[Run, ...]:
    """Returns the runs that handle the failure of this one, its own handler and that of its namespace.

    They are found by their ids, which follow from the failure. Those that were deleted are left out, and so is one
    whose workflow the namespace named when the run failed and names no more.
    """
    if run.status not in (RunStatus.FAILED, RunStatus.TIMED_OUT) or run.handles_run_id is not None:
        return ()
    assert run.finished_at is not None
    names = {run.on_failure, FAILURE_HANDLER}
    try:
        names.add((await engine.namespaces.get(run.namespace)).on_failure)
    except NotFound:
        pass  # nobody has said anything about it
    found = []
    for name in sorted(name for name in names if name is not None):
        try:
            found.append(await engine.workflows.get(run.namespace, derived_run_id(run.finished_at, run.run_id, name)))
        except NotFound:
            continue
    return tuple(found)
