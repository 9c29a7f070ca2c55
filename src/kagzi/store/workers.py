"""What a worker says of itself beyond its columns: labels and limits, as one JSON value in both databases."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from kagzi.api.workers import Registration
from kagzi.core.worker import Worker


class _Extras(Struct, frozen=True, omit_defaults=True):
    labels: dict[str, str] = {}
    queue_limit: int | None = None
    type_limits: dict[str, int] = {}


def encode_extras(registration: Registration) -> bytes | None:
    extras = _Extras(registration.labels, registration.queue_limit, registration.type_limits)
    return None if extras == _Extras() else msgspec.json.encode(extras)


def decode_extras(worker: Worker, data: bytes | None) -> Worker:
    if data is None:
        return worker
    extras = msgspec.json.decode(data, type=_Extras)
    return replace(worker, labels=extras.labels, queue_limit=extras.queue_limit, type_limits=extras.type_limits)
