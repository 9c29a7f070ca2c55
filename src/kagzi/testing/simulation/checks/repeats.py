"""What becomes of a run that begins anew, in place or as another one.

(23) a run begins anew under its own lease only: same run, another life, and no signal lost that it has not taken
(24) what a repeated or forked run begins with is what its source has recorded, up to where it was asked for
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from kagzi.api.operations import Chunk, ContinueRun, RepeatRun
from kagzi.core.run import RunStatus
from kagzi.core.step import StepKind, StepStatus
from kagzi.testing.simulation.checks.rows import RunRow, StepRow, difference, wrong

if TYPE_CHECKING:
    from kagzi.testing.simulation.world import World


def begins_anew(old: RunRow, new: RunRow) -> bool:
    return (new.incarnation or 0) != (old.incarnation or 0)


def check_anew(world: World, old: RunRow, new: RunRow, method: str, args: tuple[Any, ...]) -> None:
    """A run has begun anew in place."""
    chunks = [write for write in args[0] if isinstance(write, Chunk)] if method == "apply" else []
    continued = any(
        (chunk.run_id, chunk.token) == (old.run_id, old.token) and isinstance(chunk.operations[-1], ContinueRun)
        for chunk in chunks
    )
    if not continued or old.status is not RunStatus.RUNNING or (new.incarnation or 0) != (old.incarnation or 0) + 1:
        raise wrong(new.run_id, f"began anew by {method}: {difference(old, new)}")
    kept = (new.executions, new.external_id, new.workflow_type, new.deadline_at, new.cancel_requested)
    if kept != (old.executions, old.external_id, old.workflow_type, old.deadline_at, old.cancel_requested):
        raise wrong(new.run_id, f"is another run since it began anew: {difference(old, new)}")
    if new.started_at != world.clock.now():
        raise wrong(new.run_id, f"began anew, and counts time from {new.started_at}")
    if new.events or any(not step.generation for step in new.steps.values()):
        raise wrong(new.run_id, f"began anew, and has {new.events}")
    for key, row in old.signals.items():
        now = new.signals.get(key)
        if row.taken_seq is None and now != row and (now is None or now != replace(row, taken_seq=0)):
            raise wrong(new.run_id, f"began anew, and has {now} of {row}")
        if row.taken_seq is not None and now is not None and now.taken_seq != 0:
            raise wrong(new.run_id, f"began anew, and may take {now} again")
    world.operation("run that began anew")


def check_repeat(world: World, request: RepeatRun, new: RunRow, source: RunRow) -> None:
    """A run has come into the world that repeats another one, or a part of it."""
    events = list(source.events.values())
    kept = list(new.events.values())
    expected = _kept_of(request, events)
    if expected is not None and [_as_recorded(step) for step in kept] != [
        _as_recorded(step) for step in events[:expected]
    ]:
        raise wrong(new.run_id, f"begins with {kept}, and its source {source.run_id} has {events}: {request}")
    if kept and new.started_at != source.started_at:
        raise wrong(new.run_id, f"has another time zero than {source.run_id}")
    if request.keep_steps:
        for row in source.signals.values():
            if (row.taken_seq is None or row.taken_seq > len(kept)) and row.key not in new.signals:
                raise wrong(new.run_id, f"lacks {row} of {source.run_id}")
    if new.schedule_group_id is not None or new.parent_run_id is not None:
        raise wrong(new.run_id, f"repeats {source.run_id}, and has its family or schedule: {new}")
    if new.limit_key != source.limit_key and (new.limit_key or source.limit_key):
        raise wrong(new.run_id, f"takes the share of another than {source.run_id}: {new}")
    how = "fork" if request.fork is not None else "retry" if request.keep_steps else "rerun"
    world.operation(f"{how} that keeps events" if kept else how)


def _kept_of(request: RepeatRun, events: list[StepRow]) -> int | None:
    """How many events are kept: all before the step of a fork, or before the first failure or cancellation."""
    if not request.keep_steps:
        return 0
    if request.fork is not None and request.fork.from_step is not None:
        places = [place for place, step in enumerate(events) if step.step_id == request.fork.from_step]
        return places[0] if places else None
    for place, step in enumerate(events):
        ended = step.status is StepStatus.FAILED or (step.status is StepStatus.CANCELLED and step.child_run_id)
        if step.kind is StepKind.CANCEL or ended:
            return place
    return len(events)


def _as_recorded(step: StepRow) -> tuple[Any, ...]:
    return step.step_id, step.kind, step.status, step.completed_seq, step.finished_at, step.output, step.error
