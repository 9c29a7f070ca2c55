"""What is measured: the workloads, their sizes, the settings of every system and the bars.

Everything that could favour one side is fixed here, in one file. The scripts in `systems/` import it
too, each from an environment of its own, so it needs nothing but the standard library.

Where a choice had to be made it went to the peer:
- Each peer runs in several settings and only its best one counts. One more of Restate's, whose log cannot be
  replicated, is measured and told beside the others.
- W4 and W5 time DBOS and Absurd from the first line of their workflow function to the last, because their callers
  would ask again and again for the result. Kagzi is timed from the call that starts the run to the result in the
  caller's hands, and so is Restate, whose callers wait for the answer to one request as Kagzi's do.
- Peers that learn of a result by asking again and again are not made to ask for each run in W1, W2
  and W6: a single query counts the finished rows. Kagzi's callers wait for each of their results.
- DBOS does not park sleeping runs. In W6 it may hold all of them in memory, without a limit of slots. So may
  Restate, which keeps its default limit of 1,000.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

Values = dict[str, float]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of a workload is done. Rates are measured over `seconds`, times over repeats in it."""

    seconds: float
    callers: int = 1
    slots: int = 100
    runs: int = 0
    steps: int = 1
    warmup: int = 1
    sleep_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of the table. `metric` is the value that counts, the others are printed beside it."""

    key: str
    title: str
    metric: str
    unit: str
    more_is_better: bool
    workflow: str
    full: Sizes
    quick: Sizes

    def sizes(self, *, quick: bool) -> Sizes:
        return self.quick if quick else self.full


WORKLOADS: Mapping[str, Workload] = {
    workload.key: workload
    for workload in (
        Workload(
            "w1",
            "one-step runs, one call each, 200 callers",
            "runs_per_second",
            "runs/s",
            True,
            "one_step",
            full=Sizes(seconds=4, callers=200, slots=400, warmup=200),
            quick=Sizes(seconds=1.5, callers=200, slots=400, warmup=50),
        ),
        Workload(
            "w2",
            "ten sequential steps, 100 runs at a time",
            "steps_per_second",
            "steps/s",
            True,
            "ten_steps",
            full=Sizes(seconds=4, callers=100, steps=10, warmup=100),
            quick=Sizes(seconds=1.5, callers=100, steps=10, warmup=20),
        ),
        Workload(
            "w3",
            "start to result on an idle system, p50",
            "p50_ms",
            "ms",
            False,
            "one_step",
            full=Sizes(seconds=4, runs=50, warmup=10),
            quick=Sizes(seconds=1.5, runs=20, warmup=5),
        ),
        Workload(
            "w4",
            "one run, 100 sequential steps",
            "ms_per_step",
            "ms/step",
            False,
            "hundred_steps",
            full=Sizes(seconds=3, runs=3, steps=100, warmup=2),
            quick=Sizes(seconds=1, runs=2, steps=100, warmup=1),
        ),
        Workload(
            "w5",
            "one run, 200 parallel steps",
            "ms",
            "ms",
            False,
            "parallel_steps",
            full=Sizes(seconds=3, runs=3, steps=200, warmup=2),
            quick=Sizes(seconds=1, runs=2, steps=200, warmup=1),
        ),
        Workload(
            "w6",
            "2,000 runs sleep 2 s, 100 slots, p99 lateness",
            "p99_late_ms",
            "ms",
            False,
            "sleeper",
            full=Sizes(seconds=0, callers=200, runs=2000, warmup=0),
            quick=Sizes(seconds=0, callers=200, runs=400, warmup=0),
        ),
        Workload(
            "children",
            "one run, 1,000 one-step children",
            "ms",
            "ms",
            False,
            "family",
            full=Sizes(seconds=3, runs=3, slots=400, warmup=1),
            quick=Sizes(seconds=1, runs=1, slots=400, warmup=1),
        ),
        Workload(
            "signal",
            "signal to a parked run until it has ended, p50",
            "p50_ms",
            "ms",
            False,
            "told",
            full=Sizes(seconds=0, runs=30, warmup=0),
            quick=Sizes(seconds=0, runs=5, warmup=0),
        ),
        Workload(
            "idle",
            "queries of an idle process",
            "queries_per_second",
            "a second",
            False,
            "ten_steps",
            full=Sizes(seconds=1, callers=100, steps=10, warmup=20),
            quick=Sizes(seconds=0.5, callers=100, steps=10, warmup=20),
        ),
        Workload(
            "memory",
            "the most a worker has held after W2",
            "worker_mb",
            "MB",
            False,
            "ten_steps",
            full=Sizes(seconds=4, callers=100, steps=10, warmup=20),
            quick=Sizes(seconds=1.5, callers=100, steps=10, warmup=20),
        ),
    )
}

# For `benchmarks.growth`: what a step costs at the end of a long history.
SHORT_RUN = Workload(
    "short_run",
    "one run of 100 steps",
    "ms_per_step",
    "ms/step",
    False,
    "many_steps",
    full=Sizes(seconds=3, runs=5, steps=100),
    quick=Sizes(seconds=1, runs=3, steps=100),
)
LONG_RUN = Workload(
    "long_run",
    "one run of 10,000 steps",
    "ms_per_step",
    "ms/step",
    False,
    "many_steps",
    full=Sizes(seconds=3, runs=1, steps=10_000, warmup=0),
    quick=Sizes(seconds=1, runs=1, steps=2_000, warmup=0),
)
GROWTH: Mapping[str, Workload] = {workload.key: workload for workload in (SHORT_RUN, LONG_RUN)}


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to run one system on one database. `options` are read by the script of that system. What does not
    count is measured and told, and no bar is held against it."""

    system: str
    store: str
    name: str
    options: Mapping[str, Any]
    workloads: frozenset[str]
    counts: bool = True

    @property
    def label(self) -> str:
        return f"{self.system}/{self.store}/{self.name}"


# DBOS: as many threads as connections. The default, no limit of threads, is slower by a fifth with 200
# callers, and pools of 8 to 50 connections make no difference; on SQLite more than a few only wait.
_DBOS_DIRECT = {"pool_size": 20, "threads": 20, "queue": False}
_DBOS_QUEUE = {"pool_size": 20, "threads": 20, "queue": True, "poll_seconds": 0.02}
_DBOS_SQLITE = {"pool_size": 4, "threads": 4}

# Absurd "as documented": one connection for the worker and one for the callers, the default polling
# of 0.25 s, results by `await_task_result`. Tuned: eight workers in the process, each with a
# connection of its own and an eighth of the slots, 20 ms polling, also for results.
_ABSURD_DOCUMENTED = {"connections": 1, "poll_seconds": 0.25, "poll_results": False}
_ABSURD_TUNED = {"connections": 8, "poll_seconds": 0.02, "poll_results": True}

# Restate ships with 24 partitions and a log made for replication. On two cores, 4 partitions are faster in some
# workloads and slower in others, so both count. "local log" is what it shipped with before 1.4: the log of a node that
# can never have a second one, from which a newer server moves away by itself. Kagzi's server may have any number of
# replicas, so its like is a log that may, too. In each of the three its server syncs its log before it answers.
_RESTATE_SHIPPED: dict[str, Any] = {"server": {}, "granian": []}
_RESTATE_SMALL = {"server": {"RESTATE_DEFAULT_NUM_PARTITIONS": "4"}, "granian": []}
_RESTATE_LOCAL = {
    "server": {"RESTATE_DEFAULT_NUM_PARTITIONS": "4", "RESTATE_BIFROST__DEFAULT_PROVIDER": "local"},
    "granian": [],
}

# "idle" and "memory" are Kagzi's own: what it asks of a database and of a machine.
_ALL = frozenset({"w1", "w2", "w3", "w4", "w5", "w6"})
# Runs that talk.
_TALKING = frozenset({"children", "signal"})
_APART = frozenset({"w3", "memory"})
_WORKER_APART = {"worker_apart": True}

SETTINGS: tuple[Setting, ...] = (
    Setting("kagzi", "postgresql", "one process", {}, _ALL | _TALKING | {"idle"}),
    Setting("kagzi", "postgresql", "worker apart", _WORKER_APART, _APART),
    Setting("server", "postgresql", "server", {}, _ALL | _TALKING),
    Setting("dbos", "postgresql", "direct", _DBOS_DIRECT, _ALL | _TALKING),
    Setting("dbos", "postgresql", "queue", _DBOS_QUEUE, _ALL | _TALKING),
    Setting("absurd", "postgresql", "as documented", _ABSURD_DOCUMENTED, _ALL),
    Setting("absurd", "postgresql", "8 connections", _ABSURD_TUNED, _ALL),
    # Restate has a store of its own. It stands here because its like is Kagzi's server.
    Setting("restate", "postgresql", "as shipped", _RESTATE_SHIPPED, _ALL | _TALKING),
    Setting("restate", "postgresql", "4 partitions", _RESTATE_SMALL, _ALL | _TALKING),
    Setting("restate", "postgresql", "local log", _RESTATE_LOCAL, _ALL | _TALKING, counts=False),
    # The dev server: one process on SQLite. A thousand children take it minutes.
    Setting("temporal", "postgresql", "dev server", {}, frozenset({"signal"})),
    Setting("kagzi", "sqlite", "one process", {}, _ALL | _TALKING),
    Setting("kagzi", "sqlite", "worker apart", _WORKER_APART, _APART),
    Setting("dbos", "sqlite", "direct", {**_DBOS_DIRECT, **_DBOS_SQLITE}, _ALL | _TALKING),
    Setting("dbos", "sqlite", "queue", {**_DBOS_QUEUE, **_DBOS_SQLITE}, _ALL | _TALKING),
)
STORES = ("postgresql", "sqlite")
SYSTEMS = ("kagzi", "server", "dbos", "absurd", "restate", "temporal")
BY_DEFAULT = SYSTEMS[:-1]  # the server of the last is built for minutes


@dataclass(frozen=True, slots=True)
class Bar:
    """What Kagzi has to reach: a factor of a peer's best setting, `plus` something, or a limit of its own."""

    store: str
    workload: str
    factor: float
    peer: str | None = None
    plus: float = 0.0
    system: str = "kagzi"
    setting: str = "one process"
    metric: str | None = None
    unit: str | None = None

    def limit(self, peer_value: float | None) -> float | None:
        if self.peer is None:
            return self.factor
        return None if peer_value is None else self.factor * peer_value + self.plus


BARS: tuple[Bar, ...] = (
    Bar("postgresql", "w1", 10, "absurd"),
    Bar("postgresql", "w1", 45, "dbos"),
    Bar("postgresql", "w2", 9, "absurd"),
    Bar("postgresql", "w2", 60, "dbos"),
    Bar("postgresql", "w3", 0.25, "dbos"),
    Bar("postgresql", "w3", 0.5, "dbos", setting="worker apart"),
    Bar("postgresql", "w4", 0.6, "absurd"),
    Bar("postgresql", "w5", 0.1, "absurd"),
    Bar("postgresql", "children", 1, "dbos"),
    Bar("postgresql", "signal", 1, "dbos"),
    Bar("postgresql", "children", 1, "restate", system="server", setting="server"),
    Bar("postgresql", "signal", 1, "restate", system="server", setting="server"),
    Bar("postgresql", "signal", 1, "temporal", system="server", setting="server"),
    Bar("sqlite", "children", 1, "dbos"),
    Bar("sqlite", "signal", 1, "dbos"),
    Bar("postgresql", "w6", 150),
    Bar("postgresql", "w6", 4, metric="total_seconds", unit="s"),
    Bar("postgresql", "w2", 0.1, metric="transactions_per_step", unit="transactions a step"),
    Bar("postgresql", "w2", 3_300, metric="bytes_per_run", unit="bytes a run"),
    Bar("postgresql", "idle", 2),
    Bar("postgresql", "memory", 60, setting="worker apart"),
    Bar("postgresql", "w1", 2, "restate", system="server", setting="server"),
    Bar("postgresql", "w2", 3, "restate", system="server", setting="server"),
    Bar("postgresql", "w3", 1, "restate", system="server", setting="server"),
    Bar("postgresql", "w3", 1, "kagzi", plus=3, system="server", setting="server"),
    Bar("postgresql", "w4", 1, "restate", system="server", setting="server"),
    Bar("postgresql", "w5", 1, "restate", system="server", setting="server"),
    Bar("postgresql", "w6", 1, "restate", system="server", setting="server"),
    Bar("sqlite", "w1", 45, "dbos"),
    Bar("sqlite", "w2", 60, "dbos"),
    Bar("sqlite", "w3", 0.25, "dbos"),
    Bar("sqlite", "w3", 0.5, "dbos", setting="worker apart"),
    Bar("sqlite", "w2", 3_300, metric="bytes_per_run", unit="bytes a run"),
    Bar("sqlite", "memory", 60, setting="worker apart"),
)


@dataclass(frozen=True, slots=True)
class Task:
    """What the harness asks a script to do: one workload in one setting on one fresh database."""

    workload: str
    url: str
    sizes: Sizes
    options: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Task:
        return cls(data["workload"], data["url"], Sizes(**data["sizes"]), data["options"])


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one script measured, once. A system whose rows or outputs are wrong gives none."""

    setting: Setting
    workload: str
    values: Values

    def to_json(self) -> dict[str, Any]:
        return {
            "system": self.setting.system,
            "store": self.setting.store,
            "setting": self.setting.name,
            "options": dict(self.setting.options),
            "workload": self.workload,
            "values": self.values,
        }
