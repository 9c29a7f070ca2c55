"""A failed run as its failure handler gets it, and how that is stored: one document for both databases.

The engine has no codec, so it cannot read what the failed run was given. The document leaves that out; the bytes are
copied as they are beside it (`FAILED_INPUT`), and the worker of the handler reads them.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from kagzi.core.failure import Failure
from kagzi.core.instant import Instant, to_datetime
from kagzi.core.run import RunStatus
from kagzi.errors import CannotDecode, InvalidRequest

HANDLER_ALONE: Final = "on_failure is the name of a workflow; the queue of that one belongs into on_failure_queue"
FAILURE_HANDLER: Final = "__kagzi_failure_handler"  # the type of the handler that a whole namespace has
FAILED_INPUT: Final = "@failed_input"  # the name in run_values of what the failed run was given


class FailedRun(Struct, frozen=True, kw_only=True, rename={"stored_input": "input"}):
    """A run that has FAILED or TIMED_OUT, for the workflow that handles it.

    `workflow`, `version`, `queue` and `id` are those it was started with, `failure` is why it failed, `input` what it
    was given. `attempts` counts its tries, `crashes` workers it lost in a row. A child says whose it is.
    """

    run_id: str
    namespace: str
    workflow: str
    version: str
    queue: str
    id: str | None
    status: RunStatus
    failure: Failure
    attempts: int
    crashes: int
    created_at: datetime
    started_at: datetime | None
    failed_at: datetime
    parent_run_id: str | None = None
    stored_input: Any = None
    unreadable_input: str | None = None  # why the input cannot be read here, if that is so

    @property
    def input(self) -> Any:
        """The arguments of the failed run as plain JSON data: a list, or a dict where some were given by name.
        InvalidRequest if this worker cannot read them, because it has another codec."""
        if self.unreadable_input is not None:
            raise InvalidRequest(f"the input of run {self.run_id} cannot be read here: {self.unreadable_input}")
        return self.stored_input


class FailedRow(Struct, frozen=True, kw_only=True):
    """What a store reads of a run that it has failed."""

    namespace: str
    run_id: str
    workflow_type: str
    version: str
    task_queue: str
    external_id: str | None
    status: str
    error: bytes | None
    attempts: int
    crashes: int
    created_at: Instant
    started_at: Instant | None
    finished_at: Instant
    parent_run_id: str | None
    priority: int
    on_failure: str | None  # its own handler
    on_failure_queue: str | None
    namespace_handler: str | None  # that of its namespace, as an administrator has set it
    namespace_queue: str | None
    registered_queue: str | None  # where the namespace's handler waits that a worker has registered


class Handler(Struct, frozen=True):
    """A run that is to be started because another has failed."""

    workflow_type: str
    task_queue: str


def handlers_of(row: FailedRow) -> list[Handler]:
    """Returns the handlers that a failed run calls for: its own, and that of its namespace, which an administrator has
    set or else a worker has registered. One that is both is called once."""
    found: dict[str, Handler] = {}
    if row.namespace_handler is not None:
        found[row.namespace_handler] = Handler(row.namespace_handler, row.namespace_queue or row.task_queue)
    elif row.registered_queue is not None:
        found[FAILURE_HANDLER] = Handler(FAILURE_HANDLER, row.registered_queue)
    if row.on_failure is not None:
        found[row.on_failure] = Handler(row.on_failure, row.on_failure_queue or row.task_queue)
    return [found[name] for name in sorted(found)]


def document(row: FailedRow) -> bytes:
    """Returns the arguments of a handler: a list of one object, without the input of the failed run."""
    return msgspec.json.encode(
        [
            {
                "run_id": row.run_id,
                "namespace": row.namespace,
                "workflow": row.workflow_type,
                "version": row.version,
                "queue": row.task_queue,
                "id": row.external_id,
                "status": row.status,
                "failure": Failure.decode(row.error) if row.error else Failure(type="unknown"),
                "attempts": row.attempts,
                "crashes": row.crashes,
                "created_at": to_datetime(row.created_at),
                "started_at": None if row.started_at is None else to_datetime(row.started_at),
                "failed_at": to_datetime(row.finished_at),
                "parent_run_id": row.parent_run_id,
            }
        ]
    )


def is_document(input: bytes) -> bool:
    """Returns whether the engine has written a handler's input, rather than a codec: what a handler begins anew
    with, or is forked with, is encoded."""
    return input.startswith(b'[{"run_id":"')


def with_input(
    value: object, data: bytes, read: Callable[[bytes], Any], read_failure: Callable[[bytes], Failure]
) -> object:
    """Returns a FailedRun with the input of the failed run, and any other argument as it is."""
    if not isinstance(value, FailedRun):
        return value
    with suppress(CannotDecode):  # it stays as it is stored, with its class
        value = replace(value, failure=read_failure(value.failure.encode()))
    try:
        return replace(value, stored_input=read(data))
    except Exception as error:
        return replace(value, unreadable_input=f"{type(error).__name__}: {error}"[:1000])


def whole_document(input: bytes, data: bytes) -> bytes:
    """Returns the object for workers that have no FailedRun: with the input of the failed run, as JSON or else as
    base64."""
    (found,) = msgspec.json.decode(input, type=tuple[dict[str, Raw]])
    try:
        msgspec.json.decode(data)
        found["input"] = Raw(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found["input"] = Raw(msgspec.json.encode({"base64": base64.b64encode(data).decode()}))
    return msgspec.json.encode(found)
