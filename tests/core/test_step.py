from __future__ import annotations

from kagzi.core.step import Step, StepKind, StepStatus, in_order


def attempt(step_id: str, number: int, *, began: int, ended: int | None = None, seq: int | None = None) -> Step:
    return Step(
        step_id=step_id,
        attempt=number,
        kind=StepKind.FUNCTION,
        status=StepStatus.RUNNING if ended is None else StepStatus.FAILED if seq is None else StepStatus.COMPLETED,
        completed_seq=seq,
        started_at=began,
        finished_at=ended,
        retry_at=None,
        input_hash=0,
        output=None,
        error=None,
    )


def test_attempts_are_ordered_by_their_end_and_running_ones_by_their_start() -> None:
    happened = [
        attempt("a", 1, began=5, ended=10, seq=1),
        attempt("b", 1, began=0, ended=20),
        attempt("c", 1, began=1, ended=25, seq=2),
        attempt("b", 2, began=21, ended=30, seq=3),
        attempt("e", 1, began=2),
        attempt("d", 1, began=3),
    ]
    assert in_order(reversed(happened)) == tuple(happened)


def test_at_the_same_instant_what_the_workflow_saw_decides() -> None:
    happened = [
        attempt("b", 1, began=10, ended=10, seq=1),
        attempt("a", 1, began=10, ended=10),
        attempt("a", 2, began=10, ended=10, seq=2),
        attempt("c", 1, began=10, ended=10),
    ]
    assert in_order(reversed(happened)) == tuple(happened)
