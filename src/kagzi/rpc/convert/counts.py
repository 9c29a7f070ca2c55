"""Counts of runs."""

from __future__ import annotations

from kagzi._proto.v1 import admin_pb2 as pb
from kagzi.api.admin import RunCount
from kagzi.rpc.convert.runs import either_status, exact_status


def count_to_wire(count: RunCount) -> pb.RunCount:
    return pb.RunCount(
        workflow_type=count.workflow_type,
        task_queue=count.task_queue,
        status=exact_status(count.status),
        count=count.count,
        at_least=count.at_least,
    )


def count_from_wire(count: pb.RunCount) -> RunCount:
    return RunCount(
        workflow_type=count.workflow_type,
        task_queue=count.task_queue,
        status=either_status(count.status, 0),
        count=count.count,
        at_least=count.at_least,
    )
