"""The part of a worker's row that is one JSON value in both databases: its labels and limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from kagzi.api.workers import DeclaredLimit, Registration, smaller
from kagzi.core.flow import FlowLimit, Scope
from kagzi.core.worker import Worker


class _Extras(Struct, frozen=True, omit_defaults=True):
    labels: dict[str, str] = {}
    queue_limit: int | None = None
    type_limits: dict[str, int] = {}
    limits: tuple[DeclaredLimit, ...] = ()


Declared = dict[tuple[Scope, str], DeclaredLimit]


def smallest(workers: Iterable[tuple[Sequence[str], bytes]]) -> Declared:
    """Returns the smallest limits that any of these workers, each with its queues, declares."""
    found: Declared = {}

    def note(scope: Scope, limit: DeclaredLimit) -> None:
        found[scope, limit.name] = smaller(found.get((scope, limit.name), limit), limit)

    for queues, data in workers:
        extras = msgspec.json.decode(data, type=_Extras)
        if extras.queue_limit is not None:
            for queue in queues:
                note(Scope.QUEUE, DeclaredLimit(queue, extras.queue_limit))
        for name, most in extras.type_limits.items():
            note(Scope.WORKFLOW, DeclaredLimit(name, most))
        for limit in extras.limits:
            note(Scope.WORKFLOW, limit)
    return found


def changes(before: Iterable[FlowLimit], declared: Declared) -> list[tuple[Scope, DeclaredLimit]]:
    """Returns what has to be written, in the order of the rows, so that what is declared counts."""
    found = dict(declared)
    for limit in before:
        key = (limit.scope, limit.name)
        if limit.is_declared:
            found.setdefault(key, DeclaredLimit(limit.name))
        if key in found and found[key] == _said(limit):
            del found[key]
    return [(scope, found[scope, name]) for scope, name in sorted(found)]


def _said(limit: FlowLimit) -> DeclaredLimit:
    return DeclaredLimit(
        limit.name,
        limit.declared,
        limit.key_declared,
        limit.shares,
        limit.rate_declared,
        limit.key_rate_declared,
        limit.fair,
    )


def columns(limit: DeclaredLimit) -> tuple[str, int | None, int | None, str | None, str | None, str | None, bool]:
    """Returns the values of a declared limit as both databases have them."""
    rates = [None if rate is None else rate.encode() for rate in (limit.rate, limit.key_rate)]
    return limit.name, limit.most, limit.key_most, limit.shares, rates[0], rates[1], limit.fair


def encode_extras(registration: Registration) -> bytes | None:
    extras = _Extras(
        registration.labels,
        registration.queue_limit,
        registration.type_limits,
        registration.limits,
    )
    return None if extras == _Extras() else msgspec.json.encode(extras)


def decode_extras(worker: Worker, data: bytes | None) -> Worker:
    if data is None:
        return worker
    extras = msgspec.json.decode(data, type=_Extras)
    return replace(worker, labels=extras.labels, queue_limit=extras.queue_limit, type_limits=extras.type_limits)
