"""A signal that comes with a start."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from kagzi.core.limits import check_name
from kagzi.errors import InvalidRequest


class Signal(Struct, frozen=True):
    """What a run is told with its start: `shopping.options(id="cart-7", signal=kagzi.Signal("added", item))`.

    The run that has the id gets it; if there is none, or it has finished, one is started and gets it, in one
    transaction. `key` makes a repeat harmless: a second signal with the same key is the first one.
    """

    name: str
    value: Any = None
    key: str | None = None


def check_start_signal(signal: object) -> Signal:
    if not isinstance(signal, Signal):
        raise InvalidRequest(f'signal must be a kagzi.Signal, for example Signal("added", item), not {signal!r:.100}')
    check_name(signal.name, "signal name")
    return signal
