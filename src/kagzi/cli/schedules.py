"""kagzi schedules preview"""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import click

from kagzi.cli import output
from kagzi.cli.options import as_json
from kagzi.clock import SystemClock
from kagzi.core.cron import check_zone, moved, parse_times, upcoming
from kagzi.core.instant import Instant, from_datetime, to_datetime
from kagzi.core.schedule import MOST_PREVIEWED


@click.group(short_help="See when cron expressions fire.")
def schedules() -> None:
    """Look at schedules.

    A cron expression has 5 fields (minute hour day month weekday), or 6 with seconds before them; @daily and the like
    and "every 15m" are expressions, too. Quote it, lest the shell replaces its stars.
    """


def moment(value: str | Instant) -> Instant:
    """The type of options that are a moment: 2026-03-28, 2026-03-28T02:30+01:00; UTC unless it says otherwise."""
    if isinstance(value, int):
        return value
    try:
        at = datetime.fromisoformat(value)
        return from_datetime(at if at.tzinfo is not None else at.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{value!r} is no moment such as 2026-03-28 or 2026-03-28T02:30+01:00") from None


@schedules.command()
@click.argument("expression")
@click.option("--tz", default="UTC", show_default=True, metavar="ZONE", help="The time zone, such as Europe/Berlin.")
@click.option(
    "--count",
    type=click.IntRange(1, MOST_PREVIEWED),
    default=10,
    show_default=True,
    metavar="NUMBER",
    help="How many.",
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
    found = [(at, _local(at, tz), moved(times, at)) for at in upcoming(times, start, count)]
    if json:
        output.document(
            {"firings": [{"at": output.moment(at), "local": local, "note": note} for at, local, note in found]}
        )
        return
    output.table(
        ("local time", "UTC", ""), [(local, output.moment(at) or "-", note or "") for at, local, note in found]
    )


def _local(at: Instant, zone: str) -> str:
    return to_datetime(at).astimezone(ZoneInfo(zone)).strftime("%a %Y-%m-%d %H:%M:%S %z %Z")
