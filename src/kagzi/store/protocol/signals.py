"""Signals, and the inbox of a run that is driven."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kagzi.api.workers import Inbox
from kagzi.core.signal import Signal


class Signals(Protocol):
    """What has arrived for runs."""

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
        """The first `limit` untaken signals of these names, in the order of arrival; None if the lease is gone. With
        `children` also the outcomes of children that were not taken yet; with `reconcile` first of all, children are
        looked for that have ended without telling."""
        ...

    async def page(self, namespace: str, run_id: str, after: int, limit: int) -> list[Signal]:
        """In the order of arrival, those with a number above `after`; taken ones, too."""
        ...
