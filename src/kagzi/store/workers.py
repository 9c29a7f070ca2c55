"""What a worker says of itself beyond its columns: labels and limits, as one JSON value in both databases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from kagzi.api.workers import DeclaredLimit, Registration
from kagzi.core.flow import Scope
from kagzi.core.worker import Worker

L = TypeVar("L", int, str)


class _Extras(Struct, frozen=True, omit_defaults=True):
    labels: dict[str, str] = {}
    queue_limit: int | None = None
    type_limits: dict[str, int] = {}
    limits: tuple[DeclaredLimit, ...] = ()


Said = tuple[int | None, int | None, str | None]  # runs at once, runs of each key at once, whose limits count
Declared = dict[tuple[Scope, str], Said]
NOTHING: Final[Said] = (None, None, None)


def smallest(workers: Iterable[tuple[Sequence[str], bytes]]) -> Declared:
    """Returns the smallest limits that any of these workers, each with its queues, declares."""
    found: Declared = {}

    def note(scope: Scope, name: str, most: int | None, key_most: int | None = None, shares: str | None = None) -> None:
        before = found.get((scope, name), NOTHING)
        found[scope, name] = (_least(before[0], most), _least(before[1], key_most), _least(before[2], shares))

    for queues, data in workers:
        extras = msgspec.json.decode(data, type=_Extras)
        if extras.queue_limit is not None:
            for queue in queues:
                note(Scope.QUEUE, queue, extras.queue_limit)
        for name, most in extras.type_limits.items():
            note(Scope.WORKFLOW, name, most)
        for limit in extras.limits:
            note(Scope.WORKFLOW, limit.name, limit.most, limit.key_most, limit.shares)
    return found


def _least(one: L | None, other: L | None) -> L | None:
    return other if one is None else one if other is None else min(one, other)


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
