"""kagzi schedules list | show | runs | preview; `schedule_changes.py` has the rest"""

from __future__ import annotations

from zoneinfo import ZoneInfo

import click
import msgspec

from kagzi.cli import output
from kagzi.cli.known import known_queues
from kagzi.cli.layout import Id
from kagzi.cli.options import as_json, engine_of, pages, place_of, quiet_home, run, where
from kagzi.cli.schedule_changes import backfill, create, delete, moment, pause, reset, resume, trigger, update
from kagzi.clock import SystemClock
from kagzi.core.cron import check_zone, moved, parse_times, upcoming
from kagzi.core.instant import Instant, to_datetime
from kagzi.core.page import Page
from kagzi.core.run import Run
from kagzi.core.schedule import DEFAULT_PREVIEWED, MOST_PREVIEWED, Schedule, Skip
from kagzi.ports.documents.schedules import firing_document, schedule_document, skip_document
from kagzi.settings import Loaded


@click.group(short_help="Make, list, change and fire schedules.")
def schedules() -> None:
    """Start workflows by the clock.

    SCHEDULE is the name of a schedule, or its id. A cron expression has 5 fields (minute hour day month weekday), or 6
    with seconds before them; @daily and the like and "every 15m" are expressions, too. Quote it, lest the shell
    replaces its stars.
    """


@schedules.command("list")
@click.option(
    "-q", "--queue", shell_complete=known_queues, metavar="NAME", help="Only those that fire into this queue."
)
@pages
@where
@as_json
def list_schedules(
    queue: str | None, limit: int, page: str | None, url: str | None, namespace: str | None, json: bool
) -> None:
    """List schedules, newest first."""
    loaded = quiet_home(url, namespace)
    found = run(_list(loaded, queue, limit, page))
    named = output.for_people() and all(each.name for each in found.items)  # then nobody needs the ids
    output.listing(
        "schedules",
        found,
        [_plain(schedule) for schedule in found.items],
        ("schedule", *(() if named else ("name",)), "workflow", "when", "zone", "next", "runs", "failed", "skipped"),
        [
            (
                *((each.name,) if named else (each.schedule_id, each.name or "-")),
                each.workflow_type,
                each.cron_expr,
                each.timezone,
                "paused" if not each.enabled else "-" if each.next_fire_at is None else output.when(each.next_fire_at),
                str(each.total_runs),
                str(each.failed_runs),
                str(each.skipped_runs),
            )
            for each in found.items
        ],
        place=place_of(loaded.settings),
        json=json,
        spare=("skipped", "failed", "workflow"),
        hint="kagzi schedules create nightly WORKFLOW '0 2 * * *' makes one",
        prev=found.prev,
    )


async def _list(loaded: Loaded, queue: str | None, limit: int, page: str | None) -> Page[Schedule]:
    async with engine_of(loaded) as engine:
        return await engine.schedules.list(
            loaded.settings.namespace, task_queue=queue, page_size=limit, page_token=page
        )


@schedules.command()
@click.argument("named", metavar="SCHEDULE")
@where
@as_json
def show(named: str, url: str | None, namespace: str | None, json: bool) -> None:
    """Show a schedule: its times, what it starts, how runs ended, what was skipped."""
    loaded = quiet_home(url, namespace)
    found, skips = run(_show(loaded, named))
    if json:
        output.document(_plain(found) | {"skips": [skip_document(skip) for skip in skips]})
        return
    output.table(("", ""), [(name, _words(value)) for name, value in _plain(found).items() if value not in (None, {})])
    if skips:
        click.echo()
        output.table(
            ("skipped from", "to", "count", "reason"),
            [
                (str(output.moment(skip.first_at)), str(output.moment(skip.last_at)), str(skip.count), skip.reason)
                for skip in skips
            ],
        )


def _words(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


async def _show(loaded: Loaded, named: str) -> tuple[Schedule, tuple[Skip, ...]]:
    async with engine_of(loaded) as engine:
        found = await engine.schedules.get(loaded.settings.namespace, named)
        return found, await engine.schedules.skips(found.namespace, found.schedule_id)


@schedules.command()
@click.argument("named", metavar="SCHEDULE")
@pages
@where
@as_json
def runs(named: str, limit: int, page: str | None, url: str | None, namespace: str | None, json: bool) -> None:
    """List the runs that a schedule has started, newest first.

    Also of one that was deleted, by its id.
    """
    loaded = quiet_home(url, namespace)
    found = run(_runs(loaded, named, limit, page))
    output.listing(
        "runs",
        found,
        [output.run_summary(item) for item in found.items],
        ("run", "id", "status", "created"),
        [
            (Id(item.run_id), item.external_id or "-", item.status.value, output.when(item.created_at))
            for item in found.items
        ],
        place=f"schedule {named}",
        json=json,
        prev=found.prev,
    )


async def _runs(loaded: Loaded, named: str, limit: int, page: str | None) -> Page[Run]:
    async with engine_of(loaded) as engine:
        return await engine.schedules.runs(loaded.settings.namespace, named, page_size=limit, page_token=page)


@schedules.command()
@click.argument("expression")
@click.option("--tz", default="UTC", show_default=True, metavar="ZONE", help="The time zone, such as Europe/Berlin.")
@click.option(
    "--count",
    type=click.IntRange(1, MOST_PREVIEWED),
    default=DEFAULT_PREVIEWED,
    show_default=True,
    metavar="NUMBER",
    help="How many firings.",
)
@click.option("--after", type=moment, metavar="MOMENT", help="Firings after this moment. [now]")
@as_json
def preview(expression: str, tz: str, count: int, after: Instant | None, json: bool) -> None:
    """Show when an expression fires next, in local time and UTC.

    Tells which times were moved by daylight saving. Needs no database and no server.

    \b
    kagzi schedules preview "30 2 * * *" --tz Europe/Berlin
    """
    times = parse_times(expression, check_zone(tz), "the expression")
    start = SystemClock().now() if after is None else after
    if json:
        found = [firing_document(times, tz, at) for at in upcoming(times, start, count)]
        output.document({"firings": found})
        return
    zone = ZoneInfo(tz)
    output.table(
        ("local time", "UTC", ""),
        [
            (
                to_datetime(at).astimezone(zone).strftime("%a %Y-%m-%d %H:%M:%S %z %Z"),
                output.moment(at) or "-",
                moved(times, at) or "",
            )
            for at in upcoming(times, start, count)
        ],
    )


def _plain(schedule: Schedule) -> dict[str, object]:
    return msgspec.json.decode(msgspec.json.encode(schedule_document(schedule)), type=dict[str, object])


for command in (create, update, pause, resume, trigger, backfill, reset, delete):
    schedules.add_command(command)
