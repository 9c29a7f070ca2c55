"""What a worker says of itself beyond its columns: labels and limits, as one JSON value in both databases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from kagzi.api.workers import Registration
from kagzi.core.flow import Scope
from kagzi.core.worker import Worker


class _Extras(Struct, frozen=True, omit_defaults=True):
    labels: dict[str, str] = {}
    queue_limit: int | None = None
    type_limits: dict[str, int] = {}
    limits: tuple[tuple[str, int | None, int | None], ...] = ()  # name, runs at once, runs of each key at once


Declared = dict[tuple[Scope, str], tuple[int | None, int | None]]


def smallest(workers: Iterable[tuple[Sequence[str], bytes]]) -> Declared:
    """Returns the smallest limits that any of these workers, each with its queues, declares."""
    found: Declared = {}

    def note(scope: Scope, name: str, most: int | None, key_most: int | None) -> None:
        before = found.get((scope, name), (None, None))
        found[scope, name] = (_least(before[0], most), _least(before[1], key_most))

    for queues, data in workers:
        extras = msgspec.json.decode(data, type=_Extras)
        if extras.queue_limit is not None:
            for queue in queues:
                note(Scope.QUEUE, queue, extras.queue_limit, None)
        for name, most in extras.type_limits.items():
            note(Scope.WORKFLOW, name, most, None)
        for name, some, key_most in extras.limits:
            note(Scope.WORKFLOW, name, some, key_most)
    return found


def _least(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


def encode_extras(registration: Registration) -> bytes | None:
    extras = _Extras(
        registration.labels,
        registration.queue_limit,
        registration.type_limits,
        tuple([(each.name, each.most, each.key_most) for each in registration.limits]),
    )
    return None if extras == _Extras() else msgspec.json.encode(extras)


def decode_extras(worker: Worker, data: bytes | None) -> Worker:
    if data is None:
        return worker
    extras = msgspec.json.decode(data, type=_Extras)
    return replace(worker, labels=extras.labels, queue_limit=extras.queue_limit, type_limits=extras.type_limits)
