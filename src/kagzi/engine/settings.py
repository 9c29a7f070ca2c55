"""The settings of an engine and their defaults."""

from __future__ import annotations

from msgspec import Struct

from kagzi.core.instant import SECOND, Span
from kagzi.core.limits import CLAIMS, PAYLOAD_BYTES, PAYLOAD_WARNING_BYTES
from kagzi.errors import InvalidRequest

_MINUTE = 60 * SECOND


class EngineSettings(Struct, frozen=True, kw_only=True):
    # Leases and workers.
    lease: Span = 30 * SECOND
    heartbeat: Span | None = None  # None is a third of the lease
    worker_stale: Span = 30 * SECOND  # without a heartbeat for this long a worker is OFFLINE
    max_crashes: int = 10  # leases that ran out in a row without a new event; then the run is poison
    claim_limit: int = CLAIMS  # the most runs one poll brings

    # The batcher.
    batch_writes: int = 1000
    batch_bytes: int = 8 * 1024 * 1024
    waiting_writes: int = 100_000  # beyond this, new writes are refused instead of filling the memory
    patience: Span = 30 * SECOND  # how long a write waits for a database that is out of reach
    lock_patience: Span = 4 * SECOND  # how long it waits for a row that somebody has locked

    # Waking up.
    tick: Span = SECOND  # how often the horizon is read
    announce_every: Span = 5_000  # announcements to other processes are at least this far apart
    watch_kept: Span = 10 * SECOND  # how long a worker that does not poll is remembered

    # Duties.
    duty_batch: int = 100  # rows a duty handles in one transaction
    duty_limit: int = 1000  # rows it handles before the other duties have their turn
    duty_interval: Span = _MINUTE  # each duty runs this often even if nothing seems due
    step_grace: Span = 5 * SECOND  # the worker enforces a step's timeout; this long after it, the engine does
    prune_interval: Span = 10 * _MINUTE

    payload_bytes: int = PAYLOAD_BYTES
    payload_warning: int = PAYLOAD_WARNING_BYTES
    key_pepper: bytes = b""  # mixed into the digests of API keys; all processes on a database need the same

    @property
    def heartbeat_every(self) -> Span:
        return self.heartbeat or self.lease // 3

    def check(self) -> EngineSettings:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name == "key_pepper":
                if not isinstance(value, bytes):
                    raise InvalidRequest("key_pepper must be bytes")
            elif value is None and name == "heartbeat":
                continue
            elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidRequest(f"{name} must be a whole number above 0, not {value!r:.50}")
        if self.heartbeat_every >= self.lease:
            raise InvalidRequest("heartbeat must be shorter than lease; a third of it is a good choice")
        return self
