"""Namespaces: tenants that see nothing of each other."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kagzi.core.instant import Instant
from kagzi.errors import InvalidRequest

DEFAULT_NAMESPACE: Final = "default"  # always there


def check_same_namespace(said: str, meant: str) -> None:
    """Refuses a filter that names another namespace than the request that carries it."""
    if said != meant:
        raise InvalidRequest(
            f"the filter names namespace {said!r:.100} and the request {meant!r:.100}; leave it out of the filter"
        )


DESCRIPTION_CHARACTERS: Final = 4000


class Namespace(Struct, frozen=True, kw_only=True):
    namespace: str
    display_name: str
    description: str
    enabled: bool  # whether runs may be started in it
    created_at: Instant
    updated_at: Instant
    on_failure: str | None = None  # the workflow that is started when a run of it fails
    on_failure_queue: str | None = None  # the queue of that workflow's run; None: the queue of the failed run
