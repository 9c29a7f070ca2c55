"""What a start does if a run has its id already."""

from __future__ import annotations

from enum import StrEnum

from kagzi.core.run import RunStatus


class OnConflict(StrEnum):
    RETURN = "return"  # the run that is there, live or finished
    FAIL = "fail"
    RESTART_FINISHED = "restart_finished"  # a new run, if that one has finished; it takes the id over
    RESTART_FAILED = "restart_failed"  # the same, unless that one has COMPLETED

    def restarts(self, holder: RunStatus) -> bool:
        """Returns whether a run with this status gives its id up to the start."""
        if self is OnConflict.RESTART_FAILED:
            return holder.finished and holder is not RunStatus.COMPLETED
        return self is OnConflict.RESTART_FINISHED and holder.finished
