"""kagzi versions"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from kagzi.cli import output
from kagzi.cli.audited import audited
from kagzi.cli.known import known_workflows
from kagzi.cli.main import FAILED
from kagzi.cli.options import as_json, engine_of, place_of, quiet_home, run, settings_of, start_logging, where
from kagzi.core.printable import printable
from kagzi.core.versions import Versions, WorkflowVersion
from kagzi.errors import InvalidRequest
from kagzi.ports.documents.versions import version_document
from kagzi.sdk.moving import move_checked_runs, move_runs
from kagzi.sdk.records import MoveRecord
from kagzi.settings import Loaded

if TYPE_CHECKING:
    from kagzi.app import Kagzi

_SHOWN: Final = 20  # runs that are told of in full


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
@click.argument("workflow", required=False, shell_complete=known_workflows)
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
    loaded = quiet_home(url, namespace)
    found = run(_versions(loaded, workflow, version, force, chooses=version is not None or no_default))
    if json:
        documents = [version_document(each) for each in found.items]
        output.document({"versions": documents, "more": found.more})
        return
    headings = ("workflow", "version", "default", "workers", "pending", "running", "sleeping", "oldest", "")
    output.table(headings, [_row(each) for each in found.items], spare=("oldest", "default", "sleeping"))
    if not found.items:
        named = "versions" if workflow is None else f"versions of {workflow}"
        output.none(named, place_of(loaded.settings), "a worker registers those of its app: kagzi worker shop.py")
    if found.more:
        output.note("there are more: name a workflow")


@versions.command("move")
@click.argument("workflow", shell_complete=known_workflows)
@click.argument("app", required=False)
@click.option("--from", "from_version", required=True, metavar="VERSION", help="The version that the runs have.")
@click.option("--to", "to_version", required=True, metavar="VERSION", help="The version that they get.")
@click.option("--dry-run", is_flag=True, help="Count them, and change nothing.")
@click.option("--check", is_flag=True, help="Replay each with the code of APP first; move those it comes through.")
@click.option("--force", is_flag=True, help="Also if no worker has ever offered that version.")
@where
@as_json
def move(
    workflow: str,
    app: str | None,
    from_version: str,
    to_version: str,
    dry_run: bool,
    check: bool,
    force: bool,
    url: str | None,
    namespace: str | None,
    json: bool,
) -> None:
    """Have runs of WORKFLOW that wait or sleep go on in another version.

    What a worker holds is left alone: move again when it has let go. Recorded steps stay, so the other version must be
    able to replay them. --check finds out before: it replays the history of each run with the code of APP, starts no
    step, and leaves those where they are whose calls differ. It names them, with file and line, and the exit code is 1.

    \b
    kagzi versions move checkout --from 1 --to 2 --dry-run
    kagzi versions move checkout --from 1 --to 2 --check shop.py
    """
    if app is not None and not check:
        raise click.UsageError("APP is for --check, which replays histories with its code")
    if not check:
        loaded = quiet_home(url, namespace)
        done = run(_move(loaded, (workflow, from_version, to_version), dry_run, force))
    else:
        code = _code_of(app)
        loaded = settings_of(url=url or code.url, namespace=namespace or code.namespace)
        done = run(_move(loaded, (workflow, from_version, to_version), dry_run, force, code))
    if json:
        document = {"moved": done.moved, "running": done.running, "dry_run": dry_run}
        output.document(document | ({"refused": done.refused, "changed": done.changed} if check else {}))
    else:
        _tell_moved(done, f"{workflow} {'would go' if dry_run else 'went'} from version {from_version} to {to_version}")
    if done.refused:
        raise click.exceptions.Exit(FAILED)


def _code_of(app: str | None) -> Kagzi:
    from kagzi.cli.application import load_app

    settings = settings_of(app=app).settings
    if settings.app is None:
        raise InvalidRequest(
            "which app? Say `kagzi versions move … --check shop.py`, set KAGZI_APP, or write "
            'app = "shop:app" into kagzi.toml'
        )
    start_logging(settings, quiet=True)
    return load_app(settings.app)


async def _move(
    loaded: Loaded, asked: tuple[str, str, str], dry_run: bool, force: bool, code: Kagzi | None = None
) -> MoveRecord:
    namespace = loaded.settings.namespace
    async with (
        engine_of(loaded) as engine,
        audited(engine, "versions move", namespace=namespace, target=f"workflow {asked[0]}"),
    ):
        if code is None:
            return await move_runs(engine.versions, namespace, *asked, dry_run=dry_run, force=force)
        return await move_checked_runs(engine, engine.versions, code, namespace, *asked, dry_run=dry_run, force=force)


def _tell_moved(done: MoveRecord, what: str) -> None:
    for refused in done.refused[:_SHOWN]:
        click.echo(printable(str(refused)))
    if len(done.refused) > _SHOWN:
        output.note(f"and {len(done.refused) - _SHOWN} more; --json names them all")
    click.echo(f"{done.moved} runs of {what}")
    if done.refused:
        output.note(f"{len(done.refused)} stay: the code does not do what is recorded of them")
    if done.changed:
        output.note(f"{done.changed} were claimed while they were looked at, and stay for now")
    if done.running:
        output.note(f"{done.running} are held by workers and stay for now")


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
        return "no worker"
    return ""
