"""Namespaces: tenants that see nothing of each other."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kagzi.core.instant import Instant

DEFAULT_NAMESPACE: Final = "default"  # always there
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
