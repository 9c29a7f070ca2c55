"""kagzi versions"""

from __future__ import annotations

import click

from kagzi.cli import output
from kagzi.cli.audited import audited
from kagzi.cli.options import as_json, engine_of, home_of, place_of, run, start_logging, where
from kagzi.core.versions import Versions, WorkflowVersion
from kagzi.ports.documents import version_document
from kagzi.settings import Loaded


class _Versions(click.Group):
    """Shows versions unless it is told to do something else: `kagzi versions checkout`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Versions, short_help="Show versions of workflows; choose the default; move runs.")
def versions() -> None:
    """Show versions of workflows, choose their default, move runs from one to another.

    \b
    kagzi versions checkout
    kagzi versions checkout --default 2
    kagzi versions move checkout --from 1 --to 2 --dry-run
    """


@versions.command("list", short_help="Show versions of workflows; choose the default.")
@click.argument("workflow", required=False)
@click.option("--default", "version", metavar="VERSION", help="Make this version the default of WORKFLOW.")
@click.option("--no-default", is_flag=True, help="Have the default be the version that workers offered last again.")
@click.option("--force", is_flag=True, help="With --default: also if no worker has ever offered this version.")
@where
@as_json
def list_versions(
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
    loaded = home_of(url, namespace)
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


@versions.command("move")
@click.argument("workflow")
@click.option("--from", "from_version", required=True, metavar="VERSION", help="The version they have.")
@click.option("--to", "to_version", required=True, metavar="VERSION", help="The version they get.")
@click.option("--dry-run", is_flag=True, help="Count them, and change nothing.")
@click.option("--force", is_flag=True, help="Also if no worker has ever offered that version.")
@where
@as_json
def move(
    workflow: str,
    from_version: str,
    to_version: str,
    dry_run: bool,
    force: bool,
    url: str | None,
    namespace: str | None,
    json: bool,
) -> None:
    """Have runs of WORKFLOW that wait or sleep go on in another version.

    What a worker holds is left alone: move again when it has let go. Recorded steps stay, so the other version must be
    able to replay them.
    """
    loaded = home_of(url, namespace)
    start_logging(loaded.settings, quiet=True)
    moved, running = run(_move(loaded, workflow, from_version, to_version, dry_run, force))
    if json:
        output.document({"moved": moved, "running": running, "dry_run": dry_run})
        return
    click.echo(
        f"{moved} runs of {workflow} {'would go' if dry_run else 'went'} from version {from_version} to {to_version}"
    )
    if running:
        output.note(f"{running} are held by workers and stay for now")


async def _move(
    loaded: Loaded, workflow: str, from_version: str, to_version: str, dry_run: bool, force: bool
) -> tuple[int, int]:
    namespace, moved, after = loaded.settings.namespace, 0, ""
    async with engine_of(loaded) as engine:
        async with audited(engine, "versions move", namespace=namespace, target=f"workflow {workflow}"):
            while True:
                page = await engine.versions.move(
                    namespace, workflow, from_version, to_version, dry_run=dry_run, force=force, after=after
                )
                moved += page.moved
                if page.after is None:
                    break
                after = page.after
        found = (await engine.versions.list(namespace, workflow)).items
        return moved, sum(each.running for each in found if each.version == from_version)


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
