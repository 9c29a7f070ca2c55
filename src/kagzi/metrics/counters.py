"""Counters and histograms that cost next to nothing to raise.

A busy engine raises them tens of thousands of times a second, and somebody looks at them every fifteen seconds. So
they are plain integers in dictionaries, raised without a lock from the engine's event loop, and what Prometheus wants
to know of them is worked out when it asks (see `exposition`). Lengths of time are whole microseconds, as everywhere.

Labels that users choose (names of workflows, steps, namespaces) are bounded: past `MOST_NAMES` different ones of a
namespace the rest of a metric is counted together as `other`. A program that makes up names cannot fill the memory of
its server, or of its Prometheus, nor hide what happens in other namespaces.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from kagzi.core.instant import SECOND, Span

Labels = tuple[str, ...]

MOST_NAMES: Final = 1000  # of one namespace
MOST_NAMESPACES: Final = 1000
OTHER: Final = "other"
# What callers say their method is is up to them; the ones of HTTP itself are these.
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"})

# Runs and steps take from a millisecond to days, calls from a fraction of a millisecond to the longest poll.
RUN_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600, 21600, 86400)
STEP_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)
CALL_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def spans(seconds: tuple[float, ...]) -> tuple[Span, ...]:
    return tuple(round(each * SECOND) for each in seconds)


class Histogram:
    """Counts how many values fell between which bounds. `counts` has one place more than there are bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0

    def observe(self, value: int) -> None:
        # Instants of two processes may be a hair apart, the wrong way round.
        if value < 0:
            value = 0
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> Histogram:
        same = Histogram(self.bounds)
        same.counts = self.counts.copy()
        same.total = self.total
        return same


class _Names:
    """The labels of a metric; the first `free` of each are up to users. The very first is the namespace, and each has a
    bound of its own: names that are made up in one do not take the place of another's."""

    def __init__(self, free: int) -> None:
        self.free = free
        self._known: dict[str, set[Labels]] = {}

    def bounded(self, labels: Labels) -> Labels:
        if not self.free:
            return labels
        namespace, names = labels[0], labels[1 : self.free]
        known = self._known.get(namespace)
        if known is None:
            if len(self._known) >= MOST_NAMESPACES:
                return (OTHER,) * self.free + labels[self.free :]
            known = self._known[namespace] = set()
        if names not in known:
            if len(known) >= MOST_NAMES:
                return (namespace, *(OTHER,) * len(names), *labels[self.free :])
            known.add(names)
        return labels


class Counts(dict[Labels, int]):
    """A counter for each combination of labels: `counts.add(labels)`."""

    def __init__(self, free: int = 0) -> None:
        super().__init__()
        self._names = _Names(free)

    def add(self, labels: Labels, by: int = 1) -> None:
        if labels not in self:
            labels = self.ready(labels)
        self[labels] += by

    def ready(self, labels: Labels) -> Labels:
        """Begins with 0, and returns the labels to count under: from then on `counts[labels] += 1` is all there is to
        do."""
        labels = self._names.bounded(labels)
        self.setdefault(labels, 0)
        return labels


class Histograms(dict[Labels, Histogram]):
    """A histogram for each combination of labels: `histograms[labels].observe(value)`."""

    def __init__(self, bounds: tuple[int, ...], free: int = 0) -> None:
        super().__init__()
        self._bounds = bounds
        self._names = _Names(free)

    def __missing__(self, labels: Labels) -> Histogram:
        labels = self._names.bounded(labels)
        found = self.get(labels)
        if found is None:
            found = self[labels] = Histogram(self._bounds)
        return found


class Metrics:
    """Everything that an engine and the ports of its process have counted since they began."""

    def __init__(self) -> None:
        self.runs_started = Counts(free=2)  # namespace, workflow
        self.runs = Counts(free=2)  # namespace, workflow, status
        self.run_retries = Counts(free=2)  # namespace, workflow
        self.run_seconds = Histograms(spans(RUN_SECONDS), free=2)  # namespace, workflow
        self.step_seconds = Histograms(spans(STEP_SECONDS), free=3)  # namespace, workflow, step, status
        self.step_retries = Counts(free=3)  # namespace, workflow, step
        self.leases_expired = Counts(free=1)  # namespace
        self.schedule_firings = Counts(free=1)  # namespace, outcome
        self.schedule_lag = Histogram(spans(CALL_SECONDS))
        self.batch_size = Histogram(SIZES)
        self.store_seconds = Histograms(spans(CALL_SECONDS))  # op
        self.store_errors = Counts()  # op, code
        self.rpc_requests = Counts()  # method, code
        self.rpc_seconds = Histograms(spans(CALL_SECONDS))  # method
        self.http_requests = Counts(free=2)  # method, route, status
        self.http_seconds = Histograms(spans(CALL_SECONDS), free=2)  # method, route

    def rpc_answered(self, method: str, code: str, taken: float) -> None:
        """Counts a call of gRPC that was answered: its name, its status code (`OK`, `NOT_FOUND` …) and the seconds it
        took."""
        self.rpc_requests.add((method, code))
        self.rpc_seconds[(method,)].observe(round(taken * SECOND))

    def http_answered(self, method: str, route: str, status: int, taken: float) -> None:
        """Counts a request of HTTP that was answered. `route` is the pattern that matched (`/api/v1/runs/{run_id}`),
        never the path itself, which has ids in it; empty if none did."""
        method = method if method in _METHODS else OTHER
        self.http_requests.add((method, route, str(status)))
        self.http_seconds[method, route].observe(round(taken * SECOND))
