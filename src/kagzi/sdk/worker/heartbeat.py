"""Heartbeats: keep the leases of a worker alive, whatever its event loop is doing.

They run on a thread of their own with an event loop and a connection of their own, so that a step which blocks the
worker's loop for minutes does not lose its lease. The only things shared with the worker's thread are snapshots of a
dictionary and a few integers, and `call_soon_threadsafe` for the answers. From there the loop is watched as well.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Protocol

from kagzi.api.engine import Engine
from kagzi.api.workers import Heartbeat, HeartbeatAnswer
from kagzi.core.instant import SECOND, Span
from kagzi.errors import KagziError
from kagzi.sdk.worker.blocked_loop import LoopWatch

logger = logging.getLogger("kagzi.worker")

_JOIN_SECONDS = 3.0


class Held(Protocol):
    """The worker as heartbeats see it; safe to call from another thread."""

    worker_id: str

    def heartbeat(self) -> tuple[Heartbeat, Span]:
        """Returns the heartbeat to send now, and the moment (monotonic) from which on the leases count if it
        succeeds."""
        ...

    def renewed(self, sent: Heartbeat, at: Span, answer: HeartbeatAnswer) -> None: ...

    def not_renewed(self, error: Exception) -> None: ...

    def heartbeat_interval(self) -> Span:
        """A third of the shortest lease held."""
        ...


class Pace:
    """When to send the next heartbeat, and whether there is one to be sent."""

    def __init__(self) -> None:
        self.stopped = False
        self._changed = asyncio.Event()

    def stop(self) -> None:
        self.stopped = True
        self._changed.set()

    def hurry(self) -> None:
        """Notes that a shorter lease was taken on than any there was: a wait that is under way is computed anew."""
        self._changed.set()

    async def wait(self, seconds: Callable[[], float]) -> None:
        """Waits until this much time has passed since now, or until stopped."""
        began = asyncio.get_running_loop().time()
        while not self.stopped:
            self._changed.clear()
            try:
                async with asyncio.timeout_at(began + seconds()):
                    await self._changed.wait()
            except TimeoutError:
                return


async def beat(engine: Engine, held: Held, pace: Pace) -> None:
    """Sends heartbeats until told to stop. After a failure the next one comes soon: a lease does not wait."""
    failures = 0
    log = logging.LoggerAdapter(logger, {"worker_id": held.worker_id})

    def pause() -> float:
        seconds = held.heartbeat_interval() / SECOND
        return seconds if failures == 0 else min(seconds / 4, 0.1 * 2 ** min(failures, 6))

    while True:
        await pace.wait(pause)
        if pace.stopped:
            return
        interval = held.heartbeat_interval()
        try:
            heartbeat, at = held.heartbeat()
            async with asyncio.timeout(2 * interval / SECOND):
                # Of a lease, three intervals, enough is left for another server to renew it.
                answer = await engine.workers.heartbeat(heartbeat, interval)
            held.renewed(heartbeat, at, answer)
            if answer.unrenewed:
                failures += 1
                if failures in (1, 10, 100):
                    log.warning(
                        "the leases of %d runs could not be renewed, as somebody has locked their rows: %s",
                        len(answer.unrenewed),
                        ", ".join(answer.unrenewed[:5]),
                    )
                continue
        except (KagziError, TimeoutError) as error:
            failures += 1
            if failures in (1, 10, 100):
                log.warning(
                    "heartbeat failed (%d in a row): %s", failures, error if str(error) else "no answer in time"
                )
            held.not_renewed(error)
            continue
        except Exception:
            # Nobody else renews the leases: whatever it was, heartbeats go on.
            failures += 1
            log.exception("heartbeat failed")
            continue
        if failures:
            log.info("heartbeats work again after %d failures", failures)
        failures = 0


class HeartbeatThread:
    """Runs `beat` on a thread of its own."""

    def __init__(self, engine: Engine, held: Held) -> None:
        self._engine = engine.sibling()
        self._held = held
        self._thread = threading.Thread(target=self._main, name="kagzi-heartbeat", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pace: Pace | None = None
        self._beating: asyncio.Future[None] | None = None
        self._watch: LoopWatch
        self._stopped = False
        self._ready = threading.Event()

    async def start(self) -> None:
        self._watch = LoopWatch(asyncio.get_running_loop(), threading.get_ident(), self._held.worker_id)
        self._thread.start()

    async def stop(self) -> None:
        self._stopped = True
        await asyncio.to_thread(self._ready.wait)
        if self._beating is not None:
            # A heartbeat under way is not waited for: the worker has said goodbye already.
            self._tell(self._beating.cancel)
        # Bounded, because it may be waiting for a database that does not answer; it is a daemon.
        await asyncio.to_thread(self._thread.join, _JOIN_SECONDS)

    def hurry(self) -> None:
        if self._pace is not None:
            self._tell(self._pace.hurry)

    def _tell(self, what: Callable[[], object]) -> None:
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(what)
        except RuntimeError:
            logger.debug("heartbeat thread has ended already")

    def _main(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pace = pace = Pace()
        self._beating = beating = asyncio.ensure_future(self._beat(pace))
        self._ready.set()
        if self._stopped:
            beating.cancel()
        watching = asyncio.ensure_future(self._watch.run())
        try:
            await asyncio.wait((beating,))
        finally:
            watching.cancel()
            await self._engine.close()

    async def _beat(self, pace: Pace) -> None:
        delay = 0.1
        while True:
            try:
                await self._engine.open()
                break
            except Exception as error:
                logger.warning("heartbeats cannot reach the engine: %s", error)
                await asyncio.sleep(delay)
                delay = min(delay * 2, 2.0)
        await beat(self._engine, self._held, pace)


class HeartbeatTask:
    """Runs `beat` as a task of the worker's own loop: for virtual time, where threads have no place."""

    def __init__(self, engine: Engine, held: Held) -> None:
        self._engine = engine
        self._held = held
        self._pace = Pace()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(beat(self._engine, self._held, self._pace), name="kagzi-heartbeat")

    async def stop(self) -> None:
        self._pace.stop()
        if self._task is not None:
            await self._task

    def hurry(self) -> None:
        self._pace.hurry()
