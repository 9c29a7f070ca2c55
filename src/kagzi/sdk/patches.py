"""Switches for changes of workflow code under live runs.

    if kagzi.patched("new-fee"):
        fee = await fee_v2(order)
    else:
        fee = await fee_v1(order)

A switch is a fact of each call, not of its id: see rule 17 of `sdk.replay.execution`. So a run in a loop ends the
iterations that it has begun in the old code, and turns to the new code with its next one.
"""

from __future__ import annotations

from asyncio import _get_running_loop

from kagzi.core.limits import check_name
from kagzi.core.step import PATCH, escape
from kagzi.errors import InvalidRequest
from kagzi.sdk.replay.loop import WorkflowLoop, place_of_call
from kagzi.sdk.replay.side_threads import refuse_beside_workflow
from kagzi.sdk.worker.bodies import current_step


def patched(patch: str, /) -> bool:
    """In a workflow: whether to take the new way: `if kagzi.patched("new-fee"): ...`, and the old one below `else`.

    True where no execution of this run has been before, and from then on at this place of the workflow; False where the
    old code has been. Outside of Kagzi, as in a test that calls the workflow function itself, it is True.
    """
    check_name(patch, "patch id")
    loop = _get_running_loop()
    if isinstance(loop, WorkflowLoop):
        if loop.evicting:
            loop.refuse()
        if loop.unawaited.dropped:
            loop.unawaited.refuse_dropped()
        return loop.execution.patched(loop.current_scope().identity(PATCH + escape(patch)))
    refuse_beside_workflow("kagzi.patched()")
    if current_step.get(None) is not None:
        raise InvalidRequest(
            f"kagzi.patched({patch!r}) was called in a step, and is for workflows (at {place_of_call()}); "
            "decide in the workflow, and give the step what it needs as an argument"
        )
    return True
