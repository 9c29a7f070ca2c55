"""Suspects: runs whose workers have died in a row, with nothing new recorded in between.

One of them may be what kills workers, and a worker that dies takes all its runs along. If they were driven together
again, the guilty one would take the others down with it each time, until all count as poison; and they do meet again,
in the first claim of a worker that was slow to come back. So a worker drives one suspect at a time, and nothing else of
the same claim beside it: a new run may be the one that kills. What is claimed along with it is handed back, which burns
nothing, and nothing of that claim begins before that is stored. Runs that the worker holds already, and that have
neither recorded something new nor lived for a while, are waited for first. While a suspect is on trial nothing is
claimed: until it has recorded something new, or has lived for a while. Then other runs have their turn, for as long.

Two crashes make a suspect, since the first is nearly always the worker's own, and all its runs should go on at once;
one, if the third is already the last. Of `max_crashes=1` nothing can be saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from kagzi.core.instant import SECOND, Span
from kagzi.core.limits import SUSPECT_CRASHES

if TYPE_CHECKING:
    from kagzi.sdk.worker.attempt import Attempt

TRIAL: Final[Span] = 5 * SECOND  # others do not wait longer: a step may take hours
APART: Final[Span] = SECOND // 5  # between the moments for which suspects are handed back


class Suspects:
    def __init__(
        self, begin: Callable[[Attempt], None], held: Callable[[], Iterable[Attempt]], monotonic: Callable[[], Span]
    ) -> None:
        self.crashes = SUSPECT_CRASHES
        self._begin = begin
        self._held = held
        self._monotonic = monotonic
        self._on_trial: Attempt | None = None
        self._since: Span = 0
        self._others_until: Span = 0
        self._awaits_company = False  # a trial is to begin when what is held has shown that it does not kill
        self._leaving: dict[Attempt, None] = {}  # until all of them are stored as handed back, `_next` waits
        self._next: list[Attempt] = []

    def sift(self, attempts: list[Attempt]) -> list[Attempt]:
        """Returns the runs of a claim that may begin now."""
        suspects = [attempt for attempt in attempts if attempt.claim.crashes >= self.crashes and not attempt.gone]
        if not suspects and not self._leaving:
            return attempts
        others = [attempt for attempt in attempts if attempt not in suspects]
        now = self._monotonic()
        later: Span = 0
        if not suspects or self._trial_goes_on(now) or (others and now < self._others_until):
            later = max(0, self._others_until - now)
            begin = others
        elif self._has_company(now, besides=attempts):
            self._awaits_company = True
            begin = []
        else:
            # The least suspicious first: it is soon done, and then out of reach of the one that kills.
            self._on_trial = min(suspects, key=lambda attempt: attempt.claim.crashes)
            self._since, self._awaits_company = now, False
            begin = [self._on_trial]
        suspects = sorted(
            [attempt for attempt in suspects if attempt not in begin], key=lambda attempt: attempt.claim.crashes
        )
        others = [attempt for attempt in others if attempt not in begin and not attempt.gone]
        self._leaving.update(dict.fromkeys([*suspects, *others]))
        for place, attempt in enumerate(suspects):
            attempt.hand_back(attempt.now() + later + round(APART * (place + 0.5 + attempt.jitter())))
        for attempt in others:
            attempt.hand_back()
        if not self._leaving:
            return begin
        self._next += begin
        return []

    def left(self, attempt: Attempt) -> None:
        """Notes that the worker has let go of this run."""
        self._leaving.pop(attempt, None)
        if attempt is self._on_trial:
            self._end_trial(self._monotonic())
        if self._next and not self._leaving:
            begin, self._next = [each for each in self._next if not each.gone], []
            if self._on_trial in begin:
                self._since = self._monotonic()
            for each in begin:
                self._begin(each)

    def claims_nothing(self) -> bool:
        """Whether nothing may be claimed, or born here, since it would be driven beside a suspect, or could kill one
        that is not safe yet."""
        now = self._monotonic()
        if self._leaving or self._trial_goes_on(now):
            return True
        self._awaits_company = self._awaits_company and self._has_company(now)
        return self._awaits_company

    def _trial_goes_on(self, now: Span) -> bool:
        attempt = self._on_trial
        if attempt is None:
            return False
        if attempt in self._next or (now < self._since + TRIAL and not attempt.has_progressed()):
            return True
        self._end_trial(now)
        return False

    def _end_trial(self, now: Span) -> None:
        self._on_trial = None
        self._others_until = 2 * now - self._since

    def _has_company(self, now: Span, besides: Iterable[Attempt] = ()) -> bool:
        """Returns whether runs are held of which nobody knows yet whether they kill."""
        return any(
            not attempt.gone and now < attempt.claimed_at + TRIAL and not attempt.has_progressed()
            for attempt in self._held()
            if attempt not in besides
        )
