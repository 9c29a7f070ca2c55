"""Ends of runs: which of them have consequences for others. For both databases."""

from __future__ import annotations

from kagzi.api.operations import CompleteRun, EndCancelledRun, FailRun, RunOperation


def has_consequences(move: RunOperation) -> bool:
    """Returns whether more may follow from a transition than the new row of its run. Nearly always the worker knows
    that its run has neither parent nor children, and says so; then nothing is looked for."""
    if type(move) is CompleteRun or type(move) is EndCancelledRun:
        return move.family is not False
    return type(move) is FailRun
