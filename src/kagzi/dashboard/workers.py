"""Workers, and the queues they serve."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct

from kagzi.api.admin import WorkerFilter
from kagzi.core.limits import check_name
from kagzi.core.worker import Worker, WorkerStatus
from kagzi.dashboard.actions import AskQuery, EmptyForm, Field
from kagzi.dashboard.shell import may, page, path_to
from kagzi.dashboard.system import PlainQuery
from kagzi.errors import Conflict
from kagzi.http.call import Call, Html, Redirect
from kagzi.http.fields import Name
from kagzi.http.flow import PauseClaimsBody, ResumeClaimsBody, pause_queue, resume_queue
from kagzi.http.problems import naming
from kagzi.http.runs import Token
from kagzi.http.workers import list_queues

_ROWS: Final = 25


class WorkersQuery(PlainQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    status: WorkerStatus | None = None
    queue: Name | None = None
    page: Token | None = None


async def show_workers(call: Call[WorkersQuery, None]) -> Html:
    query = call.query
    wanted = WorkerFilter(namespace=call.namespace, task_queue=query.queue, status=query.status)
    with naming("page"):
        found = await call.engine.admin.list_workers(wanted, page_size=_ROWS, page_token=query.page)
    return await page(
        call,
        "workers.html",
        title="Workers",
        tab="/workers",
        live="" if query.page is None else None,
        found=found,
        statuses=tuple(WorkerStatus),
        filters={"status": query.status, "queue": query.queue},
        filtered=bool(query.status or query.queue),
    )


class WorkerQuery(PlainQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


async def show_worker(call: Call[WorkerQuery, None]) -> Html:
    worker = await call.engine.admin.get_worker(call.path["worker_id"], call.namespace)
    drains = worker.status is WorkerStatus.ONLINE and may(call, "POST /workers/{worker_id}/drain")
    return await page(
        call,
        "worker.html",
        title=f"Worker {worker.worker_id[-8:]}",
        tab="/workers",
        live="",
        worker=worker,
        drains=drains,
    )


async def show_queues(call: Call[Any, None]) -> Html:
    listed = await list_queues(call)
    switches = may(call, "POST /queues/{queue}/pause")
    return await page(
        call,
        "queues.html",
        title="Queues",
        tab="/queues",
        live="",
        queues=listed.queues,
        switches=switches,
        part=_part,
    )


def _part(name: str) -> str:
    """A name as a part of an address."""
    return quote(name, safe="")


class _Drain(Struct, frozen=True, kw_only=True):
    verb: str = "drain"
    button: str = "Drain worker"
    consequence: str = (
        "It finishes the steps that are running, hands its other runs to workers that are online, and takes nothing "
        "new. Its process ends if it was started by `kagzi worker`. It is told with its next heartbeat."
    )
    form: type[Struct] = EmptyForm
    fields: tuple[Field, ...] = ()
    grave: bool = False

    async def ask(self, call: Call[AskQuery, None]) -> Html:
        worker = await _worker(call)
        return await page(
            call,
            "ask.html",
            title=self.button,
            tab="/workers",
            action=self,
            about=f"worker {worker.worker_id[-8:]}, process {worker.pid} on {worker.hostname}",
            back=f"/workers/{worker.worker_id}",
            target=f"/workers/{worker.worker_id}/drain",
        )

    async def act(self, call: Call[Any, EmptyForm]) -> Redirect:
        worker = await call.engine.admin.drain_worker(call.path["worker_id"], call.namespace)
        if worker.status is WorkerStatus.OFFLINE:
            raise Conflict("this worker is offline already")
        return Redirect(path_to(call, f"/workers/{worker.worker_id}", done="drain"))


async def _worker(call: Call[Any, Any]) -> Worker:
    return await call.engine.admin.get_worker(call.path["worker_id"], call.namespace)


class _Switch(Struct, frozen=True, kw_only=True):
    """Pausing a queue, or resuming it."""

    verb: str
    button: str
    consequence: str
    form: type[Struct]
    fields: tuple[Field, ...] = ()
    grave: bool = False

    async def ask(self, call: Call[AskQuery, None]) -> Html:
        queue = check_name(call.path["queue"], "queue")
        return await page(
            call,
            "ask.html",
            title=self.button,
            tab="/queues",
            action=self,
            about=f"queue {queue}",
            back="/queues",
            target=f"/queues/{_part(queue)}/{self.verb}",
        )

    async def act(self, call: Call[Any, Any]) -> Redirect:
        await (pause_queue(call) if self.verb == "pause" else resume_queue(call))
        return Redirect(path_to(call, "/queues", done=f"{self.verb}-queue"))


DRAIN: Final = _Drain()
PAUSE: Final = _Switch(
    verb="pause",
    button="Pause queue",
    consequence="No run of it is handed to a worker from now on. What runs goes on until it ends or waits. Runs can be "
    "started all the same, and wait; deadlines and schedules go on.",
    form=PauseClaimsBody,
    fields=(Field(name="reason", label="Reason", hint="shown with every run that waits"),),
)
RESUME: Final = _Switch(
    verb="resume",
    button="Resume queue",
    consequence="Workers take its runs again, at once.",
    form=ResumeClaimsBody,
)
