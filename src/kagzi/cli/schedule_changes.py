"""kagzi schedules create | update | pause | resume | trigger | backfill | delete"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from kagzi.api.engine import ManagedEngine
from kagzi.api.schedules import Backfilled, CreateSchedule, UpdateSchedule
from kagzi.cli import output
from kagzi.cli.audited import audited
from kagzi.cli.known import doubt, known_queues, known_workflows
from kagzi.cli.options import as_json, engine_of, length, quiet_home, run, tagged, tags_of, where
from kagzi.cli.start import read_json
from kagzi.clock import SystemClock
from kagzi.core.cron import parse_times
from kagzi.core.flow import Scope
from kagzi.core.instant import Instant, Span, from_datetime
from kagzi.core.limits import DEFAULT_QUEUE
from kagzi.core.run import PRIORITY_LIMIT
from kagzi.core.schedule import DEFAULT_CATCHUP, MOST_CATCHUP, Overlap, Schedule
from kagzi.ids import RandomIds
from kagzi.ports.documents.schedules import schedule_document
from kagzi.settings import Loaded

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def moment(value: str | Instant) -> Instant:
    """The type of options that are a moment: 2026-03-28, 2026-03-28T02:30+01:00; UTC unless it says otherwise."""
    if isinstance(value, int):
        return value
    try:
        at = datetime.fromisoformat(value)
        return from_datetime(at if at.tzinfo is not None else at.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{value!r} is no moment such as 2026-03-28 or 2026-03-28T02:30+01:00") from None


def _behaviour(command: F) -> F:
    """Gives a command the options that `create` and `update` share."""
    for option in (
        tagged,
        click.option("--priority", type=click.IntRange(0, PRIORITY_LIMIT), help="The priority of the runs. [0]"),
        click.option("--jitter", type=length, metavar="DURATION", help="Runs begin up to this much later. [0]"),
        click.option(
            "--overlap",
            type=click.Choice([overlap.value for overlap in Overlap]),
            help="What a firing does while a run of the schedule is live. [allow]",
        ),
        click.option(
            "--catchup",
            type=click.IntRange(0, MOST_CATCHUP),
            help=f"How many missed firings are made up for, the newest ones. [{DEFAULT_CATCHUP}]",
        ),
        click.option(
            "--version", metavar="VERSION", help="The version of the workflow. [the default at the time of firing]"
        ),
        click.option(
            "-q",
            "--queue",
            shell_complete=known_queues,
            metavar="NAME",
            help="The queue of the runs. [that of the workflow, as its worker told, else default]",
        ),
        click.option("--tz", metavar="ZONE", help="The time zone, such as Europe/Berlin. [UTC]"),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("name")
@click.argument("workflow", shell_complete=known_workflows)
@click.argument("expression")
@click.option(
    "--input",
    "text",
    default="[]",
    metavar="JSON|@FILE|-",
    help="The arguments of each run. @order.json reads a file, - reads standard input.",
)
@click.option("--paused", is_flag=True, help="Make it without firing, until it is resumed.")
@click.option(
    "--limit-key",
    metavar="TEXT",
    help="Whose share of the limits of the workflow the runs take. [what the workflow says, of the input]",
)
@_behaviour
@where
@as_json
def create(
    name: str,
    workflow: str,
    expression: str,
    text: str,
    paused: bool,
    limit_key: str | None,
    tz: str | None,
    queue: str | None,
    version: str | None,
    catchup: int | None,
    overlap: str | None,
    jitter: Span | None,
    priority: int | None,
    tags: tuple[str, ...],
    url: str | None,
    namespace: str | None,
    json: bool,
) -> None:
    """Make the schedule NAME, which starts WORKFLOW when EXPRESSION says. Exit code 5 if the name is taken.

    \b
    kagzi schedules create nightly cleanup "0 2 * * *" --input '["logs"]'
    """
    parse_times(expression, field="the expression")
    loaded = quiet_home(url, namespace)
    wanted = CreateSchedule(
        namespace=loaded.settings.namespace,
        schedule_id=RandomIds(SystemClock().now).run_id(),
        name=name,
        workflow_type=workflow,
        task_queue=queue or DEFAULT_QUEUE,
        by_name=True,
        other_queue=queue is None,
        limit_key=limit_key,
        version=version or "",
        cron_expr=expression,
        timezone=tz or "UTC",
        enabled=not paused,
        input=read_json(text, "--input"),
        max_catchup=DEFAULT_CATCHUP if catchup is None else catchup,
        overlap=Overlap(overlap or Overlap.ALLOW),
        jitter=jitter or 0,
        priority=priority or 0,
        tags=tags_of(tags),
    )

    async def make(engine: ManagedEngine) -> tuple[Schedule, str | None]:
        made = await engine.schedules.create(wanted)
        return made, await doubt(engine, made.namespace, Scope.WORKFLOW, workflow)

    made, doubts = _change(loaded, "create", name, make)
    _print(made, json)
    if doubts is not None:
        output.note(doubts)


@click.command()
@click.argument("named", metavar="SCHEDULE")
@click.option("--cron", metavar="EXPRESSION", help="When it fires from now on.")
@click.option(
    "-w", "--workflow", shell_complete=known_workflows, metavar="NAME", help="The workflow that it starts from now on."
)
@click.option("--input", "text", metavar="JSON|@FILE|-", help="The arguments of each run from now on.")
@click.option(
    "--next", "next_fire_at", type=moment, metavar="MOMENT", help="When to fire next, whatever the times say."
)
@_behaviour
@where
@as_json
def update(
    named: str,
    cron: str | None,
    workflow: str | None,
    text: str | None,
    next_fire_at: Instant | None,
    tz: str | None,
    queue: str | None,
    version: str | None,
    catchup: int | None,
    overlap: str | None,
    jitter: Span | None,
    priority: int | None,
    tags: tuple[str, ...],
    url: str | None,
    namespace: str | None,
    json: bool,
) -> None:
    """Change a schedule: what is not given stays. Its next firing is computed anew."""
    if cron is not None:
        parse_times(cron, field="--cron")
    loaded = quiet_home(url, namespace)
    wanted = UpdateSchedule(
        namespace=loaded.settings.namespace,
        schedule_id=named,
        workflow_type=workflow,
        task_queue=queue,
        version=version,
        cron_expr=cron,
        timezone=tz,
        input=None if text is None else read_json(text, "--input"),
        max_catchup=catchup,
        overlap=None if overlap is None else Overlap(overlap),
        jitter=jitter,
        priority=priority,
        tags=tags_of(tags) if tags else None,
        next_fire_at=next_fire_at,
    )
    _update(loaded, "update", wanted, json)


@click.command()
@click.argument("named", metavar="SCHEDULE")
@click.option("--reason", metavar="TEXT", help="Why, for people.")
@where
@as_json
def pause(named: str, reason: str | None, url: str | None, namespace: str | None, json: bool) -> None:
    """Fire nothing until resumed. What falls into the pause is not made up for."""
    loaded = quiet_home(url, namespace)
    wanted = UpdateSchedule(namespace=loaded.settings.namespace, schedule_id=named, enabled=False, pause_reason=reason)
    _update(loaded, "pause", wanted, json)


@click.command()
@click.argument("named", metavar="SCHEDULE")
@where
@as_json
def resume(named: str, url: str | None, namespace: str | None, json: bool) -> None:
    """Fire again, from now on."""
    loaded = quiet_home(url, namespace)
    wanted = UpdateSchedule(namespace=loaded.settings.namespace, schedule_id=named, enabled=True)
    _update(loaded, "resume", wanted, json)


@click.command()
@click.argument("named", metavar="SCHEDULE")
@where
@as_json
def reset(named: str, url: str | None, namespace: str | None, json: bool) -> None:
    """Let what code declares count again, after a person has changed it.

    Also if a person has made the schedule. It does when a worker of that code looks next, within a minute. Without one
    the schedule stays as it is.
    """
    loaded = quiet_home(url, namespace)
    wanted = UpdateSchedule(namespace=loaded.settings.namespace, schedule_id=named, reset=True)
    _update(loaded, "reset", wanted, json)
    output.note("what code declares counts from the next look of a worker on, within a minute")


@click.command()
@click.argument("named", metavar="SCHEDULE")
@where
@as_json
def trigger(named: str, url: str | None, namespace: str | None, json: bool) -> None:
    """Start a run now, beside the plan: also while paused. Prints its id."""
    loaded = quiet_home(url, namespace)
    run_id = RandomIds(SystemClock().now).run_id()

    async def fire(engine: ManagedEngine) -> str:
        return await engine.schedules.trigger(loaded.settings.namespace, named, run_id)

    started = _change(loaded, "trigger", named, fire)
    if json:
        output.document({"run_id": started})
    else:
        click.echo(started)


@click.command()
@click.argument("named", metavar="SCHEDULE")
@click.option("--since", type=moment, required=True, metavar="MOMENT", help="From this moment on.")
@click.option("--until", type=moment, required=True, metavar="MOMENT", help="To before this one.")
@where
@as_json
def backfill(named: str, since: Instant, until: Instant, url: str | None, namespace: str | None, json: bool) -> None:
    """Start runs for the firings of a time that has passed, unless they have one. Harmless to repeat.

    \b
    kagzi schedules backfill nightly --since 2026-10-01 --until 2026-11-01
    """
    loaded = quiet_home(url, namespace)

    async def fill(engine: ManagedEngine) -> Backfilled:
        return await engine.schedules.backfill(loaded.settings.namespace, named, since, until)

    done = _change(loaded, "backfill", named, fill)
    if json:
        output.document({"started": done.started, "existing": done.existing})
    else:
        output.note(f"{done.started} runs were started; {done.existing} firings had become runs before")


@click.command()
@click.argument("named", metavar="SCHEDULE")
@where
def delete(named: str, url: str | None, namespace: str | None) -> None:
    """Remove a schedule. The runs it has started stay, and go on."""
    loaded = quiet_home(url, namespace)

    async def remove(engine: ManagedEngine) -> None:
        await engine.schedules.delete(loaded.settings.namespace, named)

    _change(loaded, "delete", named, remove)
    output.note(f"schedule {named} is deleted; the runs it has started stay")


def _update(loaded: Loaded, action: str, wanted: UpdateSchedule, json: bool) -> None:
    async def change(engine: ManagedEngine) -> Schedule:
        return await engine.schedules.update(wanted)

    _print(_change(loaded, action, wanted.schedule_id, change), json)


def _change(loaded: Loaded, action: str, named: str, change: Callable[[ManagedEngine], Awaitable[T]]) -> T:
    """Changes a schedule, with an entry in the audit log."""

    async def main() -> T:
        async with engine_of(loaded) as engine:
            namespace, target = loaded.settings.namespace, f"schedule {named}"
            async with audited(engine, f"schedules {action}", namespace=namespace, target=target):
                return await change(engine)

    return run(main())


def _print(schedule: Schedule, json: bool) -> None:
    if json:
        output.document(schedule_document(schedule))
        return
    named = schedule.name or schedule.schedule_id
    if not schedule.enabled:
        output.note(f"schedule {named} is paused")
    else:
        output.note(f"schedule {named} fires next at {output.moment(schedule.next_fire_at)}")
    click.echo(schedule.schedule_id)
