"""kagzi run"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from kagzi.app import Kagzi
from kagzi.cli import output
from kagzi.cli.application import load_app
from kagzi.cli.follow import finish, wait_for
from kagzi.cli.options import as_json, length, run, settings_of, start_logging, where
from kagzi.cli.start import read_input
from kagzi.clock import SystemClock
from kagzi.core.instant import Span
from kagzi.core.lineage import PayloadKind, lineage_of
from kagzi.core.run import Run, RunStatus
from kagzi.errors import InvalidRequest
from kagzi.ids import RandomIds
from kagzi.sdk.definitions import Workflow
from kagzi.sdk.standalone import STANDALONE


@click.command("run", short_help="Run a workflow of an app here, to its end.")
@click.argument("target", metavar="APP:WORKFLOW")
@click.argument("words", nargs=-1, metavar="[ARGUMENT]...")
@click.option("-i", "--input", "text", metavar="JSON|@FILE|-", help="Instead of ARGUMENTs, as of `kagzi start`.")
@click.option("--id", "external_id", metavar="TEXT", help="Your own id of the run: the second time goes on with it.")
@click.option("--timeout", type=length, metavar="DURATION", help="Give up after this long, exit code 124.")
@where
@as_json
def one_shot(
    target: str,
    words: tuple[str, ...],
    text: str | None,
    external_id: str | None,
    timeout: Span | None,
    url: str | None,
    namespace: str | None,
    json: bool,
) -> None:
    """Start a run of WORKFLOW here, execute it to its end, and print its result.

    APP is `module` or `path.py`. Each ARGUMENT is JSON, or text where it is none or the parameter is a `str`. Steps are
    told of on standard error. Exit code 1 if the run fails.

    The run waits in a queue of its own, so that this process executes nothing else. If it is killed, the same command
    with --id goes on with the run.

    \b
    kagzi run shop.py:checkout 42 999
    kagzi run shop.py:checkout --input '{"order": "42", "cents": 999}' --id o-42
    """
    if words and text is not None:
        raise click.UsageError("give ARGUMENTs or --input, not both")
    loaded = settings_of(url=url, namespace=namespace)
    start_logging(loaded.settings, quiet=True)
    place, _, name = target.rpartition(":")
    if not place or name.endswith(".py"):
        raise InvalidRequest(
            f"{target!r} does not name a workflow; say APP:WORKFLOW, such as shop.py:checkout. To look after runs "
            "there is `kagzi runs`"
        )
    app = load_app(place)
    app.override(loaded, url=url, namespace=namespace)
    workflow = _find(app, place, name)
    data = _array(workflow, words) if words else read_input(text)
    try:
        args, kwargs = workflow.signature.with_codec(None).decode_arguments(data)
    except TypeError as error:
        raise InvalidRequest(str(error)) from None
    found, result = run(_run(app, workflow, args, kwargs, external_id, timeout))
    if json or found.status is not RunStatus.COMPLETED:
        finish(found, json=json)
    else:
        output.line(result)


def _find(app: Kagzi, place: str, name: str) -> Workflow[Any, Any]:
    """Returns the workflow that is registered under this name, or whose function has it; of several versions the
    newest."""
    offered = [
        app.find_workflow(each.name, each.version or "") for each in app.workflow_types() if each.name != STANDALONE
    ]
    workflows = [each for each in offered if each is not None]
    matches = [each for each in workflows if name in (each.name, each.fn.__name__)]
    if not matches:
        names = ", ".join(dict.fromkeys(each.name for each in workflows)) or "none"
        raise InvalidRequest(f"{place} has no workflow {name!r}; workflows in it: {names}")
    return max(matches, key=lambda each: (len(each.version), each.version))


def _array(workflow: Workflow[Any, Any], words: Sequence[str]) -> bytes:
    """Returns the arguments as a JSON array."""
    parameters = list(inspect.signature(workflow.fn).parameters.values())
    if workflow.signature.context_class is not None:
        parameters = parameters[1:]
    values: list[object] = []
    for number, word in enumerate(words):
        annotation = parameters[min(number, len(parameters) - 1)].annotation if parameters else None
        try:
            values.append(word if annotation in (str, "str") else msgspec.json.decode(word.encode()))
        except msgspec.DecodeError:
            values.append(word)
    return msgspec.json.encode(values)


async def _run(
    app: Kagzi,
    workflow: Workflow[Any, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    external_id: str | None,
    timeout: Span | None,
) -> tuple[Run, Any]:
    queue = f"run-{external_id or RandomIds(SystemClock().now).token()}"
    async with app:
        handle = await workflow.options(id=external_id, queue=queue).start(*args, **kwargs)
        engine = app.engine
        found = await engine.workflows.get(app.namespace, handle.id)
        output.note(
            f"run {found.run_id} of {found.workflow_type}" + (", begun before" if handle.already_exists else "")
        )
        if not found.status.finished:
            # Its own queue, and those that its children name.
            named = [
                app.find_workflow(each.name, each.version or "")
                for each in app.workflow_types()
                if each.name != STANDALONE
            ]
            queues = [found.task_queue, *(each.queue for each in named if each is not None and each.queue)]
            async with app.worker(queues=list(dict.fromkeys(queues))):
                found = await wait_for(engine, app.namespace, found.run_id, timeout, steps=True)
        return found, None if found.output is None else app._read_payload(
            found.output, lineage_of(found).of(PayloadKind.OUTPUT)
        )
