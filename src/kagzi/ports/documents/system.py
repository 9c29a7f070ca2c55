"""Namespaces and health, as people read them."""

from __future__ import annotations

from msgspec import Struct

from kagzi.core.health import Health, HealthStatus
from kagzi.core.namespace import Namespace
from kagzi.ports.documents.common import Moment, _moment, moment


class NamespaceDocument(Struct, frozen=True, kw_only=True):
    """A tenant. One that is not `enabled` starts no runs. `on_failure` is the workflow that is started when a run of it
    fails; it waits in `on_failure_queue`, else in the queue of that run."""

    namespace: str
    display_name: str
    description: str
    enabled: bool
    on_failure: str | None
    on_failure_queue: str | None
    created_at: Moment
    updated_at: Moment


class ComponentDocument(Struct, frozen=True, kw_only=True):
    name: str
    status: HealthStatus
    message: str


class HealthDocument(Struct, frozen=True, kw_only=True):
    """`status` is the worst of those of its components."""

    status: HealthStatus
    components: tuple[ComponentDocument, ...]
    checked_at: Moment | None


def namespace_document(namespace: Namespace) -> NamespaceDocument:
    return NamespaceDocument(
        namespace=namespace.namespace,
        display_name=namespace.display_name or namespace.namespace,
        description=namespace.description,
        enabled=namespace.enabled,
        on_failure=namespace.on_failure,
        on_failure_queue=namespace.on_failure_queue,
        created_at=_moment(namespace.created_at),
        updated_at=_moment(namespace.updated_at),
    )


def health_document(health: Health, *, outside: bool = False, details: bool = True) -> HealthDocument:
    """For those `outside`, without what a database says about itself: it names hosts and files. `details` tell of all
    namespaces, and are not for those who may see only one."""
    return HealthDocument(
        status=health.status,
        components=tuple(
            [
                ComponentDocument(
                    name=part.name,
                    status=part.status,
                    message=""
                    if not details
                    else "it does not answer"
                    if outside and part.name == "database" and part.status is HealthStatus.UNHEALTHY
                    else part.message,
                )
                for part in health.components
            ]
        ),
        checked_at=moment(health.checked_at),
    )
