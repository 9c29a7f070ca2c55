"""The cost guard reads what valgrind has counted, and tells what costs more than it may."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.guard import __main__ as guard
from benchmarks.guard import growth
from benchmarks.guard.bounds import Bounds
from benchmarks.guard.callgrind import PYTHON_MARK, CannotCount, command, read, segments
from benchmarks.guard.measuring import CALIBRATION, PYTHON, SQLITE, Measured

RECORDED = {CALIBRATION: 1_000_000, "W1 run": 700_000, "W2 step": 200_000}
BOUNDS = Bounds("4ed1d99b", 0.05, {PYTHON: {"3.11": RECORDED}})

COUNTED = """\
events: Ir
ob=(1) /usr/lib/libpython3.11.so.1.0
fl=(1) ceval.c
fn=(1) _PyEval_EvalFrameDefault
16 100
+3 20
cob=(2) /usr/lib/x86_64-linux-gnu/libsqlite3.so.0.8.6
cfi=(2) ???
cfn=(2) sqlite3_step
calls=7 0
* 5000
-2 3

ob=(2)
fl=(2)
fn=(2)
0 4000
cob=(3) /usr/lib/libc.so.6
cfn=(3) memcpy
calls=1 0
0 1000

ob=(3)
fn=(3)
0 1000
totals: 5123
"""


@pytest.fixture(autouse=True)
def nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "since", lambda _: ["  +500 (+5.0%)  engine/batcher.py Batcher.submit"])


def test_each_library_is_charged_with_what_it_has_spent_itself() -> None:
    counts = read(COUNTED)

    assert counts == {"libpython3.11.so.1.0": 123, "libsqlite3.so.0.8.6": 4000, "libc.so.6": 1000}
    assert sum(counts.values()) == 5123  # as callgrind has it


@pytest.mark.parametrize(
    ("cost", "calibration", "code"),
    [
        (700_000, 1_000_000, 0),
        (735_000, 1_000_000, 0),
        (735_700, 1_000_000, 1),  # 5.1 %
        (735_700, 1_004_000, 1),  # which no noise of the calibration excuses
        (735_700, 995_500, 1),
        (550_000, 1_000_000, 0),
        # An interpreter that takes a tenth less for everything: bounds are scaled, and 3 % looser.
        (630_000, 900_000, 0),
        (680_000, 900_000, 0),
        (681_000, 900_000, 1),
    ],
)
def test_five_per_cent_more_than_was_recorded_are_too_much(cost: int, calibration: int, code: int) -> None:
    measured = Measured(PYTHON, "3.11", {CALIBRATION: calibration, "W1 run": cost, "W2 step": 180_000})

    assert guard.judge(BOUNDS, [measured]) == code


def test_what_broke_is_named_with_its_numbers_and_the_functions_that_grew(capsys: pytest.CaptureFixture[str]) -> None:
    assert guard.judge(BOUNDS, [Measured(PYTHON, "3.11", {**RECORDED, "W1 run": 770_000})]) == 1

    *_, what, _, _, function = capsys.readouterr().out.splitlines()
    assert what.strip() == "Python: W1 run, 700,000 -> 770,000 (+10.0%)"
    assert "Batcher.submit" in function


@pytest.mark.parametrize("measured", [Measured(PYTHON, "3.99", RECORDED), Measured(SQLITE, "3.99.0", RECORDED)])
def test_a_version_without_numbers_is_said_to_be_not_compared(
    measured: Measured, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guard.judge(BOUNDS, [measured]) == 0

    assert "not compared" in capsys.readouterr().out


def test_recording_one_version_keeps_the_others() -> None:
    bounds = BOUNDS.record([Measured(PYTHON, "3.12", {**RECORDED, "W1 run": 1.4})], "0123")

    assert bounds.parts[PYTHON] == {"3.11": RECORDED, "3.12": {**RECORDED, "W1 run": 1}}


def test_the_bounds_in_the_repository_have_a_number_for_everything_that_is_counted() -> None:
    parts = Bounds.load().parts

    for versions in parts.values():
        (names,) = {frozenset(costs) for costs in versions.values()}
        assert CALIBRATION in names
    assert {"W1 run", "W2 step", "50 starts", "a last step and the end"} <= set(parts[PYTHON]["3.11"])


def test_without_valgrind_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr(guard, "measure", lambda: command(PYTHON_MARK, guard.FILE))

    assert guard.main([]) == 2
    assert "apt install valgrind" in capsys.readouterr().err


def test_a_program_that_has_set_no_mark_cannot_be_counted(tmp_path: Path) -> None:
    with pytest.raises(CannotCount, match="no marks"):
        segments(tmp_path / "counts")


def test_bytecodes_are_counted_by_function_and_segment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> int:
        return sum(range(10))

    def run(mark: object) -> None:
        assert callable(mark)
        work()
        for name in ("calibration", "W1 run"):
            mark(name)
            work()
            mark(name)

    monkeypatch.setattr(growth.embedded, "run", run)
    monkeypatch.setattr(growth.embedded, "UNITS", {"calibration": 1, "W1 run": 4})
    tracing = sys.gettrace()
    try:
        growth.main()
    finally:
        sys.settrace(tracing)

    (told,) = capsys.readouterr().out.splitlines()
    assert '"W1 run": {' in told
    assert "test_guard.py test_bytecodes_are_counted_by_function_and_segment.<locals>.work" in told
