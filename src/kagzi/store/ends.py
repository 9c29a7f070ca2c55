"""Tells which ends of runs have consequences for others. For both databases."""

from __future__ import annotations

from typing import Final, cast

from kagzi.api.operations import ENDS, EndRun, FailRun, Transition

_ENDS: Final = frozenset(ENDS)  # isinstance takes long to tell of a struct that it is none of these


def has_consequences(move: Transition) -> bool:
    """Returns whether more may follow from a transition than the new row of its run. Nearly always the worker knows
    that its run has neither parent nor children, and says so; then nothing is looked for."""
    return type(move) is FailRun or may_have_family(move)


def may_have_family(move: Transition) -> bool:
    """Returns whether a transition ends a run that may have a parent or children."""
    return type(move) in _ENDS and cast("EndRun", move).family is not False
