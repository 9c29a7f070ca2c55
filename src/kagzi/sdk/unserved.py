"""Warns callers, once, who wait for the result of a run that waits for a worker which is not there.

The worker may look at another database, serve other queues, or have another version of the code. All of these look the
same from here, as a program that hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

from kagzi.api.admin import AdminService, WorkerFilter
from kagzi.api.engine import Engine
from kagzi.clock import Clock
from kagzi.core.instant import SECOND, Span
from kagzi.core.run import CLAIMABLE, Run
from kagzi.core.worker import Worker, WorkerStatus
from kagzi.errors import KagziError

logger = logging.getLogger("kagzi")

# How long a wait lasts before anybody asks: most are over by then, and cost nothing but a place in a table.
PATIENCE: Span = 2 * SECOND
_MOST_LOOKED_AT = 20  # waits at a time; runs of one kind fare alike
_LOOK_EVERY: Span = 60 * SECOND
_PAGE = 100


async def why_nobody_comes(
    engine: Engine, place: str, *, namespace: str, queue: str, workflow: str, version: str
) -> str | None:
    """Returns a sentence if no worker is there for such a run; None if there is one, or if this may not be asked
    here."""
    wanted = WorkerFilter(namespace=namespace, task_queue=queue, status=WorkerStatus.ONLINE)
    try:
        admin: AdminService | None = getattr(engine, "admin", None)  # raises if the engine was closed meanwhile
        if admin is None:
            return None
        page = await admin.list_workers(wanted, page_size=_PAGE)
    except KagziError:
        return None
    if not page.items:
        return f"no worker serves queue {queue} in {place} now; the run waits for one"
    if page.next is None and not any(_executes(worker, workflow, version) for worker in page.items):
        return (
            f"no worker of queue {queue} in {place} has workflow {workflow}, version {version}, now; "
            "the run waits for one"
        )
    return None


def _executes(worker: Worker, workflow: str, version: str) -> bool:
    return any(offered.name == workflow and offered.version in (None, version) for offered in worker.types)


class Waiting(Protocol):
    """A caller who waits for the result of a run."""

    namespace: str
    id: str


class Unserved:
    """Looks on behalf of all callers of one app that wait, once a minute for each kind of run, and warns of each kind
    once."""

    def __init__(self, engine: Callable[[], Engine], place: Callable[[str], str], clock: Clock) -> None:
        self._engine = engine
        self._place = place
        self._clock = clock
        self._waiting: dict[Waiting, Span] = {}  # and since when
        self._timer: asyncio.TimerHandle | None = None
        self._looking: set[asyncio.Task[None]] = set()
        self._looked_at: dict[tuple[str, str, str, str], Span] = {}
        self._told: set[tuple[str, str, str, str]] = set()

    def add(self, waiting: Waiting) -> None:
        self._waiting[waiting] = self._clock.monotonic()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE / SECOND, self._ring)

    def remove(self, waiting: Waiting) -> None:
        self._waiting.pop(waiting, None)

    def _ring(self) -> None:
        """Looks at those that have waited for long, each once."""
        self._timer = None
        before = self._clock.monotonic() - PATIENCE
        late = [waiting for waiting, since in self._waiting.items() if since <= before]
        for waiting in late:
            del self._waiting[waiting]
        for waiting in late[:_MOST_LOOKED_AT]:
            task = asyncio.get_running_loop().create_task(self._look_at(waiting), name="kagzi-unserved")
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE / SECOND, self._ring)

    async def _look_at(self, waiting: Waiting) -> None:
        with contextlib.suppress(KagziError):  # it was closed, or does not answer: those who wait hear of that
            await self.look(await self._engine().workflows.get(waiting.namespace, waiting.id))

    async def look(self, run: Run) -> None:
        """Warns of a run that is waited for, if it is due and no worker is there to take it."""
        kind = (run.namespace, run.task_queue, run.workflow_type, run.version)
        now = self._clock.monotonic()
        if run.status not in CLAIMABLE or (run.available_at or 0) > self._clock.now() or kind in self._told:
            return
        if kind in self._looked_at and now < self._looked_at[kind] + _LOOK_EVERY:
            return
        self._looked_at[kind] = now
        why = await why_nobody_comes(
            self._engine(),
            self._place(run.namespace),
            namespace=run.namespace,
            queue=run.task_queue,
            workflow=run.workflow_type,
            version=run.version,
        )
        if why is not None:
            self._told.add(kind)
            about = {"namespace": run.namespace, "run_id": run.run_id, "workflow": run.workflow_type}
            logger.warning("run %s (%s) is waited for: %s", run.run_id, run.workflow_type, why, extra=about)
