"""kagzi jobs list | show | watch | cancel"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import click

from kagzi.api.engine import ManagedEngine
from kagzi.cli import output
from kagzi.cli.audited import audited
from kagzi.cli.bulk import counts_of, finish, watch
from kagzi.cli.layout import Id, found_by, is_short
from kagzi.cli.options import as_json, engine_of, pages, place_of, quiet_home, run, where
from kagzi.core.job import Job, why_skipped
from kagzi.core.page import Page
from kagzi.ports.documents.jobs import job_document, meant
from kagzi.settings import Loaded


@click.group(short_help="List, watch and cancel jobs over many runs.")
def jobs() -> None:
    """Jobs: one thing done to many runs in the background, to each of them once.

    They are started by `--all` of `kagzi runs cancel`, `terminate`, `wake`, `move`, `retry`, `rerun`, `fork` and
    `delete`.
    """


@jobs.command("list")
@pages
@where
@as_json
def list_jobs(limit: int, page: str | None, url: str | None, namespace: str | None, json: bool) -> None:
    """List jobs, newest first."""
    loaded = quiet_home(url, namespace)
    found = run(_list(loaded, limit, page))
    output.listing(
        "jobs",
        found,
        [output.plain(job_document(job)) for job in found.items],
        ("job", "action", "status", "matched", "done", "skipped", "failed", "by", "created"),
        [
            (
                Id(job.job_id),
                job.action.value,
                job.status.value,
                *(str(count) for count in (job.matched, job.done, job.skipped, job.failed)),
                job.created_by or "-",
                output.when(job.created_at),
            )
            for job in found.items
        ],
        place=place_of(loaded.settings),
        json=json,
        spare=("by", "matched"),
        hint="kagzi runs retry --all --status failed starts one",
    )


async def _list(loaded: Loaded, limit: int, page: str | None) -> Page[Job]:
    async with engine_of(loaded) as engine:
        return await engine.jobs.list(loaded.settings.namespace, page_size=limit, page_token=page)


async def _whole(engine: ManagedEngine, loaded: Loaded, text: str) -> str:
    """Returns the id of which a list has shown the beginning; of one of the newest hundred."""
    if not is_short(text):
        return text
    newest = await engine.jobs.list(loaded.settings.namespace, page_size=100, page_token=None)
    return found_by(text, (job.job_id for job in newest.items), "jobs") or text


@jobs.command()
@click.argument("job_id", metavar="JOB")
@where
@as_json
def show(job_id: str, url: str | None, namespace: str | None, json: bool) -> None:
    """Show a job: what it does to which runs, and how far it is."""
    loaded = quiet_home(url, namespace)

    async def look(engine: ManagedEngine) -> Job:
        return await engine.jobs.get(loaded.settings.namespace, await _whole(engine, loaded, job_id))

    job = run(_with(loaded, look))
    document = output.plain(job_document(job))
    if json:
        output.document(document)
        return
    words = document | {"runs": meant(job), "reasons": why_skipped(job.reasons) or None}
    output.table(("", ""), [(name, _said(value)) for name, value in words.items() if value is not None])


def _said(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@jobs.command("watch")
@click.argument("job_id", metavar="JOB")
@where
@as_json
def watch_job(job_id: str, url: str | None, namespace: str | None, json: bool) -> None:
    """Follow a job to its end. Exit code 1 if it fails or is cancelled, or if runs of it could not be changed."""
    loaded = quiet_home(url, namespace)

    async def follow(engine: ManagedEngine) -> Job:
        job = await engine.jobs.get(loaded.settings.namespace, await _whole(engine, loaded, job_id))
        return await watch(engine, job, None)

    finish(run(_with(loaded, follow)), json=json)


@jobs.command()
@click.argument("job_id", metavar="JOB")
@where
@as_json
def cancel(job_id: str, url: str | None, namespace: str | None, json: bool) -> None:
    """End a job. What it is doing at the moment is the last it does; what it has done stays."""
    loaded = quiet_home(url, namespace)

    async def end(engine: ManagedEngine) -> Job:
        named = await _whole(engine, loaded, job_id)
        async with audited(engine, "jobs cancel", namespace=loaded.settings.namespace, target=f"job {named}"):
            return await engine.jobs.cancel(loaded.settings.namespace, named)

    job = run(_with(loaded, end))
    if json:
        output.document(output.plain(job_document(job)))
    else:
        click.echo(f"job {job.job_id} {job.status}: {counts_of(job)}")


async def _with(loaded: Loaded, do: Callable[[ManagedEngine], Awaitable[Job]]) -> Job:
    async with engine_of(loaded) as engine:
        return await do(engine)
