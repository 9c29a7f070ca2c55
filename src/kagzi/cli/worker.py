"""kagzi worker"""

from __future__ import annotations

import contextlib
import logging
import os

import click

from kagzi.cli.options import URL_OF_DEV, length, logging_options, seconds, settings_of, start_logging, where
from kagzi.core.instant import Span
from kagzi.errors import InvalidRequest
from kagzi.settings import mask_url

log = logging.getLogger("kagzi.worker")


def _processes(value: str | int) -> int:
    """The type of --processes."""
    from kagzi.sdk.worker.processes import process_count

    try:
        return process_count("auto" if value == "auto" else int(value))
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a number nor auto") from None
    except InvalidRequest as error:
        raise click.BadParameter(str(error)) from None


@click.command(short_help="Execute the workflows of an app.")
@click.argument("app", required=False)
@click.option(
    "-q",
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME",
    help="A queue to serve; may be repeated. [default, and those that the workflows name]",
)
@click.option("-c", "--concurrency", type=int, default=100, show_default=True, help="How many runs to drive at once.")
@click.option("--threads", type=int, default=32, show_default=True, help="How many `def` steps to run at once.")
@click.option(
    "--step-processes",
    type=int,
    metavar="NUMBER",
    help='How many processes to run steps with executor="process" in. [one for each core]',
)
@click.option(
    "--grace",
    type=length,
    default="25s",
    show_default=True,
    metavar="DURATION",
    help="How long running steps may take when the worker is told to stop.",
)
@click.option(
    "--processes",
    type=_processes,
    default="1",
    show_default=True,
    metavar="N|auto",
    help="How many processes to start, each with its own slots; auto: one for each core.",
)
@click.option("--strict", is_flag=True, help="Fail a run whose step is called with other arguments than recorded.")
@where
@logging_options
def worker(
    app: str | None,
    queues: tuple[str, ...],
    concurrency: int,
    threads: int,
    step_processes: int | None,
    grace: Span,
    processes: int,
    strict: bool,
    url: str | None,
    namespace: str | None,
    log_format: str | None,
    log_level: str | None,
) -> None:
    """Execute the workflows of APP until told to stop.

    APP is where your `app = Kagzi()` is: `module:attribute`, `path.py` or `path.py:attribute`. Without it KAGZI_APP is
    taken, or `app` in kagzi.toml.

    SIGTERM drains: nothing more is claimed, running steps finish, everything else is handed to other workers at once,
    exit code 0. A second SIGTERM hands back running steps, too. Exit code 1 if a server refuses the worker's key.

    With --processes this process starts so many workers, passes signals on (a third one kills), and starts those anew
    that die. It ends when they have ended: exit code 0 if all have drained.
    """
    from kagzi.sdk.worker.member import member

    ours = member()
    with contextlib.nullcontext() if ours is None else ours.telling():
        code = _work(
            app=app,
            queues=queues,
            concurrency=concurrency,
            threads=threads,
            step_processes=step_processes,
            grace=seconds(grace),
            processes=1 if ours is not None else processes,
            strict=strict,
            url=url,
            namespace=namespace,
            log_format=log_format,
            log_level=log_level,
        )
    raise click.exceptions.Exit(code)


def _work(
    *,
    app: str | None,
    queues: tuple[str, ...],
    concurrency: int,
    threads: int,
    step_processes: int | None,
    grace: float,
    processes: int,
    strict: bool,
    url: str | None,
    namespace: str | None,
    log_format: str | None,
    log_level: str | None,
) -> int:
    """Returns the exit code."""
    from kagzi.connect import default_url

    url = url or os.environ.pop(URL_OF_DEV, None)
    loaded = settings_of(url=url, namespace=namespace, app=app, log_format=log_format, log_level=log_level)
    settings = loaded.settings
    start_logging(settings)
    if settings.app is None:
        raise InvalidRequest(
            'which app? Say `kagzi worker shop.py`, set KAGZI_APP, or write app = "shop:app" into kagzi.toml'
        )
    if processes > 1:
        # The app is imported by the processes, not here.
        return _start(processes, concurrency, default_url(settings, make=False))
    from kagzi.cli.application import load_app

    found = load_app(settings.app)
    found.override(loaded, url=url, namespace=namespace)
    place = default_url(settings) if found.url is None else found.url
    log.info("runs live in namespace %s of %s", found.namespace, mask_url(place))
    found.run_worker(
        queues=queues or None,
        concurrency=concurrency,
        threads=threads,
        step_processes=step_processes,
        grace=grace,
        strict=strict,
    )
    return 0


def _start(processes: int, concurrency: int, url: str) -> int:
    """Starts several workers, and returns the exit code when they have ended."""
    from kagzi.clock import SystemClock
    from kagzi.ids import RandomIds
    from kagzi.sdk.worker.processes import run_processes

    clock = SystemClock()
    return run_processes(processes, slots=concurrency, url=url, clock=clock, ids=RandomIds(clock.now))
