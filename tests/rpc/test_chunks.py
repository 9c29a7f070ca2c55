"""Chunks on the wire, and the answers to them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kagzi._proto.v1 import worker_pb2 as pb
from kagzi.api.operations import (
    CancelStep,
    ChildStart,
    Chunk,
    ChunkAnswer,
    CompleteRun,
    CompleteStep,
    EndCancelledRun,
    FailRun,
    FailStep,
    HandBackRun,
    Operation,
    ParkRun,
    RetryRun,
    SetValue,
    SpawnChild,
    StartStep,
    StepOperation,
    TakeOutcome,
)
from kagzi.core.step import StepKind
from kagzi.errors import InvalidRequest, VersionMismatch
from kagzi.rpc.convert.packed import pack_chunk, unpack_chunk
from kagzi.rpc.convert.work import all_done, answer_to_wire, chunk_from_wire

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


ENDS: list[tuple[Operation, str]] = [
    (ParkRun(available_at=0, inbox_seq=0), "park"),
    (ParkRun(available_at=7, inbox_seq=8), "park"),
    (HandBackRun(), "hand_back"),
    (HandBackRun(available_at=0), "hand_back"),
    (RetryRun(available_at=1, keep_seq=2, error=b"no"), "retry"),
    (CompleteRun(output=b""), "complete"),
    (CompleteRun(output=b"", unless_cancelled=True), "complete"),
    (CompleteRun(output=b"2", unless_cancelled=False), "complete"),
    (FailRun(error=b"no"), "fail"),
    (EndCancelledRun(error=b"no"), "end_cancelled"),
]
CHUNKS: list[tuple[Operation, ...]] = [
    (EMPTY,),
    (ABSENT,),
    (FULL,),
    (FULL, EMPTY, ABSENT, CompleteRun(output=b"")),
    (CancelStep(**{field: getattr(ABSENT, field) for field in ABSENT.__struct_fields__}),),
    *[(end,) for end, _ in ENDS],
]


def chunk_of(*operations: Operation) -> Chunk:
    return Chunk(namespace="default", run_id="run", token="token", operations=operations)


def said_by_another_client(chunk: Chunk) -> bytes:
    """In protobuf, as somebody writes it who has nothing of ours."""
    message = pb.Chunk(run_id=chunk.run_id, token=chunk.token)
    for operation in chunk.operations:
        fields = {name: getattr(operation, name) for name in operation.__struct_fields__}
        instants = {f"{name}_us": fields.pop(name) for name in list(fields) if name.endswith("_at")}
        if isinstance(operation, StepOperation):
            kind = f"STEP_KIND_{fields.pop('kind')}"
            message.steps.add(kind=kind, status=f"STEP_STATUS_{operation.status}", **fields, **instants)
        else:
            end = next(name for known, name in ENDS if type(known) is type(operation))
            inner = getattr(message, end)
            fields.pop("family", None)  # they leave it to the server to look
            inner.MergeFrom(type(inner)(**fields, **instants))
            inner.SetInParent()
    return message.SerializeToString()


@pytest.mark.parametrize("operations", CHUNKS)
def test_a_chunk_arrives_as_it_was_sent(operations: tuple[Operation, ...]) -> None:
    """What is empty stays empty, and what is absent absent."""
    chunk = chunk_of(*operations)
    assert unpack_chunk(pack_chunk(chunk), "default") == chunk
    assert chunk_from_wire(pb.Chunk.FromString(said_by_another_client(chunk)), "default") == chunk


def test_a_packed_chunk_belongs_to_the_namespace_of_its_call() -> None:
    chunk = Chunk(namespace="theirs", run_id="run", token="token", operations=(EMPTY,))
    assert b"theirs" not in pack_chunk(chunk)
    assert unpack_chunk(pack_chunk(chunk), "ours").namespace == "ours"


# How an operation looks to servers that are there already: it does not change, but for fields that come last.
PACKED = [
    (FULL, [1, "pay#1", 3, "FUNCTION", 7, 1, 2, 3, 4, b"[1]", -5, b"2", b"no"]),
    (EMPTY, [2, "pay#1", 1, "FUNCTION", 0, 0, 0, 0, 0, b"", 0, b"", b""]),
    (ABSENT, [3, "pay#1", 1, "SLEEP", None, 0, None, None, None, None, 0, None, None]),
    (CancelStep(step_id="pay#1", started_at=9), [4, "pay#1", 1, "FUNCTION", None, 9, *[None] * 4, 0, None, None]),
    (ParkRun(available_at=7, inbox_seq=8, waiting_for=("s:go",)), [11, 7, 8, ["s:go"]]),
    (HandBackRun(), [12, None]),
    (RetryRun(available_at=1, keep_seq=2, error=b"no"), [13, 1, 2, b"no"]),
    (CompleteRun(output=b"2", unless_cancelled=True), [14, b"2", True, None]),
    (FailRun(error=b"no", family=False), [15, b"no", False]),
    (EndCancelledRun(error=b"no"), [16, b"no", None]),
    (
        SpawnChild(
            step_id="render#2",
            kind=StepKind.CHILD_WORKFLOW,
            started_at=9,
            input=b"[1]",
            child=ChildStart(run_id="child", workflow_type="render", task_queue="mail", version="2"),
        ),
        [
            *[5, "render#2", 1, "CHILD_WORKFLOW", None, 9, None, None, None, b"[1]", 0, None, None],
            ["child", "render", "mail", "2", None, 0, 0, *[None] * 6, "cancel", None, 1, {}, "fail", None],
        ],
    ),
    (
        TakeOutcome(step_id="render#2", kind=StepKind.CHILD_WORKFLOW, completed_seq=3, started_at=9, finished_at=10),
        [6, "render#2", 1, "CHILD_WORKFLOW", 3, 9, 10, None, None, None, 0, None, None],
    ),
]


@pytest.mark.parametrize(("operation", "array"), PACKED)
def test_the_form_of_packed_operations_is_kept(operation: Operation, array: list[Any]) -> None:
    assert msgspec.msgpack.decode(pack_chunk(chunk_of(operation))) == ["run", "token", [array]]
    # What a newer client adds is passed over.
    newer = msgspec.msgpack.encode(["run", "token", [[*array, "more"]], "more"][:3])
    assert unpack_chunk(newer, "default") == chunk_of(operation)


STEP: list[Any] = PACKED[1][1]


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {},
        ["run", "token"],
        ["run", "token", None],
        ["run", b"token", []],
        [1, "token", []],
        ["run", "token", [None]],
        ["run", "token", [[]]],
        ["run", "token", [["2", "pay#1"]]],
        ["run", "token", [[2]]],
        ["run", "token", [[2, "pay#1"]]],
        ["run", "token", [[*STEP[:3], "DANCE", *STEP[4:]]]],
        *[
            ["run", "token", [[*STEP[:2], attempt, *STEP[3:]]]]
            for attempt in (2**31, -(2**31) - 1, 2**64 - 1, 1.5, "1")
        ],
        *[["run", "token", [[*STEP[:5], started_at, *STEP[6:]]]] for started_at in (2**63, 2**64 - 1, None, True)],
        ["run", "token", [[*STEP[:9], "text", *STEP[10:]]]],
        ["run", "token", [[11, 2**63, 0]]],
        ["run", "token", [[11, 0, 2**31]]],
    ],
)
def test_what_is_no_packed_chunk_is_refused(content: Any) -> None:
    with pytest.raises(InvalidRequest, match="a packed chunk cannot be read"):
        unpack_chunk(msgspec.msgpack.encode(content), "default")


def test_an_operation_of_a_newer_worker_is_a_mismatch_of_versions() -> None:
    """Were it an invalid request, the worker would fail the run for it."""
    newer = msgspec.msgpack.encode(["run", "token", [PACKED[0][1], [99, "pay#1", {"new": True}]]])
    with pytest.raises(VersionMismatch, match="does not know operation 99 of a packed chunk; upgrade it before"):
        unpack_chunk(newer, "default")


NOT_MESSAGEPACK = [
    b"",
    b"\xc1",
    b"\xdd\xff\xff\xff\xff",  # says that four thousand million items follow
    b"\xc6\xff\xff\xff\xff",
    b"\x93\xa3run",
    b"\x93\xa1\xff\xa1t\x90",  # not UTF-8
]


@pytest.mark.parametrize("data", NOT_MESSAGEPACK)
def test_what_is_no_messagepack_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="a packed chunk cannot be read"):
        unpack_chunk(data, "default")


@pytest.mark.parametrize("chunks", [0, 1, 2, 1000])
def test_many_that_are_done_are_said_like_one_by_one(chunks: int) -> None:
    one_by_one = pb.CommitBatchResponse(results=[answer_to_wire(ChunkAnswer.DONE) for _ in range(chunks)])
    assert all_done(chunks) == one_by_one


def test_one_that_is_not_done_makes_the_answer_another() -> None:
    answers = [ChunkAnswer.DONE, ChunkAnswer.LEASE_LOST, ChunkAnswer.DONE]
    assert all_done(3) != pb.CommitBatchResponse(results=map(answer_to_wire, answers))


def test_values_of_another_client_come_before_the_end() -> None:
    message = pb.Chunk(
        run_id="run",
        token="token",
        values=[pb.SetValue(name="stage", value=b"1", number=2), pb.SetValue(name="n", value=b"")],
        complete=pb.CompleteRun(output=b"1"),
    )
    assert chunk_from_wire(message, "default").operations == (
        SetValue(name="stage", value=b"1", number=2),
        SetValue(name="n", value=b""),
        CompleteRun(output=b"1"),
    )


def test_values_keep_their_tag() -> None:
    """Workers of other versions write it, too."""
    packed = pack_chunk(chunk_of(SetValue(name="stage", value=b"1", number=3)))
    assert msgspec.msgpack.decode(packed) == ["run", "token", [[8, "stage", b"1", 3]]]
    assert unpack_chunk(packed, "default") == chunk_of(SetValue(name="stage", value=b"1", number=3))
