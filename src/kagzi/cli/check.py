"""kagzi check"""

from __future__ import annotations

import os

import click

from kagzi.cli import output
from kagzi.cli.application import load_app
from kagzi.cli.main import FAILED
from kagzi.cli.options import as_json, settings_of, start_logging
from kagzi.errors import InvalidRequest
from kagzi.sdk.lint import Finding, check_workflow


@click.command(short_help="Find what does not belong into workflows.")
@click.argument("app", required=False)
@as_json
def check(app: str | None, json: bool) -> None:
    """Look through the workflows of APP for clocks, chance, I/O, and steps that are not awaited; with file and line.

    It reads the source of each workflow function and executes none. What happens in functions that a workflow calls is
    not seen. Exit code 1 if something was found.
    """
    loaded = settings_of(app=app)
    start_logging(loaded.settings, quiet=True)
    if loaded.settings.app is None:
        raise InvalidRequest(
            'which app? Say `kagzi check shop.py`, set KAGZI_APP, or write app = "shop:app" into kagzi.toml'
        )
    found = load_app(loaded.settings.app)
    workflows = [found.find_workflow(each.name, each.version or "") for each in found.workflow_types()]
    findings = sorted({finding for each in workflows if each is not None for finding in check_workflow(each)})
    if json:
        output.document({"findings": [_shown(finding) for finding in findings], "workflows": len(workflows)})
    else:
        for finding in findings:
            place = os.path.relpath(finding.file)
            click.echo(output.clean(f"{place}:{finding.line}: in {finding.workflow}: {finding.message}"))
        what = "nothing" if not findings else "1 problem" if len(findings) == 1 else f"{len(findings)} problems"
        output.note(f"{what} found in {len(workflows)} workflows")
    if findings:
        raise click.exceptions.Exit(FAILED)


def _shown(finding: Finding) -> Finding:
    return Finding(os.path.relpath(finding.file), finding.line, finding.workflow, finding.message)
