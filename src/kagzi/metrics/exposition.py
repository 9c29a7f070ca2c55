"""The text that Prometheus reads: the counters of an engine, and gauges from its database.

>>> body, content_type = await render(engine)

Counters belong to the process that is asked: add them up over all processes. Gauges are read from the database and say
the same wherever they are asked for: take any of them, or the maximum.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, Literal, Protocol, assert_never

from msgspec import Struct

from kagzi.core.instant import SECOND
from kagzi.core.load import MOST_NAMESPACES, Load
from kagzi.core.worker import WorkerStatus
from kagzi.metrics.counters import Counts, Histogram, Histograms, Labels, Metrics
from kagzi.version import __version__

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


class Measured(Protocol):
    """An engine that counts (`LocalEngine`)."""

    @property
    def metrics(self) -> Metrics: ...

    async def load(self) -> Load | None:
        """What the gauges show, at most a few seconds old; None if the database does not answer."""
        ...


class Definition(Struct, frozen=True):
    """A metric as people know it."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: Labels
    help: str


# Later versions of the format are for names that ours are not, and not every reader knows them.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_WORKFLOW: Final = ("namespace", "workflow")
_STEP: Final = ("namespace", "workflow", "step")

DEFINITIONS: Final[tuple[Definition, ...]] = (
    Definition("kagzi_runs_started_total", "counter", _WORKFLOW, "Runs started through this process."),
    Definition(
        "kagzi_runs_total",
        "counter",
        (*_WORKFLOW, "status"),
        "Runs that ended: completed, failed, cancelled, timed_out.",
    ),
    Definition(
        "kagzi_run_duration_seconds",
        "histogram",
        _WORKFLOW,
        "From the first claim of a run to its end, time asleep included.",
    ),
    Definition("kagzi_run_retries_total", "counter", _WORKFLOW, "Runs put back by their own retry policy."),
    Definition(
        "kagzi_step_duration_seconds",
        "histogram",
        (*_STEP, "status"),
        "Attempts of steps that ended, from start to end as recorded: completed, failed, cancelled.",
    ),
    Definition("kagzi_step_retries_total", "counter", _STEP, "Failed attempts of steps that are to be tried again."),
    Definition(
        "kagzi_queue_ready_runs",
        "gauge",
        ("namespace", "queue"),
        "Runs that could be claimed now, counted to 100,000, in 100 queues of a namespace; others are left out.",
    ),
    Definition(
        "kagzi_queue_oldest_age_seconds",
        "gauge",
        ("namespace", "queue"),
        "For how long the oldest run that could be claimed has waited; 0 if there is none.",
    ),
    Definition("kagzi_workers", "gauge", ("namespace", "status"), "Workers: online, draining, offline."),
    Definition(
        "kagzi_worker_slots", "gauge", ("namespace", "state"), "Slots of online and draining workers: used, free."
    ),
    Definition(
        "kagzi_leases_expired_total",
        "counter",
        ("namespace",),
        "Runs taken from a worker that was not heard of in time.",
    ),
    Definition(
        "kagzi_schedule_firings_total",
        "counter",
        ("namespace", "outcome"),
        "Firings of schedules whose time had come: fired, as runs, or skipped.",
    ),
    Definition(
        "kagzi_schedule_lag_seconds", "histogram", (), "How late schedules fired that were not catching up, by turns."
    ),
    Definition("kagzi_batch_size", "histogram", (), "Writes that shared a transaction."),
    Definition("kagzi_store_seconds", "histogram", ("op",), "Calls of the database by what they are for."),
    Definition("kagzi_store_errors_total", "counter", ("op", "code"), "Calls of the database that failed."),
    Definition("kagzi_store_up", "gauge", (), "1 if the database answered this scrape, else 0."),
    Definition("kagzi_rpc_requests_total", "counter", ("method", "code"), "Calls answered over gRPC."),
    Definition(
        "kagzi_rpc_seconds", "histogram", ("method",), "How long calls over gRPC took; long polls wait for work."
    ),
    Definition("kagzi_http_requests_total", "counter", ("method", "route", "status"), "Requests answered over HTTP."),
    Definition("kagzi_http_seconds", "histogram", ("method", "route"), "How long requests over HTTP took."),
    Definition("kagzi_build_info", "gauge", ("version",), "Always 1; the label is the version of Kagzi."),
)


async def render(engine: Measured) -> tuple[bytes, str]:
    """Returns the text that Prometheus reads, and its content type."""
    load = await engine.load()
    values = Values(engine.metrics, load)
    # Thousands of lines take a while to write, and the engine has better things to do.
    return await asyncio.to_thread(_write, values)


def _write(values: Values) -> tuple[bytes, str]:
    # Here and not above: whoever imports Kagzi should not wait for this.
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(values)
    ProcessCollector(registry=registry)
    return generate_latest(registry), CONTENT_TYPE


class Values:
    """A collector of prometheus-client: everything as it was at one moment, so that another thread can read it."""

    def __init__(self, metrics: Metrics, load: Load | None) -> None:
        self._counts: dict[str, dict[Labels, int]] = {
            "kagzi_runs_started_total": _copy(metrics.runs_started),
            "kagzi_runs_total": _copy(metrics.runs),
            "kagzi_run_retries_total": _copy(metrics.run_retries),
            "kagzi_step_retries_total": _copy(metrics.step_retries),
            "kagzi_leases_expired_total": _copy(metrics.leases_expired),
            "kagzi_schedule_firings_total": _copy(metrics.schedule_firings),
            "kagzi_store_errors_total": _copy(metrics.store_errors),
            "kagzi_rpc_requests_total": _copy(metrics.rpc_requests),
            "kagzi_http_requests_total": _copy(metrics.http_requests),
        }
        self._histograms: dict[str, dict[Labels, Histogram]] = {
            "kagzi_run_duration_seconds": _copies(metrics.run_seconds),
            "kagzi_step_duration_seconds": _copies(metrics.step_seconds),
            "kagzi_schedule_lag_seconds": {(): metrics.schedule_lag.copy()},
            "kagzi_batch_size": {(): metrics.batch_size.copy()},
            "kagzi_store_seconds": _copies(metrics.store_seconds),
            "kagzi_rpc_seconds": _copies(metrics.rpc_seconds),
            "kagzi_http_seconds": _copies(metrics.http_seconds),
        }
        self._gauges: dict[str, dict[Labels, float]] = {
            "kagzi_store_up": {(): 0 if load is None else 1},
            "kagzi_build_info": {(__version__,): 1},
        }
        if load is not None:
            self._gauges |= _gauges(load)

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for definition in DEFINITIONS:
            name, labels = definition.name, definition.labels
            match definition.kind:
                case "counter":
                    counter = CounterMetricFamily(name, definition.help, labels=labels)
                    for each, count in self._counts[name].items():
                        counter.add_metric(each, count)
                    yield counter
                case "histogram":
                    unit = SECOND if name.endswith("_seconds") else 1
                    histogram = HistogramMetricFamily(name, definition.help, labels=labels)
                    for each, found in self._histograms[name].items():
                        histogram.add_metric(each, _buckets(found, unit), found.total / unit)
                    yield histogram
                case "gauge":
                    # A gauge that could not be read is left out: an old value, or 0, would look like a healthy one.
                    if name in self._gauges:
                        gauge = GaugeMetricFamily(name, definition.help, labels=labels)
                        for each, value in self._gauges[name].items():
                            gauge.add_metric(each, value)
                        yield gauge
                case kind:
                    assert_never(kind)


def _copy(counts: Counts) -> dict[Labels, int]:
    return dict(counts)


def _copies(histograms: Histograms) -> dict[Labels, Histogram]:
    return {labels: histogram.copy() for labels, histogram in list(histograms.items())}


def _buckets(histogram: Histogram, unit: int) -> list[tuple[str, float]]:
    bounds: Iterable[str] = [f"{bound / unit:g}" for bound in histogram.bounds]
    buckets: list[tuple[str, float]] = []
    reached = 0
    for bound, count in zip([*bounds, "+Inf"], histogram.counts, strict=True):
        reached += count
        buckets.append((bound, reached))
    return buckets


def _gauges(load: Load) -> dict[str, dict[Labels, float]]:
    ready: dict[Labels, float] = {}
    ages: dict[Labels, float] = {}
    for queue in load.queues:
        labels = (queue.namespace, queue.task_queue)
        ready[labels] = queue.ready
        ages[labels] = 0 if queue.oldest_due_at is None else max(0, load.now - queue.oldest_due_at) / SECOND
    workers: dict[Labels, float] = {}
    slots: dict[str, int] = dict.fromkeys(load.running, 0)
    for each in load.workers:
        for status in WorkerStatus:
            # An alert on workers that are gone finds a 0, but not a series that has gone with them.
            workers.setdefault((each.namespace, status.lower()), 0)
        workers[each.namespace, each.status.lower()] = each.workers
        if each.status is not WorkerStatus.OFFLINE:
            slots[each.namespace] = slots.get(each.namespace, 0) + each.slots
    by_state: dict[Labels, float] = {}
    for namespace, total in slots.items():
        if namespace not in load.running and len(load.running) >= MOST_NAMESPACES:
            continue  # what is used there was not counted
        used = load.running.get(namespace, 0)
        by_state[namespace, "used"] = used
        by_state[namespace, "free"] = max(0, total - used)
    return {
        "kagzi_queue_ready_runs": ready,
        "kagzi_queue_oldest_age_seconds": ages,
        "kagzi_workers": workers,
        "kagzi_worker_slots": by_state,
    }
