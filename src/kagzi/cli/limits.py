"""kagzi limits list | set | clear | pause | resume"""

from __future__ import annotations

from collections.abc import Sequence

import click

from kagzi.api.admin import RunCount
from kagzi.cli import output
from kagzi.cli.audited import audited
from kagzi.cli.known import doubt, known_queues, known_workflows
from kagzi.cli.options import as_json, engine_of, place_of, quiet_home, run, where
from kagzi.cli.queues import pause_scope, pause_words, print_limit, resume_scope
from kagzi.core.flow import MOST_CONCURRENCY, FlowLimit, Scope
from kagzi.core.rate import RateLimit, read_rate
from kagzi.core.run import RunStatus
from kagzi.errors import InvalidRequest
from kagzi.ports.documents.limits import limit_document
from kagzi.settings import Loaded


@click.group(short_help="See and change what holds runs back.")
def limits() -> None:
    """See what holds runs back before a worker may take them, and change it.

    Queues are paused by `kagzi queues pause`, namespaces by `kagzi namespaces pause`.
    """


@limits.command("list")
@where
@as_json
def list_limits(url: str | None, namespace: str | None, json: bool) -> None:
    """List all that holds runs of the namespace back, and how many runs it is for.

    What is not set by hand is declared by workers.
    """
    loaded = quiet_home(url, namespace)
    found, counts = run(_list(loaded))
    if json:
        output.document({"limits": [limit_document(each) for each in found]})
        return
    output.table(
        ("scope", "name", "at most", "of each key", "running", "pending", "state"),
        [
            (
                each.scope.value,
                each.name or "-",
                _most(each.most, each.effective_rate),
                _most(each.key_most, each.effective_key_rate),
                _count([each, *(one for one in found if one.shares == each.name)], counts, RunStatus.RUNNING),
                _count([each, *(one for one in found if one.shares == each.name)], counts, RunStatus.PENDING),
                _state(each),
            )
            for each in found
        ],
        spare=("running", "of each key"),
    )
    if not found:
        output.note(f"nothing holds runs back in {place_of(loaded.settings)}")


async def _list(loaded: Loaded) -> tuple[Sequence[FlowLimit], Sequence[RunCount]]:
    namespace = loaded.settings.namespace
    async with engine_of(loaded) as engine:
        found = await engine.limits.list(namespace)
        return found, await engine.admin.count_runs(namespace, live=True) if found else ()


def _count(limits: Sequence[FlowLimit], counts: Sequence[RunCount], status: RunStatus) -> str:
    """Returns how many runs stand so that one of these is for; a + is for "at least"."""
    those = [
        each
        for each in counts
        if each.status is status and any(limit.concerns(each.task_queue, each.workflow_type) for limit in limits)
    ]
    return f"{sum(each.count for each in those):,}{'+' if any(each.at_least for each in those) else ''}"


@limits.command("set")
@click.option("-q", "--queue", shell_complete=known_queues, metavar="NAME", help="The queue that is limited.")
@click.option(
    "--workflow",
    shell_complete=known_workflows,
    metavar="NAME",
    help="The workflow that is limited, or a name that several share.",
)
@click.option("--concurrency", type=click.IntRange(1, MOST_CONCURRENCY), help="Runs at once, over all workers.")
@click.option("--key-concurrency", type=click.IntRange(1, MOST_CONCURRENCY), help="Runs of each key at once.")
@click.option("--rate", metavar="N/TIME", help="Runs that may begin in a time, such as 100/1m.")
@click.option("--key-rate", metavar="N/TIME", help="Runs of each key that may begin in a time.")
@click.option("--burst", type=click.IntRange(1), default=1, help="Of a rate: how many may begin at once after a lull.")
@where
@as_json
def set_limit(
    queue: str | None,
    workflow: str | None,
    concurrency: int | None,
    key_concurrency: int | None,
    rate: str | None,
    key_rate: str | None,
    burst: int,
    url: str | None,
    namespace: str | None,
    json: bool,
) -> None:
    """Let at most so many runs of a queue or workflow run at once, or begin.

    Over all workers. What runs already goes on.

    \b
    kagzi limits set --queue mail --concurrency 20
    kagzi limits set --workflow checkout --key-concurrency 5
    kagzi limits set --queue mail --rate 100/1m --burst 20
    """
    rates = _rate(rate, burst, "--rate"), _rate(key_rate, burst, "--key-rate")
    if concurrency is None and key_concurrency is None and rates == (None, None):
        raise click.UsageError("say --concurrency, --key-concurrency, --rate or --key-rate")
    loaded = quiet_home(url, namespace)
    _print(*run(_change(loaded, *_scope(queue, workflow), concurrency, key_concurrency, *rates)), json=json)


def _rate(text: str | None, burst: int, option: str) -> RateLimit | None:
    if text is None:
        return None
    try:
        return read_rate(text, burst)
    except InvalidRequest as error:
        raise click.BadParameter(str(error), param_hint=option) from None


@limits.command()
@click.option("-q", "--queue", shell_complete=known_queues, metavar="NAME", help="The queue that was limited.")
@click.option(
    "--workflow",
    shell_complete=known_workflows,
    metavar="NAME",
    help="The workflow that was limited, or a name that several share.",
)
@where
@as_json
def clear(queue: str | None, workflow: str | None, url: str | None, namespace: str | None, json: bool) -> None:
    """Take back what `kagzi limits set` has set. What workers declare counts again."""
    loaded = quiet_home(url, namespace)
    _print(*run(_change(loaded, *_scope(queue, workflow))), json=json)


async def _change(
    loaded: Loaded,
    scope: Scope,
    name: str,
    concurrency: int | None = None,
    key_concurrency: int | None = None,
    rate: RateLimit | None = None,
    key_rate: RateLimit | None = None,
) -> tuple[FlowLimit, str | None]:
    """Sets a limit or clears it, and returns what is odd about the name, too."""
    namespace = loaded.settings.namespace
    clears = concurrency is None and key_concurrency is None and rate is None and key_rate is None
    async with engine_of(loaded, make=not clears) as engine:
        action = "limits clear" if clears else "limits set"
        async with audited(engine, action, namespace=namespace, target=f"{scope.value} {name}"):
            if clears:
                return await engine.limits.clear(namespace, scope, name), None
            limit = await engine.limits.set(
                namespace,
                scope,
                name,
                concurrency=concurrency,
                key_concurrency=key_concurrency,
                rate=rate,
                key_rate=key_rate,
            )
        return limit, await doubt(engine, namespace, scope, name)


def _scope(queue: str | None, workflow: str | None) -> tuple[Scope, str]:
    if (queue is None) == (workflow is None):
        raise click.UsageError("say --queue or --workflow, one of them")
    return (Scope.QUEUE, queue) if queue is not None else (Scope.WORKFLOW, workflow or "")


def _print(limit: FlowLimit, doubts: str | None, *, json: bool) -> None:
    if json:
        output.document(limit_document(limit))
        return
    often, of_keys = limit.effective_rate, limit.effective_key_rate
    said = [
        f"at most {limit.most} at once" if limit.most is not None else None,
        f"{limit.key_most} of each key at once" if limit.key_most is not None else None,
        f"{_often(often)} begin" if often is not None else None,
        f"{_often(of_keys)} of each key begin" if of_keys is not None else None,
    ]
    output.note(f"{limit.about}: {', '.join(filter(None, said)) or 'no limit'}")
    if doubts is not None:
        output.note(doubts)


def _most(number: int | None, rate: RateLimit | None) -> str:
    said = [None if number is None else f"{number:,}", None if rate is None else _often(rate)]
    return ", ".join(filter(None, said)) or "-"


def _often(rate: RateLimit) -> str:
    return rate.text if rate.burst == 1 else f"{rate.text} (burst {rate.burst:,})"


@limits.command()
@click.option(
    "--workflow",
    shell_complete=known_workflows,
    required=True,
    metavar="NAME",
    help="The workflow whose runs are held back.",
)
@click.option("--reason", default="", metavar="TEXT", help="Why, for people: shown with every run that waits.")
@where
@as_json
def pause(workflow: str, reason: str, url: str | None, namespace: str | None, json: bool) -> None:
    """Hand no run of a workflow to a worker, until it is resumed.

    \b
    kagzi limits pause --workflow checkout
    """
    loaded = quiet_home(url, namespace)
    print_limit(*run(pause_scope(loaded, loaded.settings.namespace, Scope.WORKFLOW, workflow, reason)), json=json)


@limits.command()
@click.option(
    "--workflow",
    shell_complete=known_workflows,
    required=True,
    metavar="NAME",
    help="The workflow whose runs were held back.",
)
@where
@as_json
def resume(workflow: str, url: str | None, namespace: str | None, json: bool) -> None:
    """Hand the runs of a workflow to workers again."""
    loaded = quiet_home(url, namespace)
    print_limit(run(resume_scope(loaded, loaded.settings.namespace, Scope.WORKFLOW, workflow)), json=json)


def _state(limit: FlowLimit) -> str:
    said = [
        None if limit.paused_at is None else pause_words(limit),
        "set by hand" if limit.is_set else None,
        "keys take turns" if limit.fair else None,
        None if limit.shares is None else f"counts for {limit.shares}",
    ]
    return ", ".join(filter(None, said)) or "open"
