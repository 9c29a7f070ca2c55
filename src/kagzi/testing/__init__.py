"""The test kit: your workflows on virtual time, a real engine in memory, faults from a seed."""

from kagzi.testing.clock import VirtualClock
from kagzi.testing.environment import run_virtually
from kagzi.testing.virtual import Deadlock, VirtualLoop

__all__ = ["Deadlock", "VirtualClock", "VirtualLoop", "run_virtually"]
