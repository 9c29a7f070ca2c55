"""What must hold of debounced starts, said a second time from the rows.

(28) of each key at most one run waits that nobody has begun, and it has the input of the last start
(29) it begins no later than its last start says, and no later than `most` after its first one
(30) it counts the starts that have joined it, and one whose answer was lost once
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from kagzi.api.operations import Started, StartRun
from kagzi.core.instant import Instant
from kagzi.testing.simulation.checks.rows import RunRow, Violation, difference, wrong

if TYPE_CHECKING:
    from kagzi.testing.simulation.world import World

_Key = tuple[str, str]  # workflow and key
# What a start that joins a run may change of it.
_FIELDS = ("input", "version", "available_at", "claim_key", "held_key", "limit_name", "limit_key", "deadline_at")
_READ = """
SELECT r.run_id, r.workflow_type, r.debounce_key, coalesce(r.input, p.data), r.available_at, coalesce(r.joins, 0)
FROM workflow_runs AS r
LEFT JOIN workflow_payloads AS p ON p.namespace = r.namespace AND p.run_id = r.run_id AND p.kind = 'input'
WHERE r.debounce_key IS NOT NULL AND r.started_at IS NULL AND r.finished_at IS NULL
"""


class Waiting(Struct):
    """The run of a key that nobody has begun."""

    run_id: str
    input: bytes
    since: Instant
    due: Instant
    latest: Instant | None
    joins: int = 0
    last: str = ""  # the id of the start that has joined it last


class Debounced:
    def __init__(self, world: World, connection: sqlite3.Connection, runs: dict[str, RunRow]) -> None:
        self._world = world
        self._connection = connection
        self._runs = runs  # as they are after the transaction
        self._waiting: dict[_Key, Waiting] = {}

    def joins(self, old: RunRow, method: str, args: tuple[Any, ...]) -> bool:
        """Whether a start may have joined this run, which is then looked at by `check`."""
        return (
            method == "apply"
            and old.started_at is None
            and any(
                isinstance(write, StartRun) and write.debounce is not None and old.run_id == self._run_of(write)
                for write in args[0]
            )
        )

    def _run_of(self, start: StartRun) -> str | None:
        assert start.debounce is not None
        waiting = self._waiting.get((start.workflow_type, start.debounce.key))
        return None if waiting is None else waiting.run_id

    def check(
        self, before: dict[str, RunRow], touched: list[RunRow], now: Instant, method: str, args: Any, answer: Any
    ) -> None:
        if method == "apply":
            made = {row.run_id for row in touched if row.run_id not in before}
            for write, said in zip(args[0], answer.answers, strict=True):
                if isinstance(write, StartRun) and write.debounce is not None:
                    self._start(write, said, made, now)
        if not touched:
            return
        found: dict[_Key, tuple[Any, ...]] = {}
        for row in self._connection.execute(_READ):
            if found.setdefault((row[1], row[2]), row) is not row:
                raise Violation(f"both {row[0]} and {found[row[1], row[2]][0]} wait for starts with {row[1:3]}")  # (28)
        for key, row in found.items():
            waiting = self._waiting.get(key)
            if waiting is None or waiting.run_id != row[0]:
                raise wrong(row[0], f"waits for starts with {key}, and that should be {waiting}")  # (28)
            if waiting.input != row[3]:
                raise wrong(row[0], f"has the input {row[3]!r:.80}, and the last start said {waiting.input!r:.80}")
            if row[5] != waiting.joins:
                raise wrong(row[0], f"says that {row[5]} starts have joined it, and {waiting.joins} have")  # (30)
            if row[4] > waiting.due or (waiting.latest is not None and row[4] > waiting.latest):
                raise wrong(row[0], f"begins at {row[4]}, later than its starts have said: {waiting}")  # (29)
            if method == "apply" and row[4] != waiting.due and row[0] in {each.run_id for each in touched}:
                raise wrong(row[0], f"begins at {row[4]}, and not when its last start has said: {waiting}")
        for key, waiting in list(self._waiting.items()):
            if key not in found:
                run = self._runs.get(waiting.run_id)
                if run is not None and run.started_at is None and not run.status.finished:
                    raise wrong(run.run_id, f"waits for no starts with {key} any more")
                del self._waiting[key]

    def _start(self, start: StartRun, answer: Any, made: set[str], now: Instant) -> None:
        assert start.debounce is not None
        if not isinstance(answer, Started):
            raise Violation(f"{start} was refused: {answer}")
        key = (start.workflow_type, start.debounce.key)
        waiting = self._waiting.get(key)
        wait, most = start.debounce.wait, start.debounce.most
        if start.run_id in self._runs and (start.run_id not in made or self._made_before(start.run_id)):
            expected = start.run_id
            self._world.operation("debounced start that came twice")
        elif waiting is None:
            expected = start.run_id
            latest = None if most is None else now + most
            self._waiting[key] = Waiting(start.run_id, start.input, now, now + wait, latest)
            self._world.operation("debounced start")
        else:
            expected = waiting.run_id
            waiting.joins += waiting.last != start.run_id
            waiting.last = start.run_id
            waiting.input, waiting.due = start.input, now + wait
            waiting.latest = None if most is None else waiting.since + most
            if waiting.latest is not None and waiting.latest <= waiting.due:
                waiting.due = waiting.latest
                self._world.operation("debounced start that cannot put its run off")
            self._world.operation("debounced start that joined a run")
        if answer.run_id != expected:
            raise wrong(answer.run_id, f"is the answer to {start}, which should be {expected}")  # (28)

    def _made_before(self, run_id: str) -> bool:
        """Whether an earlier start of the same transaction has made this run."""
        return any(waiting.run_id == run_id for waiting in self._waiting.values())

    def check_joined(self, old: RunRow, new: RunRow) -> None:
        same = msgspec.structs.replace(new, **{field: getattr(old, field) for field in _FIELDS})
        if difference(old, same) or new.held_key is not None:
            raise wrong(new.run_id, f"was joined by a start, and is otherwise: {difference(old, new)}")
