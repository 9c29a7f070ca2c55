"""Handing back runs that were born for a poll which did not come for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from kagzi.api.operations import Chunk, HandBackRun
from kagzi.api.reply import Reply
from kagzi.api.workers import Claim
from kagzi.engine.polls.births import NextBirths


class HandBacks:
    """Returns runs to their queues under the lease they were born with."""

    def __init__(self, submit: Callable[[Chunk], Reply[Any]]) -> None:
        self._submit = submit
        self._under_way: set[asyncio.Task[None]] = set()
        self.closing = False  # from now on nothing may be born that would have to be handed back

    def begin(self, births: NextBirths) -> None:
        """Hands back all runs of these births, those still being stored included."""
        if births.any:
            task = asyncio.get_running_loop().create_task(self._collect(births), name="kagzi-hand-back")
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    def give(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            back = (HandBackRun(),)
            # Whatever the answer is: should it be an error, the lease ends.
            self._submit(Chunk(namespace=claim.namespace, run_id=claim.run_id, token=claim.token, operations=back))

    async def close(self) -> None:
        """Returns when everything is handed back."""
        if self._under_way:
            await asyncio.wait(list(self._under_way))

    async def _collect(self, births: NextBirths) -> None:
        claims = (await births.collect()).claims
        self.give(claims)
