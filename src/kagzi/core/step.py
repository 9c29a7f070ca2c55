"""A step: a memoised unit of work in a run, and how it is identified.

A step's identity is text: the path of its scope, its name, and its occurrence within that scope, for example
`charge`, `charge#2`, `reserve_all/reserve#3`. `/` and `#` inside a name are escaped, so a path reads back
unambiguously. Identity never contains a global position: adding, removing or reordering other steps leaves it alone.

Timers are rows of the same table (kind SLEEP): the row of a tick carries the identity of the first timer it fired,
which is `@` and a name, so that a step called `sleep` and a sleep cannot meet. A signal that the workflow has got is a
row (kind SIGNAL, `@@` and its name). So is that somebody asked for the run to be cancelled (kind CANCEL, `@cancel`),
once its workflow has been told. That a switch of the workflow's code was on is a row without a number (kind SIGNAL,
`@@@` and its id). A run whose first timers were set before its first step ended has a row of when that
was (kind SIGNAL, `@begin`). Rows set aside by a retry of the run end in `~` and their generation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from msgspec import Struct

from kagzi.core.instant import Instant

BEGIN: Final = "@begin"
CANCEL: Final = "@cancel"
PATCH: Final = "@@@"  # and the id of a patch: `@` is escaped in the name of a signal, so it cannot be one
# What the row of a cancellation holds as its output if it came after the workflow had seen its last event and returned,
# and before that end was stored: then it is delivered in the turn of that event.
LATE: Final = b'"late"'


class StepKind(StrEnum):
    FUNCTION = "FUNCTION"
    SLEEP = "SLEEP"
    CHILD_WORKFLOW = "CHILD_WORKFLOW"
    SIGNAL = "SIGNAL"
    CANCEL = "CANCEL"


def step_kind(kind: str, step_id: str) -> StepKind:
    """Returns the kind of a stored row. Before there was a kind of its own for it, a cancellation was a SIGNAL."""
    return StepKind.CANCEL if kind == "SIGNAL" and step_id == CANCEL else _KINDS[kind]


_KINDS: Final = {kind.value: kind for kind in StepKind}


class StepStatus(StrEnum):
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class Step(Struct, frozen=True, kw_only=True):
    """One attempt of one step (or one fired timer), as it is recorded.

    `completed_seq` is set if and only if the workflow has seen this as an event; a failed attempt that is to be
    tried again has none, and neither has one that is still running or was cancelled. The outcome of a child is recorded
    by the child's end, and gets its number when the workflow has got it.
    """

    step_id: str
    attempt: int
    kind: StepKind
    status: StepStatus
    completed_seq: int | None
    started_at: Instant
    finished_at: Instant | None
    retry_at: Instant | None
    input_hash: int
    output: bytes | None
    error: bytes | None
    input: bytes | None = None
    child_run_id: str | None = None  # the run that this step has spawned

    @property
    def name(self) -> str:
        return step_name(self.step_id)

    @property
    def scope(self) -> str:
        return step_scope(self.step_id)


def in_order(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Returns attempts as they happened: in the order they ended, then those that are running as they began.

    Where the same instant was recorded, the order in which the workflow saw the ends decides, and an attempt that was
    tried again comes before the one that ended its step.
    """
    steps = tuple(steps)
    seen = {step.step_id: step.completed_seq for step in steps if step.completed_seq is not None}

    def place(step: Step) -> tuple[bool, Instant, float, int, str]:
        ended = step.finished_at
        seq = seen.get(step.step_id, math.inf) if step.completed_seq is None else step.completed_seq
        return (ended is None, step.started_at if ended is None else ended, seq, step.attempt, step.step_id)

    return tuple(sorted(steps, key=place))


def escape(part: str) -> str:
    """Makes a name safe inside a step id."""
    if any(mark in part for mark in "%/#@~"):
        for mark in "%/#@~":
            part = part.replace(mark, f"%{ord(mark):02X}")
    return part


def is_patch(step_id: str) -> bool:
    """Returns whether the row says that a switch of the code (`kagzi.patched`) was on."""
    return step_id.rpartition("/")[2].startswith(PATCH)


def numbered(name: str, occurrence: int) -> str:
    """Returns the name for its first occurrence, and with a number from 2 up for later ones."""
    return name if occurrence == 1 else f"{name}#{occurrence}"


def step_scope(step_id: str) -> str:
    """Returns where in the workflow the step was called: `book` of `book/charge#2`; empty for the workflow function
    itself."""
    return step_id.rpartition("/")[0]


def step_name(step_id: str) -> str:
    """Returns the name that a person gave the step, without scope and occurrence."""
    name = step_id.rpartition("/")[2].partition("~")[0].partition("#")[0].lstrip("@")
    if "%" in name:
        for mark in "~@#/%":
            name = name.replace(f"%{ord(mark):02X}", mark)
    return name
