"""kagzi versions"""

from __future__ import annotations

import click

from kagzi.cli import output
from kagzi.cli.audited import audited
from kagzi.cli.options import as_json, engine_of, place_of, run, settings_of, start_logging, where
from kagzi.core.versions import Versions, WorkflowVersion
from kagzi.ports.documents import version_document
from kagzi.settings import Loaded


@click.command(short_help="Show versions of workflows; choose the default.")
@click.argument("workflow", required=False)
@click.option("--default", "version", metavar="VERSION", help="Make this version the default of WORKFLOW.")
@click.option("--no-default", is_flag=True, help="Have the default be the version that workers offered last again.")
@click.option("--force", is_flag=True, help="With --default: also if no worker has ever offered this version.")
@where
@as_json
def versions(
    workflow: str | None,
    version: str | None,
    no_default: bool,
    force: bool,
    url: str | None,
    namespace: str | None,
    json: bool,
) -> None:
    """Show the versions of WORKFLOW, or of all workflows: the default, workers that are online for each, and runs that
    have not finished.

    Starts that name no version get the default: the one that was chosen here, else the one that workers offered last.
    A version that no run needs and no start gets can be retired: workers need not have its code any more.

    \b
    kagzi versions checkout
    kagzi versions checkout --default 2
    """
    if (version is not None or no_default) and workflow is None:
        raise click.UsageError("--default and --no-default are for one workflow; say which")
    if version is not None and no_default:
        raise click.UsageError("say --default or --no-default, not both")
    if force and version is None:
        raise click.UsageError("--force is for --default")
    loaded = settings_of(url=url, namespace=namespace)
    start_logging(loaded.settings, quiet=True)
    found = run(_versions(loaded, workflow, version, force, chooses=version is not None or no_default))
    if json:
        documents = [version_document(each) for each in found.items]
        output.document({"versions": documents, "more": found.more})
        return
    headings = ("workflow", "version", "default", "workers", "pending", "running", "sleeping", "oldest run", "")
    output.table(headings, [_row(each) for each in found.items])
    if not found.items:
        named = "versions" if workflow is None else f"versions of {workflow}"
        output.note(f"no {named} in {place_of(loaded.settings)}")
    if found.more:
        output.note("there are more: name a workflow")


async def _versions(
    loaded: Loaded, workflow: str | None, version: str | None, force: bool, *, chooses: bool
) -> Versions:
    """Chooses the default first, if asked to. One loop does both: gRPC complains where a second one begins."""
    namespace = loaded.settings.namespace
    async with engine_of(loaded) as engine:
        if chooses and workflow is not None:
            async with audited(engine, "versions default", namespace=namespace, target=f"workflow {workflow}"):
                await engine.versions.set_default(namespace, workflow, version, force=force)
        return await engine.versions.list(namespace, workflow)


def _row(record: WorkflowVersion) -> tuple[str, ...]:
    return (
        record.workflow_type,
        "every" if record.version is None else record.version,
        "chosen" if record.chosen else "newest" if record.default else "-",
        str(record.workers),
        *(_count(number, record) for number in (record.pending, record.running, record.sleeping)),
        "-" if record.oldest_run_at is None else output.when(record.oldest_run_at),
        _note(record),
    )


def _count(number: int, record: WorkflowVersion) -> str:
    return f"{number}+" if record.at_least else str(number)


def _note(record: WorkflowVersion) -> str:
    if record.retirable:
        return "can be retired"
    if not record.workers and record.live:
        return "no worker has it now; its runs wait for one"
    return ""
