"""Scopes that begin at the root of a run, for code that libraries call in tasks of their own."""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop
from collections.abc import Iterator
from contextlib import contextmanager

from kagzi.sdk.replay.loop import WorkflowLoop
from kagzi.sdk.replay.tasks import WorkflowTask


@contextmanager
def rooted(label: str) -> Iterator[None]:
    """Lets steps, sleeps and waits in this block be known by `label` in the whole run, and not by the tasks that led
    here, which another version of a library may name otherwise. Outside of a workflow it does nothing."""
    loop = _get_running_loop()
    task = asyncio.current_task() if isinstance(loop, WorkflowLoop) else None
    if not isinstance(task, WorkflowTask):
        yield
        return
    assert isinstance(loop, WorkflowLoop)
    before, task.scope = task.scope, loop.root.child(label)
    try:
        yield
    finally:
        task.scope = before
