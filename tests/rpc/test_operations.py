"""Every operation that a worker can commit stands in the one list of them, from which the others follow."""

from __future__ import annotations

from typing import Any

from kagzi._proto.v1 import worker_pb2 as pb
from kagzi.api.operations import OPERATIONS, TRANSITIONS, RunOperation, SetValue, StepOperation
from kagzi.rpc.convert import work


def kinds_of(base: type[Any]) -> set[type[Any]]:
    """The classes of operations: those that no other derives from."""
    below = base.__subclasses__()
    return {base} if not below else set().union(*map(kinds_of, below))


def test_the_list_is_whole() -> None:
    assert set(TRANSITIONS) == kinds_of(RunOperation)
    assert set(OPERATIONS) == kinds_of(StepOperation) | {SetValue} | set(TRANSITIONS)


def test_tags_and_outcomes_are_of_one_operation_each() -> None:
    assert len({kind.__struct_config__.tag for kind in OPERATIONS}) == len(OPERATIONS)
    assert len({kind.outcome for kind in TRANSITIONS}) == len(TRANSITIONS)


def test_others_workers_can_end_a_chunk_with_each() -> None:
    ends = set()
    for field in pb.Chunk.DESCRIPTOR.oneofs_by_name["end"].fields:
        message = pb.Chunk()
        getattr(message, field.name).SetInParent()
        ends.add(type(work._end_of(message)))
    assert ends == set(TRANSITIONS)
