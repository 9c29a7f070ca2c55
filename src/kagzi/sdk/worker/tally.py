"""Counts, for heartbeats, what has become of the runs that a worker let go of, and logs it for people."""

from __future__ import annotations

import logging

from kagzi.api.operations import CompleteRun, FailRun, RetryRun, Transition
from kagzi.core.duration import format_span
from kagzi.core.failure import Failure
from kagzi.core.report import report
from kagzi.sdk.worker.attempt import Attempt

logger = logging.getLogger("kagzi.worker")


class Tally:
    def __init__(self) -> None:
        self.completed = 0
        self.failed = 0

    def finished(self, attempt: Attempt, last: Transition) -> None:
        """Counts this operation, the last one of an attempt, which is durable."""
        if isinstance(last, CompleteRun):
            self.completed += 1
        elif isinstance(last, FailRun):
            self.failed += 1
            failure = Failure.decode(last.error)
            logger.error(
                "run %s (%s) failed\n%s", attempt.run_id, attempt.workflow, report(failure), extra=attempt.about()
            )
        elif isinstance(last, RetryRun):
            wait = format_span(max(0, last.available_at - attempt.now()))
            logger.warning(
                "run %s (%s) failed and is tried again in %s: %.1000s",
                attempt.run_id,
                attempt.workflow,
                wait,
                Failure.decode(last.error),
                extra=attempt.about(),
            )
