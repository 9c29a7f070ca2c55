"""Waking a run: the time that it waits for is over for it now, and its history says so.

A run that sleeps is parked until its earliest timer or retry is due. Whoever wakes it leaves a note with the run: how
far its history went, and until when it slept. The execution that claims it next, and has the very same history, takes
all that is due by then for due, and records that as one event: a tick at its own time, with how much earlier it came
than the timers it has fired. So it comes out the same on replay, and the note counts once: with the event recorded, the
history is another one. A run that has begun anew, or is tried again as a whole, has nothing to do with it either.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from kagzi.core.instant import NEVER, Instant
from kagzi.core.run import CLAIMABLE, Run, RunStatus

# What `ParkRun.waiting_for` says beside signals and children if nothing else ends the wait: the moment for which the
# run is parked is one to look whether somebody forgot to tell it, and to hasten that changes nothing.
NEWS_ALONE: Final = "n:*"
# What it says if the wait for a signal ends with a default at the moment for which the run is parked.
THEN_DEFAULT: Final = "n:default"
WAKE: Final = "@wake"  # the row of a wake that has fired no timer: it has only brought the next attempts of steps near


class Woken(Struct, frozen=True, array_like=True):
    """The note: where the history of the run stood, and until when it slept. Stores write it as a JSON array."""

    incarnation: int
    attempts: int
    seq: int
    until: Instant


_decoder: Final = msgspec.json.Decoder(Woken)


def read_woken(text: str | None, *, incarnation: int, attempts: int) -> Woken | None:
    """Returns the note if it is about this incarnation and attempt of the run."""
    if text is None:
        return None
    woken = _decoder.decode(text)
    return woken if (woken.incarnation, woken.attempts) == (incarnation, attempts) else None


def awaits_moment(run: Run, now: Instant) -> bool:
    """Whether the run waits for a moment, so that waking it changes something; the statement `wake_run` of each store
    decides by the same."""
    return run.status in CLAIMABLE and now < (run.available_at or 0) < NEVER and NEWS_ALONE not in run.waiting_for


def not_woken(run_id: str, status: RunStatus) -> str:
    """Says why a run was not woken, by how it stands."""
    if status is RunStatus.PENDING:
        return f"run {run_id} need not be woken: it is due, and waits for a worker"
    if status is RunStatus.SLEEPING:
        return (
            f"run {run_id} is SLEEPING and does not wait for a moment, but for a signal, a child, a slot or a worker; "
            "`kagzi runs show` says for which"
        )
    return f"run {run_id} is {status} and does not wait for a moment"
