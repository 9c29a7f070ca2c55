"""Workers, and the queues they serve."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from kagzi.api.admin import WorkerFilter
from kagzi.core.flow import Scope
from kagzi.core.limits import check_name
from kagzi.core.worker import WorkerStatus
from kagzi.dashboard.asking import EmptyForm, Field, Question, Subject
from kagzi.dashboard.shell import may, page, path_to
from kagzi.dashboard.system import PlainQuery
from kagzi.errors import Conflict
from kagzi.http.call import Call, Html, NothingBody, Redirect
from kagzi.http.fields import Name
from kagzi.http.flow import PauseClaimsBody, pause_queue, resume_queue
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
        paused={each.name: each for each in await call.engine.limits.list(call.namespace) if each.scope is Scope.QUEUE},
        switches=switches,
        part=_part,
    )


def _part(name: str) -> str:
    """Returns a name as a part of an address."""
    return quote(name, safe="")


class _Drain(Question, frozen=True, kw_only=True):
    async def subject(self, call: Call[Any, Any]) -> Subject:
        worker = await call.engine.admin.get_worker(call.path["worker_id"], call.namespace)
        about = f"worker {worker.worker_id[-8:]}, process {worker.pid} on {worker.hostname}"
        return Subject(about=about, path=f"/workers/{worker.worker_id}", tab="/workers")

    async def act(self, call: Call[Any, EmptyForm]) -> Redirect:
        worker = await call.engine.admin.drain_worker(call.path["worker_id"], call.namespace)
        if worker.status is WorkerStatus.OFFLINE:
            raise Conflict("this worker is offline already")
        return Redirect(path_to(call, f"/workers/{worker.worker_id}", done="drain"))


class _Switch(Question, frozen=True, kw_only=True):
    """Pausing a queue, or resuming it."""

    async def subject(self, call: Call[Any, Any]) -> Subject:
        queue = check_name(call.path["queue"], "queue")
        target = f"/queues/{_part(queue)}/{self.verb}"
        return Subject(about=f"queue {queue}", path="/queues", tab="/queues", target=target)

    async def act(self, call: Call[Any, Any]) -> Redirect:
        await (pause_queue(call) if self.verb == "pause" else resume_queue(call))
        return Redirect(path_to(call, "/queues", done=f"{self.verb}-queue"))


DRAIN: Final = _Drain(
    verb="drain",
    button="Drain worker",
    consequence="It finishes the steps that are running, hands its other runs to workers that are online, and takes "
    "nothing new. Its process ends if it was started by `kagzi worker`. It is told with its next heartbeat.",
    form=EmptyForm,
)
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
    form=NothingBody,
)
