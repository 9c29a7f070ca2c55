"""Finds the step of a run that somebody names to go on from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kagzi.core.step import Step
from kagzi.errors import InvalidRequest, NotFound

_NAMED: Final = 20  # steps that an error tells of


def step_to_fork_from(run_id: str, asked: str, steps: Sequence[Step]) -> str:
    """Returns the whole id of the step: the one that is given, or the only one with this name that has ended."""
    ended = [step for step in steps if step.completed_seq is not None]
    if any(step.step_id == asked for step in ended):
        return asked
    alike = [step.step_id for step in ended if step.name == asked]
    if len(alike) == 1:
        return alike[0]
    if alike:
        raise InvalidRequest(f"run {run_id} has several steps {asked!r}; name one of {_listed(alike)}")
    if any(asked in (step.step_id, step.name) for step in steps):
        last = ended[-1].step_id if ended else None
        before = "nothing has ended there" if last is None else f"the last that has is {last}"
        raise NotFound(f"step {asked!r} of run {run_id} has not ended, so it cannot be forked from; {before}")
    names = _listed([step.step_id for step in ended]) or "none yet"
    raise NotFound(f"run {run_id} has no step {asked!r}; those that have ended are {names}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
