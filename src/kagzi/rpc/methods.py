"""Every RPC there is, from the compiled contract: for the server, for those who guard it, and for tests.

All are one request and one response, but EXCHANGE, the stream that carries any of the others.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import message_factory
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import Message
from msgspec import Struct

from kagzi._proto.v1 import (
    admin_pb2,
    exchange_pb2,
    job_pb2,
    namespace_pb2,
    worker_pb2,
    workflow_pb2,
    workflow_schedule_pb2,
)
from kagzi.rpc import limits


class Method(Struct, frozen=True):
    path: str  # as gRPC names it: /kagzi.v1.WorkflowService/StartWorkflow
    service: str  # WorkflowService
    rpc: str  # StartWorkflow
    request: type[Message]
    response: type[Message]
    has_namespace: bool  # whether the request says which namespace it concerns
    most_bytes: int  # of a request


# What carries payloads. Of the others the largest lists ten thousand ids.
_LARGE: Final = frozenset(
    {
        *("StartWorkflow", "StartWorkflows", "CommitBatch", "BeginStep", "CompleteStep", "FailStep"),
        *("SpawnChild", "SignalWorkflow", "RetryWorkflow", "Register"),
        *("CompleteWorkflow", "FailWorkflow", "CreateWorkflowSchedule", "UpdateWorkflowSchedule", "Exchange"),
    }
)


def _methods(*files: FileDescriptor) -> dict[str, Method]:
    methods: dict[str, Method] = {}
    for file in files:
        for service in file.services_by_name.values():
            for rpc in service.methods:
                path = f"/{service.full_name}/{rpc.name}"
                request: Any = message_factory.GetMessageClass(rpc.input_type)
                response: Any = message_factory.GetMessageClass(rpc.output_type)
                has_namespace = "namespace" in rpc.input_type.fields_by_name
                most = limits.MESSAGE_BYTES if rpc.name in _LARGE else limits.SMALL_BYTES
                methods[path] = Method(path, service.name, rpc.name, request, response, has_namespace, most)
    return methods


METHODS: Final[dict[str, Method]] = _methods(
    workflow_pb2.DESCRIPTOR,
    worker_pb2.DESCRIPTOR,
    workflow_schedule_pb2.DESCRIPTOR,
    namespace_pb2.DESCRIPTOR,
    admin_pb2.DESCRIPTOR,
    job_pb2.DESCRIPTOR,
)
EXCHANGE: Final[Method] = _methods(exchange_pb2.DESCRIPTOR)["/kagzi.v1.ExchangeService/Exchange"]
PACKAGE: Final = "kagzi.v1"
SERVICES: Final[dict[str, list[str]]] = {}  # and their RPCs
for _method in (*METHODS.values(), EXCHANGE):
    SERVICES.setdefault(_method.service, []).append(_method.rpc)


def path(service: str, rpc: str) -> str:
    return f"/{PACKAGE}.{service}/{rpc}"
