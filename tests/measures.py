"""Numbers that a test holds to a bound: asserted, and printed at the end whether the test passed or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median
from typing import Final

import pytest

_PREFIX: Final = "measured: "
MEBIBYTE: Final = 1024 * 1024


def _p99(values: Iterable[float]) -> float:
    """Returns what all but one in a hundred of them stay below; of less than a hundred, the largest."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


class Measures:
    """What one test has measured."""

    def __init__(self, record: Callable[[str, object], None]) -> None:
        self._record = record
        self._broken: list[str] = []

    def p99(self, what: str, taken: list[float], *, below: float) -> None:
        """Holds what took so long, again and again, to a bound."""
        worst = _p99(taken)
        self._note(
            f"{what}: p99 {worst * 1000:.0f} ms, median {median(taken) * 1000:.0f} ms of {len(taken)}, "
            f"bound {below * 1000:.0f} ms",
            worst < below,
        )

    def slowest(self, what: str, taken: list[float], *, below: float) -> None:
        """Holds every one of them to a bound."""
        self._note(
            f"{what}: slowest {max(taken) * 1000:.0f} ms, median {median(taken) * 1000:.0f} ms of {len(taken)}, "
            f"bound {below * 1000:.0f} ms",
            max(taken) < below,
        )

    def nine_in_ten(self, what: str, taken: list[float], *, below: float) -> None:
        """Holds nine in ten of them to a bound: a single one may meet a disk that is slow to store a commit."""
        ninth = sorted(taken)[len(taken) * 9 // 10 - 1]
        self._note(
            f"{what}: nine in ten within {ninth * 1000:.0f} ms, median {median(taken) * 1000:.0f} ms, "
            f"slowest {max(taken) * 1000:.0f} ms of {len(taken)}, bound {below * 1000:.0f} ms",
            ninth < below,
        )

    def memory(self, what: str, grown: int, *, below: int) -> None:
        self._note(f"{what}: {grown / MEBIBYTE:.0f} MiB, bound {below / MEBIBYTE:.0f} MiB", grown < below)

    def hold(self) -> None:
        """Fails the test if anything is out of its bound, with all of it."""
        assert not self._broken, "; ".join(self._broken)

    def _note(self, line: str, held: bool) -> None:
        self._record(_PREFIX, line)
        if not held:
            self._broken.append(line)


@pytest.fixture
def measures(record_property: Callable[[str, object], None]) -> Measures:
    return Measures(record_property)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = [
        f"{report.nodeid.rpartition('::')[2]}: {line}"
        for category in ("passed", "failed")
        for report in terminalreporter.getreports(category)
        for name, line in report.user_properties
        if report.when == "call" and name == _PREFIX
    ]
    if lines:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(line)
