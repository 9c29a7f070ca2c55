"""The bounds: what was counted once, and by how much it may be exceeded.

Two builds of one version of Python differ by a tenth, for us as for any program of the kind. So each part counts a
program of its own as well, the calibration, in which there is nothing of Kagzi. If that takes as many instructions as
it did when the bounds were recorded, this is the same build and numbers are compared as they are. If not, bounds are
scaled by what the calibration takes, which is true to 2 %, and are 3 % looser.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.guard.measuring import CALIBRATION, Measured

FILE: Final = Path(__file__).parent / "bounds.json"

_SAME_BUILD: Final = 0.005
_OTHER_BUILD: Final = 0.03


@dataclass(frozen=True, slots=True)
class Verdict:
    """One cost, the bound for it, and what it was when that was recorded, in instructions of this build."""

    part: str
    name: str
    recorded: float
    cost: float
    most: float

    @property
    def growth(self) -> float:
        return self.cost / self.recorded - 1

    @property
    def met(self) -> bool:
        return self.cost <= self.most


@dataclass(frozen=True, slots=True)
class Bounds:
    commit: str
    tolerance: float
    parts: Mapping[str, Mapping[str, Mapping[str, float]]]  # part, version, what for

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Bounds:
        return cls(data["commit"], data["tolerance"], data["parts"])

    @classmethod
    def load(cls) -> Bounds:
        return cls.from_json(json.loads(FILE.read_text()))

    def know(self, measured: Measured) -> bool:
        return measured.version in self.parts.get(measured.part, {})

    def judge(self, measured: Measured) -> Iterator[Verdict]:
        recorded = self.parts[measured.part][measured.version]
        scale = measured.costs[CALIBRATION] / recorded[CALIBRATION]
        slack = self.tolerance
        if abs(scale - 1) <= _SAME_BUILD:
            scale = 1.0
        else:
            slack += _OTHER_BUILD
        for name, cost in measured.costs.items():
            if name != CALIBRATION:
                was = recorded[name] * scale
                yield Verdict(measured.part, name, was, cost, was * (1 + slack))

    def record(self, measured: Sequence[Measured], commit: str) -> Bounds:
        """Returns bounds with what was measured, in place of what was known of these versions."""
        parts = {part: dict(versions) for part, versions in self.parts.items()}
        for each in measured:
            parts.setdefault(each.part, {})[each.version] = {name: round(cost) for name, cost in each.costs.items()}
        return Bounds(commit, self.tolerance, parts)

    def save(self) -> None:
        data = {"commit": self.commit, "tolerance": self.tolerance, "parts": self.parts}
        FILE.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n")
