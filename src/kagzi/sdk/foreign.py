"""What belongs to another app than the workflow that calls it.

Nobody may be there to do it: a child waits in the queue of its parent, whose workers do not know it, and a step has the
codec, the resources and the transactions of its own app.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from kagzi.errors import InvalidRequest
from kagzi.sdk.replay.execution import Execution
from kagzi.sdk.replay.loop import place_of_call


def refuse_foreign(name: str, fn: Callable[..., Any], app: object, execution: Execution) -> None:
    """Raises InvalidRequest if a step or workflow that a workflow calls is of another app. One that is of none may be
    called by all."""
    ours = execution.app
    if app is None or ours is None or app is ours:
        return
    execution.loop.unawaited.excuse()
    raise InvalidRequest(
        f"{name} ({place_of(fn)}) belongs to another app than the workflow {execution.workflow} that calls it (at "
        f"{place_of_call()}), and the workers of that do not have it. Define both with one app, or start a run of "
        f"{name} in a step: `await {name}.start(...)`"
    )


def place_of(fn: Callable[..., Any]) -> str:
    """Returns file and line of a function."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return repr(fn) if code is None else f"{code.co_filename}:{code.co_firstlineno}"
