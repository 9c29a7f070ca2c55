"""What becomes of a run that begins anew, in place or as another one.

(23) a run begins anew under its own lease only: same run, another life, and no signal lost that it has not taken
(24) what a repeated or forked run begins with is what its source has recorded, up to where it was asked for, and the
     signals that were not taken by then; who repeats a run that has given its id up gets the one that has it from there
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from kagzi.api.operations import Answer, Chunk, ContinueRun, RepeatRun, Started, Write
from kagzi.core.run import RunStatus
from kagzi.core.step import StepKind, StepStatus
from kagzi.errors import Conflict, NotFound
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


def check_repeat(world: World, request: RepeatRun, new: RunRow, source: RunRow, writes: Sequence[Write]) -> None:
    """A run has come into the world that repeats another one, or a part of it."""
    events = list(source.events.values())
    kept = list(new.events.values())
    expected = _kept_of(request, events)
    if expected is not None and [_as_recorded(step) for step in kept] != [
        _as_recorded(step) for step in events[:expected]
    ]:
        raise wrong(new.run_id, f"begins with {kept}, and its source {source.run_id} has {events}: {request}")
    unseen = [step for step in new.steps.values() if step.child_run_id is not None and step.completed_seq is None]
    if unseen:
        raise wrong(new.run_id, f"begins with children of {source.run_id} that did not end for it: {unseen}")
    if kept and new.started_at != source.started_at:
        raise wrong(new.run_id, f"has another time zero than {source.run_id}")
    if new.origin_run_id != ((source.origin_run_id or source.run_id) if kept else None):
        raise wrong(new.run_id, f"keeps {len(kept)} events of {source.run_id}, and its chance is {new.origin_run_id}'s")
    others = [write for write in writes if not isinstance(write, RepeatRun)]
    if not any(getattr(write, "run_id", None) in (new.run_id, source.run_id) for write in others):
        _check_copied_signals(world, request, new, source)
    if new.schedule_group_id is not None or new.parent_run_id is not None:
        raise wrong(new.run_id, f"repeats {source.run_id}, and has its family or schedule: {new}")
    triggered = source.scheduled_for is None and source.timezone is not None
    if (new.scheduled_for, new.timezone) != (source.created_at if triggered else source.scheduled_for, source.timezone):
        raise wrong(new.run_id, f"repeats {source.run_id}, and is for another instant: {new}")
    if source.schedule_group_id is not None:
        world.operation("firing repeated")
    if new.limit_key != source.limit_key and (new.limit_key or source.limit_key):
        raise wrong(new.run_id, f"takes the share of another than {source.run_id}: {new}")
    how = "fork" if request.fork is not None else "retry" if request.keep_steps else "rerun"
    world.operation(f"{how} that keeps events" if kept else how)
    if len(kept) < len(events) and any(step.child_run_id is not None for step in events[len(kept) :]):
        world.operation(f"{how} that has other children")


def _check_copied_signals(world: World, request: RepeatRun, new: RunRow, source: RunRow) -> None:
    """A run that goes on where another was has its signals: taken by the events that are kept, or to be taken."""
    kept = len(new.events) if request.keep_steps else 0
    expected = {
        key: row if row.taken_seq is not None and row.taken_seq <= kept else replace(row, taken_seq=None)
        for key, row in source.signals.items()
        if request.keep_steps and row.taken_seq != 0
    }
    if new.signals != expected:
        raise wrong(new.run_id, f"has the signals {new.signals}, and from {source.run_id} it should have {expected}")
    if expected:
        world.operation("signals copied")


def check_successor(world: World, request: RepeatRun, answer: Answer, source: RunRow) -> None:
    """A run that has had an id gives it up once: every repeat that is to have the id is answered with the same run."""
    if not isinstance(answer, Started | Conflict | NotFound):
        raise wrong(source.run_id, f"was to be repeated by {request}, and the answer is {answer}")
    if request.fork is not None or not isinstance(answer, Started):
        return
    if answer.already_exists is not (answer.run_id != request.run_id):
        raise wrong(source.run_id, f"was to be repeated by {request}, and the answer is {answer}")
    if not request.keep_id or (source.external_id, source.former_id) == (None, None):
        return
    if source.superseded_by != answer.run_id:
        raise wrong(source.run_id, f"was superseded by {source.superseded_by}, and {request} is answered {answer}")
    if answer.already_exists:
        world.operation("repeat that found the successor")


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
