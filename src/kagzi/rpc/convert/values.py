"""Values of runs: messages into core and api, and back."""

from __future__ import annotations

from kagzi._proto.v1 import workflow_pb2
from kagzi.core.run_value import RunValue
from kagzi.rpc.convert.common import NULL, payload_from_bytes

pb = workflow_pb2


def value_to_wire(value: RunValue) -> pb.RunValue:
    return pb.RunValue(name=value.name, value=payload_from_bytes(value.value), at_us=value.at)


def value_from_wire(value: pb.RunValue) -> RunValue:
    return RunValue(name=value.name, value=value.value.data or NULL, at=value.at_us)
