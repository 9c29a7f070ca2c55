"""The table: Kagzi beside the best setting of each peer, with ratios and whether each bar is met."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.workloads import BARS, STORES, WORKLOADS, Bar, Measurement, Workload

# Kagzi in process and behind its server, each with rows of its own, and whom they are compared with.
OWN = ("kagzi", "server")
PEERS = {"dbos": "DBOS", "absurd": "Absurd", "restate": "Restate", "temporal": "Temporal"}


@dataclass(frozen=True, slots=True)
class Cell:
    """A system's median over the repeats, in its best setting."""

    setting: str
    value: float


@dataclass(frozen=True, slots=True)
class Verdict:
    bar: Bar
    value: float
    limit: float
    met: bool

    def text(self) -> str:
        sign = "≥" if _more_is_better(self.bar) else "≤"
        unit = _unit(self.bar)
        peer = f"{_aim(self.bar)} = " if self.bar.peer else ""
        where = "" if self.bar.setting == "one process" else f" ({self.bar.setting})"
        word = "met" if self.met else "MISSED"
        return f"{word}: {_number(self.value)} {unit}{where} {sign} {peer}{_number(self.limit)} {unit}"


class Report:
    def __init__(self, measurements: Iterable[Measurement]) -> None:
        self._measurements = list(measurements)

    def verdicts(self) -> list[Verdict]:
        return [verdict for bar in BARS if (verdict := self._judge(bar)) is not None]

    def lines(self) -> list[str]:
        lines: list[str] = []
        for store in STORES:
            rows = [row for key in WORKLOADS for row in self._rows(store, WORKLOADS[key])]
            if rows:
                header = ["", "Kagzi", *(cell for title in PEERS.values() for cell in (title, "ratio")), "bar"]
                lines += ["", {"postgresql": "PostgreSQL", "sqlite": "SQLite"}[store]]
                lines += _aligned([header, *rows])
        verdicts = self.verdicts()
        if verdicts:
            lines += ["", f"{sum(v.met for v in verdicts)} of {len(verdicts)} bars met"]
            lines += [f"  {v.bar.store} {v.bar.workload}: {v.text()}" for v in verdicts]
        return lines

    def settings_lines(self) -> list[str]:
        """Every setting that was measured, the ones that did not count too."""
        lines = []
        for store in STORES:
            for key, workload in WORKLOADS.items():
                for system, setting in self._settings(store, key):
                    values = self._medians(store, key, system, setting)
                    rest = ", ".join(
                        f"{name} {_number(value)}"
                        for name, value in values.items()
                        if name not in (workload.metric, "ms")
                    )
                    main = f"{_number(values[workload.metric])} {workload.unit}"
                    lines.append(f"  {key} {store:10} {system:6} {setting:13} {main:>16}   {rest}")
        return lines

    def _rows(self, store: str, workload: Workload) -> list[list[str]]:
        own = [found for found in self._settings(store, workload.key) if found[0] in OWN]
        peers = {peer: self._best(store, workload, peer) for peer in PEERS}
        if not own and not any(peers.values()):
            return []
        if not own:
            return [self._row(store, workload, "", None, peers)]
        return [self._row(store, workload, system, name, peers) for system, name in own]

    def _row(
        self, store: str, workload: Workload, system: str, setting: str | None, peers: dict[str, Cell | None]
    ) -> list[str]:
        title = f"{workload.key.upper()} {workload.title}"
        if setting is not None and setting != "one process":
            title += f", {setting}"
        own = self._medians(store, workload.key, system, setting)[workload.metric] if setting else None
        row = [title, f"{_number(own)} {workload.unit}" if own is not None else "–"]
        for peer in PEERS:
            cell = peers[peer]
            row.append(f"{_number(cell.value)} ({cell.setting})" if cell else "–")
            row.append(f"{_number(own / cell.value)} ×" if own is not None and cell else "–")
        row.append(self._marks(store, workload.key, system, setting))
        return row

    def _marks(self, store: str, key: str, system: str, setting: str | None) -> str:
        judged = [
            verdict
            for verdict in self.verdicts()
            if (verdict.bar.store, verdict.bar.workload) == (store, key)
            and (verdict.bar.system, verdict.bar.setting) == (system, setting)
        ]
        return ", ".join(
            f"{'✓' if v.met else '✗'} {'≥' if _more_is_better(v.bar) else '≤'} {_aim(v.bar)}" for v in judged
        )

    def _judge(self, bar: Bar) -> Verdict | None:
        workload = WORKLOADS[bar.workload]
        values = self._medians(bar.store, bar.workload, bar.system, bar.setting)
        value = values.get(bar.metric or workload.metric)
        peer = self._best(bar.store, workload, bar.peer) if bar.peer else None
        limit = bar.limit(peer.value if peer else None)
        if value is None or limit is None:
            return None
        met = value >= limit if _more_is_better(bar) else value <= limit
        return Verdict(bar, value, limit, met)

    def _best(self, store: str, workload: Workload, system: str) -> Cell | None:
        cells = [
            Cell(name, self._medians(store, workload.key, system, name)[workload.metric])
            for found, name in self._settings(store, workload.key, counting=True)
            if found == system
        ]
        if not cells:
            return None
        choose = max if workload.more_is_better else min
        return choose(cells, key=lambda cell: cell.value)

    def _settings(self, store: str, key: str, *, counting: bool = False) -> list[tuple[str, str]]:
        found = (
            (m.setting.system, m.setting.name)
            for m in self._measurements
            if m.setting.store == store and m.workload == key and (m.setting.counts or not counting)
        )
        return list(dict.fromkeys(found))

    def _medians(self, store: str, key: str, system: str, setting: str | None) -> dict[str, float]:
        repeats = [
            m.values
            for m in self._measurements
            if (m.setting.store, m.workload, m.setting.system, m.setting.name) == (store, key, system, setting)
        ]
        if not repeats:
            return {}
        return {name: median(values[name] for values in repeats) for name in repeats[0]}


def _more_is_better(bar: Bar) -> bool:
    return bar.metric is None and WORKLOADS[bar.workload].more_is_better


def _aim(bar: Bar) -> str:
    if bar.peer is None:
        return f"{bar.factor:g} {_unit(bar)}"
    return f"{bar.factor:g} × {bar.peer}" + (f" + {bar.plus:g} {_unit(bar)}" if bar.plus else "")


def _unit(bar: Bar) -> str:
    return bar.unit or WORKLOADS[bar.workload].unit


def _number(value: float) -> str:
    """Three digits that mean something, with thousands set apart."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return lines
