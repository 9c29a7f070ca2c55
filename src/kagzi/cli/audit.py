"""kagzi audit"""

from __future__ import annotations

import click

from kagzi.api.keys import AuditFilter
from kagzi.cli import output
from kagzi.cli.keys import database, database_of, engine_on_database
from kagzi.cli.options import as_json, pages, run, settings_of, start_logging
from kagzi.core.audit import AuditEntry
from kagzi.core.page import Page
from kagzi.settings import Settings


@click.command(short_help="Tell who changed what.")
@click.option("-n", "--namespace", metavar="NAME", help="Only what concerns this namespace. [all]")
@click.option("--actor", metavar="WHO", help="Only entries of this actor: key:<key id>, cli:<user>, nobody, anyone.")
@pages
@database
@as_json
@click.option("--jsonl", is_flag=True, help="Print a JSON document a line.")
def audit(
    namespace: str | None,
    actor: str | None,
    limit: int,
    page: str | None,
    url: str | None,
    json: bool,
    jsonl: bool,
) -> None:
    """List the audit log, the newest entry first.

    It holds every change that somebody made by hand or with a key: of keys, namespaces and workers, and runs that were
    cancelled, ended or repeated; and a sample of the calls that were refused.
    """
    settings = settings_of(db_url=url).settings
    start_logging(settings, quiet=True)
    found = run(_list(settings, AuditFilter(namespace=namespace, actor=actor), limit, page))
    output.listing(
        "entries",
        found,
        [summary(entry) for entry in found.items],
        ("at", "who", "did", "to", "namespace", "result", "from"),
        [
            (
                output.when(entry.at),
                entry.actor,
                entry.action.removeprefix("/kagzi.v1."),
                entry.target or "-",
                entry.namespace or "-",
                entry.result,
                entry.peer or "-",
            )
            for entry in found.items
        ],
        place=database_of(settings),
        json=json,
        jsonl=jsonl,
        spare=("namespace", "from"),
    )


async def _list(settings: Settings, wanted: AuditFilter, limit: int, page: str | None) -> Page[AuditEntry]:
    async with engine_on_database(settings) as engine:
        return await engine.audit.list(wanted, page_size=limit, page_token=page)


def summary(entry: AuditEntry) -> dict[str, object]:
    return {
        "at": output.moment(entry.at),
        "actor": entry.actor,
        "action": entry.action,
        "target": entry.target,
        "namespace": entry.namespace,
        "result": entry.result,
        "peer": entry.peer,
        "request_id": entry.request_id,
    }
