"""Runs, read together: callers that ask while a read is under way share the next one.

Where workers are in other processes, whoever waits for a result looks for it before waiting and after being woken. With
many callers that would be many queries, each as expensive as the work of a step.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kagzi.api.reply import Reply
from kagzi.core.run import Run
from kagzi.errors import KagziError
from kagzi.store.protocol.store import Store

_MOST: Final = 100  # runs in one read: each may have large payloads
_PARALLEL: Final = 2  # reads under way: a large one does not hold up everybody

_RunKey = tuple[str, str]  # (namespace, run id)


class Reads:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[_RunKey, list[Reply[Run | None]]] = {}
        self._readers = 0
        self._tasks: set[asyncio.Task[None]] = set()  # which the loop itself does not hold

    def get(self, namespace: str, run_id: str) -> Reply[Run | None]:
        """Returns the run as it is now or a moment later; None if there is none."""
        reply: Reply[Run | None] = Reply()
        self._waiting.setdefault((namespace, run_id), []).append(reply)
        if len(self._waiting) == 1 and self._readers < _PARALLEL:
            # A task takes its first step in the next turn of the loop: all who ask in this one share the read.
            self._readers += 1
            task = self._loop.create_task(self._read(), name="kagzi-reads")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return reply

    async def _read(self) -> None:
        try:
            while self._waiting:
                keys = list(self._waiting)[:_MOST]
                asked = [self._waiting.pop(key) for key in keys]
                answers: list[Run | None] | Exception
                try:
                    answers = await self._look_up(keys)
                except Exception as error:
                    answers = error
                # Not here: what follows from an answer must not happen inside a task.
                self._loop.call_soon(_answer, asked, answers)
        finally:
            self._readers -= 1

    async def _look_up(self, keys: list[_RunKey]) -> list[Run | None]:
        if len(keys) == 1:
            return [await self._store.runs.get(*keys[0])]
        found = {(run.namespace, run.run_id): run for run in await self._store.runs.get_many(keys)}
        return [found.get(key) for key in keys]


def _answer(asked: list[list[Reply[Run | None]]], answers: list[Run | None] | Exception) -> None:
    if isinstance(answers, Exception):
        for reply in [reply for replies in asked for reply in replies]:
            # One of its own for each caller, since one that many raise collects all their tracebacks.
            own = type(answers)(str(answers)) if isinstance(answers, KagziError) else answers
            reply.settle(own)
        return
    for replies, run in zip(asked, answers, strict=True):
        for reply in replies:
            reply.settle(run)
