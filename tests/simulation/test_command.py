"""`python -m kagzi.testing.simulation`, as somebody types it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kagzi.testing.simulation.__main__ import main
from tests.simulation.mutants import say_instead


def test_one_seed_says_what_it_saw(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "7"]) == 0

    assert capsys.readouterr().out.startswith("seed 7 passed: ")


def test_worlds_that_go_well_print_no_warnings() -> None:
    """In a process of its own: here pytest hears what is logged, there nobody does."""
    command = [sys.executable, "-W", "error", "-m", "kagzi.testing.simulation", "--seeds", "12"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert "12 seeds" in done.stdout
    assert [line for line in done.stderr.splitlines() if " seeds, " not in line] == []


def test_the_log_is_printed_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "7", "--log"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert " world seed 7 " in lines[0]
    assert len(lines) > 50


def test_too_few_seeds_do_not_count_and_it_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "1"]) == 2

    out = capsys.readouterr().out
    assert "1 seeds, " in out
    assert "a minute, 0 failed" in out
    assert "this batch does not count, because in none of its worlds occurred:" in out
    assert "  fault: " in out


def test_a_failure_is_shown_with_its_seed_and_what_led_to_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    say_instead(monkeypatch, "renew_leases", "lease_length", "lease_length + 1")

    assert main(["--seeds", "5", "--failures", "1"]) == 1
    out = capsys.readouterr().out
    assert "FAILED: Violation: run " in out
    assert "again, with everything: python -m kagzi.testing.simulation --seed " in out

    seed = out.split("--seed ")[1].split()[0]
    assert main(["--seed", seed]) == 1
    assert f"seed {seed} FAILED after " in capsys.readouterr().out
