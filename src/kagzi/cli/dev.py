"""kagzi dev"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from kagzi.api.operations import StartRun
from kagzi.app import Kagzi
from kagzi.cli import output
from kagzi.cli.options import URL_OF_DEV, lasting, logging_options, run, settings_of, start_logging, where
from kagzi.clock import SystemClock
from kagzi.errors import InvalidRequest, KagziError
from kagzi.ids import RandomIds
from kagzi.sdk.payload import Codec
from kagzi.serve import Port, Server, make_http_port
from kagzi.settings import Settings

log = logging.getLogger("kagzi.dev")

DEMO: Final = "kagzi.cli.demo:app"
_LOOK_SECONDS: Final = 0.5
_GRACE: Final = "3s"
_MOST_FILES: Final = 5_000
_NOT_OURS: Final = frozenset({"node_modules", "site-packages", "__pycache__", "build", "dist"})


@click.command(short_help="Server, worker and dashboard in one, for developing.")
@click.argument("app", required=False)
@click.option(
    "-q",
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME",
    help="A queue to serve; may be repeated. [default, and those that the workflows name]",
)
@click.option(
    "--http-port",
    type=int,
    metavar="NUMBER",
    help="The dashboard's port; 0 takes a free one. [KAGZI_HTTP_PORT, else 8420]",
)
@where
@logging_options
def dev(
    app: str | None,
    queues: tuple[str, ...],
    http_port: int | None,
    url: str | None,
    namespace: str | None,
    log_format: str | None,
    log_level: str | None,
) -> None:
    """Develop with APP: an engine on its database, a worker that starts anew when a file changes, and the dashboard.

    APP is where your `app = Kagzi()` is, as for `kagzi worker`. Without it, and without KAGZI_APP, a demo is shown.
    Runs live where the app says, else in an SQLite file in .kagzi/ of your project. Ctrl-C ends it all.
    """
    from kagzi.connect import default_url

    loaded = settings_of(
        url=url, namespace=namespace, app=app, http_port=http_port, log_format=log_format, log_level=log_level
    )
    settings = loaded.settings
    start_logging(settings, quiet=settings.log_level == "info")
    target = settings.app or DEMO
    watched = _watched(target)
    found = _load(target, watched)
    found.override(loaded, url=url, namespace=namespace)
    place = lasting(default_url(settings) if found.url is None else found.url)
    if target == DEMO:
        output.note("no app was named, so this is a demo; yours: kagzi dev shop.py")
    serving = settings_of(db_url=place, http_port=http_port, log_format=log_format, log_level=log_level).settings
    worker = _worker_command(target, found.namespace, queues)
    # The developer has the keys anyway: the dashboard shows what they show.
    demo_in = found.namespace if target == DEMO else None
    run(_develop(serving, worker, _environment(place), watched, demo_in, found.codec))


def _worker_command(target: str, namespace: str, queues: tuple[str, ...]) -> list[str]:
    chosen = [part for queue in queues for part in ("-q", queue)]
    command = [sys.executable, "-m", "kagzi", "worker", target, "--namespace", namespace]
    return [*command, "--grace", _GRACE, *chosen]


def _load(target: str, watched: Path | None) -> Kagzi:
    """Returns the app. One that cannot be imported is waited for: somebody is about to mend it."""
    from kagzi.cli.application import Unimportable, load_app

    waited = False
    while True:
        seen, loaded = _times(watched), set(sys.modules)
        try:
            return load_app(target)
        except InvalidRequest as error:
            if not (waited or isinstance(error, Unimportable)):
                raise
            output.note(f"{error}; it waits for a change of a file   (Ctrl-C ends)")
        waited = True
        seen = run(_changed(watched, seen))
        output.note("a file has changed: it is imported anew")
        importlib.invalidate_caches()
        for name in sys.modules.keys() - loaded:
            if getattr(sys.modules[name], "__file__", None) in seen:
                del sys.modules[name]  # of the app: what its other files say may be what was changed


def _watched(target: str) -> Path | None:
    """Returns where the files of the app are; None: they do not change."""
    if target == DEMO:
        return None
    place = target.rpartition(":")[0] if ":" in target else target
    return Path(place).resolve().parent if place.endswith(".py") else Path.cwd()


async def _develop(
    settings: Settings,
    worker: list[str],
    environment: dict[str, str],
    watched: Path | None,
    demo_in: str | None,
    codec: Codec | None,
) -> None:
    ports: list[Port] = []

    def make_ports(server: Server, settings: Settings) -> list[tuple[str, Port]]:
        ports.append(make_http_port(server, settings, codec))
        return [(f"HTTP on {settings.http_host}", ports[0])]

    server = Server(settings, make_ports=make_ports, grace=1.0, local=True)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C raises KeyboardInterrupt instead
            loop.add_signal_handler(number, server.shut_down)
    beside = asyncio.create_task(_beside(server, ports, worker, environment, watched, demo_in), name="kagzi-dev")
    try:
        await server.run()
    finally:
        beside.cancel()
        await asyncio.wait([beside])


async def _beside(
    server: Server,
    ports: list[Port],
    worker: list[str],
    environment: dict[str, str],
    watched: Path | None,
    demo_in: str | None,
) -> None:
    while not server.ready():  # noqa: ASYNC110  # a server says so by this alone
        await asyncio.sleep(0.05)
    output.note(f"dashboard: http://127.0.0.1:{ports[0].port}   (Ctrl-C ends)")
    if demo_in is not None:
        await _start_demo(server, demo_in)
    await _keep_working(worker, environment, watched)


async def _start_demo(server: Server, namespace: str) -> None:
    """Starts a run to look at. It has an id, so that the next `kagzi dev` finds it instead of starting another."""
    with contextlib.suppress(KagziError):
        await server.engine.workflows.start(
            StartRun(
                namespace=namespace,
                run_id=RandomIds(SystemClock().now).run_id(),
                workflow_type="demo_order",
                task_queue="default",
                external_id="demo-1",
                input=b'["demo-1", 4200, ["book", "pen", "lamp"]]',
            )
        )
        output.note(
            "the run demo-1 will wait for a signal; send it there, or: kagzi runs signal demo-1 approved --value true"
        )


async def _keep_working(command: list[str], environment: dict[str, str], watched: Path | None) -> None:
    """Keeps a worker at work, started anew when a file of the app has changed; one that ended waits for the change that
    mends it."""
    seen = _times(watched)
    while True:
        # In a session of its own: Ctrl-C is for us, and we end the worker in order.
        process = await asyncio.create_subprocess_exec(*command, start_new_session=True, env=environment)
        ended = asyncio.create_task(process.wait())
        try:
            while True:
                await asyncio.wait([ended], timeout=_LOOK_SECONDS)
                now = await asyncio.to_thread(_times, watched)
                if now != seen:
                    seen = now
                    output.note("a file has changed: the worker starts anew")
                    break
                if ended.done():
                    output.note(
                        f"the worker has ended (exit code {process.returncode}); it waits for a change of a file"
                    )
                    seen = await _changed(watched, seen)
                    break
        finally:
            await _end(process, ended)


def _environment(url: str) -> dict[str, str]:
    """Returns the environment of the worker: where runs live, since everybody on this machine can read the arguments of
    its processes, and that a workflow that blocks is an error."""
    told = {} if settings_of().settings.worker_blocking_calls == "off" else {"KAGZI_WORKER_BLOCKING_CALLS": "error"}
    return {**os.environ, **told, URL_OF_DEV: url}


async def _changed(watched: Path | None, seen: dict[str, int]) -> dict[str, int]:
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        now = await asyncio.to_thread(_times, watched)
        if now != seen:
            return now


async def _end(process: asyncio.subprocess.Process, ended: asyncio.Task[int]) -> None:
    if not ended.done():
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await asyncio.wait([ended], timeout=10)
    if not ended.done():
        process.kill()
        await asyncio.wait([ended])


def _times(watched: Path | None) -> dict[str, int]:
    """Returns when each Python file of the app was last written."""
    return {} if watched is None else dict(_files(watched))


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    count = 0
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _NOT_OURS]
        for name in names:
            if not name.endswith(".py"):
                continue
            count += 1
            if count > _MOST_FILES:
                return
            path = os.path.join(place, name)
            with contextlib.suppress(OSError):
                yield path, os.stat(path).st_mtime_ns
