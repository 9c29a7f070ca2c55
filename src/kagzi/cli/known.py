"""Names of runs, workflows and queues that are there: what a shell completes, and which names nobody uses."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import click

from kagzi.api.admin import WorkerFilter
from kagzi.api.engine import ManagedEngine
from kagzi.api.workflows import RunFilter
from kagzi.cli.options import engine_of, home_of, run
from kagzi.core.alike import alike
from kagzi.core.flow import Scope
from kagzi.core.limits import PAGE_SIZE
from kagzi.core.worker import WorkerStatus
from kagzi.errors import KagziError

_PLAIN: Final = re.compile(r"[\w.@/][\w.@/:+,=-]*")
_PATIENCE_SECONDS: Final = 2.0  # of somebody who has pressed a key


def known_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The ids of the newest runs: those that people have given, and of the others Kagzi's."""
    del param

    async def look(engine: ManagedEngine, namespace: str) -> Iterable[str]:
        chosen = RunFilter(namespace=namespace, id_prefix=incomplete or None)
        found = list((await engine.workflows.list(RunFilter(namespace=namespace), page_size=PAGE_SIZE)).items)
        if incomplete:
            found += (await engine.workflows.list(chosen, page_size=PAGE_SIZE)).items
        named = [each.external_id for each in found if each.external_id and each.scheduled_for is None]
        return [*named, *(each.run_id for each in found if incomplete or not each.external_id)]

    return _starting(incomplete, _ask(ctx, look))


def known_workflows(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The workflows that workers have offered."""
    del param

    async def look(engine: ManagedEngine, namespace: str) -> Iterable[str]:
        return [each.workflow_type for each in (await engine.versions.list(namespace)).items]

    return _starting(incomplete, _ask(ctx, look))


def known_queues(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The queues in which there is something, and `default`."""
    del param

    async def look(engine: ManagedEngine, namespace: str) -> Iterable[str]:
        return ["default", *(each.task_queue for each in await engine.admin.count_runs(namespace, live=True))]

    return _starting(incomplete, _ask(ctx, look))


async def doubt(engine: ManagedEngine, namespace: str, scope: Scope, name: str) -> str | None:
    """Returns what to say of a queue or workflow that nobody uses: it may be used later, or the name may be wrong."""
    if scope is Scope.NAMESPACE:
        return None
    try:
        counts = await engine.admin.count_runs(namespace, live=True)
        if scope is Scope.QUEUE:
            online = WorkerFilter(namespace=namespace, status=WorkerStatus.ONLINE)
            workers = (await engine.admin.list_workers(online, page_size=PAGE_SIZE)).items
            used = {each.task_queue for each in counts} | {queue for worker in workers for queue in worker.queues}
            said = f"no worker serves queue {name} now, and no run is in it"
        else:
            limits = await engine.limits.list(namespace)
            used = {each.workflow_type for each in counts}
            used |= {each.workflow_type for each in (await engine.versions.list(namespace)).items}
            used |= {each.name for each in limits if each.scope is scope and (each.is_declared or each.shares)}
            said = f"no worker has offered workflow {name}, and no run of it is under way"
    except KagziError:
        return None  # a key that may not look
    if name in used:
        return None
    meant = alike(name, used)
    return said if meant is None else f"{said}; did you mean {meant}?"


def _starting(incomplete: str, names: Iterable[str]) -> list[str]:
    """Keeps names that begin so and mean nothing to a shell, since they come to stand in a command line unquoted."""
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete) and _PLAIN.fullmatch(name)]


def _ask(ctx: click.Context, look: Callable[[ManagedEngine, str], Awaitable[Iterable[str]]]) -> Iterable[str]:
    """Asks the engine; returns nothing where that fails, since a shell has no place for what went wrong, nor for what
    an app prints."""

    async def asked() -> Iterable[str]:
        async with asyncio.timeout(_PATIENCE_SECONDS), engine_of(loaded) as engine:
            return await look(engine, loaded.settings.namespace)

    silence = io.StringIO()
    with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
        try:
            loaded = home_of(ctx.params.get("url"), ctx.params.get("namespace"))
            return run(asked())
        except (KagziError, OSError):
            return ()
