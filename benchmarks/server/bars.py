"""A bar and what was measured against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """`most` is None for what is only told."""

    title: str
    value: float
    unit: str
    most: float | None = None

    @property
    def met(self) -> bool:
        return self.most is None or self.value <= self.most

    def cells(self) -> tuple[str, str, str, str]:
        if self.most is None:
            return self.title, f"{self.value:,.2f} {self.unit}", "", ""
        return (
            self.title,
            f"{self.value:,.2f} {self.unit}",
            f"at most {self.most:,g}",
            "met" if self.met else "MISSED",
        )


def table(verdicts: Sequence[Verdict]) -> list[str]:
    rows = [verdict.cells() for verdict in verdicts]
    title, value, limit = (max(len(row[i]) for row in rows) for i in range(3))
    return [f"{r[0]:{title}}  {r[1]:>{value}}  {r[2]:{limit}}  {r[3]}".rstrip() for r in rows]
