"""kagzi runs signal"""

from __future__ import annotations

import click

from kagzi.api.operations import SendSignal
from kagzi.cli import output
from kagzi.cli.follow import find_run
from kagzi.cli.known import known_runs
from kagzi.cli.options import as_json, engine_of, quiet_home, run, where
from kagzi.cli.start import read_json
from kagzi.clock import SystemClock
from kagzi.core.signal import awaits_signal, check_key
from kagzi.core.why import awaited_signals
from kagzi.ids import RandomIds
from kagzi.settings import Loaded


@click.command()
@click.argument("named", metavar="RUN", shell_complete=known_runs)
@click.argument("name", metavar="NAME")
@click.option(
    "--value",
    "text",
    default="null",
    metavar="JSON|@FILE|-",
    help="What the workflow gets. @order.json reads a file, - reads standard input.",
)
@click.option("--key", metavar="TEXT", help="Makes a repeat harmless: a signal with the same key is the same signal.")
@where
@as_json
def signal(
    named: str, name: str, text: str, key: str | None, url: str | None, namespace: str | None, json: bool
) -> None:
    """Tell a run something: its workflow gets it from kagzi.wait_signal(NAME).

    It is stored when this returns, and kept until the workflow waits for it. Exit code 5 if the run has finished.

    \b
    kagzi runs signal order-42 approved --value true
    """
    loaded = quiet_home(url, namespace)
    document, awaited = run(_send(loaded, named, name, read_json(text, "--value"), key))
    if json:
        output.document(document)
    else:
        repeated = " (it was sent before)" if document["repeated"] else ""
        waits = "" if awaited is None else f" and waits for {awaited}"
        output.note(f"run {document['run_id']} has the signal {name}{repeated}; it is {document['status']}{waits}")


async def _send(
    loaded: Loaded, named: str, name: str, value: bytes, key: str | None
) -> tuple[dict[str, object], str | None]:
    """Returns the answer, and for which signals the run waits if it does not wait for this one."""
    key = check_key(key, RandomIds(SystemClock().now).token())
    async with engine_of(loaded) as engine:
        found = await find_run(engine, loaded.settings.namespace, named)
        answer = await engine.workflows.signal(
            SendSignal(namespace=found.namespace, run_id=found.run_id, name=name, value=value, key=key)
        )
    document: dict[str, object] = {
        "run_id": answer.run_id,
        "name": name,
        "key": key,
        "seq": answer.seq,
        "status": answer.status,
        "repeated": answer.repeated,
    }
    waits = {awaits_signal(name), awaits_signal("*")}.isdisjoint(found.waiting_for) and answer.status is found.status
    return document, awaited_signals(found) if waits else None
