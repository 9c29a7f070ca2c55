"""kagzi migrate"""

from __future__ import annotations

import click

from kagzi.cli import output
from kagzi.cli.options import as_json, lasting, run, settings_of, start_logging
from kagzi.connect import make_store
from kagzi.serve import server_url
from kagzi.settings import Settings, mask_url
from kagzi.store.migrate import Migration


@click.command(short_help="Bring the database up to date.")
@click.option("--url", metavar="URL", help="The database. [KAGZI_DB_URL, else KAGZI_URL, else .kagzi/kagzi.db]")
@click.option("--dry-run", is_flag=True, help="Only say what is missing.")
@as_json
def migrate(url: str | None, dry_run: bool, json: bool) -> None:
    """Bring the tables of the database up to date.

    Servers, workers and apps do this by themselves when they start. Run it before a deployment where they may not, or
    to see what a new version would do. Migrations go forward only; any number of processes may try at once.

    Indexes of large tables are built beside the work, which goes on meanwhile; this command waits for them.
    """
    settings = settings_of(db_url=url).settings
    start_logging(settings, quiet=True)
    missing, indexes, newest = run(_migrate(settings, dry_run))
    if json:
        names = [{"number": migration.number, "name": migration.name} for migration in missing]
        facts = {"applied": [] if dry_run else names, "missing": names if dry_run else [], "newest": newest}
        output.document(facts | {"indexes": list(indexes)})
        return
    for migration in missing:
        click.echo(f"{'missing' if dry_run else 'applied'} {migration.number:04} {migration.name}")
    for index in indexes:
        click.echo(f"{'missing' if dry_run else 'built'} index {index}")
    if not missing and not indexes:
        output.note(f"nothing to do: {mask_url(server_url(settings))} is at {newest:04}, the newest")


async def _migrate(settings: Settings, dry_run: bool) -> tuple[tuple[Migration, ...], tuple[str, ...], int]:
    store = make_store(lasting(server_url(settings)), retention_days=settings.retention_days)
    missing = await store.missing_migrations()
    indexes = await store.missing_indexes()
    if (missing or indexes) and not dry_run:
        await store.open()
        try:
            indexes = await store.missing_indexes()
            await store.build_indexes()
        finally:
            await store.close()
    return missing, indexes, store.schema_version
