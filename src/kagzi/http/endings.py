"""Ending and waking runs over HTTP, and beginning them again."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from kagzi.api.operations import (
    CancelAnswer,
    CancelRun,
    Fork,
    RepeatRun,
    TerminateRun,
)
from kagzi.core.limits import (
    REASON_CHARACTERS,
    STEP_ID_BYTES,
)
from kagzi.core.run import CANCEL_GRACE, RunStatus
from kagzi.http.call import Call, Namespaced, Reply
from kagzi.http.fields import NEW_RUN_ID, TEXT, Length, Name
from kagzi.http.lengths import length_of
from kagzi.http.problems import naming
from kagzi.http.reading import read_json
from kagzi.http.runs import run_id_of
from kagzi.http.signals import NULL
from kagzi.http.starts import new_run_id, started_reply

# Ending, and beginning again.


class Ending(Struct, frozen=True, kw_only=True):
    """`effective`: the run is cancelled or was told to end, also by an earlier request. If not, it had finished before,
    as `status` says, and that is final."""

    run_id: str
    effective: bool
    status: RunStatus


class CancelBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    grace: Annotated[Length | None, Meta(description="How long it may clean up; 30 s unless said.")] = None


async def cancel(call: Call[Namespaced, CancelBody]) -> Ending:
    grace = CANCEL_GRACE if call.body.grace is None else length_of(call.body.grace, "grace")
    run_id = await run_id_of(call, call.path["run_id"])
    request = CancelRun(namespace=call.namespace, run_id=run_id, grace=grace)
    return _ending(await call.engine.workflows.cancel(request))


class TerminateBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS, extra_json_schema=TEXT)] = ""


async def terminate(call: Call[Namespaced, TerminateBody]) -> Ending:
    run_id = await run_id_of(call, call.path["run_id"])
    request = TerminateRun(namespace=call.namespace, run_id=run_id, reason=call.body.reason)
    with naming("reason"):
        return _ending(await call.engine.workflows.terminate(request))


def _ending(answer: CancelAnswer) -> Ending:
    return Ending(run_id=answer.run_id, effective=answer.effective, status=answer.status)


class Woken(Struct, frozen=True, kw_only=True):
    """`woken`: the run waited for a moment, and goes on now. If not, it is running, due already, has finished, or
    waits for a signal or a child alone."""

    run_id: str
    woken: bool
    status: RunStatus


class WakeBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


async def wake(call: Call[Namespaced, WakeBody]) -> Woken:
    answer = await call.engine.workflows.wake(call.namespace, await run_id_of(call, call.path["run_id"]))
    return Woken(run_id=answer.run_id, woken=answer.woken, status=answer.status)


class RepeatBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run_id: Annotated[
        str | None,
        Meta(
            description="Of the new run: a UUIDv7 made by the caller, so that repeating is harmless.",
            extra_json_schema=NEW_RUN_ID,
        ),
    ] = None
    keep_id: Annotated[
        bool, Meta(description="Your own id of the run goes to the new one. False: it stays where it is.")
    ] = True


async def retry(call: Call[Namespaced, RepeatBody]) -> Reply:
    return await _repeat(call, keep_steps=True)


async def rerun(call: Call[Namespaced, RepeatBody]) -> Reply:
    return await _repeat(call, keep_steps=False)


class ForkBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    from_step: Annotated[
        Annotated[str, Meta(min_length=1, max_length=STEP_ID_BYTES, extra_json_schema=TEXT)] | None,
        Meta(
            description="What was recorded before its end is kept. By its id or its name. Without it nothing is kept."
        ),
    ] = None
    input: Annotated[
        Raw,
        Meta(description="Other arguments: an array by position, an object by name. Null: those of the run."),
    ] = msgspec.field(default_factory=lambda: Raw(NULL))
    version: Annotated[Name | None, Meta(description="Another version. Without it that of the run.")] = None
    run_id: Annotated[
        str | None,
        Meta(
            description="Of the new run: a UUIDv7 made by the caller, so that repeating is harmless.",
            extra_json_schema=NEW_RUN_ID,
        ),
    ] = None


async def fork(call: Call[Namespaced, ForkBody]) -> Reply:
    body = call.body
    request = RepeatRun(
        namespace=call.namespace,
        run_id=new_run_id(call, body.run_id),
        of_run_id=await run_id_of(call, call.path["run_id"]),
        keep_steps=body.from_step is not None,
        keep_id=False,
        fork=Fork(
            from_step=body.from_step,
            input=None if bytes(body.input) == NULL else await read_json(body.input, "input"),
            version=body.version,
        ),
    )
    # The other fields have been looked at by now.
    given = {"from_step": body.from_step, "version": body.version}
    with naming(" or ".join(name for name, value in given.items() if value is not None)):
        made = await call.engine.workflows.repeat(request)
    return started_reply(made)


async def _repeat(call: Call[Namespaced, RepeatBody], *, keep_steps: bool) -> Reply:
    request = RepeatRun(
        namespace=call.namespace,
        run_id=new_run_id(call, call.body.run_id),
        of_run_id=await run_id_of(call, call.path["run_id"]),
        keep_steps=keep_steps,
        keep_id=call.body.keep_id,
    )
    return started_reply(await call.engine.workflows.repeat(request))
