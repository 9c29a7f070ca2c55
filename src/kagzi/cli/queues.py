"""kagzi queues list | pause | resume"""

from __future__ import annotations

import sys
from collections import Counter

import click
from msgspec import Struct

from kagzi.api.admin import WorkerFilter
from kagzi.cli import output
from kagzi.cli.audited import actor, audited
from kagzi.cli.known import doubt, known_queues
from kagzi.cli.options import as_json, engine_of, place_of, quiet_home, run, where
from kagzi.core.flow import FlowLimit, Scope
from kagzi.core.limits import PAGE_SIZE
from kagzi.core.run import RunStatus
from kagzi.core.worker import WorkerStatus
from kagzi.ports.documents.limits import limit_document
from kagzi.settings import Loaded


class _Queue(Struct, frozen=True, kw_only=True):
    name: str
    pending: int
    running: int
    sleeping: int
    workers: int
    at_least: bool
    paused: FlowLimit | None
    elsewhere: FlowLimit | None  # the pause of the whole namespace

    @property
    def state(self) -> str:
        if self.paused is not None:
            return pause_words(self.paused)
        return "open" if self.elsewhere is None else f"{self.elsewhere.scope.value} {pause_words(self.elsewhere)}"


@click.group(short_help="List queues; pause and resume them.")
def queues() -> None:
    """See what waits in queues, and hold back what waits there.

    Nothing of a paused queue is handed to a worker. What runs goes on until it ends or waits, and runs can be started
    all the same. Deadlines, cancellations and schedules go on.
    """


@queues.command("list")
@where
@as_json
def list_queues(url: str | None, namespace: str | None, json: bool) -> None:
    """List queues with what is in them, and which are paused.

    \b
    kagzi queues list
    """
    loaded = quiet_home(url, namespace)
    found = run(_list(loaded))
    if json:
        output.document({"queues": [_document(each) for each in found]})
        return
    output.table(
        ("queue", "pending", "running", "sleeping", "workers", "state"),
        [
            (
                each.name,
                f"{each.pending}{'+' if each.at_least else ''}",
                str(each.running),
                str(each.sleeping),
                str(each.workers),
                each.state,
            )
            for each in found
        ],
        spare=("sleeping",),
    )
    if not found:
        output.none("queues", place_of(loaded.settings), "a worker or a run that waits makes one: kagzi worker shop.py")


async def _list(loaded: Loaded) -> list[_Queue]:
    namespace = loaded.settings.namespace
    async with engine_of(loaded) as engine:
        counts: dict[str, Counter[RunStatus]] = {}
        uncertain: set[str] = set()
        for each in await engine.admin.count_runs(namespace, live=True):
            counts.setdefault(each.task_queue, Counter())[each.status] += each.count
            if each.at_least:
                uncertain.add(each.task_queue)
        wanted = WorkerFilter(namespace=namespace, status=WorkerStatus.ONLINE)
        workers = await engine.admin.list_workers(wanted, page_size=PAGE_SIZE)
        serving: Counter[str] = Counter()
        for worker in workers.items:
            serving.update(worker.queues)
        limits = await engine.limits.list(namespace)
    pauses = [each for each in limits if each.paused_at is not None]
    paused = {each.name: each for each in pauses if each.scope is Scope.QUEUE}
    elsewhere = next((each for each in pauses if each.scope is Scope.NAMESPACE), None)
    return [
        _Queue(
            name=name,
            pending=counts.get(name, Counter())[RunStatus.PENDING],
            running=counts.get(name, Counter())[RunStatus.RUNNING],
            sleeping=counts.get(name, Counter())[RunStatus.SLEEPING],
            workers=serving[name],
            at_least=name in uncertain,
            paused=paused.get(name),
            elsewhere=elsewhere,
        )
        for name in sorted(counts.keys() | serving.keys() | paused.keys())
    ]


@queues.command()
@click.argument("queue", shell_complete=known_queues)
@click.option("--reason", default="", metavar="TEXT", help="Why, for people: shown with every run that waits.")
@where
@as_json
def pause(queue: str, reason: str, url: str | None, namespace: str | None, json: bool) -> None:
    """Hand no run of QUEUE to a worker, until it is resumed.

    \b
    kagzi queues pause mail --reason "the provider is down"
    """
    loaded = quiet_home(url, namespace)
    print_limit(*run(pause_scope(loaded, loaded.settings.namespace, Scope.QUEUE, queue, reason)), json=json)


@queues.command()
@click.argument("queue", shell_complete=known_queues)
@where
@as_json
def resume(queue: str, url: str | None, namespace: str | None, json: bool) -> None:
    """Hand the runs of QUEUE to workers again."""
    loaded = quiet_home(url, namespace)
    print_limit(run(resume_scope(loaded, loaded.settings.namespace, Scope.QUEUE, queue)), json=json)


async def pause_scope(
    loaded: Loaded, namespace: str, scope: Scope, name: str, reason: str
) -> tuple[FlowLimit, str | None]:
    """Pauses, and returns what is odd about the name, too."""
    async with engine_of(loaded, make=True) as engine:
        async with audited(
            engine, f"{scope.value}s pause", namespace=namespace, target=f"{scope.value} {name or namespace}"
        ):
            paused = await engine.limits.pause(namespace, scope, name, by=actor(), reason=reason)
        return paused, await doubt(engine, namespace, scope, name)


async def resume_scope(loaded: Loaded, namespace: str, scope: Scope, name: str) -> FlowLimit:
    async with engine_of(loaded) as engine:
        async with audited(
            engine, f"{scope.value}s resume", namespace=namespace, target=f"{scope.value} {name or namespace}"
        ):
            return await engine.limits.resume(namespace, scope, name)


def print_limit(limit: FlowLimit, doubts: str | None = None, *, json: bool) -> None:
    if json:
        output.document(limit_document(limit))
    elif limit.paused_at is None:
        output.note(f"{limit.about} is open: its runs are handed out")
    else:
        output.note(f"{limit.about} is {pause_words(limit)}")
    if doubts is not None:
        output.note(doubts)


def pause_words(limit: FlowLimit) -> str:
    by = f" by {limit.paused_by}" if limit.paused_by else ""
    at = (
        ""
        if limit.paused_at is None
        else f" {output.when(limit.paused_at) if sys.stdout.isatty() else f'at {output.moment(limit.paused_at)}'}"
    )
    return f"paused{by}{at}{f': {limit.pause_reason}' if limit.pause_reason else ''}"


def _document(queue: _Queue) -> dict[str, object]:
    paused = None if queue.paused is None else limit_document(queue.paused)
    return {
        "queue": queue.name,
        "pending": queue.pending,
        "running": queue.running,
        "sleeping": queue.sleeping,
        "workers": queue.workers,
        "at_least": queue.at_least,
        "paused_at": None if paused is None else paused.paused_at,
        "paused_by": None if paused is None else paused.paused_by,
        "pause_reason": None if paused is None else paused.pause_reason,
    }
