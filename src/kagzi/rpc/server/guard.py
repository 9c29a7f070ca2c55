"""The gate, as gRPC calls come to it.

A key comes as metadata, `authorization: Bearer kgz_…`. The namespace of a key is put into the request itself, so that
services and engine see an ordinary request of that namespace: nothing behind the gate knows of keys. Every request that
concerns a namespace has a field for it, `rpc.methods` being the list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message

from kagzi.access.caller import Caller
from kagzi.access.gate import Auditor, Gate
from kagzi.access.shares import Room
from kagzi.access.table import ACTIONS
from kagzi.core.audit import OK, AuditEntry
from kagzi.core.job import JobAction
from kagzi.core.key import Role
from kagzi.errors import KagziError, Unavailable
from kagzi.ids import IdSource
from kagzi.ports.requests import request_id
from kagzi.rpc.convert.limits import SCOPE_NAMES
from kagzi.rpc.convert.runs import namespace_of
from kagzi.rpc.methods import EXCHANGE, Method
from kagzi.rpc.server.calls import CallAlone, CallerHeaders, CallOnStream
from kagzi.rpc.server.respond import Guard
from kagzi.rpc.status import Refused

Handle = Callable[[Any, Any], Awaitable[Message]]

PROBE_SECONDS = 2.0  # how long a probe waits until it is known who asks

_HEALTH: Final = "HealthCheck"
_REGISTER: Final = "Register"
# Fields that say who does it: where keys are asked for that is the caller, whatever the request says.
_BY: Final = {"PauseClaims": "by", "StartJob": "created_by"}
_DRAIN: Final = "/kagzi.v1.AdminService/DrainWorker"
_MOVE: Final = "/kagzi.v1.AdminService/MoveWorkflows"
_TARGETS: Final = ("run_id", "external_id", "job_id", "schedule_id", "worker_id")
# All of those who ask how we are while nobody can be recognised, as if they had one key.
_SOMEBODY: Final = Caller(key_id="", namespace=None, role=Role.VIEWER, peer="")
_OF_WORKFLOWS: Final = ("SetDefaultVersion", "MoveWorkflows", "MoveCheckedWorkflows")
# Here an empty namespace is any: the worker's own, which is told when it is known. Elsewhere it is `default`.
_OF_ANY_NAMESPACE: Final = ("DrainWorker", "Deregister")


class GateGuard(Guard):
    """Lets in whom the gate admits, and has changes written to the audit log."""

    def __init__(self, gate: Gate, audit: Auditor, ids: IdSource) -> None:
        self._gate = gate
        self._audit = audit
        self._ids = ids

    async def receive(self, method: Method, call: CallAlone) -> Room:
        if method.rpc == _HEALTH and not self._gate.knows_keys():
            caller = _SOMEBODY  # whom not even the database may keep waiting
        else:
            caller = await self._gate.recognise(
                method.path,
                key=call.shown.key,
                peer=call.shown.peer_name,
                request_id=lambda: request_id(call.shown.headers.items(), self._ids),
            )
        return self._gate.room(method.path, caller)

    async def __call__(self, method: Method, request: Any, call: Any, handle: Handle) -> Message:
        on_stream = isinstance(call, CallOnStream)
        shown: CallerHeaders = call.shown
        action = _action(method, request)
        admitting = self._gate.admit(
            action,
            key=shown.key,
            namespace=request.namespace if method.has_namespace else None,
            peer=shown.peer_name,
            request_id=lambda: request_id(shown.headers.items(), self._ids),
            target=lambda: _target(method, request),
            runs=len(request.starts) if method.rpc == "StartWorkflows" else 1,
        )
        if method.rpc != _HEALTH:
            caller = await admitting
        else:
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    caller = await admitting
            except (Unavailable, TimeoutError):
                # Who asks cannot be known without the database. That it does not answer is what everybody is told.
                request.namespace = namespace_of(request.namespace)
                return await handle(request, call)
        if caller.namespace is not None and method.has_namespace:
            request.namespace = caller.confine(request.namespace)
        if method.rpc == _REGISTER and caller.key_id is not None:
            shown.actor = caller.actor
        if caller.key_id is not None and (said := _BY.get(method.rpc)) is not None:
            setattr(request, said, caller.actor)
        rule = ACTIONS[action]
        with self._gate.part(caller) if on_stream else self._gate.call(caller):
            if rule.reads:
                async with self._gate.reads.turn(caller):
                    return await handle(request, call)
            if method is EXCHANGE:
                call.room_for = partial(self._gate.room, caller=caller)
                call.key_id = caller.key_id
                with self._gate.streams.held(caller):
                    return await handle(request, call)
            if not rule.audited:
                return await handle(request, call)
            result, answer = OK, None
            try:
                answer = await handle(request, call)
                result = _result_code(answer)
                return answer
            except asyncio.CancelledError:
                result = "CANCELLED"
                raise
            except Exception as error:
                result = _code(error)
                raise
            finally:
                self._audit.record(self._entry(method, request, answer, caller, shown, result))

    def _entry(
        self, method: Method, request: Any, answer: Any, caller: Caller, shown: CallerHeaders, result: str
    ) -> AuditEntry:
        namespace = request.namespace if method.has_namespace else ""
        if not ACTIONS[method.path].everywhere and method.rpc not in _OF_ANY_NAMESPACE:
            namespace = namespace_of(namespace)
        return AuditEntry(
            actor=caller.actor,
            action=method.path,
            namespace=namespace or None,
            target=_target(method, request) or _made(answer),
            request_id=request_id(shown.headers.items(), self._ids),
            peer=caller.peer,
            result=result,
        )


def _action(method: Method, request: Any) -> str:
    """Returns what the call does, as the table names it. To have a worker drain takes the same right whichever call
    asks for it: the id in the request may be that of any worker of the namespace. So does to move runs to another
    version, if a job does it."""
    if method.rpc == "Deregister" and request.drain:
        return _DRAIN
    return _MOVE if method.rpc == "StartJob" and request.action == JobAction.MOVE else method.path


def _target(method: Method, request: Any) -> str:
    fields = method.request.DESCRIPTOR.fields_by_name
    for name in _TARGETS:
        if name in fields and (value := getattr(request, name)):
            how = " from scratch" if method.rpc == "RetryWorkflow" and request.from_scratch else ""
            how = " to drain" if method.rpc == "Deregister" else how
            return f"{name.removesuffix('_id')} {value}{how}"
    if "scope" in fields and request.scope in SCOPE_NAMES:
        return f"{SCOPE_NAMES[request.scope].value} {request.name or request.namespace}"
    if method.rpc in _OF_WORKFLOWS:
        return f"workflow {request.workflow_type}"
    if method.service == "NamespaceService" and method.has_namespace:
        return f"namespace {request.namespace}"
    return ""


def _made(answer: Any) -> str:
    """Returns what the call has made, of which its request did not say the id."""
    fields = {} if answer is None else answer.DESCRIPTOR.fields_by_name
    for noun in ("schedule", "job"):
        if noun in fields:
            return f"{noun} {getattr(getattr(answer, noun), f'{noun}_id')}"
    return ""


def _result_code(answer: Any) -> str:
    """Returns the code for the audit log: an answer may say that nothing was done, and why."""
    says_why = "error" in answer.DESCRIPTOR.fields_by_name and answer.HasField("error")
    return answer.error.exact_code if says_why else OK


def _code(error: Exception) -> str:
    if isinstance(error, KagziError):
        return error.code
    if isinstance(error, Refused):
        return error.detail.exact_code or error.status.name
    return KagziError.code
