"""`--all` of kagzi runs cancel, terminate, wake, retry, rerun, fork and delete: the same for many runs, as a job.

`kagzi runs move` knows nothing else.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from kagzi.api.engine import ManagedEngine
from kagzi.api.jobs import JobPreview, StartJob
from kagzi.cli import output
from kagzi.cli.audited import actor, audited
from kagzi.cli.filters import Filters, filters
from kagzi.cli.options import engine_of, quiet_home, run
from kagzi.clock import SystemClock
from kagzi.core.job import MOST_RATE, Job, JobAction, JobOptions, JobStatus, why_skipped
from kagzi.errors import InvalidRequest
from kagzi.ids import RandomIds
from kagzi.ports.documents.jobs import job_document
from kagzi.store.searching import is_search

F = TypeVar("F", bound=Callable[..., Any])

_LOOK_SECONDS: Final = 0.3  # between looks at a job that is watched


def in_bulk(action: JobAction, options_of: Callable[[dict[str, Any]], JobOptions] | None = None) -> Callable[[F], F]:
    """Gives a command that takes runs `--all` and the options of a job. `options_of` makes what the action needs to
    know of the options of the command."""

    def decorate(command: F) -> F:
        def called(
            wanted: Filters,
            every: bool,
            everything: bool,
            dry_run: bool,
            yes: bool,
            rate: int | None,
            children: bool,
            **options: Any,
        ) -> Any:
            if not every:
                _refuse_filters(wanted, everything or dry_run or yes or children or rate is not None)
                if not options["runs"]:
                    raise click.UsageError("Missing argument 'RUN...', or --all and which runs are meant.")
                return command(**options)
            if options["runs"]:
                raise click.UsageError("Runs and --all do not go together: either name them or say which are meant.")
            return do_in_bulk(
                action,
                wanted,
                everything=everything,
                dry_run=dry_run,
                yes=yes,
                rate=rate,
                children=children,
                options=options_of(options) if options_of is not None else JobOptions(),
                url=options["url"],
                namespace=options["namespace"],
                json=options["json"],
            )

        called.__name__, called.__doc__ = command.__name__, command.__doc__
        called.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
        decorated: Any = called
        for option in (
            click.option(
                "--children", is_flag=True, help="With --all: repeat children, too, which their parent may start again."
            ),
            click.option(
                "--rate", type=click.IntRange(1, MOST_RATE), metavar="NUMBER", help="With --all: so many a second."
            ),
            click.option("-y", "--yes", is_flag=True, help="With --all: do not ask."),
            click.option("--dry-run", is_flag=True, help="With --all: say what would be done, and do nothing."),
            click.option("--everything", is_flag=True, help="With --all and no filter: every run of the namespace."),
            click.option("--all", "every", is_flag=True, help="All runs that the filters below match, as a job."),
        ):
            decorated = option(decorated)
        bulk: F = filters(decorated)
        return bulk

    return decorate


def _refuse_filters(wanted: Filters, more: bool) -> None:
    given = any(getattr(wanted, name) for name in wanted.__struct_fields__)
    if given or more:
        raise click.UsageError("Filters and the options of a job are for --all.")


def do_in_bulk(
    action: JobAction,
    wanted: Filters,
    *,
    everything: bool,
    dry_run: bool,
    yes: bool,
    rate: int | None,
    children: bool,
    options: JobOptions,
    url: str | None,
    namespace: str | None,
    json: bool,
) -> None:
    loaded = quiet_home(url, namespace)

    async def main() -> Job | JobPreview:
        async with engine_of(loaded) as engine:
            start = StartJob(
                namespace=loaded.settings.namespace,
                job_id=RandomIds(SystemClock().now).run_id(),
                action=action,
                filter=await wanted.filter(engine, loaded.settings.namespace),
                everything=everything,
                rate=rate,
                children=children,
                options=options,
                created_by=actor(),
            )
            if not is_search(start.filter) and not everything:
                raise InvalidRequest(
                    f"there is no filter, so this would {action} every run of namespace {start.namespace}; say "
                    "--everything if that is meant"
                )
            preview = await engine.jobs.preview(start)
            if dry_run:
                return preview
            if not yes:
                _ask(action, preview)
            async with audited(engine, f"runs {action} --all", namespace=start.namespace, target=f"job {start.job_id}"):
                job = await engine.jobs.start(start)
            output.note(f"job {job.job_id} is under way, also if this command ends; kagzi jobs cancel ends it")
            return await watch(engine, job, preview.matched)

    found = run(main())
    if isinstance(found, JobPreview):
        show_preview(action, found, json=json)
    else:
        finish(found, json=json)


def _ask(action: JobAction, preview: JobPreview) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("say --yes to do this, or --dry-run to see what would be done.")
    click.confirm(f"{action} {_words(preview)}?", abort=True, err=True)


def _words(preview: JobPreview) -> str:
    words = f"{'at least ' if preview.at_least else ''}{preview.matched:,} runs"
    return f"{words} ({preview.children:,} of them are children and are skipped)" if preview.children else words


def show_preview(action: JobAction, preview: JobPreview, *, json: bool) -> None:
    if json:
        output.document(
            {
                "action": action,
                "matched": preview.matched,
                "at_least": preview.at_least,
                "children": preview.children,
                "runs": [output.run_summary(each) for each in preview.runs],
            }
        )
        return
    newest = " The newest:" if preview.runs else ""
    output.note(f"would {action} {_words(preview)}; nothing is changed.{newest}")
    output.runs_table("run", preview.runs)


async def watch(engine: ManagedEngine, job: Job, total: int | None) -> Job:
    """Follows a job to its end, with a bar where somebody looks."""
    drawn = sys.stderr.isatty()
    while not job.status.finished:
        await asyncio.sleep(_LOOK_SECONDS)
        job = await engine.jobs.get(job.namespace, job.job_id)
        if drawn:
            of = "" if total is None else f" of {max(total, job.matched):,}"
            words = f"{job.matched:,}{of}: {job.done:,} done, {job.skipped:,} skipped, {job.failed:,} failed"
            fraction = job.matched / max(total or 0, job.matched, 1)
            click.echo(f"\r{output.bar(fraction, words)} ", nl=False, err=True)
    if drawn:
        click.echo(err=True)
    return job


def counts_of(job: Job) -> str:
    why = f" ({why_skipped(job.reasons)})" if job.reasons else ""
    return f"{job.done} done, {job.skipped} skipped{why}, {job.failed} failed"


def finish(job: Job, *, json: bool) -> None:
    """Prints how a job has ended; exit code 1 if it did not get to its end, or runs of it have failed."""
    if json:
        output.document(output.plain(job_document(job)))
    else:
        click.echo(f"job {job.job_id} {job.status}: {counts_of(job)}")
        if job.error is not None:
            output.note(job.error)
    if job.failed or job.status is not JobStatus.COMPLETED:
        sys.exit(1)
