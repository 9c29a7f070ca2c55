"""Every operation that a worker can commit is known wherever operations are listed."""

from __future__ import annotations

from typing import Any, get_args

from kagzi._proto.v1 import worker_pb2 as pb
from kagzi.api.operations import RunOperation, SetValue, StepOperation
from kagzi.rpc.convert import packed, work
from kagzi.sdk.worker import traced


def kinds_of(base: type[Any]) -> set[type[Any]]:
    """The classes of operations: those that no other derives from."""
    below = base.__subclasses__()
    return {base} if not below else set().union(*map(kinds_of, below))


ENDS = kinds_of(RunOperation)


def test_our_workers_can_send_each() -> None:
    assert set(get_args(packed._Operation)) == kinds_of(StepOperation) | ENDS | {SetValue}


def test_tags_are_of_one_operation_each() -> None:
    tags = [kind.__struct_config__.tag for kind in get_args(packed._Operation)]
    assert len(set(tags)) == len(tags)


def test_others_workers_can_end_a_chunk_with_each() -> None:
    ends = set()
    for field in pb.Chunk.DESCRIPTOR.oneofs_by_name["end"].fields:
        message = pb.Chunk()
        getattr(message, field.name).SetInParent()
        ends.add(type(work._end_of(message)))
    assert ends == ENDS


def test_each_end_has_a_name_in_a_trace() -> None:
    assert traced._ENDS.keys() == ENDS
