"""Functions that follow from a table, made once when a module is loaded.

They turn rows into records and records into rows, for every run. A loop over the table, or keywords that are put
together for each call, cost half as much again as the same line written by hand. So the line is written here, from
names of ours, and compiled as `dataclasses` compiles an `__init__`.
"""

from __future__ import annotations

from typing import Any


def compiled(parameters: str, expression: str, names: dict[str, Any]) -> Any:
    """Returns the function with these parameters and this value. Nothing in it may come from a caller."""
    return eval(f"lambda {parameters}: {expression}", dict(names))
