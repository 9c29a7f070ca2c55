"""kagzi worker"""

from __future__ import annotations

import logging

import click

from kagzi.cli.options import length, logging_options, seconds, settings_of, start_logging, where
from kagzi.core.instant import Span
from kagzi.errors import InvalidRequest
from kagzi.settings import mask_url

log = logging.getLogger("kagzi.worker")


@click.command(short_help="Execute the workflows of an app.")
@click.argument("app", required=False)
@click.option(
    "-q", "--queue", "queues", multiple=True, metavar="NAME", help="A queue to serve; may be repeated. [default]"
)
@click.option("-c", "--concurrency", type=int, default=100, show_default=True, help="How many runs to drive at once.")
@click.option("--threads", type=int, default=32, show_default=True, help="How many `def` steps to run at once.")
@click.option(
    "--grace",
    type=length,
    default="25s",
    show_default=True,
    metavar="DURATION",
    help="How long running steps may take when the worker is told to stop.",
)
@click.option("--strict", is_flag=True, help="Fail a run whose step is called with other arguments than recorded.")
@where
@logging_options
def worker(
    app: str | None,
    queues: tuple[str, ...],
    concurrency: int,
    threads: int,
    grace: Span,
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
    """
    from kagzi.cli.application import load_app
    from kagzi.connect import default_url

    loaded = settings_of(url=url, namespace=namespace, app=app, log_format=log_format, log_level=log_level)
    settings = loaded.settings
    start_logging(settings)
    if settings.app is None:
        raise InvalidRequest(
            'which app? Say `kagzi worker shop.py`, set KAGZI_APP, or write app = "shop:app" into kagzi.toml'
        )
    found = load_app(settings.app)
    found.override(loaded, url=url, namespace=namespace)
    place = default_url(settings) if found.url is None else found.url
    log.info("runs live in namespace %s of %s", found.namespace, mask_url(place))
    found.run_worker(
        queues=queues or ("default",),
        concurrency=concurrency,
        threads=threads,
        grace=seconds(grace),
        strict=strict,
    )
