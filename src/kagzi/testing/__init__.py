"""The test kit: your workflows on virtual time, a real engine in memory, crashes everywhere, faults from a seed."""

from kagzi.sdk.replaying import Differs, Replayed, replay
from kagzi.testing.clock import VirtualClock
from kagzi.testing.crashes import CrashReport, NotCrashSafe, crash_everywhere
from kagzi.testing.environment import run_virtually
from kagzi.testing.kit import AsyncRun, BlockingRun, Environment, NeedsVirtualTime
from kagzi.testing.mocks import StepMock
from kagzi.testing.virtual import Deadlock, VirtualLoop

__all__ = [
    "AsyncRun",
    "BlockingRun",
    "CrashReport",
    "Deadlock",
    "Differs",
    "Environment",
    "NeedsVirtualTime",
    "NotCrashSafe",
    "Replayed",
    "StepMock",
    "VirtualClock",
    "VirtualLoop",
    "crash_everywhere",
    "replay",
    "run_virtually",
]
