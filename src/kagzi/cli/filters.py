"""Options that choose runs, and the filter that is made of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click
import msgspec
from msgspec import Struct

from kagzi.api.engine import ManagedEngine
from kagzi.api.workflows import RunFilter
from kagzi.cli.follow import find_run
from kagzi.cli.known import known_queues, known_workflows
from kagzi.cli.options import length, tagged, tags_of
from kagzi.clock import SystemClock
from kagzi.core.instant import Instant, to_datetime
from kagzi.core.limits import is_run_id
from kagzi.core.run import RUN_STATUSES
from kagzi.sdk.search import Runs

F = TypeVar("F", bound=Callable[..., Any])


def _moment(value: str | Instant) -> Instant | str:
    """The type of options that are a moment, or how long ago it was."""
    if isinstance(value, int):
        return value
    try:
        datetime.fromisoformat(value)
    except ValueError:
        try:
            return SystemClock().now() - length(value)
        except click.BadParameter:
            raise click.BadParameter(
                f"{value!r} is neither a moment such as 2026-11-16 nor a length such as 2h"
            ) from None
    return value


class Filters(Struct, frozen=True, kw_only=True):
    """The options, as they were given."""

    status: str | None
    workflow: str | None
    queue: str | None
    tags: tuple[str, ...]
    since: Instant | str | None
    until: Instant | str | None
    id_prefix: str | None
    error: str | None
    parent: str | None
    schedule: str | None

    def runs(self, *, everything: bool = False) -> Runs:
        """Returns which runs are meant; a parent that is not given by its run id is left out."""
        return Runs(
            status=None if self.status is None else self.status.upper(),
            workflow=self.workflow,
            queue=self.queue,
            tags=tags_of(self.tags),
            since=_shown(self.since),
            until=_shown(self.until),
            id_prefix=self.id_prefix,
            error=self.error,
            parent=self.parent if self.parent is not None and is_run_id(self.parent) else None,
            schedule=self.schedule,
            everything=everything,
        )

    async def filter(self, engine: ManagedEngine, namespace: str) -> RunFilter:
        """Returns the filter of a search. NotFound if the parent or the schedule is not there."""
        found = await self.runs().filter(namespace, lambda: engine.schedules)
        if self.parent is not None and found.parent_run_id is None:  # one that was deleted may still have children
            parent = await find_run(engine, namespace, self.parent)
            found = msgspec.structs.replace(found, parent_run_id=parent.run_id)
        return found


def _shown(value: Instant | str | None) -> datetime | str | None:
    return to_datetime(value).astimezone(UTC) if isinstance(value, int) else value


def filters(command: F) -> F:
    """Gives a command the options; it gets them as `wanted`."""

    def called(**options: Any) -> Any:
        given = {name: options.pop(name) for name in Filters.__struct_fields__}
        return command(wanted=Filters(**given), **options)

    called.__name__, called.__doc__ = command.__name__, command.__doc__
    if hasattr(command, "__click_params__"):
        called.__click_params__ = command.__click_params__  # type: ignore[attr-defined]
    decorated: Any = called
    for option in (
        click.option("--schedule", metavar="NAME", help="Only runs that this schedule has started."),
        click.option("--parent", metavar="RUN", help="Only runs that this one has started."),
        click.option(
            "--error", metavar="CLASS", help="Only runs that ended with an error of this class: CardDeclined."
        ),
        click.option("--id-prefix", metavar="TEXT", help="Only runs whose own id begins so."),
        click.option("--until", type=_moment, metavar="WHEN", help="Only runs that were started before this."),
        click.option(
            "--since",
            type=_moment,
            metavar="WHEN",
            help="Only runs that were started since: 2026-11-16, 2026-11-16T09:30+01:00, or 2h for two hours ago.",
        ),
        tagged,
        click.option("-q", "--queue", shell_complete=known_queues, metavar="NAME", help="Only runs of this queue."),
        click.option(
            "-w", "--workflow", shell_complete=known_workflows, metavar="NAME", help="Only runs of this workflow."
        ),
        click.option(
            "-s",
            "--status",
            type=click.Choice([status.value for status in RUN_STATUSES], case_sensitive=False),
            metavar="STATUS",
            help=f"Only runs with this status: {', '.join(status.value.lower() for status in RUN_STATUSES)}.",
        ),
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]
