"""News for runs that workers of other processes hold, and waiting for it.

A worker in this process is told directly; one behind a server keeps a call waiting here. Hints only: what is lost here
is told by the next heartbeat.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kagzi.api.workers import RunNews
from kagzi.engine.adopters import WorkerKey

_MOST_WAITING: Final = 10_000  # runs with news for one worker
_KEPT_SECONDS: Final = 30.0  # for a worker that does not come for it


class News:
    """Keeps what has arrived for runs since their workers asked last."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._by_worker: dict[WorkerKey, _Waiting] = {}
        self._closed = False

    def tell(self, worker: WorkerKey, news: RunNews) -> None:
        """Keeps news for a worker that has asked for it before."""
        waiting = self._by_worker.get(worker)
        if waiting is None:
            return
        before = waiting.news.get(news.run_id)
        if before is not None:
            news = RunNews(news.run_id, max(before.inbox_seq, news.inbox_seq), before.cancelled or news.cancelled)
        elif len(waiting.news) >= _MOST_WAITING:
            return
        waiting.news[news.run_id] = news
        waiting.wake()

    async def wait(self, worker: WorkerKey, seconds: float) -> tuple[RunNews, ...]:
        """Returns what is new for this worker, or nothing when the time is over or a newer call has come."""
        waiting = self._by_worker.setdefault(worker, _Waiting())
        if waiting.forget is not None:
            waiting.forget.cancel()
            waiting.forget = None
        waiting.wake()  # a call before this one has been given up
        if not waiting.news and not self._closed:
            waker = waiting.waker = self._loop.create_future()
            timer = self._loop.call_later(seconds, waiting.wake)
            try:
                await waker
            finally:
                timer.cancel()
                if waiting.waker is waker:
                    waiting.waker = None
                    waiting.forget = self._loop.call_later(_KEPT_SECONDS, self._by_worker.pop, worker, None)
            if waiting.waker is not None:
                return ()  # what has come is for the newer call
        news, waiting.news = waiting.news, {}
        return tuple(news.values())

    def close(self) -> None:
        self._closed = True
        for waiting in self._by_worker.values():
            waiting.wake()
            if waiting.forget is not None:
                waiting.forget.cancel()


class _Waiting:
    """The news for one worker, and the call that waits for it."""

    __slots__ = ("forget", "news", "waker")

    def __init__(self) -> None:
        self.news: dict[str, RunNews] = {}
        self.waker: asyncio.Future[None] | None = None
        self.forget: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        if self.waker is not None and not self.waker.done():
            self.waker.set_result(None)
