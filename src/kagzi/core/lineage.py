"""What a payload is, and of which run: what codecs are told, so that an encrypted one cannot be put into another place.

A payload is sealed for one run. Other runs may hold it, too: those that repeat the run or were forked from it, what a
schedule fires, what handles a failure, and what starts became that were debounced. The row of such a run names them,
in the column `lineage`; all other runs have none.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Struct

from kagzi.core.failed_run import FAILED_INPUT, is_document
from kagzi.core.step import Step, StepKind

_ID: Final = "id:"  # and an id of the user's, by which a signal was sent
_ANY_ID: Final = "id:*"
_SCHEDULE: Final = "schedule:"  # and the name of the schedule whose arguments these are
FIRST_INPUT: Final = "@first_input"  # the name in run_values of what a run was started with that has begun anew since
_INPUTS: Final = (FAILED_INPUT, FIRST_INPUT)
_MARKS: Final = (StepKind.SLEEP, StepKind.CANCEL)


class PayloadKind(StrEnum):
    """What a payload is."""

    INPUT = "input"  # of a run, a fork, a child or a schedule
    OUTPUT = "output"  # of a run, and in its parent's history
    ERROR = "error"
    STEP_INPUT = "step input"
    STEP_OUTPUT = "step output"
    STEP_ERROR = "step error"
    SIGNAL = "signal"
    VALUE = "value"  # `set_value` and `progress`


class PayloadContext(Struct, frozen=True):
    """What a codec encodes or decodes, and whose it is. `name` is that of the step, signal or value.

    `run_id` is the run that it is encoded for; `schedule:NAME` for the arguments of a schedule, and `id:ID` for a
    signal that is sent by the id of a run. A payload that is decoded may have been encoded for any of `runs`.
    """

    kind: PayloadKind
    namespace: str
    name: str
    runs: tuple[str, ...]

    @property
    def run_id(self) -> str:
        return self.runs[0]

    def accepts(self, run_id: str) -> bool:
        """Returns whether a payload of this run may stand here."""
        return run_id in self.runs or (_ANY_ID in self.runs and run_id.startswith(_ID))

    def __str__(self) -> str:
        of = f" of {self.name}" if self.name else ""
        return f"the {self.kind.value}{of} of {self.run_id} in namespace {self.namespace}"


class Lineage(Struct, frozen=True):
    """A run, as far as it matters for what is sealed. `names` is the column `lineage` of its row."""

    namespace: str
    run_id: str
    names: str | None = None
    external_id: str | None = None

    @property
    def runs(self) -> tuple[str, ...]:
        """Whose payloads it may have, first the one for which its own are sealed."""
        runs = (self.run_id,) if self.names is None else _names(self.names)
        if self.external_id is not None:
            runs = (*runs, _ID + self.external_id)
        # A run that repeats another has its signals, and not always its id.
        return runs if runs[0] == self.run_id else (*runs, self.run_id, _ANY_ID)

    def of(self, kind: PayloadKind, name: str = "") -> PayloadContext:
        return PayloadContext(kind, self.namespace, name, self.runs)

    def of_child(self, run_id: str, kind: PayloadKind) -> PayloadContext:
        return PayloadContext(kind, self.namespace, "", (run_id,))

    def step_input(self, step: Step) -> PayloadContext:
        if step.child_run_id is not None:
            return self.of_child(step.child_run_id, PayloadKind.INPUT)
        return self.of(PayloadKind.STEP_INPUT, _identity(step.step_id))

    def step_output(self, step: Step) -> PayloadContext | None:
        """Returns what the output is; None if no codec has seen it, because it is a note of Kagzi's own."""
        if step.child_run_id is not None:
            return self.of_child(step.child_run_id, PayloadKind.OUTPUT)
        if step.kind is not StepKind.SIGNAL and (step.kind in _MARKS or step.step_id.startswith("@")):
            return None
        if step.kind is StepKind.SIGNAL:
            return self.of(PayloadKind.SIGNAL, step.name)
        return self.of(PayloadKind.STEP_OUTPUT, _identity(step.step_id))

    def value(self, name: str) -> PayloadContext | None:
        """Returns what a value is; None for what a run was given, which is kept among its values and not shown with
        them: of a failure handler that has begun anew the engine has written it."""
        return None if name in _INPUTS else self.of(PayloadKind.VALUE, name)

    def step_error(self, step: Step) -> PayloadContext:
        if step.child_run_id is not None:
            return self.of_child(step.child_run_id, PayloadKind.ERROR)
        return self.of(PayloadKind.STEP_ERROR, _identity(step.step_id))


def input_of(run: Any) -> PayloadContext | None:
    """Returns what the input of a Run is; None for a failure handler's that the engine has written."""
    if run.handles_run_id is not None and is_document(run.input or b""):
        return None
    return lineage_of(run).of(PayloadKind.INPUT)


def lineage_of(run: Any) -> Lineage:
    """Returns the lineage of a Run or a Claim."""
    return Lineage(run.namespace, run.run_id, run.lineage, run.external_id or getattr(run, "former_id", None))


def new_input(namespace: str, run_id: str) -> PayloadContext:
    """Returns what the input of a run is that is being started."""
    return PayloadContext(PayloadKind.INPUT, namespace, "", (run_id,))


def schedule_input(namespace: str, schedule: str) -> PayloadContext:
    return PayloadContext(PayloadKind.INPUT, namespace, "", (_SCHEDULE + schedule,))


def signal_by_id(namespace: str, external_id: str, name: str) -> PayloadContext:
    return PayloadContext(PayloadKind.SIGNAL, namespace, name, (_ID + external_id,))


def _identity(step_id: str) -> str:
    """Returns the id under which a step was sealed: what a retry of its run has set aside has another."""
    return step_id.partition("~")[0]


@lru_cache(maxsize=1024)
def _names(stored: str) -> tuple[str, ...]:
    return msgspec.json.decode(stored, type=tuple[str, ...])
