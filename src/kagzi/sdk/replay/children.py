"""The children of a run: which it has spawned, whose outcomes have arrived, and which of them the workflow waits for.

A spawn is no event, because nothing in it can come out differently: its id follows from what is recorded. It is
submitted in order, so no body that is asked for later starts before the child exists. The outcome is an event when the
workflow gets it. Until then it is kept in the row that the spawn has made, where the child's end wrote it; one that
nobody waits for is never an event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Final

from msgspec.structs import replace

from kagzi.api.operations import SpawnChild, TakeOutcome
from kagzi.core.family import ANY_CHILD, MOST_CHILDREN, MOST_DEPTH, awaits_child
from kagzi.core.instant import Instant
from kagzi.core.step import Step, StepKind, StepStatus
from kagzi.errors import InvalidRequest, LimitExceeded
from kagzi.ids import derived_run_id
from kagzi.sdk.replay.journal import Journal
from kagzi.sdk.replay.waits import ChildWait

_MOST_NAMED: Final = 20  # by each of which a parked run is woken; beyond this by any child


class Children:
    def __init__(self, journal: Journal, recorded: dict[str, Step], origin: tuple[str, ...], depth: int) -> None:
        self.live = False
        self.spawned = False  # in this execution
        self.awaited: dict[str, ChildWait] = {}  # by step, in order of the waits
        self._unseen = 0  # spawned, and the workflow has not got the outcome
        self._late: list[SpawnChild] = []  # called during replay, and not recorded
        self._outcomes: dict[str, Step] = {}  # that have arrived and were not taken
        self._ready: list[tuple[Instant, int, str]] = []  # a heap of those that are waited for, by when they came about
        self._number = 0
        self._journal = journal
        self._recorded = recorded
        self._origin = origin  # of their ids
        self._depth = depth
        self.receive(recorded.values())

    def spawn(self, wait: ChildWait, now: Instant, seal: Callable[[str], bytes] | None) -> None:
        """Spawns a child. `seal` makes what is stored of its input for the run with this id, if there is a codec."""
        if self._unseen >= MOST_CHILDREN:
            raise LimitExceeded(
                f"a run has at most {MOST_CHILDREN:,} children at a time; await the results of some before it starts "
                f"another {wait.workflow}"
            )
        recorded = self._recorded.get(wait.step_id)
        if recorded is not None and recorded.child_run_id is not None:
            self._unseen += 1
            wait.start = replace(wait.start, run_id=recorded.child_run_id)
            return
        run_id = derived_run_id(now, *self._origin, wait.step_id)
        wait.start = replace(wait.start, run_id=run_id)
        operation = SpawnChild(
            step_id=wait.step_id,
            kind=StepKind.CHILD_WORKFLOW,
            started_at=now,
            input=wait.input if seal is None else seal(run_id),
            input_hash=wait.input_hash,
            child=wait.start,
        )
        self._unseen += 1
        if self.live:
            self._submit(operation)
        else:
            self._late.append(operation)

    def go_live(self) -> None:
        """Submits the spawns that were called during replay and are not recorded, now that all recorded events were
        delivered."""
        self.live = True
        late, self._late = self._late, []
        for operation in late:
            self._submit(operation)

    @property
    def unrecorded(self) -> list[SpawnChild]:
        """Those that were called during replay and are not recorded."""
        return self._late

    def _submit(self, operation: SpawnChild) -> None:
        self.spawned = True
        self._journal.submit(operation)

    def child_depth(self, workflow: str) -> int:
        """Returns how deep a child of this run lies, if it may have one."""
        if self._depth >= MOST_DEPTH:
            raise InvalidRequest(
                f"{workflow} would be a child {MOST_DEPTH + 1} levels deep; at most {MOST_DEPTH} are allowed. Does a "
                f"workflow start itself without end?"
            )
        return self._depth + 1

    def receive(self, rows: Iterable[Step]) -> None:
        """Takes in outcomes that have arrived. Those that were taken or came before are passed over."""
        for row in rows:
            if row.completed_seq is None and row.status is not StepStatus.RUNNING:
                known = self._outcomes.get(row.step_id)
                if known is None and not self._was_seen(row.step_id):
                    self._outcomes[row.step_id] = row
                    if row.step_id in self.awaited:
                        self._make_ready(row)

    def _was_seen(self, step_id: str) -> bool:
        recorded = self._recorded.get(step_id)
        return recorded is not None and recorded.completed_seq is not None

    def add_wait(self, wait: ChildWait) -> None:
        self.awaited[wait.step_id] = wait
        arrived = self._outcomes.get(wait.step_id)
        if arrived is not None:
            self._make_ready(arrived)

    def remove_wait(self, wait: ChildWait) -> None:
        self.awaited.pop(wait.step_id, None)

    def _make_ready(self, row: Step) -> None:
        self._number += 1
        heappush(self._ready, (row.finished_at or 0, self._number, row.step_id))

    def next(self) -> Step | None:
        """Returns the first outcome that came about of those that somebody waits for. Nothing is taken yet."""
        ready = self._ready
        while ready:
            step_id = ready[0][2]
            if step_id in self.awaited and step_id in self._outcomes:
                return self._outcomes[step_id]
            heappop(ready)
        return None

    def take(self, row: Step) -> Step:
        """Records that the workflow gets this outcome, as the last event; returns the event."""
        seq = self._journal.seq
        now = self._journal.now
        del self._outcomes[row.step_id]
        event = self._recorded[row.step_id] = replace(row, completed_seq=seq, finished_at=now)
        if event.status is not StepStatus.COMPLETED:
            self._journal.note_failure(seq)
        self._journal.submit(
            TakeOutcome(
                step_id=row.step_id,
                attempt=row.attempt,
                kind=StepKind.CHILD_WORKFLOW,
                completed_seq=seq,
                started_at=row.started_at,
                finished_at=now,
            )
        )
        return event

    def seen(self, wait: ChildWait, status: StepStatus) -> None:
        """Notes that the workflow gets the outcome of this child."""
        self._unseen -= 1
        self.remove_wait(wait)
        if status is StepStatus.COMPLETED and self._journal.told:
            self._journal.told.pop(wait.step_id, None)  # it stays whatever is tried again

    def tell(self, wait: ChildWait) -> None:
        """Notes that the workflow tells this child something."""
        journal = self._journal
        if journal.told is None:
            journal.told = {}
        if wait.outcome is None or wait.outcome.status is not StepStatus.COMPLETED:
            journal.told.setdefault(wait.step_id, journal.seq)

    @property
    def outstanding(self) -> bool:
        """Whether the workflow waits for children whose outcomes have not arrived."""
        return bool(self.awaited)

    def waiting_for(self) -> tuple[str, ...]:
        """Returns what may wake the run, as `ParkRun` says it."""
        if len(self.awaited) > _MOST_NAMED:
            return (ANY_CHILD,)
        return tuple(sorted(awaits_child(wait.start.run_id) for wait in self.awaited.values()))
