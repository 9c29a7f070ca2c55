"""The rules of replay, over random programs, random orders of completion, and a crash at every point."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kagzi.core.step import StepKind, StepStatus
from tests.campaigns import length
from tests.sdk.replay import checks
from tests.sdk.replay.host import Host, ObservedExecution
from tests.sdk.replay.programs import Node, programs, random_program, run

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True, scope="module")
def nothing_in_the_dark() -> Iterator[None]:
    """Nothing may go wrong in finalisers or callbacks, where nobody sees it."""
    trouble: list[Any] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            expected = ("nobody looked", "were cancelled and still run", "failed in attempt")
            if not any(words in record.getMessage() for words in expected):
                trouble.append(record.getMessage())

    logger = logging.getLogger("kagzi.workflow")
    handler = Handler()
    logger.addHandler(handler)
    logger.propagate = False
    previous = sys.unraisablehook
    sys.unraisablehook = lambda found: trouble.append((found.object, found.exc_value))
    try:
        yield
        gc.collect()
    finally:
        sys.unraisablehook = previous
        logger.removeHandler(handler)
        logger.propagate = True
    assert not trouble, trouble[:3]


@settings(max_examples=length(60, 500), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(programs(), st.integers(0, 1 << 16))
def test_any_program(program: Node, seed: int) -> None:
    checks.check_program(program, seed)


@pytest.mark.slow
def test_many_programs() -> None:
    seen: Counter[str] = Counter()
    for seed in range(length(120, 1_000)):
        outcome, _trace, rows = checks.check_seed(seed)
        seen[outcome[0]] += 1
        for row in rows:
            seen[f"{row.kind} {row.status}{'' if row.completed_seq else ' without number'}"] += 1
    # A batch in which something never happened proves nothing about it.
    expected = {
        "completed",
        "failed",
        f"{StepKind.SLEEP} {StepStatus.COMPLETED}",
        f"{StepKind.FUNCTION} {StepStatus.COMPLETED}",
        f"{StepKind.FUNCTION} {StepStatus.FAILED}",
        f"{StepKind.FUNCTION} {StepStatus.FAILED} without number",
        f"{StepKind.FUNCTION} {StepStatus.CANCELLED} without number",
    }
    assert expected <= set(seen), seen


@pytest.mark.slow
def test_many_cancelled_programs() -> None:
    seen: Counter[str] = Counter()
    for seed in range(length(70, 500)):
        outcome, _trace, rows = checks.check_cancelled(seed)
        told = next((row.completed_seq for row in rows if row.kind is StepKind.CANCEL), None)
        seen[f"{outcome[0]} {'told' if told else 'untold'}"] += 1
        if told and any(row.completed_seq > told for row in rows if row.completed_seq):
            seen["events after it was told"] += 1
        if outcome[0] == "cancelled":
            assert told, f"seed {seed} ended cancelled without being told"
    # Some end before they can be told, some clean up, some raise something else, some go on as if nothing had happened.
    expected = {"cancelled told", "completed told", "completed untold", "failed told", "events after it was told"}
    assert expected <= set(seen), seen


def test_letting_go_runs_nothing() -> None:
    """Evict at every point, and let the collector have what is left."""
    gc.collect()
    gc.freeze()
    try:
        for seed in range(40):
            program = random_program(seed)

            def let_go(host: Host, execution: ObservedExecution, program: Node = program) -> None:
                other = Host(lambda: run(program), rows=dict(host.rows), now=host.clock)
                started = other.begin()
                other.evict(started)
                before = len(started.trace)
                bodies = list(other.started)
                operations = list(other.pending)
                del started
                other.execution, execution = None, other.execution  # type: ignore[assignment]
                gc.collect()
                assert len(execution.trace) == before
                assert other.started == bodies
                assert other.pending == operations

            Host(lambda program=program: run(program), seed=seed, on_event=let_go).live()
    finally:
        gc.unfreeze()


def test_hash_seeds_do_not_matter() -> None:
    command = "from tests.sdk.replay.checks import digest; print(digest(range(40)))"
    digests = set()
    for hash_seed in ("1", "4242"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        }
        done = subprocess.run(
            [sys.executable, "-c", command], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
        )
        digests.add(done.stdout)
    assert len(digests) == 1


def test_any_family() -> None:
    ends = Counter(checks.check_family(seed)[0][0] for seed in range(length(150, 1_000)))
    assert ends["completed"] > 40
    assert ends["failed"] > 5
