"""Who a port answers while no API keys are asked for."""

from __future__ import annotations

from enum import Enum, auto


class Keyless(Enum):
    NOBODY = auto()
    LOCAL = auto()  # this machine, asking for this machine, without a proxy between
    ANYBODY = auto()  # something else decides who comes here
