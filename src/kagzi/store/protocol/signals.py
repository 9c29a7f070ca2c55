"""Signals, and the inbox of a run that is driven."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kagzi.api.workers import Inbox
from kagzi.core.signal import Signal


class Signals(Protocol):
    """The inboxes of runs: signals, and outcomes of children."""

    async def read_inbox(
        self,
        namespace: str,
        run_id: str,
        token: str,
        names: Sequence[str],
        limit: int,
        children: bool = False,
        reconcile: bool = False,
    ) -> Inbox | None:
        """Returns the first `limit` untaken signals of these names, in the order of arrival; None if the lease is gone.
        With `children` also the outcomes of children that were not taken yet; with `reconcile` first of all, children
        are looked for that have ended without telling."""
        ...

    async def page(self, namespace: str, run_id: str, after: int, limit: int) -> list[Signal]:
        """Returns signals in the order of arrival, taken ones too, with a number above `after`."""
        ...
