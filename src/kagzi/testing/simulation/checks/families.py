"""What must hold between a run and its children: spawned once, told of once, followed by those that are to follow.

 (9) a child's end and what its parent hears of it are one transaction
(16) nobody sleeps through the outcome that it waits for
(17) a child starts once per incarnation, attempt and step of its parent
(18) whoever is to follow the end of its parent is told
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import msgspec

from kagzi.api.operations import Chunk, SpawnChild
from kagzi.core.failure import Failure
from kagzi.core.family import ANY_CHILD, awaits_child
from kagzi.core.instant import Instant
from kagzi.core.run import RunStatus
from kagzi.core.step import StepStatus
from kagzi.store.lines import HELD
from kagzi.testing.simulation.checks.rows import RunRow, StepRow, Violation, wrong

if TYPE_CHECKING:
    from kagzi.testing.simulation.world import World

_STATUS = {
    RunStatus.COMPLETED: StepStatus.COMPLETED,
    RunStatus.CANCELLED: StepStatus.CANCELLED,
    RunStatus.FAILED: StepStatus.FAILED,
    RunStatus.TIMED_OUT: StepStatus.FAILED,
}
# Written here a second time: whose parent has ended, who is to follow that, and whom no cascade will tell.
_FORGOTTEN = """
SELECT c.run_id FROM workflow_runs AS c
LEFT JOIN workflow_runs AS p ON p.namespace = c.namespace AND p.run_id = c.parent_run_id
WHERE c.parent_run_id IS NOT NULL AND c.finished_at IS NULL AND (p.run_id IS NULL OR p.finished_at IS NOT NULL)
  AND (c.parent_policy = 'terminate' OR (c.parent_policy = 'cancel' AND NOT c.cancel_requested))
  AND NOT EXISTS (SELECT 1 FROM cascades AS k WHERE k.namespace = c.namespace AND k.run_id = c.parent_run_id)
"""


def outcomes_told(old: RunRow | None, new: RunRow) -> list[StepRow]:
    """Returns the outcomes of children that a transaction has written into the steps of a run."""
    if old is None or old.steps is new.steps:
        return []
    return [
        step
        for key, step in new.steps.items()
        if step.child_run_id is not None
        and step.generation == 0
        and step.status is not StepStatus.RUNNING
        and (key not in old.steps or old.steps[key].status is StepStatus.RUNNING)
    ]


def waits_for_child(run: RunRow, child: str | None) -> bool:
    """Whether the run was parked so that the outcome of this child wakes it."""
    awaited = [] if run.waiting_for is None else msgspec.json.decode(run.waiting_for)
    return ANY_CHILD in awaited or awaits_child(child or "") in awaited


class Families:
    """Looks at all the runs that a transaction has touched, together."""

    def __init__(self, world: World, connection: sqlite3.Connection, runs: dict[str, RunRow]) -> None:
        self._world = world
        self._connection = connection
        self._runs = runs  # as they are after the transaction
        self._spawned: set[tuple[str, int, int, str]] = set()  # parent, its incarnation, its attempts, the step

    def check(
        self, before: dict[str, RunRow], touched: list[RunRow], now: Instant, method: str, args: tuple[Any, ...]
    ) -> None:
        for row in touched:
            old = before.get(row.run_id)
            if row.parent_run_id is not None:
                if old is None:
                    self._check_spawn(row, before, method, args)
                if row.status.finished and (old is None or not old.status.finished):
                    self._check_told(row, method)
            if row.has_children:
                self._check_steps(row, old, before, now, method)
        if self._spawned and (touched or method == "duties.cascade_ends"):
            forgotten = [run_id for (run_id,) in self._connection.execute(_FORGOTTEN)]
            if forgotten:
                raise Violation(f"{method} leaves {forgotten} to themselves, whose parents have ended")  # (18)

    def forget(self, deleted: RunRow) -> None:
        """A start of it that comes late starts it from scratch."""
        self._spawned = {place for place in self._spawned if place[0] != deleted.run_id}

    def _check_spawn(self, child: RunRow, before: dict[str, RunRow], method: str, args: tuple[Any, ...]) -> None:
        parent = before.get(child.parent_run_id or "")
        chunks = [
            write
            for write in (args[0] if method == "apply" else ())
            if isinstance(write, Chunk)
            and write.run_id == child.parent_run_id
            and any(isinstance(each, SpawnChild) and each.child.run_id == child.run_id for each in write.operations)
        ]
        if parent is None or parent.status is not RunStatus.RUNNING or parent.token not in {c.token for c in chunks}:
            raise wrong(child.run_id, f"was spawned by {method}, and not under the lease of its parent {parent}")
        if (child.depth, child.handles_run_id) != ((parent.depth or 0) + 1, parent.handles_run_id):
            raise wrong(child.run_id, f"is no child of {parent.run_id}: {child}")
        place = (parent.run_id, parent.incarnation or 0, parent.attempts, child.parent_step_id or "")
        if place in self._spawned:
            raise wrong(child.run_id, f"is the second child of {place}")  # (17)
        self._spawned.add(place)
        step = self._runs[parent.run_id].steps.get((child.parent_step_id or "", 1))
        if not self._runs[parent.run_id].has_children or (
            self._runs[parent.run_id].attempts == parent.attempts
            and (step is None or step.child_run_id != child.run_id)
        ):
            raise wrong(child.run_id, f"was spawned, and its parent shows {step}")
        self._world.operation(f"child at depth {min(child.depth or 0, 2)}")

    def _check_told(self, child: RunRow, method: str) -> None:
        parent = self._runs.get(child.parent_run_id or "")
        step = None if parent is None else parent.steps.get((child.parent_step_id or "", 1))
        if parent is None or parent.status.finished:
            self._world.operation("child that ended after its parent")
        elif step is not None and step.child_run_id == child.run_id and step.status is StepStatus.RUNNING:
            raise wrong(child.run_id, f"ended by {method}, and its parent was not told")  # (9)

    def _check_steps(
        self, row: RunRow, old: RunRow | None, before: dict[str, RunRow], now: Instant, method: str
    ) -> None:
        if old is not None:
            for step in outcomes_told(old, row):
                self._check_outcome(row, step, before, method)
            for key, was in old.steps.items():
                step = row.steps.get(key, was)
                if was.child_run_id is None or was.status is StepStatus.RUNNING or step.generation:
                    continue
                if (step.status, step.output, step.error) != (was.status, was.output, was.error):
                    raise wrong(row.run_id, f"heard {was} of a child, and then {step}")
        if row.status is RunStatus.SLEEPING and (row.claim_key or 0) > now and row.claim_key != HELD:
            for step in row.steps.values():
                unseen = step.completed_seq is None and step.status is not StepStatus.RUNNING and not step.generation
                if step.child_run_id is not None and unseen and waits_for_child(row, step.child_run_id):
                    raise wrong(row.run_id, f"sleeps although it waits for {step}")  # (16)

    def _check_outcome(self, parent: RunRow, step: StepRow, before: dict[str, RunRow], method: str) -> None:
        child = self._runs.get(step.child_run_id or "")
        if child is None or child.parent_run_id != parent.run_id:
            error = Failure.decode(step.error or b"")
            if step.status is not StepStatus.FAILED or not error.type.endswith("Conflict"):
                raise wrong(parent.run_id, f"heard {step} of a child that is not its own")
            self._world.operation("child that was refused")
            return
        was = before.get(child.run_id)
        if not child.status.finished or was is None or was.status.finished:
            raise wrong(parent.run_id, f"heard {step} of a child that has not ended in this transaction")  # (9)
        same = step.output == child.output or child.output is None  # a large one is kept apart
        if step.status is not _STATUS[child.status] or not same or step.error != child.error:
            raise wrong(parent.run_id, f"heard {step} of {child}")
        # By the database, while the spawn is by the clock of a worker, which may be ahead.
        if step.completed_seq is None and step.finished_at != max(child.finished_at or 0, step.started_at):
            raise wrong(parent.run_id, f"heard of {child} at another time than its end: {step}")
        self._world.operation(f"outcome by {method}")
