"""Suspects: runs whose workers have died twice in a row, with nothing new recorded in between.

One of them may be what kills workers, and a worker that dies takes all its runs along. If they were driven together
again, the guilty one would take the others down with it each time, until all count as poison; and they do meet again,
in the first claim of a worker that was slow to come back. So a worker drives one suspect at a time. The others are
handed back for a moment later, which burns nothing, and the one that is kept begins when that is stored. While it is on
trial nothing is claimed, since what is claimed may be a suspect: until it has recorded something new, or has lived for
a while.

A first crash makes no suspects: it is nearly always the worker's own, and all its runs should go on at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kagzi.core.instant import SECOND, Span

if TYPE_CHECKING:
    from kagzi.sdk.worker.attempt import Attempt

CRASHES: Final = 2  # in a row, that make a run a suspect
TRIAL: Final[Span] = 5 * SECOND  # others do not wait longer: a step may take hours
APART: Final[Span] = SECOND // 5  # between the moments for which suspects are handed back


class Suspects:
    def __init__(self, begin: Callable[[Attempt], None], monotonic: Callable[[], Span]) -> None:
        self._begin = begin
        self._monotonic = monotonic
        self._on_trial: Attempt | None = None
        self._since: Span = 0
        self._begun = True  # False: the run on trial waits until all of `_leaving` are stored as handed back
        self._leaving: dict[Attempt, None] = {}

    def sift(self, attempts: list[Attempt]) -> list[Attempt]:
        """Returns the runs of a claim that may begin now."""
        suspects = [attempt for attempt in attempts if attempt.claim.crashes >= CRASHES and not attempt.gone]
        if not suspects:
            return attempts
        begin = [attempt for attempt in attempts if attempt.claim.crashes < CRASHES]
        if not self.trial_goes_on():
            # The least suspicious first: it is soon done, and then out of reach of the one that kills.
            suspects.sort(key=lambda attempt: attempt.claim.crashes)
            self._on_trial, self._since, self._begun = suspects.pop(0), self._monotonic(), not suspects
            if self._begun:
                begin.append(self._on_trial)
        self._leaving.update(dict.fromkeys(suspects))
        for place, attempt in enumerate(suspects):
            attempt.hand_back(attempt.now() + round(APART * (place + 0.5 + attempt.jitter())))
        return begin

    def left(self, attempt: Attempt) -> None:
        """Notes that the worker has let go of this run."""
        self._leaving.pop(attempt, None)
        if attempt is self._on_trial:
            self._on_trial = None
        elif not self._begun and not self._leaving and self._on_trial is not None:
            self._begun = True
            self._begin(self._on_trial)

    def trial_goes_on(self) -> bool:
        """Whether a suspect is on trial, so that nothing may be claimed."""
        attempt = self._on_trial
        if attempt is None or not self._begun:
            return attempt is not None
        return self._monotonic() < self._since + TRIAL and not attempt.has_progressed()
