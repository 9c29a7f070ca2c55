"""kagzi start"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from kagzi.api.operations import StartDebounce, Started, StartRun, StartSignal
from kagzi.cli import output
from kagzi.cli.follow import finish, note_if_nobody_comes, wait_for
from kagzi.cli.known import known_queues, known_workflows
from kagzi.cli.options import as_json, engine_of, handler_of, length, place_of, quiet_home, run, tagged, tags_of, where
from kagzi.clock import SystemClock
from kagzi.core.conflict import OnConflict
from kagzi.core.instant import Span
from kagzi.core.limits import DEFAULT_QUEUE
from kagzi.core.repeated_keys import repeated_key
from kagzi.core.run import Run
from kagzi.core.signal import MADE_KEY
from kagzi.errors import InvalidRequest
from kagzi.ids import RandomIds
from kagzi.settings import Loaded


@click.command(short_help="Start a run of a workflow.")
@click.argument("workflow", shell_complete=known_workflows)
@click.option(
    "-i",
    "--input",
    "text",
    metavar="JSON|@FILE|-",
    help="The arguments: a JSON array by position, an object by name, anything else as the only one. "
    "@orders.json reads a file, - reads standard input.",
)
@click.option(
    "--id", "external_id", metavar="TEXT", help="Your own id of the run: starting it again finds the first one."
)
@click.option(
    "--on-conflict",
    type=click.Choice([choice.value for choice in OnConflict]),
    help="If a run has the id: find it, fail, or start a new one in its place, if it has finished or has failed. "
    "[return; with --signal restart_finished]",
)
@click.option("--signal", metavar="NAME", help="With --id: tell the run that has it, or is started, something.")
@click.option("--signal-value", metavar="JSON|@FILE|-", help="With --signal: what it is told. [null]")
@click.option(
    "-q",
    "--queue",
    shell_complete=known_queues,
    metavar="NAME",
    help="The queue in which the run waits. [that of the workflow, as its worker told, else default]",
)
@click.option(
    "--version", "version", metavar="TEXT", help="The version of the workflow. [its default, see `kagzi versions`]"
)
@click.option("--priority", type=int, default=0, show_default=True, help="A level is worth a minute of waiting.")
@click.option("--delay", type=length, default=0, metavar="DURATION", help="Start it this much later: 30s, 2h.")
@click.option(
    "--debounce",
    type=length,
    metavar="DURATION",
    help="Become one run with other starts of the workflow; it begins so long after the last, with its input.",
)
@click.option("--debounce-key", metavar="TEXT", help="With --debounce: only with starts that have the same key.")
@click.option(
    "--debounce-most", type=length, metavar="DURATION", help="With --debounce: so long after the first at most."
)
@click.option(
    "--limit-key",
    metavar="TEXT",
    help="Whose share of the limits of the workflow the run takes. [what the workflow says, of the input]",
)
@click.option(
    "--on-failure",
    metavar="WORKFLOW[@QUEUE]",
    help="Start this workflow if the run fails or times out; without a queue in that of the run.",
)
@tagged
@click.option("--wait", is_flag=True, help="Wait for the run and print its result; exit code 1 if it fails.")
@click.option("--timeout", type=length, metavar="DURATION", help="With --wait: give up after this long, exit code 124.")
@where
@as_json
def start(
    workflow: str,
    text: str | None,
    external_id: str | None,
    on_conflict: str | None,
    signal: str | None,
    signal_value: str | None,
    queue: str | None,
    version: str | None,
    priority: int,
    delay: Span,
    debounce: Span | None,
    debounce_key: str | None,
    debounce_most: Span | None,
    limit_key: str | None,
    on_failure: str | None,
    tags: tuple[str, ...],
    wait: bool,
    timeout: Span | None,
    url: str | None,
    namespace: str | None,
    json: bool,
) -> None:
    """Start a run of WORKFLOW, by the name it is registered under, and print its id.

    The run is stored when this returns, and a worker of its queue will execute it. As JSON: run_id, id, status, and
    whether the run already_exists, which another start has made.

    \b
    kagzi start checkout --input '["42", 999]' --tag batch=7
    kagzi start checkout --input '{"order": "42", "cents": 999}' --id o-42 --wait
    """
    if timeout is not None and not wait:
        raise click.UsageError("--timeout is for --wait")
    if on_conflict not in (None, OnConflict.RETURN) and external_id is None:
        raise click.UsageError("--on-conflict is for --id")
    if signal is not None and external_id is None:
        raise click.UsageError("--signal is for --id")
    if signal_value is not None and signal is None:
        raise click.UsageError("--signal-value is for --signal")
    if signal_value == text == "-":
        raise click.UsageError("--input and --signal-value cannot both read standard input")
    if debounce is None and (debounce_key is not None or debounce_most is not None):
        raise click.UsageError("--debounce-key and --debounce-most are for --debounce")
    if debounce_key == "":  # of an empty variable, perhaps: without a key all starts of the workflow become one run
        raise click.UsageError("--debounce-key must not be empty; leave it out for one run of all starts")
    if debounce is not None and external_id is not None:
        raise click.UsageError("--debounce and --id do not go together: it may join the run of another start")
    handler, handler_queue = (None, None) if on_failure is None else handler_of(on_failure)
    loaded = quiet_home(url, namespace)
    settings = loaded.settings
    request = StartRun(
        namespace=settings.namespace,
        run_id=RandomIds(SystemClock().now).run_id(),
        workflow_type=workflow,
        task_queue=queue or DEFAULT_QUEUE,
        by_name=True,
        other_queue=queue is None,
        version=version,
        input=read_input(text),
        external_id=external_id,
        priority=priority,
        delay=delay,
        limit_key=limit_key,
        on_failure=handler,
        on_failure_queue=handler_queue,
        tags=tags_of(tags),
        on_conflict=OnConflict(on_conflict or ("return" if signal is None else "restart_finished")),
        signal=None if signal is None else _signal(signal, signal_value),
        debounce=None if debounce is None else StartDebounce(key=debounce_key or "", wait=debounce, most=debounce_most),
    )
    started, found = run(_start(loaded, request, wait, timeout))
    if wait:
        finish(found, json=json)
    elif json:
        facts = {"run_id": found.run_id, "id": found.external_id, "status": found.status}
        output.document(facts | {"already_exists": started.already_exists})
    else:
        click.echo(found.run_id)


def _signal(name: str, value: str | None) -> StartSignal:
    key = MADE_KEY + RandomIds(SystemClock().now).token()
    return StartSignal(name=name, value=b"null" if value is None else read_json(value, "--signal-value"), key=key)


async def _start(loaded: Loaded, request: StartRun, wait: bool, timeout: Span | None) -> tuple[Started, Run]:
    """Returns what the start was answered, and the run as it is then, or as it has ended if this waits for that."""
    async with engine_of(loaded, make=True) as engine:
        started = await engine.workflows.start(request)
        place = place_of(loaded.settings)
        found = await engine.workflows.get(request.namespace, started.run_id)
        if started.already_exists and request.external_id is None:  # the workflow may say debounce, too
            output.note(f"this joins run {started.run_id}, which has not begun")
        elif started.already_exists:
            output.note(f"there was a run with the id {request.external_id} already: {started.run_id}")
        else:
            if started.note:
                output.note(started.note)
            await note_if_nobody_comes(engine, place, found)
        if wait:
            output.note(f"run {started.run_id} is stored in {place}; waiting for it")
            found = await wait_for(engine, loaded.settings.namespace, started.run_id, timeout)
        return started, found


def read_input(text: str | None) -> bytes:
    return b"[]" if text is None else read_json(text, "--input")


def read_json(text: str, option: str) -> bytes:
    """Returns the JSON that an option gives, names as a file, or has from standard input."""
    if text == "-":
        data = sys.stdin.buffer.read()
    elif text.startswith("@"):
        try:
            data = Path(text[1:]).read_bytes()
        except OSError as error:
            raise InvalidRequest(f"{option}: {text[1:]} cannot be read: {error.strerror}") from None
    else:
        data = text.encode("utf-8", "surrogateescape")
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        accepted = """accepted: JSON such as '["42", 999]' or '"text"', @FILE, or - for standard input"""
        raise InvalidRequest(f"{option} is not JSON: {error}; {accepted}") from None
    if (key := repeated_key(data)) is not None:
        raise InvalidRequest(f"{option} has the key {key[:100]!r} twice in one object; one of them has to go")
    return data
