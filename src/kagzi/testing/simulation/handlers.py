"""Failure handlers in a world: which runs have one, and whether each failure has started what it calls for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kagzi.core.failed_run import FAILED_INPUT
from kagzi.core.run import RunStatus

if TYPE_CHECKING:
    from kagzi.testing.simulation.checks.rows import RunRow
    from kagzi.testing.simulation.orders import Order

HANDLER = "handler"  # a workflow of the workload
NAMESPACE_HANDLER = "watchman"  # another one, which is told of all failures from some moment on
_ONE_OF = 2  # worlds in which failures are handled: the others are as they were


def draw_handlers(seed: int, orders: Iterable[Order]) -> None:
    """All runs have a handler, but every third."""
    if seed % _ONE_OF:
        for order in orders:
            order.handled = order.number % 3 != 0


def has_namespace_handler(seed: int) -> bool:
    return seed % 8 == 5


def handlers_problem(before: dict[str, RunRow], after: Iterable[RunRow], of_namespace: str | None = None) -> str | None:
    """Returns what is wrong with the handlers that a transaction has started: there is one for each run that it has
    failed or timed out and that has one, another one if its namespace has, and none for anything else."""
    called: Counter[tuple[str, str]] = Counter()
    started: Counter[tuple[str, str]] = Counter()
    for row in after:
        old = before.get(row.run_id)
        if row.handles_run_id is not None:
            if old is None and row.parent_run_id is None:
                started[row.handles_run_id, row.workflow_type] += 1
                if row.external_id is not None or FAILED_INPUT not in row.values:
                    return f"started {row} to handle a failure"
        elif old is not None and not old.status.finished and row.status in (RunStatus.FAILED, RunStatus.TIMED_OUT):
            called.update((row.run_id, name) for name in (row.on_failure, of_namespace) if name is not None)
    if called != started:
        return f"failed runs that call for handlers {dict(called)} and started handlers of {dict(started)}"
    return None
