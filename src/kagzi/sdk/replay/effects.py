"""Effects: what an execution can do to the world, by its host (a worker, a test, a simulation)."""

from __future__ import annotations

from typing import Protocol

from kagzi.api.operations import Operation
from kagzi.core.instant import Instant
from kagzi.sdk.replay.waits import StepCall


class Effects(Protocol):
    """All calls are made from the host's callbacks and return at once."""

    def submit(self, operation: Operation) -> None:
        """Hands over an operation. Operations become durable in this order; the host reports by `durable`."""
        ...

    def start_body(self, call: StepCall) -> None:
        """Runs the body of a step; the host reports by `step_returned` or `step_raised`."""
        ...

    def cancel_body(self, call: StepCall) -> None:
        """Cancels a body whose result is no longer wanted; the host reports its end by `body_ended`."""
        ...

    def submit_unhurried(self, operation: Operation) -> None:
        """Takes an operation that may wait until another one is handed over."""
        ...

    def set_value(self, name: str, value: bytes) -> None:
        """Stores what the run says about itself, with or after what was submitted before. Nothing waits for it."""
        ...

    def now(self) -> Instant:
        """Returns the engine's time, at the latest that it can be."""
        ...

    def passed(self) -> Instant:
        """Returns the engine's time, at the earliest that it can be: what is due by then is surely due."""
        ...

    def jitter(self) -> float: ...
