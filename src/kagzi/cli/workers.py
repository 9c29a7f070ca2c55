"""kagzi workers list | show | drain"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import click
import msgspec

from kagzi.api.admin import WorkerFilter
from kagzi.api.engine import ManagedEngine
from kagzi.cli import output
from kagzi.cli.audited import audited
from kagzi.cli.options import (
    as_json,
    engine_of,
    length,
    pages,
    place_of,
    run,
    seconds,
    settings_of,
    start_logging,
    where,
)
from kagzi.core.instant import Span
from kagzi.core.page import Page
from kagzi.core.worker import Worker, WorkerStatus
from kagzi.errors import Conflict, Unavailable
from kagzi.ports.documents import worker_document
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
    help="Only these.",
)
@click.option("-q", "--queue", metavar="NAME", help="Only workers that serve this queue.")
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
    loaded = settings_of(url=url, namespace=namespace)
    settings = loaded.settings
    start_logging(settings, quiet=True)
    wanted = WorkerFilter(
        namespace=settings.namespace,
        status=None if status is None else WorkerStatus(status.upper()),
        task_queue=queue,
    )
    found = run(_list(loaded, wanted, limit, page))
    output.listing(
        "workers",
        found,
        [worker_document(worker) for worker in found.items],
        ("worker", "status", "queues", "runs", "host", "pid", "version", "heard of"),
        [
            (
                worker.worker_id,
                worker.status.value,
                ", ".join(worker.queues),
                f"{worker.active}/{worker.concurrency}",
                worker.hostname,
                str(worker.pid),
                worker.version,
                output.when(worker.last_heartbeat_at),
            )
            for worker in found.items
        ],
        place=place_of(settings),
        json=json,
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
    loaded = settings_of(url=url, namespace=namespace)
    settings = loaded.settings
    start_logging(settings, quiet=True)
    _print(run(_show(loaded, worker_id)), json)


async def _show(loaded: Loaded, worker_id: str) -> Worker:
    async with engine_of(loaded) as engine:
        return await engine.admin.get_worker(worker_id, loaded.settings.namespace)


@workers.command()
@click.argument("worker_id", metavar="WORKER")
@click.option("--wait", is_flag=True, help="Until the worker has stopped.")
@click.option("--timeout", type=length, metavar="DURATION", help="With --wait: give up after this long, exit code 124.")
@where
@as_json
def drain(worker_id: str, wait: bool, timeout: Span | None, url: str | None, namespace: str | None, json: bool) -> None:
    """Have the worker with the id WORKER finish.

    It is told with its next heartbeat. Then it takes nothing new, lets running steps finish, hands everything else to
    other workers, and `kagzi worker` ends with exit code 0. Exit code 5 if the worker has gone already.
    """
    if timeout is not None and not wait:
        raise click.UsageError("--timeout is for --wait")
    loaded = settings_of(url=url, namespace=namespace)
    settings = loaded.settings
    start_logging(settings, quiet=True)
    worker = run(_drain(loaded, worker_id, wait, timeout))
    _print(worker, json)
    if worker.status is WorkerStatus.DRAINING:
        output.note(f"worker {worker.worker_id} is told with its next heartbeat; it holds {worker.active} runs")


async def _drain(loaded: Loaded, worker_id: str, wait: bool, timeout: Span | None) -> Worker:
    async with engine_of(loaded) as engine:
        async with audited(engine, "workers drain", namespace=loaded.settings.namespace, target=f"worker {worker_id}"):
            worker = await engine.admin.drain_worker(worker_id, loaded.settings.namespace)
            if worker.status is WorkerStatus.OFFLINE:
                raise Conflict(f"worker {worker.worker_id} is OFFLINE already")
        if not wait:
            return worker
        try:
            async with asyncio.timeout(None if timeout is None else seconds(timeout)):
                return await _gone(engine, worker_id, loaded.settings.namespace)
        except TimeoutError:
            raise TimeoutError(f"worker {worker_id} has not stopped yet; it goes on draining") from None


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
