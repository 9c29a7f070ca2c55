"""The settings of a worker."""

from __future__ import annotations

from msgspec import Struct

from kagzi.api.workers import DeclaredLimit
from kagzi.core.declaration import Declaration
from kagzi.core.instant import SECOND, Span
from kagzi.core.limits import PAYLOAD_BYTES
from kagzi.sdk.replay.loop import BlockingCalls


class WorkerSettings(Struct, frozen=True, kw_only=True):
    queues: tuple[str, ...] = ("default",)
    concurrency: int = 100
    threads: int = 32
    step_processes: int | None = None  # None: as many as there are cores
    poll_wait: Span = 60 * SECOND
    grace: Span = 25 * SECOND  # under the 30 s that Kubernetes gives a container to stop
    adopt: bool = True
    strict: bool = False
    blocking_calls: BlockingCalls = "warn"  # of workflow code; in strict mode a warning is an error
    payload_limit: int = PAYLOAD_BYTES
    labels: dict[str, str] = {}  # what its row tells people
    schedules: tuple[Declaration, ...] = ()  # what the app's code declares
    schedules_again: Span | None = None  # how often it declares them again; None: once a minute
    limits: tuple[DeclaredLimit, ...] = ()  # the same
