"""A worker registers with its engine: when it starts, again when the engine took it for dead, and once a minute for the
schedules that its code declares."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import socket
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from kagzi.api.engine import Engine
from kagzi.api.workers import Registered, Registration
from kagzi.core.failed_run import FAILURE_HANDLER
from kagzi.core.instant import SECOND, Span
from kagzi.core.limits import SUSPECT_CRASHES
from kagzi.core.pythons import LABEL
from kagzi.core.versions import WorkflowInterface
from kagzi.core.worker import WorkflowType
from kagzi.errors import KagziError
from kagzi.sdk.worker.settings import WorkerSettings
from kagzi.version import __version__

_SCHEDULES_SECONDS: Final = 60.0


class Registering:
    def __init__(
        self,
        engine: Engine,
        worker_id: str,
        *,
        namespace: str,
        types: tuple[WorkflowType, ...],
        interfaces: Callable[[], tuple[WorkflowInterface, ...]],
        settings: WorkerSettings,
        log: logging.LoggerAdapter[logging.Logger],
    ) -> None:
        # The handler of all failures waits in one queue, wherever it is started from.
        self.types = tuple(
            [
                replace(each, queue=settings.queues[0]) if each.name == FAILURE_HANDLER and each.queue is None else each
                for each in types
            ]
        )
        # What the engine has said.
        self.lease: Span = 30 * SECOND
        self.interval: Span = 10 * SECOND  # between heartbeats
        self.suspect_crashes = SUSPECT_CRASHES
        self.payload_limit = settings.payload_limit
        self._engine = engine
        self._worker_id = worker_id
        self._namespace = namespace
        self._interfaces = interfaces
        self._settings = settings
        self._log = log
        # Others are declared by workers that serve their queue.
        self._schedules = tuple([each for each in settings.schedules if each.task_queue in settings.queues])
        self._warned: set[str] = set()
        self._again: asyncio.Task[None] | None = None

    async def register(self) -> None:
        registered = await self._engine.workers.register(self._registration())
        self._heed(registered)
        self.lease = registered.lease
        self.suspect_crashes = registered.suspect_crashes
        self.interval = registered.heartbeat
        self.payload_limit = min(self._settings.payload_limit, registered.payload_bytes)

    def register_again(self) -> None:
        """Registers in a task of its own; a failure is met by the next heartbeat that is unknown."""
        self._again = asyncio.get_running_loop().create_task(self._register_quietly())

    async def _register_quietly(self) -> None:
        with contextlib.suppress(KagziError):
            await self.register()

    async def look_at_schedules(self) -> None:
        """Declares the schedules in code again and again, so that the code of a live worker counts when the worker
        that declared something is gone."""
        again = self._settings.schedules_again
        while True:
            await asyncio.sleep(_SCHEDULES_SECONDS if again is None else again / SECOND)
            with contextlib.suppress(KagziError):  # the next look is as good
                self._heed(await self._engine.workers.register(self._registration(look=True)))

    def _registration(self, *, look: bool = False) -> Registration:
        return Registration(
            worker_id=self._worker_id,
            namespace=self._namespace,
            queues=self._settings.queues,
            types=self.types,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            concurrency=self._settings.concurrency,
            labels={LABEL: platform.python_version(), **self._settings.labels},
            limits=self._settings.limits,
            schedules=self._schedules,
            interfaces=() if look else self._interfaces(),
            look=look,
        )

    def _heed(self, registered: Registered) -> None:
        """Warns once of schedules in code that do not count as they are declared."""
        warnings = set(registered.warnings)
        if registered.schedules < len(self._schedules):
            warnings.add("the server is older than this worker, and does not know schedules that code declares")
        for warning in sorted(warnings - self._warned):
            self._log.warning("%s", warning)
        self._warned = warnings
