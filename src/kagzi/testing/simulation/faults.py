"""What can go wrong, how often in this world, and the one who makes it happen.

Every world has a weather of its own: a seed turns some faults off altogether and others up, because faults that always
come together hide what each of them does alone.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING

from msgspec import Struct

from kagzi.core.instant import SECOND, Span
from kagzi.engine.settings import EngineSettings
from kagzi.testing.simulation.process import Process

if TYPE_CHECKING:
    from kagzi.testing.simulation.world import World


class Fault(StrEnum):
    CRASH = "process crashed"
    RESTART = "process started again"
    COMMIT_UNKNOWN = "call in flight at a crash was committed"
    NEVER_SENT = "call in flight at a crash was not committed"
    PAUSE = "process stopped for longer than a lease"
    HICCUP = "process stopped for a moment"
    PARTITION = "process cut off"
    DROP = "call dropped"
    LOSE = "answer lost"
    DELAY = "call delayed"
    SLOW_ANSWER = "answer delayed"
    SLOW_HEARTBEAT = "heartbeat or its answer slow"
    BLOCK = "event loop blocked while heartbeats went on"
    LATE = "call took effect after its caller gave up"
    REPEAT = "call arrived twice"
    NOTIFICATION_LOST = "notification lost"
    NOTIFICATIONS_DEAD = "no notifications at all"
    SKEW = "clock of one process set"
    DRAIN = "worker drained and replaced"
    LEAVE = "process stopped in order"
    TINY_LEASE = "lease of one second"
    BATCH_OF_ONE = "one write a batch"
    CLAIM_OF_ONE = "one run a claim"
    POISON = "step crashed its process"
    SLOW_STEP = "step slower than a lease"
    HELD_ROW = "row of a run locked by somebody outside"
    HELD_WRITE = "write waited for a locked row"
    HELD_LEASE = "lease not renewed for a locked row"
    LEFT_BROKEN = "process never came back"


class Weather(Struct, frozen=True, kw_only=True):
    """How this world's network and processes behave until the faults are over."""

    drop: float = 0.0
    lose: float = 0.0
    delay: float = 0.0
    slow_heartbeats: float = 0.0
    late: float = 0.0
    repeat: float = 0.0
    lost_notifications: float = 0.0
    notifications: bool = True
    troubles: float = 0.0  # a second, each a crash, a pause, …
    kinds: tuple[Fault, ...] = ()


CALM = Weather()

_TROUBLES = (
    Fault.CRASH,
    Fault.CRASH,
    Fault.PAUSE,
    Fault.HICCUP,
    Fault.BLOCK,
    Fault.PARTITION,
    Fault.SKEW,
    Fault.DRAIN,
    Fault.LEAVE,
)


def draw_weather(random: Random) -> Weather:
    def rate(most: float) -> float:
        return random.uniform(0.0, most) if random.random() < 0.6 else 0.0

    kinds = tuple(kind for kind in _TROUBLES if random.random() < 0.6)
    return Weather(
        drop=rate(0.06),
        lose=rate(0.06),
        delay=rate(0.1),
        slow_heartbeats=rate(0.5),
        late=rate(0.03),
        repeat=rate(0.1),
        lost_notifications=rate(0.5),
        notifications=random.random() < 0.8,
        troubles=random.uniform(0.1, 0.7) if kinds else 0.0,
        kinds=kinds,
    )


def draw_settings(random: Random) -> EngineSettings:
    lease: Span = random.choice((1, 2, 3, 3, 5, 8)) * SECOND
    return EngineSettings(
        lease=lease,
        worker_stale=random.choice((2 * lease, 30 * SECOND)),
        max_crashes=random.choice((3, 5, 10)),
        claim_limit=random.choice((1, 1000, 1000)),
        batch_writes=random.choice((1, 3, 1000, 1000)),
        patience=random.choice((1, 5, 30)) * SECOND,
        duty_interval=random.choice((5, 60)) * SECOND,
        step_grace=random.choice((1, 5)) * SECOND,
        prune_interval=60 * SECOND,
    )


class Nemesis:
    """Makes one thing after the other go wrong, to processes of its choice."""

    def __init__(self, world: World, random: Random) -> None:
        self._world = world
        self._random = random
        self._over = False
        self._does: dict[Fault, Callable[[], None]] = {
            Fault.CRASH: self._crash,
            Fault.PAUSE: self._pause,
            Fault.HICCUP: self._hiccup,
            Fault.BLOCK: self._block,
            Fault.PARTITION: self._partition,
            Fault.SKEW: self._skew,
            Fault.DRAIN: self._drain,
            Fault.LEAVE: self._leave,
        }

    def begin(self) -> None:
        self._next()

    def end(self) -> None:
        self._over = True

    def _next(self) -> None:
        weather = self._world.weather
        if weather.troubles and not self._over:
            self._world.host.call_later(self._random.expovariate(weather.troubles), self._strike)

    def _strike(self) -> None:
        if self._over:
            return
        self._does[self._random.choice(self._world.weather.kinds)]()
        self._next()

    def _crash(self) -> None:
        world, node = self._world, self._random.choice(self._world.nodes)
        if node.process.alive:
            world.crash(node)

    def _pause(self) -> None:
        lease = self._world.settings.lease / SECOND
        self._stop(Fault.PAUSE, lease * self._random.uniform(1.1, 3.0), Process.pause)

    def _hiccup(self) -> None:
        self._stop(Fault.HICCUP, self._random.uniform(0.01, 0.9), Process.pause)

    def _block(self) -> None:
        self._stop(Fault.BLOCK, self._random.uniform(0.3, 6.0), Process.block)

    def _stop(self, fault: Fault, seconds: float, stop: Callable[[Process], None]) -> None:
        world, node = self._world, self._random.choice(self._world.nodes)
        process = node.process
        if not process.alive or process.loop.paused:
            return
        world.happened(fault, f"{process.name} for {seconds:.3f} s")
        stop(process)
        world.host.call_later(seconds, self._go_on, process, process.lives)

    def _go_on(self, process: object, life: int) -> None:
        for node in self._world.nodes:
            if node.process is process and node.process.lives == life and node.process.loop.paused:
                self._world.log(node.process.name, "goes on")
                node.process.resume()

    def _partition(self) -> None:
        world, node = self._world, self._random.choice(self._world.nodes)
        seconds = world.settings.lease / SECOND * self._random.uniform(0.3, 2.5)
        if not node.process.cut_off:
            world.happened(Fault.PARTITION, f"{node.process.name} for {seconds:.3f} s")
            node.process.cut_off = True
            world.host.call_later(seconds, self._rejoin, node.process.name)

    def _rejoin(self, name: str) -> None:
        for node in self._world.nodes:
            if node.process.name == name and not self._over:
                self._world.log(name, "is reachable again")
                node.process.cut_off = False

    def _skew(self) -> None:
        world, node = self._world, self._random.choice(self._world.nodes)
        seconds = self._random.choice((-3600, -60, -1, 1, 60, 3600))
        world.happened(Fault.SKEW, f"{node.process.name} by {seconds} s")
        node.process.clock.skew += seconds * SECOND

    def _drain(self) -> None:
        world, node = self._world, self._random.choice(self._world.nodes)
        if node.process.alive and node.worker is not None and not node.worker.draining:
            world.happened(Fault.DRAIN, node.process.name)
            node.process.spawn(node.replace_worker(self._random.choice((0, 0.3, 5.0))))

    def _leave(self) -> None:
        world, node = self._world, self._random.choice(self._world.nodes)
        if node.process.alive and not node.leaving:
            world.happened(Fault.LEAVE, node.process.name)
            node.process.spawn(node.leave(self._random.choice((0, 0.3, 5.0))))
