"""kagzi workers list | show | drain"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

import click
import msgspec

from kagzi.api.admin import WorkerFilter
from kagzi.api.engine import ManagedEngine
from kagzi.cli import output
from kagzi.cli.audited import audited
from kagzi.cli.known import known_queues
from kagzi.cli.layout import Id, found_by, is_short
from kagzi.cli.options import as_json, engine_of, length, pages, place_of, quiet_home, run, seconds, where
from kagzi.core.instant import Span
from kagzi.core.page import Page
from kagzi.core.worker import Worker, WorkerStatus
from kagzi.errors import Conflict, NotFound, Unavailable
from kagzi.ports.documents.workers import worker_document
from kagzi.settings import Loaded

_LOOK_SECONDS: Final = 0.5


@click.group(short_help="List, show and drain workers.")
def workers() -> None:
    """Look after workers: the processes that execute runs."""


@workers.command("list")
@click.option(
    "-s",
    "--status",
    type=click.Choice([status.value for status in WorkerStatus], case_sensitive=False),
    help="Only workers with this status.",
)
@click.option("-q", "--queue", shell_complete=known_queues, metavar="NAME", help="Only workers that serve this queue.")
@pages
@where
@as_json
def list_workers(
    status: str | None,
    queue: str | None,
    limit: int,
    page: str | None,
    url: str | None,
    namespace: str | None,
    json: bool,
) -> None:
    """List workers, the newest first; those that have gone are kept for a while."""
    loaded = quiet_home(url, namespace)
    settings = loaded.settings
    wanted = WorkerFilter(
        namespace=settings.namespace,
        status=None if status is None else WorkerStatus(status.upper()),
        task_queue=queue,
    )
    found = run(_list(loaded, wanted, limit, page))
    rows: list[tuple[str, ...]] = []
    for group in _groups(found.items):
        if len(group) > 1 and output.for_people():
            rows.append(_group_row(group))
        rows += [_row(worker) for worker in group]
    output.listing(
        "workers",
        found,
        [worker_document(worker) for worker in found.items],
        ("worker", "status", "queues", "runs", "host", "pid", "process", "version", "heard of"),
        rows,
        place=place_of(settings),
        json=json,
        spare=("version", "pid", "host"),
        hint="kagzi worker shop.py starts one",
        chosen=status is not None or queue is not None,
    )


def _groups(workers: Sequence[Worker]) -> list[list[Worker]]:
    """Groups workers in their order; those that one `kagzi worker --processes` has started are together."""
    groups: dict[str, list[Worker]] = {}
    for worker in workers:
        groups.setdefault(worker.labels.get("group", worker.worker_id), []).append(worker)
    return [sorted(group, key=_process) for group in groups.values()]


def _process(worker: Worker) -> tuple[int, str]:
    number = worker.labels.get("process", "").partition("/")[0]
    return (int(number) if number.isdecimal() else 0, worker.worker_id)


def _row(worker: Worker) -> tuple[str, ...]:
    process, group = worker.labels.get("process"), worker.labels.get("group")
    return (
        Id(worker.worker_id),
        worker.status.value,
        ", ".join(worker.queues),
        f"{worker.active}/{worker.concurrency}",
        worker.hostname,
        str(worker.pid),
        "-" if process is None or group is None else f"{process} of {group}",
        worker.version,
        output.when(worker.last_heartbeat_at),
    )


def _group_row(group: Sequence[Worker]) -> tuple[str, ...]:
    """Returns the row of several processes together; those that have gone have no slots any more."""
    there = [worker for worker in group if worker.status is not WorkerStatus.OFFLINE]
    statuses = {status: sum(worker.status is status for worker in group) for status in WorkerStatus}
    return (
        f"group {group[0].labels['group']}",
        ", ".join(f"{count} {status.value}" for status, count in statuses.items() if count),
        ", ".join(dict.fromkeys(queue for worker in group for queue in worker.queues)),
        f"{sum(worker.active for worker in there)}/{sum(worker.concurrency for worker in there)}",
        ", ".join(dict.fromkeys(worker.hostname for worker in group)),
        "",
        f"{len(group)} processes",
        ", ".join(dict.fromkeys(worker.version for worker in group)),
        output.when(max(worker.last_heartbeat_at for worker in group)),
    )


async def _list(loaded: Loaded, wanted: WorkerFilter, limit: int, page: str | None) -> Page[Worker]:
    async with engine_of(loaded) as engine:
        return await engine.admin.list_workers(wanted, page_size=limit, page_token=page)


@workers.command()
@click.argument("worker_id", metavar="WORKER")
@where
@as_json
def show(worker_id: str, url: str | None, namespace: str | None, json: bool) -> None:
    """Show what is known about the worker with the id WORKER."""
    loaded = quiet_home(url, namespace)
    _print(run(_show(loaded, worker_id)), json)


async def _show(loaded: Loaded, worker_id: str) -> Worker:
    async with engine_of(loaded) as engine:
        namespace = loaded.settings.namespace
        return await engine.admin.get_worker(await _whole(engine, worker_id, namespace), namespace)


@workers.command()
@click.argument("worker_id", metavar="WORKER", required=False)
@click.option("--group", metavar="GROUP", help="Instead of WORKER: all processes of one `kagzi worker --processes`.")
@click.option("--wait", is_flag=True, help="Until the worker has stopped.")
@click.option("--timeout", type=length, metavar="DURATION", help="With --wait: give up after this long, exit code 124.")
@where
@as_json
def drain(
    worker_id: str | None,
    group: str | None,
    wait: bool,
    timeout: Span | None,
    url: str | None,
    namespace: str | None,
    json: bool,
) -> None:
    """Have the worker with the id WORKER finish.

    It is told with its next heartbeat. Then it takes nothing new, lets running steps finish, hands everything else to
    other workers, and `kagzi worker` ends with exit code 0. Exit code 5 if the worker has gone already.

    With --group, which `kagzi workers list` shows, every process of a group is told, and with --json one document is
    printed for each.
    """
    if (worker_id is None) is (group is None):
        raise click.UsageError("say which: WORKER, or --group GROUP")
    if timeout is not None and not wait:
        raise click.UsageError("--timeout is for --wait")
    loaded = quiet_home(url, namespace)
    for worker in run(_drain(loaded, worker_id, group, wait, timeout)):
        _print(worker, json)
        if worker.status is WorkerStatus.DRAINING:
            output.note(f"worker {worker.worker_id} is told with its next heartbeat; it holds {worker.active} runs")


async def _drain(
    loaded: Loaded, worker_id: str | None, group: str | None, wait: bool, timeout: Span | None
) -> list[Worker]:
    namespace = loaded.settings.namespace
    async with engine_of(loaded) as engine:
        if worker_id is not None:
            ids = [await _whole(engine, worker_id, namespace)]
            told = [await _tell(engine, ids[0], namespace)]
        else:
            ids, told = await _members(engine, group or "", namespace), []
            for each in ids:
                with suppress(Conflict):  # it has gone by itself meanwhile
                    told.append(await _tell(engine, each, namespace))
        if not wait:
            return told
        try:
            async with asyncio.timeout(None if timeout is None else seconds(timeout)):
                return [await _gone(engine, each, namespace) for each in ids]
        except TimeoutError:
            who = f"worker {worker_id} has" if worker_id is not None else f"group {group} has"
            raise TimeoutError(f"{who} not stopped yet; it goes on draining") from None


async def _tell(engine: ManagedEngine, worker_id: str, namespace: str) -> Worker:
    async with audited(engine, "workers drain", namespace=namespace, target=f"worker {worker_id}"):
        worker = await engine.admin.drain_worker(worker_id, namespace)
        if worker.status is WorkerStatus.OFFLINE:
            raise Conflict(f"worker {worker.worker_id} is OFFLINE already")
        return worker


async def _whole(engine: ManagedEngine, text: str, namespace: str) -> str:
    """Returns the id of which a list has shown the beginning."""
    if not is_short(text):
        return text
    ids = [worker.worker_id async for worker in _all(engine, WorkerFilter(namespace=namespace))]
    return found_by(text, ids, "workers") or text


async def _all(engine: ManagedEngine, wanted: WorkerFilter) -> AsyncIterator[Worker]:
    token: str | None = None
    while True:
        page = await engine.admin.list_workers(wanted, page_size=100, page_token=token)
        for worker in page.items:
            yield worker
        token = page.next
        if token is None:
            return


async def _members(engine: ManagedEngine, group: str, namespace: str) -> list[str]:
    """Returns the workers of a group that have not gone."""
    found = [
        worker.worker_id
        for status in (WorkerStatus.ONLINE, WorkerStatus.DRAINING)
        async for worker in _all(engine, WorkerFilter(namespace=namespace, status=status))
        if worker.labels.get("group") == group
    ]
    if not found:
        raise NotFound(
            f"no worker of a group {group!r} is up in namespace {namespace}; `kagzi workers list` shows them"
        )
    return found


async def _gone(engine: ManagedEngine, worker_id: str, namespace: str) -> Worker:
    while True:
        with suppress(Unavailable):
            worker = await engine.admin.get_worker(worker_id, namespace)
            if worker.status is WorkerStatus.OFFLINE:
                return worker
        await asyncio.sleep(_LOOK_SECONDS)


def _print(worker: Worker, json: bool) -> None:
    document = worker_document(worker)
    if json:
        output.document(document)
        return
    facts: dict[str, object] = msgspec.to_builtins(document)
    facts |= {
        "queues": ", ".join(worker.queues),
        "workflows": ", ".join(offered.name + f" {offered.version or ''}".rstrip() for offered in worker.types),
        "labels": ", ".join(f"{name}={value}" for name, value in worker.labels.items()) or None,
        "workflow_limits": ", ".join(f"{name}={limit}" for name, limit in worker.type_limits.items()) or None,
    }
    output.table(("", ""), [(name, str(value)) for name, value in facts.items() if value is not None])
