"""Explains why values were not stored, in the same words for every store."""

from __future__ import annotations

from kagzi.core.run_value import MOST_VALUES


def too_many(run_id: str) -> str:
    return f"run {run_id} would have more than {MOST_VALUES} values"
