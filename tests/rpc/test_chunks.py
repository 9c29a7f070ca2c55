"""Chunks on the wire, and the answers to them."""

from __future__ import annotations

import pytest

from kagzi._proto.v1 import worker_pb2 as pb
from kagzi.api.operations import (
    CancelStep,
    Chunk,
    ChunkAnswer,
    CompleteRun,
    CompleteStep,
    FailStep,
    Operation,
    ParkRun,
    StartStep,
)
from kagzi.core.step import StepKind
from kagzi.rpc.convert.work import all_done, answer_to_wire, chunk_from_wire, chunk_to_wire

EMPTY = CompleteStep(
    step_id="pay#1",
    attempt=1,
    kind=StepKind.FUNCTION,
    completed_seq=0,
    started_at=0,
    finished_at=0,
    retry_at=0,
    timeout_at=0,
    input=b"",
    input_hash=0,
    output=b"",
    error=b"",
)
ABSENT = FailStep(
    step_id="pay#1",
    attempt=1,
    kind=StepKind.SLEEP,
    completed_seq=None,
    started_at=0,
    finished_at=None,
    retry_at=None,
    timeout_at=None,
    input=None,
    input_hash=0,
    output=None,
    error=None,
)
FULL = StartStep(
    step_id="pay#1",
    attempt=3,
    kind=StepKind.FUNCTION,
    completed_seq=7,
    started_at=1,
    finished_at=2,
    retry_at=3,
    timeout_at=4,
    input=b"[1]",
    input_hash=-5,
    output=b"2",
    error=b"no",
)


@pytest.mark.parametrize(
    "operations",
    [
        (EMPTY,),
        (ABSENT,),
        (FULL,),
        (FULL, EMPTY, ABSENT, CompleteRun(output=b"")),
        (ParkRun(available_at=0, inbox_seq=0),),
        (CancelStep(**{field: getattr(ABSENT, field) for field in ABSENT.__struct_fields__}),),
    ],
)
def test_a_chunk_arrives_as_it_was_sent(operations: tuple[Operation, ...]) -> None:
    """What is empty stays empty, and what is absent absent."""
    chunk = Chunk(namespace="default", run_id="run", token="token", operations=operations)
    message = pb.Chunk.FromString(chunk_to_wire(chunk).SerializeToString())
    assert chunk_from_wire(message, "default") == chunk


@pytest.mark.parametrize("chunks", [0, 1, 2, 1000])
def test_many_that_are_done_are_said_like_one_by_one(chunks: int) -> None:
    one_by_one = pb.CommitBatchResponse(results=[answer_to_wire(ChunkAnswer.DONE) for _ in range(chunks)])
    assert all_done(chunks) == one_by_one


def test_one_that_is_not_done_makes_the_answer_another() -> None:
    answers = [ChunkAnswer.DONE, ChunkAnswer.LEASE_LOST, ChunkAnswer.DONE]
    assert all_done(3) != pb.CommitBatchResponse(results=map(answer_to_wire, answers))
