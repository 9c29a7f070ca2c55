"""kagzi replay | kagzi runs export"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import click
from msgspec import Struct

from kagzi.api.engine import Engine
from kagzi.api.workflows import RunFilter
from kagzi.cli import output
from kagzi.cli.follow import find_run
from kagzi.cli.known import known_runs, known_workflows
from kagzi.cli.main import FAILED
from kagzi.cli.options import as_json, engine_of, quiet_home, run, settings_of, start_logging, where
from kagzi.core.printable import printable
from kagzi.core.run import Run
from kagzi.errors import InvalidRequest, NotFound
from kagzi.sdk.histories import History, export_history
from kagzi.sdk.replaying import Differs, Offers, read
from kagzi.sdk.replaying import replay as replay_history
from kagzi.settings import Loaded

_PAGE: Final = 100


@click.command()
@click.argument("run_id", metavar="RUN", shell_complete=known_runs)
@where
def export(run_id: str, url: str | None, namespace: str | None) -> None:
    """Write what is recorded of a run as JSON, for `kagzi replay`.

    `kagzi runs export RUN > run.json`. It contains the arguments, and what steps and signals have returned. Of a run
    that has begun anew it is the present incarnation.
    """
    loaded = quiet_home(url, namespace)
    click.echo(run(_export(loaded, run_id)).to_json(), nl=False)


async def _export(loaded: Loaded, text: str) -> History:
    async with engine_of(loaded) as engine:
        return await export_history(engine, await find_run(engine, loaded.settings.namespace, text))


class _Verdict(Struct, frozen=True, kw_only=True):
    """What became of one history."""

    run_id: str
    workflow: str
    version: str
    same: bool | None  # None: the app has no such workflow or version
    reason: str | None = None
    new: tuple[str, ...] = ()  # steps and children that the code came to, and that are not recorded
    gone: tuple[str, ...] = ()  # recorded ones that it does without


@click.command(short_help="Replay recorded runs with today's code.")
@click.argument("arguments", nargs=-1, metavar="[RUN.json]... [APP]")
@click.option(
    "--workflow",
    shell_complete=known_workflows,
    metavar="NAME",
    help="Replay runs of this workflow from a database or server.",
)
@click.option(
    "--last",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    help="With --workflow: how many of them, the newest.",
)
@click.option("--strict", is_flag=True, help="Take steps that are new, and those that are gone, for differences.")
@where
@as_json
def replay(
    arguments: tuple[str, ...],
    workflow: str | None,
    last: int,
    strict: bool,
    url: str | None,
    namespace: str | None,
    json: bool,
) -> None:
    """Replay recorded runs with the code of APP, and name the first call of each that differs.

    Histories are files that `kagzi runs export` has written, or with --workflow the newest runs of a database or
    server: that of APP, unless --url says another one. No step's body starts, and nothing is written.

    Steps and children that are new do no harm to a run, nor do those that are gone: they are told, and with --strict
    they differ. If some are new and some are gone, it may be one under another name, which would run again.

    Exit code 1 if a run comes out differently, 3 if there is none. Runs of workflows and versions that APP does not
    have are passed over, and counted.
    """
    from kagzi.cli.application import load_app

    files = [argument for argument in arguments if argument.endswith(".json")]
    apps = [argument for argument in arguments if not argument.endswith(".json")]
    if len(apps) > 1:
        raise click.UsageError(f"{' and '.join(apps)}: histories end in .json, and one app is enough")
    if bool(files) is (workflow is not None):
        raise click.UsageError("name histories, or the --workflow whose runs are to be replayed")
    loaded = settings_of(url=url, namespace=namespace, app=apps[0] if apps else None)
    if loaded.settings.app is None:
        raise InvalidRequest(
            'which app? Say `kagzi replay run.json shop.py`, set KAGZI_APP, or write app = "shop:app" into kagzi.toml'
        )
    start_logging(loaded.settings, quiet=True)
    app = load_app(loaded.settings.app)
    if workflow is None:
        verdicts = [_judge(Path(file), app, strict) for file in files]
    else:
        place = settings_of(url=url or app.url, namespace=namespace or app.namespace)
        verdicts = run(_judge_runs(place, workflow, last, app, strict))
        if not verdicts:
            raise NotFound(f"there is no run of {workflow} in namespace {place.settings.namespace}")
    _tell(verdicts, json=json)
    if any(verdict.same is False for verdict in verdicts):
        raise click.exceptions.Exit(FAILED)


def _judge(history: History | Path, app: Offers, strict: bool) -> _Verdict:
    recorded = read(history)
    same: bool | None
    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    try:
        replayed = replay_history(recorded, app, strict=strict)
        same, reason, new, gone = True, None, replayed.new, replayed.gone
    except Differs as differs:
        same, reason = False, str(differs)
    except InvalidRequest as unknown:
        same, reason = None, str(unknown)
    return _Verdict(
        run_id=recorded.run_id,
        workflow=recorded.workflow,
        version=recorded.version,
        same=same,
        reason=reason,
        new=new,
        gone=gone,
    )


async def _judge_runs(loaded: Loaded, workflow: str, last: int, app: Offers, strict: bool) -> list[_Verdict]:
    async with engine_of(loaded) as engine:
        wanted = RunFilter(namespace=loaded.settings.namespace, workflow_type=workflow)
        return [
            _judge(await export_history(engine, found), app, strict) async for found in _newest(engine, wanted, last)
        ]


async def _newest(engine: Engine, wanted: RunFilter, last: int) -> AsyncIterator[Run]:
    token = None
    while last > 0:
        page = await engine.workflows.list(wanted, page_size=min(last, _PAGE), page_token=token)
        for found in page.items:
            yield found
        last -= len(page.items)
        token = page.next
        if token is None:
            return


def _tell(verdicts: list[_Verdict], *, json: bool) -> None:
    if json:
        output.document(verdicts)
        return
    for verdict in verdicts:
        if verdict.reason is not None:
            click.echo(printable(verdict.reason))
        elif verdict.new or verdict.gone:
            said = [f"{what}: {', '.join(ids)}" for what, ids in (("new", verdict.new), ("gone", verdict.gone)) if ids]
            click.echo(printable(f"run {verdict.run_id} of {verdict.workflow} {verdict.version}: {'; '.join(said)}"))
    same, other = sum(each.same is True for each in verdicts), sum(each.same is False for each in verdicts)
    passed = len(verdicts) - same - other
    click.echo(
        f"{same} of {len(verdicts)} runs come out as recorded, {other} differ"
        + (f", {passed} are of workflows or versions that the app does not have" if passed else "")
    )
