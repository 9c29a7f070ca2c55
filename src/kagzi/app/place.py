"""The place where runs live and the engine there, as far as code tells it; the rest is in the settings."""

from __future__ import annotations

import logging

from msgspec import Struct

from kagzi.api.engine import Engine
from kagzi.connect import connect, credentials_of, default_url, engine_settings, is_server
from kagzi.core.duration import Duration, format_span, parse_duration
from kagzi.core.instant import Span
from kagzi.core.limits import LONGEST_LEASE, SHORTEST_LEASE, check_name
from kagzi.errors import InvalidRequest
from kagzi.settings import Loaded

logger = logging.getLogger("kagzi")

MOST_CRASHES = 1_000_000


class Place(Struct, frozen=True, kw_only=True):
    """The arguments of an app about its engine; None takes what the settings say."""

    url: str | None
    namespace: str | None
    key: str | None
    lease: Span | None
    max_crashes: int | None


def checked_place(
    url: str | None, namespace: str | None, key: str | None, lease: Duration | None, max_crashes: int | None
) -> Place:
    place = Place(
        url=url,
        namespace=None if namespace is None else check_name(namespace, "namespace"),
        key=key,
        lease=None if lease is None else _lease(lease),
        max_crashes=None if max_crashes is None else _crashes(max_crashes),
    )
    if lease is not None and is_server(url):
        raise InvalidRequest(
            "the server decides how long leases last; leave `lease` out, and set "
            "KAGZI_WORKER_VISIBILITY_TIMEOUT_SECS for the server"
        )
    if max_crashes is not None and is_server(url):
        raise InvalidRequest(
            "the server decides when to give up a run that kills its workers, which is after 10 crashes; leave "
            "`max_crashes` out"
        )
    return place


def connect_to(place: Place, url: str | None, loaded: Loaded) -> Engine:
    """Returns the engine, not yet open, at this URL, or at that of the settings."""
    settings = loaded.settings
    found = default_url(settings) if url is None else url
    chosen = engine_settings(settings)
    # What follows may be right elsewhere, since the code names no server here.
    if place.max_crashes is not None:
        chosen["max_crashes"] = place.max_crashes
        if is_server(found):
            logger.warning("max_crashes in code has no effect: the server gives a run up after 10 crashes")
    if place.lease is not None:
        chosen["lease"] = place.lease
        if is_server(found):
            logger.warning(
                "the lease of %s in code has no effect: the server decides how long leases last",
                format_span(place.lease),
            )
    return connect(
        found,
        retention_days=settings.retention_days,
        listen_url=settings.listen_url,
        credentials=credentials_of(loaded, url=url, key=place.key),
        **chosen,
    )


def _crashes(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_CRASHES:
        raise InvalidRequest(f"max_crashes must be a whole number from 1 to {MOST_CRASHES:,}, not {value!r:.100}")
    return value


def _lease(lease: Duration) -> Span:
    span = parse_duration(lease, "lease")
    if not SHORTEST_LEASE <= span <= LONGEST_LEASE:
        shortest, longest = format_span(SHORTEST_LEASE), format_span(LONGEST_LEASE)
        raise InvalidRequest(f"lease must be between {shortest} and {longest}, not {lease!r:.100}")
    return span
