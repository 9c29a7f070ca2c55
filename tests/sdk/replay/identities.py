"""What workflow code came to on one Python, written down for all others: `python -m tests.sdk.replay.identities`.

The file says the same whichever Python writes it, so that each can show alone that it agrees with the others. Write it
anew when the naming of steps or the programs are changed on purpose.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from kagzi.core.step import Step
from tests.sdk.replay.host import START, Host, describe
from tests.sdk.replay.programs import random_family, random_program, run
from tests.sdk.replay.shapes import SHAPES
from tests.sdk.replay.workflows import Workflow

FILE = Path(__file__).parent / "identities.json"
ORDERS = range(3)
PROGRAMS = 150
# Up to 3.12 a TaskGroup of which a task has failed swallows a cancellation that comes while it ends.
NOT_CANCELLED = {"group_that_fails"}


def of_shape(name: str) -> dict[str, Any]:
    """Returns the ids of a shape's steps and timers in the order of their ends, and what became of it in several orders
    of events: undisturbed, asked to end, and by a worker that got it from another one at each point on the way."""
    workflow = SHAPES[name]
    found = []
    for order in ORDERS:
        host, ended = _live(workflow, order)
        found.append(ended)
        if name not in NOT_CANCELLED:
            found.append(_live(workflow, order, cancel_after=4 + order)[1])
        rows = _in_order(host.rows.values())
        for number in range(len(rows)):
            before = {(row.step_id, row.attempt): row for row in rows[:number]}
            now = max([START, *(row.finished_at or 0 for row in before.values())])
            found.append(_live(workflow, order, rows=before, now=now)[1])
    first, _ = _live(workflow, 0)
    return {"ids": [row.step_id for row in _in_order(first.rows.values())], "became": _digest(found)}


def of_programs() -> list[str]:
    """Returns what became of random programs, all that they have noted about themselves included."""
    found = []
    for seed in range(PROGRAMS):
        program = random_family(seed) if seed % 3 == 0 else random_program(seed)
        host, ended = _live(lambda program=program: run(program), seed, doubts=seed % 2 == 1)  # type: ignore[misc]
        assert host.execution is not None
        found.append(_digest([ended, host.execution.trace]))
    return found


def _live(workflow: Workflow, seed: int, **options: Any) -> tuple[Host, Any]:
    host = Host(workflow, seed=seed, **options)
    outcome = host.live()
    return host, [describe(outcome), [_told(row) for row in _in_order(host.rows.values())], host.started]


def _in_order(rows: Iterable[Step]) -> list[Step]:
    """Returns the rows of a run in the order of its events; what is none of them does not count."""
    return sorted((row for row in rows if row.completed_seq is not None), key=lambda row: row.completed_seq or 0)


def _told(row: Step) -> Any:
    # Not the error: a traceback differs between Pythons.
    return [row.step_id, row.attempt, row.status, row.started_at, row.finished_at, row.input_hash, str(row.output)]


def _digest(found: Any) -> str:
    # Some errors name a file; where this one is checked out does not count.
    text = json.dumps(found, default=repr).replace(str(FILE.parent), "")
    return sha256(text.encode()).hexdigest()[:16]


def written() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


if __name__ == "__main__":
    found = {"shapes": {name: of_shape(name) for name in SHAPES}, "programs": of_programs()}
    FILE.write_text(json.dumps(found, indent=1) + "\n")
