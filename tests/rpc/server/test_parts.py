"""How many parts a message may have, before it is read."""

from __future__ import annotations

import pytest

from kagzi._proto.v1 import worker_pb2, workflow_pb2
from kagzi._proto.v1.exchange_pb2 import ExchangeRequest
from kagzi.errors import InvalidRequest
from kagzi.rpc.server import parts
from kagzi.rpc.server.parts import MOST_PARTS, Parts
from tests.rpc.hostile import _varint


def test_a_thousand_starts_with_everything_are_few() -> None:
    start = workflow_pb2.StartWorkflowRequest(workflow_type="w" * 100, task_queue="q", external_id="x" * 100)
    start.input.data = b"x" * 1000
    start.input.metadata.update({f"key {number}": "value" for number in range(10)})
    start.retry_policy.non_retryable_errors.extend(["Error"] * 20)
    request = workflow_pb2.StartWorkflowsRequest(starts=[start] * 1000)
    Parts(workflow_pb2.StartWorkflowsRequest).check(request.SerializeToString())


@pytest.mark.parametrize("wrapped", [False, True])
def test_empty_items_are_too_many(wrapped: bool) -> None:
    data = b"\x12\x00" * (MOST_PARTS + 1)
    if wrapped:
        # In the metadata of the payload of a single start.
        data = b"\x12" + _varint(len(data)) + data
        for field in (b"\x2a", b"\x12"):
            data = field + _varint(len(data)) + data
    with pytest.raises(InvalidRequest, match="StartWorkflowsRequest has more than 100,000 parts; send fewer items"):
        Parts(workflow_pb2.StartWorkflowsRequest).check(data)


def test_numbers_in_a_row_are_parts() -> None:
    given_up = ExchangeRequest(given_up=range(MOST_PARTS + 1)).SerializeToString()
    with pytest.raises(InvalidRequest, match="more than 100,000 parts"):
        Parts(ExchangeRequest).check(given_up)


def test_bytes_are_one_part_whatever_is_in_them() -> None:
    Parts(worker_pb2.CommitBatchRequest).check(
        worker_pb2.CommitBatchRequest(packed=[bytes(3_000_000)]).SerializeToString()
    )


def test_unknown_fields_and_groups_count() -> None:
    for unknown in (b"\xba\x7d\x00", b"\xb8\x7d\x01", b"\x0b\x0c"):
        with pytest.raises(InvalidRequest, match="more than"):
            Parts(workflow_pb2.GetWorkflowRequest).check(unknown * (MOST_PARTS + 1))


@pytest.mark.parametrize(
    "broken",
    [b"\xff" * 20, b"\x0a\x7f", b"\x08" + b"\xff" * 20, b"\x0a", b"\x0f", b"\x0a\xff\xff\xff\xff\x0f", b"\x0d\0"],
)
def test_what_breaks_off_is_left_to_protobuf(monkeypatch: pytest.MonkeyPatch, broken: bytes) -> None:
    monkeypatch.setattr(parts, "FEW_BYTES", 0)
    Parts(workflow_pb2.StartWorkflowsRequest).check(broken)


def test_what_is_nested_without_end_is_left_to_protobuf() -> None:
    nested = bytes(2 * MOST_PARTS)
    for _ in range(5000):
        nested = b"\x0a" + _varint(len(nested)) + nested
    Parts(worker_pb2.FailStepRequest).check(nested)
