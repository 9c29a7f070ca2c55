"""What must hold for every program, every order of completions and every crash."""

from __future__ import annotations

import gc
import hashlib
import random
from typing import Any

from kagzi.api.operations import SetValue
from kagzi.core.step import StepKind
from tests.sdk.replay.host import Host, ObservedExecution, Rows, demand, describe, said, store
from tests.sdk.replay.programs import Node, random_family, random_program, run


class Point:
    """What is left if the host crashes now."""

    def __init__(self, host: Host, execution: ObservedExecution, *, in_flight: bool) -> None:
        self.rows: Rows = dict(host.rows)
        self.values = dict(host.values)
        if in_flight:
            # The database committed, and nobody heard of it.
            store(self.rows, host.in_flight)
            self.values |= said(host.in_flight)
        self.clock = host.clock
        self.trace = list(execution.trace)
        self.marks = list(execution.marks)
        self.started = {step_id for step_id, _ in host.started}


def check_seed(seed: int, *, lives: int = 2) -> tuple[Any, ...]:
    return check_program(random_program(seed), seed, lives=lives)


def check_cancelled(seed: int, *, lives: int = 2) -> tuple[Any, ...]:
    """The same for a run that somebody asks to end, sooner or later."""
    chance = random.Random(f"cancel {seed}")
    program = random_program(seed)
    if chance.random() < 0.8:
        cleanup = random_program(chance.randrange(1 << 16))
        program = ("cancellable", program, cleanup, chance.choice(("raise", "swallow", "fail")))
    return check_program(program, seed, lives=lives, cancel_after=chance.choice((0, 1, 2, 3, 5, 8, 13)))


def check_family(seed: int, *, lives: int = 2) -> tuple[Any, ...]:
    """The same for a run with children."""
    return check_program(random_family(seed), seed, lives=lives)


def check_program(
    program: Node,
    seed: int,
    *,
    rows: Rows | None = None,
    values: dict[str, bytes] | None = None,
    now: int | None = None,
    lives: int = 2,
    cancel_after: int | None = None,
) -> Any:
    """Drive a program to its end, crash at every point on the way, and check all the rules."""
    points: list[Point] = []

    def remember(host: Host, execution: ObservedExecution) -> None:
        points.append(Point(host, execution, in_flight=False))
        if host.in_flight:
            points.append(Point(host, execution, in_flight=True))

    extra = {} if now is None else {"now": now}
    host = Host(
        lambda: run(program),
        rows=rows,
        values=values,
        seed=seed,
        on_event=remember,
        cancel_after=cancel_after,
        doubts=seed % 2 == 1,
        **extra,
    )
    outcome = host.live()
    demand(not host.overlap, f"{host.overlap} started beside bodies that were cancelled and had not ended")
    assert host.execution is not None
    trace = host.execution.trace
    demand_newest(host.values, trace)
    check_final_history(program, host, describe(outcome), trace)
    chance = random.Random(seed)
    # The first life is crashed everywhere, later ones here and there.
    for point in points if rows is None else chance.sample(points, min(6, len(points))):
        check_point(program, point)
    if lives > 1 and points:
        for point in chance.sample(points, min(2, len(points))):
            check_program(
                program,
                seed + 7919,
                rows=dict(point.rows),
                values=dict(point.values),
                now=point.clock,
                lives=lives - 1,
                cancel_after=None if cancel_after is None else chance.choice((0, 3)),
            )
    return describe(outcome), trace, list(host.rows.values())


def check_point(program: Node, point: Point) -> None:
    """The next life sees what the crashed one saw, as far as it was durable, and wants what that one had begun."""
    host = Host(lambda: run(program), rows=dict(point.rows), values=dict(point.values), now=point.clock + 1_000_000)
    execution = host.begin()
    demand_newest(host.values | said(host.pending), execution.trace)
    durable = sum(row.completed_seq is not None for row in point.rows.values())
    marks = [*point.marks, len(point.trace)]
    # Steps whose last attempt cannot be followed by another end as soon as the run goes on; nothing else may happen.
    replayed = (
        execution.trace[: execution.marks[durable + 1]] if len(execution.marks) > durable + 1 else execution.trace
    )
    seen = point.trace[: marks[durable + 1]]
    demand(replayed == seen, f"replay saw\n{replayed}\nand not\n{seen}")
    done = {row.step_id for row in point.rows.values() if row.completed_seq is not None}
    lost = point.started - done - execution.requested
    demand(not lost, f"{lost} had run because of something that was lost")
    host.evict(execution)


def demand_newest(values: dict[str, bytes], trace: list[Any]) -> None:
    """The interpreter says after everything it notes how much that is; what is stored, or will be, is the newest."""
    newest = int(values.get("noted", b"0"))
    demand(newest == len(trace), f"the run has noted {len(trace)} things, and says that it were {newest}")


def check_final_history(program: Node, host: Host, outcome: Any, trace: list[Any]) -> None:
    told = [row for row in host.rows.values() if row.kind is StepKind.CANCEL]
    demand(len(told) <= 1, f"the run was told {len(told)} times that it is cancelled")
    again = Host(lambda: run(program), rows=dict(host.rows), now=host.clock + 10**9)
    execution = again.begin()
    demand(execution.outcome is not None, "replay of a finished run goes on")
    assert execution.outcome is not None
    demand(not again.started, f"replay of a finished run started {again.started}")
    demand(describe(execution.outcome) == outcome, f"replay ended with {describe(execution.outcome)}, not {outcome}")
    demand(execution.trace == trace, f"replay saw\n{execution.trace}\nand not\n{trace}")
    demand(not execution.unseen, f"{execution.unseen} are events that nobody waited for")
    submitted = [operation for operation in again.pending if not isinstance(operation, SetValue)]
    demand(not submitted, f"replay of a finished run submitted {submitted}")


def digest(seeds: range) -> str:
    """One value for everything that happened in a batch of seeds."""
    gc.disable()
    total = hashlib.sha256()
    for seed in seeds:
        total.update(repr(check_seed(seed, lives=1)).encode())
    return total.hexdigest()
