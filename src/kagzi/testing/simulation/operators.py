"""People who look after a world while it lives: they make schedules, pause, change, trigger and delete them.

What they ask for goes through the engine of a process, which may be dying meanwhile. Whether it took effect they do not
know then; what is needed for the world to go on, they ask for again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kagzi.api.operations import RepeatRun
from kagzi.api.schedules import CreateSchedule, UpdateSchedule
from kagzi.core.instant import SECOND
from kagzi.core.schedule import Overlap
from kagzi.engine.local import LocalEngine
from kagzi.errors import KagziError, NotFound
from kagzi.store.protocol.limits import LimitChange
from kagzi.testing.simulation.bulk import draw_jobs
from kagzi.testing.simulation.limited import Held, draw_changes, has_limits
from kagzi.testing.simulation.network import run_at_once
from kagzi.testing.simulation.restarts import has_restarts, move

if TYPE_CHECKING:
    from kagzi.testing.simulation.node import Node
    from kagzi.testing.simulation.world import World

Ask = Callable[[LocalEngine], Awaitable[Any]]

NAMESPACE = "default"
_PAUSED = 4.0  # seconds after healing, in which what is paused stays so
_LIMITED = 90.0  # seconds after healing, in which limits that somebody has set hold
_GOES_ON = 12.0  # seconds after healing, in which schedules catch up before they are paused


def has_schedules(seed: int) -> bool:
    """A world of five: the others are as they were."""
    return seed % 5 == 2


def repeats_firings(seed: int) -> bool:
    """A few of these worlds: in them somebody repeats what the clock has started."""
    return seed % 65 == 37


class Operators:
    def __init__(self, world: World, random: Random) -> None:
        self._world = world
        self._random = random
        self._schedules: list[str] = []
        self._limited: list[Held] = []
        self._over = False  # nothing is asked for any more
        self.at_work = False  # more may happen in this world even if no run is live

    def begin(self) -> None:
        if has_schedules(self._world.seed):
            self.at_work = True
            for _ in range(self._random.choice((1, 2, 3))):
                self._plan_schedule()
        if repeats_firings(self._world.seed):
            for _ in range(6):
                self._at(self._random.uniform(0.4, 1.0) * self._world.until, self._repeat_firing)
        if has_limits(self._world.seed):
            for at, what, ask in draw_changes(self._random, self._world.until):
                self._limited.append(what)
                self._at(at, ask)
        if has_restarts(self._world.seed):
            for _ in range(self._random.choice((1, 2, 3))):
                self._at(self._random.uniform(1.0, self._world.until), move)
        if self._world.bulk:
            for at, ask, again in draw_jobs(self._random, self._world.until):
                self._at(at, ask, again=again)

    def heal(self) -> None:
        """The faults are over: what goes on for ever ends soon."""
        if self.at_work:
            self._world.host.call_later(_GOES_ON, self._end_schedules)
        if self._limited:
            self._over = True
            self._world.host.call_later(_PAUSED, self._resume)
            self._world.host.call_later(_LIMITED, self._clear)

    # Schedules.

    def _plan_schedule(self) -> None:
        world, random = self._world, self._random
        schedule_id = _uuid7(random)
        self._schedules.append(schedule_id)
        create = CreateSchedule(
            namespace=NAMESPACE,
            schedule_id=schedule_id,
            workflow_type="tick",
            task_queue=random.choice(("default", "other")),
            cron_expr=_draw_expression(random),
            input=b"[%d]" % random.choice((0, 300, 2500, 7000)),
            max_catchup=random.choice((0, 1, 3, 100)),
            overlap=random.choice(tuple(Overlap)),
            jitter=random.choice((0, 0, SECOND)),
            on_failure=random.choice((None, "handler")),
        )
        at = random.uniform(0.5, world.until * 0.3)
        self._at(at, lambda engine: engine.schedules.create(create), again=True)
        for _ in range(random.choice((0, 1, 2, 3))):
            at += random.uniform(0.5, world.until * 0.25)
            if at < world.until:
                self._at(at, self._draw_change(schedule_id))

    def _draw_change(self, schedule_id: str) -> Ask:
        random = self._random
        now, back = self._world.clock.now, random.choice((5, 20)) * SECOND
        expression, run_id = _draw_expression(random), _uuid7(random)
        update = partial(UpdateSchedule, namespace=NAMESPACE, schedule_id=schedule_id)
        changes: dict[str, Ask] = {
            "pause": lambda engine: engine.schedules.update(update(enabled=False)),
            "resume": lambda engine: engine.schedules.update(update(enabled=True)),
            "expression": lambda engine: engine.schedules.update(update(cron_expr=expression)),
            "overlap": lambda engine: engine.schedules.update(update(overlap=Overlap.BUFFER)),
            "trigger": lambda engine: engine.schedules.trigger(NAMESPACE, schedule_id, run_id),
            "backfill": lambda engine: engine.schedules.backfill(NAMESPACE, schedule_id, now() - back, now()),
            "delete": lambda engine: engine.schedules.delete(NAMESPACE, schedule_id),
        }
        return changes[random.choice(("pause", "resume", "resume", *changes))]

    async def _repeat_firing(self, engine: LocalEngine) -> Any:
        runs = self._world.checker.runs.values()
        fired = [run.run_id for run in runs if run.schedule_group_id is not None and run.status.finished]
        if not fired:
            return None
        request = partial(RepeatRun, namespace=NAMESPACE, run_id=_uuid7(self._random), of_run_id=fired[-1])
        repeat, rerun = request(keep_steps=True), request(keep_steps=False)
        return await engine.workflows.repeat(self._random.choice((repeat, repeat, rerun)))

    def _end_schedules(self) -> None:
        self._world.checker.schedules.check_lateness()
        for schedule_id in self._schedules:
            run_at_once(self._world.watched.schedules.delete(NAMESPACE, schedule_id))
        self.at_work = False
        self._over = True
        self._world.look_whether_over()

    # Limits.

    def _resume(self) -> None:
        for scope, name in self._limited:
            run_at_once(self._world.watched.limits.resume(NAMESPACE, scope, name))

    def _clear(self) -> None:
        """What was set, that is: what workers declare stays. And what was paused by a process that had been stopped in
        the middle of it, and went on after the others were told to resume."""
        self._resume()
        for scope, name in self._limited:
            run_at_once(self._world.watched.limits.change(NAMESPACE, scope, name, LimitChange()))

    # Asking.

    def _at(self, seconds: float, ask: Ask, *, again: bool = False) -> None:
        self._world.host.call_later(seconds, self._try, ask, again)

    def _try(self, ask: Ask, again: bool) -> None:
        able = [node for node in self._world.engines if node.process.alive and node.app is not None]
        if able and not self._over:
            node = self._random.choice(able)
            node.process.spawn(self._ask(node, ask, again))
        elif again:
            self._at(1.0, ask, again=True)

    async def _ask(self, node: Node, ask: Ask, again: bool) -> None:
        engine = node.engine
        assert isinstance(engine, LocalEngine)
        try:
            answer = await ask(engine)
        except NotFound:
            return
        except KagziError as error:
            self._world.log(node.process.name, "was refused", repr(error))
            if again:
                self._at(1.0, ask, again=True)
        else:
            self._world.log(node.process.name, "was asked", repr(answer)[:80])


def _draw_expression(random: Random) -> str:
    return random.choice(("every 1s", "every 2s", "every 3s", "*/2 * * * * *", "*/5 * * * * *", "every 10s"))


def _uuid7(random: Random) -> str:
    return str(UUID(int=random.getrandbits(128) & ~(0xF << 76) & ~(0x3 << 62) | (7 << 76) | (2 << 62)))
