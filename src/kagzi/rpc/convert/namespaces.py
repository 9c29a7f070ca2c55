"""Namespaces, as administrators see them."""

from __future__ import annotations

from kagzi._proto.v1 import namespace_pb2 as pb
from kagzi.core.namespace import Namespace
from kagzi.rpc.convert.common import timestamp


def namespace_to_wire(namespace: Namespace) -> pb.Namespace:
    """Converts a namespace. Its name is never given to another one, so it is the id as well."""
    return pb.Namespace(
        id=namespace.namespace,
        namespace=namespace.namespace,
        display_name=namespace.display_name,
        description=namespace.description,
        enabled=namespace.enabled,
        created_at=timestamp(namespace.created_at),
        updated_at=timestamp(namespace.updated_at),
        on_failure=namespace.on_failure,
        on_failure_queue=namespace.on_failure_queue,
    )


def namespace_from_wire(namespace: pb.Namespace) -> Namespace:
    return Namespace(
        namespace=namespace.namespace,
        display_name=namespace.display_name,
        description=namespace.description,
        enabled=namespace.enabled,
        created_at=namespace.created_at.ToMicroseconds(),
        updated_at=namespace.updated_at.ToMicroseconds(),
        on_failure=namespace.on_failure if namespace.HasField("on_failure") else None,
        on_failure_queue=namespace.on_failure_queue if namespace.HasField("on_failure_queue") else None,
    )
