"""kagzi server"""

from __future__ import annotations

import click

from kagzi.cli.options import length, logging_options, seconds, settings_of, start_logging
from kagzi.core.instant import Span


@click.command(short_help="Host the engine for others, over gRPC and HTTP.")
@click.option("--url", metavar="URL", help="The database. [KAGZI_DB_URL, else KAGZI_URL, else .kagzi/kagzi.db]")
@click.option("--host", metavar="ADDRESS", help="The address to listen on. [KAGZI_SERVER_HOST, else 127.0.0.1]")
@click.option(
    "--port", type=int, metavar="NUMBER", help="The gRPC port; 0 takes a free one. [KAGZI_SERVER_PORT, else 50051]"
)
@click.option("--http-host", metavar="ADDRESS", help="The same for HTTP. [KAGZI_HTTP_HOST, else 127.0.0.1]")
@click.option(
    "--http-port", type=int, metavar="NUMBER", help="The HTTP port; 0 takes a free one. [KAGZI_HTTP_PORT, else 8420]"
)
@click.option(
    "--grace",
    type=length,
    default="25s",
    show_default=True,
    metavar="DURATION",
    help="How long calls in flight may take when the server is told to stop.",
)
@click.option(
    "--local",
    is_flag=True,
    help="Answer over HTTP without keys: only this machine reaches the port, and no proxy stands before it.",
)
@click.option("--insecure", is_flag=True, help="Listen beyond this machine although there are no keys and no TLS.")
@logging_options
def server(
    url: str | None,
    host: str | None,
    port: int | None,
    http_host: str | None,
    http_port: int | None,
    grace: Span,
    local: bool,
    insecure: bool,
    log_format: str | None,
    log_level: str | None,
) -> None:
    """Host the engine for clients and workers that have no access to the database.

    Any number of servers may share one PostgreSQL database; workers and clients may use any of them. Missing migrations
    are applied at start. SIGTERM ends it in order: no new calls, calls in flight finish, exit code 0; a second SIGTERM
    ends it at once.
    """
    from kagzi.serve import serve

    loaded = settings_of(
        db_url=url,
        server_host=host,
        server_port=port,
        http_host=http_host,
        http_port=http_port,
        log_format=log_format,
        log_level=log_level,
    )
    start_logging(loaded.settings)
    serve(loaded.settings, local=local, insecure=insecure, grace=seconds(grace))
