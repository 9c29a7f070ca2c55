"""kagzi runs cancel | terminate | wake | retry | rerun | fork | move | delete"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import click
from msgspec import Struct

from kagzi.api.engine import ManagedEngine
from kagzi.api.operations import CancelAnswer, CancelRun, Fork, RepeatRun, TerminateRun
from kagzi.cli import output
from kagzi.cli.audited import audited
from kagzi.cli.bulk import in_bulk
from kagzi.cli.follow import find_run
from kagzi.cli.known import known_runs
from kagzi.cli.main import exit_code
from kagzi.cli.options import as_json, engine_of, length, quiet_home, run, where
from kagzi.cli.start import read_json
from kagzi.clock import SystemClock
from kagzi.core.instant import Span
from kagzi.core.job import JobAction, JobOptions
from kagzi.core.run import CANCEL_GRACE, Run
from kagzi.core.wake import not_woken
from kagzi.errors import Conflict, InvalidRequest, KagziError, NotFound
from kagzi.ids import RandomIds
from kagzi.settings import Loaded

Facts: TypeAlias = dict[str, object]
Change: TypeAlias = Callable[[ManagedEngine, Run], Awaitable["Facts | CancelAnswer"]]


_keep_id = click.option(
    "--keep-id/--leave-id", default=True, help="Whether the id of the old run goes to the new one. [--keep-id]"
)


class Outcome(Struct):
    """What became of one of the runs that were named."""

    named: str
    facts: Facts
    problem: KagziError | None = None

    def document(self) -> Facts:
        if self.problem is None:
            return {"run": self.named} | self.facts
        return {"run": self.named} | self.facts | {"error": self.problem.code, "message": str(self.problem)}


@click.command()
@in_bulk(JobAction.CANCEL)
@click.argument("runs", metavar="RUN...", nargs=-1, shell_complete=known_runs)
@click.option("--grace", type=length, metavar="DURATION", help="How long they may clean up. [30s]")
@where
@as_json
def cancel(runs: tuple[str, ...], grace: Span | None, url: str | None, namespace: str | None, json: bool) -> None:
    """Ask runs to end.

    One that never executed ends at once. Any other is told, and its workflow may clean up; `kagzi runs watch` waits for
    the end. To cancel again changes nothing. Exit code 5 if a run had finished otherwise before.
    """

    async def change(engine: ManagedEngine, found: Run) -> CancelAnswer:
        request = CancelRun(
            namespace=found.namespace, run_id=found.run_id, grace=CANCEL_GRACE if grace is None else grace
        )
        return await engine.workflows.cancel(request)

    _do("runs cancel", runs, change, url=url, namespace=namespace, json=json)


@click.command()
@in_bulk(JobAction.TERMINATE)
@click.argument("runs", metavar="RUN...", nargs=-1, shell_complete=known_runs)
@click.option("--reason", default="", metavar="TEXT", help="Kept as the run's error.")
@where
@as_json
def terminate(runs: tuple[str, ...], reason: str, url: str | None, namespace: str | None, json: bool) -> None:
    """End runs at once, whatever they are doing.

    Nothing is cleaned up. Exit code 5 if a run had finished otherwise before.
    """

    async def change(engine: ManagedEngine, found: Run) -> CancelAnswer:
        return await engine.workflows.terminate(
            TerminateRun(namespace=found.namespace, run_id=found.run_id, reason=reason)
        )

    _do("runs terminate", runs, change, url=url, namespace=namespace, json=json)


@click.command()
@in_bulk(JobAction.WAKE)
@click.argument("runs", metavar="RUN...", nargs=-1, shell_complete=known_runs)
@where
@as_json
def wake(runs: tuple[str, ...], url: str | None, namespace: str | None, json: bool) -> None:
    """End the sleep of runs, or their wait for another attempt.

    What is due by the moment for which a run is parked is due now: sleeps end, timeouts run out, steps and the run are
    tried again. Exit code 5 if a run does not wait for a moment.
    """

    async def change(engine: ManagedEngine, found: Run) -> Facts:
        answer = await engine.workflows.wake(found.namespace, found.run_id)
        if not answer.woken:
            raise Conflict(not_woken(answer.run_id, answer.status))
        return {"run_id": answer.run_id, "woken": answer.woken, "status": answer.status}

    _do("runs wake", runs, change, url=url, namespace=namespace, json=json)


@click.command()
@in_bulk(JobAction.RETRY)
@click.argument("runs", metavar="RUN...", nargs=-1, shell_complete=known_runs)
@_keep_id
@where
@as_json
def retry(runs: tuple[str, ...], keep_id: bool, url: str | None, namespace: str | None, json: bool) -> None:
    """Go on with finished runs, as new ones.

    A new run keeps what the old one has recorded up to its first final failure or its cancellation, and takes its id
    over. Prints the ids of the new runs. Exit code 5 if a run has not finished.
    """
    _repeat("runs retry", runs, keep_steps=True, keep_id=keep_id, url=url, namespace=namespace, json=json)


@click.command()
@in_bulk(JobAction.RERUN)
@click.argument("runs", metavar="RUN...", nargs=-1, shell_complete=known_runs)
@_keep_id
@where
@as_json
def rerun(runs: tuple[str, ...], keep_id: bool, url: str | None, namespace: str | None, json: bool) -> None:
    """Run finished runs again from scratch, as new ones.

    A new run takes the id of the old one over. Prints the ids of the new runs. Exit code 5 if a run has not finished.
    """
    _repeat("runs rerun", runs, keep_steps=False, keep_id=keep_id, url=url, namespace=namespace, json=json)


def _fork_options(options: dict[str, Any]) -> JobOptions:
    if options["text"] is not None:
        raise click.UsageError("--input is for one run; with --all each fork has the input of its source.")
    return JobOptions(from_step=options["from_step"], version=options["version"])


@click.command()
@in_bulk(JobAction.FORK, _fork_options)
@click.argument("runs", metavar="RUN...", nargs=-1, shell_complete=known_runs)
@click.option(
    "--from", "from_step", metavar="STEP", help="Keep what was recorded before the end of this step. [nothing]"
)
@click.option("-i", "--input", "text", metavar="JSON|@FILE|-", help="Arguments of the new run. [those of RUN]")
@click.option("--version", "version", metavar="TEXT", help="The version of the workflow in the new run. [that of RUN]")
@where
@as_json
def fork(
    runs: tuple[str, ...],
    from_step: str | None,
    text: str | None,
    version: str | None,
    url: str | None,
    namespace: str | None,
    json: bool,
) -> None:
    """Go on from a chosen step of runs, as new ones.

    STEP is the id of a step as `kagzi runs show` lists it, such as charge#2, or its name if there is one of it. RUN may
    be live, and does not change. Prints the ids of the new runs.

    With --all finished runs alone are forked, since a live one would go on beside its fork. Runs that have no such step
    are left as they are and counted, and each fork has the input of its source.

    \b
    kagzi runs fork order-42 --from charge#2
    kagzi runs fork --all -w checkout -s completed --since 2h --from charge --version 3 --dry-run
    """
    if text is not None and len(runs) > 1:
        raise click.UsageError("--input is for one run; each of several keeps its own.")
    ids = RandomIds(SystemClock().now)
    input = None if text is None else read_json(text, "--input")

    async def change(engine: ManagedEngine, found: Run) -> Facts:
        started = await engine.workflows.repeat(
            RepeatRun(
                namespace=found.namespace,
                run_id=ids.run_id(),
                of_run_id=found.run_id,
                keep_steps=from_step is not None,
                keep_id=False,
                fork=Fork(from_step=from_step, input=input, version=version),
            )
        )
        return {"run_id": started.run_id, "of_run_id": found.run_id}

    _do("runs fork", runs, change, url=url, namespace=namespace, json=json)


def _move_options(options: dict[str, Any]) -> JobOptions:
    return JobOptions(from_version=options["from_version"], version=options["to_version"])


@click.command()
@in_bulk(JobAction.MOVE, _move_options)
@click.argument("runs", metavar="", nargs=-1)
@click.option("--from", "from_version", required=True, metavar="VERSION", help="The version they have.")
@click.option("--to", "to_version", required=True, metavar="VERSION", help="The version they get.")
@where
@as_json
def move(
    runs: tuple[str, ...],
    from_version: str,  # noqa: ARG001
    to_version: str,  # noqa: ARG001
    url: str | None,  # noqa: ARG001
    namespace: str | None,  # noqa: ARG001
    json: bool,  # noqa: ARG001
) -> None:
    """Have runs that wait or sleep go on in another version, as a job.

    The filters say which, and the workflow is one of them. What a worker holds is left alone and counted. Recorded
    steps stay, so the other version must be able to replay them: `kagzi versions move --check` finds out before.

    \b
    kagzi runs move --all -w checkout --tag region=eu --from 1 --to 2 --dry-run
    """
    raise click.UsageError(f"runs are moved by filters, not by name: say --all and which are meant, not {runs[0]}.")


@click.command()
@in_bulk(JobAction.DELETE)
@click.argument("runs", metavar="RUN...", nargs=-1, shell_complete=known_runs)
@where
@as_json
def delete(runs: tuple[str, ...], url: str | None, namespace: str | None, json: bool) -> None:
    """Delete finished runs and everything that is kept of them.

    Exit code 5 if a run has not finished.
    """

    async def change(engine: ManagedEngine, found: Run) -> Facts:
        await engine.jobs.delete_run(found.namespace, found.run_id)
        return {"run_id": found.run_id, "status": "deleted"}

    _do("runs delete", runs, change, url=url, namespace=namespace, json=json)


def _repeat(
    action: str,
    runs: Sequence[str],
    *,
    keep_steps: bool,
    keep_id: bool,
    url: str | None,
    namespace: str | None,
    json: bool,
) -> None:
    ids = RandomIds(SystemClock().now)

    async def change(engine: ManagedEngine, found: Run) -> Facts:
        started = await engine.workflows.repeat(
            RepeatRun(
                namespace=found.namespace,
                run_id=ids.run_id(),
                of_run_id=found.run_id,
                keep_steps=keep_steps,
                keep_id=keep_id,
            )
        )
        if started.already_exists:
            output.note(f"run {found.run_id} was superseded by run {started.run_id} already; nothing was started")
        return {"run_id": started.run_id, "of_run_id": found.run_id}

    _do(action, runs, change, url=url, namespace=namespace, json=json)


def _do(
    action: str, runs: Sequence[str], change: Change, *, url: str | None, namespace: str | None, json: bool
) -> None:
    """Changes each of the runs, whatever becomes of the others. The first that could not be changed decides the exit
    code."""
    loaded = quiet_home(url, namespace)
    outcomes: list[Outcome] = []
    try:
        run(_change_each(loaded, action, runs, change, outcomes))
    finally:
        # Also of those that were changed before the database went out of reach.
        if json:
            output.document({"runs": [outcome.document() for outcome in outcomes]})
        else:
            done = [outcome.facts for outcome in outcomes if outcome.problem is None]
            output.table(("run", "status"), [(str(facts["run_id"]), *_status(facts)) for facts in done])
    problems = [outcome.problem for outcome in outcomes if outcome.problem is not None]
    for problem in problems:
        output.note(f"Error: {problem}")
    if problems:
        sys.exit(exit_code(problems[0]))


def _status(facts: Facts) -> tuple[str, ...]:
    return (str(facts["status"]),) if "status" in facts else ()


async def _change_each(
    loaded: Loaded, action: str, runs: Sequence[str], change: Change, outcomes: list[Outcome]
) -> None:
    async with engine_of(loaded) as engine:
        for named in runs:
            outcome = Outcome(named, {})
            try:
                found = await find_run(engine, loaded.settings.namespace, named)
                async with audited(engine, action, namespace=found.namespace, target=f"run {found.run_id}"):
                    answer = await change(engine, found)
                if isinstance(answer, CancelAnswer):
                    outcome.facts = {"run_id": answer.run_id, "effective": answer.effective, "status": answer.status}
                    if not answer.effective:
                        raise Conflict(f"run {answer.run_id} is {answer.status} already")
                else:
                    outcome.facts = answer
            except (NotFound, Conflict, InvalidRequest) as problem:
                outcome.problem = problem
            outcomes.append(outcome)
