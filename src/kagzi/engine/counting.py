"""Counting what was committed.

Runs and steps are counted when their commit is durable, by the engine that made it: workers beside it, workers behind
gRPC and clients in the field all pass by here. Lengths of time are those of the recorded instants.

What to count a commit under is known from the claim. It is not of a run that was claimed through another process (a
server that was restarted meanwhile, a second replica), nor of one that ended without a commit of its own (a deadline, a
cancellation): those are put aside and looked up, many in one query, when somebody asks for the metrics. Nothing here
asks the database in between.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kagzi.api.operations import (
    TRANSITIONS,
    Answer,
    CancelAnswer,
    Chunk,
    ChunkAnswer,
    CompleteStep,
    Operation,
    RetryRun,
    Started,
    StartRun,
    StepOperation,
    Write,
)
from kagzi.core.instant import SECOND, Instant, Span
from kagzi.core.run import RunStatus
from kagzi.core.step import StepKind, StepStatus, step_name
from kagzi.engine.known_runs import KnownRuns
from kagzi.errors import KagziError
from kagzi.metrics.counters import MOST_NAMES, Histogram, Metrics
from kagzi.store.protocol.changes import Recovered, Told
from kagzi.store.protocol.runs import RunFacts
from kagzi.store.protocol.store import Store

log = logging.getLogger("kagzi.engine")

UNKNOWN: Final = "unknown"

_MOST_ASIDE: Final = 10_000
_LOOKED_UP: Final = 1000  # in one query
_MOST_STEP_IDS: Final = 1000
_MOST_ENDED: Final = 20_000
# A run that was ended this long before it is said to be (cancelled once more) was counted then, here or elsewhere.
_LONG_AGO: Final[Span] = 60 * SECOND

_ENDS: Final[dict[type[Operation], str]] = {kind: kind.status.lower() for kind in TRANSITIONS if kind.status.finished}


class _Late(Struct, frozen=True):
    """An event of a run whose workflow is not known yet."""

    namespace: str
    run_id: str
    event: Operation | str  # or how it ended
    heard_at: float | None = None  # by the loop's clock, if it ended without a commit


class _Workflow:
    """The counters that runs of one workflow raise, looked up once instead of every time."""

    def __init__(self, metrics: Metrics, namespace: str, workflow: str) -> None:
        self._step_seconds = metrics.step_seconds
        self._labels = (namespace, workflow)
        self.steps: dict[str, Histogram] = {}  # completed ones, by their whole id
        self.run_seconds = metrics.run_seconds[namespace, workflow]
        # From the first run on there are counters for every way to end: what begins at 1 is no rise to Prometheus.
        self.ends = {kind: metrics.runs.ready((namespace, workflow, status)) for kind, status in _ENDS.items()}

    def meet_step(self, step_id: str) -> Histogram:
        if len(self.steps) >= _MOST_STEP_IDS:
            self.steps.clear()
        labels = (*self._labels, step_name(step_id), StepStatus.COMPLETED.lower())
        histogram = self.steps[step_id] = self._step_seconds[labels]
        return histogram


class Counting:
    def __init__(self, metrics: Metrics, known: KnownRuns, now: Callable[[], Instant]) -> None:
        self._metrics = metrics
        self._known_runs = known
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._known: dict[tuple[str, str], _Workflow] = {}  # by namespace and name
        # Runs whose end was counted, the latest ones, in two halves: what is forgotten is the older half.
        self._ended: set[str] = set()
        self._ended_before: set[str] = set()
        self._aside: list[_Late] = []

    def settled(self, writes: list[Write], answers: list[Answer]) -> None:
        """Counts a durable batch. To be called before the runs that ended in it are forgotten."""
        try:
            self._count(writes, answers)
        except Exception:
            log.exception("counting a commit failed")

    def started(self, runs: Sequence[Recovered] | Sequence[Told]) -> None:
        """Counts those of them that are new: children, and runs of schedules."""
        for run in runs:
            if run.workflow_type:
                self._metrics.runs_started.add((run.namespace, run.workflow_type))

    def changed(self, runs: Sequence[Recovered]) -> None:
        """Counts the runs that a duty has ended."""
        for run in runs:
            if run.status.finished:
                self._ended_without_commit(run.namespace, run.run_id, run.status)

    async def look_up(self, store: Store, now: Instant) -> None:
        """Count what was put aside; `now` is the database's time."""
        aside, self._aside = self._aside, []
        runs = list(dict.fromkeys([(late.namespace, late.run_id) for late in aside]))
        facts: dict[tuple[str, str], RunFacts] = {}
        try:
            for begin in range(0, len(runs), _LOOKED_UP):
                for each in await store.runs.facts_of(runs[begin : begin + _LOOKED_UP]):
                    facts[each.namespace, each.run_id] = each
        except KagziError:
            self._aside = aside[: _MOST_ASIDE - len(self._aside)] + self._aside
            return
        for late in aside:
            self._count_late(late, facts.get((late.namespace, late.run_id)), now)

    # The hot path. Nearly every chunk is a completed step, or that and the end of its run, so those are counted without
    # a call of their own.

    def _count(self, writes: Sequence[Write], answers: Sequence[Answer]) -> None:
        done, function = ChunkAnswer.DONE, StepKind.FUNCTION
        claim_of, known, started = self._known_runs.claim_of, self._known, self._metrics.runs_started
        if len(self._ended) >= _MOST_ENDED // 2:
            self._ended_before, self._ended = self._ended, set()
        for write, answer in zip(writes, answers, strict=True):
            if type(write) is not Chunk:
                if type(write) is not StartRun:
                    self._count_outside(write, answer)
                elif type(answer) is Started and not answer.already_exists:
                    started.add((write.namespace, write.workflow_type))
                continue
            if answer is not done and answer is not ChunkAnswer.NEWS:
                continue
            claim = claim_of(write.run_id, write.token)
            if claim is None:
                self._put_aside(write)
                continue
            workflow = known.get((write.namespace, claim.workflow_type))
            if workflow is None:
                workflow = self._meet(write.namespace, claim.workflow_type)
            for operation in write.operations:
                if type(operation) is CompleteStep:
                    if operation.kind is function and (finished_at := operation.finished_at) is not None:
                        histogram = workflow.steps.get(operation.step_id) or workflow.meet_step(operation.step_id)
                        taken = finished_at - operation.started_at
                        histogram.counts[bisect_left(histogram.bounds, taken)] += 1
                        histogram.total += taken if taken > 0 else 0
                elif (end := workflow.ends.get(type(operation))) is not None:
                    self._ended.add(write.run_id)
                    self._metrics.runs[end] += 1
                    workflow.run_seconds.observe(self._now() - claim.started_at)
                else:
                    self._count_rare(write.namespace, claim.workflow_type, operation)

    def _meet(self, namespace: str, workflow: str) -> _Workflow:
        if len(self._known) >= MOST_NAMES:
            self._known.clear()
        met = self._known[namespace, workflow] = _Workflow(self._metrics, namespace, workflow)
        return met

    def _count_outside(self, write: Write, answer: Answer) -> None:
        """What was asked for outside of a lease."""
        if isinstance(answer, CancelAnswer) and answer.effective and answer.status.finished:
            self._ended_without_commit(write.namespace, answer.run_id, answer.status)

    def _count_rare(self, namespace: str, workflow: str, operation: Operation) -> None:
        if isinstance(operation, StepOperation):
            if operation.status is StepStatus.RUNNING or operation.kind is not StepKind.FUNCTION:
                return
            name = step_name(operation.step_id)
            if operation.finished_at is not None:
                labels = (namespace, workflow, name, operation.status.lower())
                self._metrics.step_seconds[labels].observe(operation.finished_at - operation.started_at)
            if operation.retry_at is not None:
                self._metrics.step_retries.add((namespace, workflow, name))
        elif type(operation) is RetryRun:
            self._metrics.run_retries.add((namespace, workflow))

    # What is counted later.

    def _put_aside(self, chunk: Chunk) -> None:
        if chunk.run_id in self._ended or chunk.run_id in self._ended_before:
            return  # said again, because the first answer was lost
        for operation in chunk.operations:
            if (end := _ENDS.get(type(operation))) is not None:
                self._ended.add(chunk.run_id)
                self._keep(_Late(chunk.namespace, chunk.run_id, end))
            elif isinstance(operation, StepOperation):
                # Payloads have no business here.
                light = replace(operation, input=None, output=None, error=None)
                self._keep(_Late(chunk.namespace, chunk.run_id, light))
            elif isinstance(operation, RetryRun):
                self._keep(_Late(chunk.namespace, chunk.run_id, replace(operation, error=b"")))

    def _ended_without_commit(self, namespace: str, run_id: str, status: RunStatus) -> None:
        if run_id not in self._ended and run_id not in self._ended_before:
            self._ended.add(run_id)
            self._keep(_Late(namespace, run_id, status.lower(), self._loop.time()))

    def _keep(self, late: _Late) -> None:
        if len(self._aside) < _MOST_ASIDE:
            self._aside.append(late)
        else:
            self._count_late(late, None, 0)

    def _count_late(self, late: _Late, facts: RunFacts | None, now: Instant) -> None:
        workflow = UNKNOWN if facts is None else facts.workflow_type
        if not isinstance(late.event, str):
            self._count_rare(late.namespace, workflow, late.event)
            return
        taken: Span | None = None
        if facts is not None and facts.finished_at is not None:
            if late.heard_at is not None:
                heard_at = now - round((self._loop.time() - late.heard_at) * SECOND)
                if heard_at - facts.finished_at > _LONG_AGO:
                    return
            taken = None if facts.started_at is None else facts.finished_at - facts.started_at
        self._metrics.runs.add((late.namespace, workflow, late.event))
        if taken is not None:
            self._metrics.run_seconds[late.namespace, workflow].observe(taken)
