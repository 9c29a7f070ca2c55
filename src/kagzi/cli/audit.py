"""kagzi audit"""

from __future__ import annotations

import click

from kagzi.api.keys import AuditFilter
from kagzi.cli import output
from kagzi.cli.keys import database, engine_on_database
from kagzi.cli.options import as_json, run, settings_of, start_logging
from kagzi.core.audit import AuditEntry
from kagzi.core.page import Page
from kagzi.settings import Settings


@click.command(short_help="Tell who changed what.")
@click.option("-n", "--namespace", metavar="NAME", help="Only what concerns this namespace. [all]")
@click.option("--actor", metavar="WHO", help="Only what they did: key:<key id>, cli:<user>, nobody, anyone.")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="How many.")
@click.option("--page", metavar="TOKEN", help="Where to go on; each page tells the token of the next.")
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
    if json:
        output.document({"entries": [summary(entry) for entry in found.items], "next": found.next})
        return
    if jsonl:
        for entry in found.items:
            output.line(summary(entry))
        return
    output.table(
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
    )
    if found.next is not None:
        output.note(f"there are more: --page {found.next}")


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
