"""`crash_everywhere`: a workflow is run again and again, and each time its worker dies somewhere else.

Whenever something is recorded, the process is killed once just before, when bodies have run and nothing of it is
known, and once just after. Another process goes on. What the workflow returns and what the world has seen of it must be
the same as without a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any, Final, ParamSpec, TypeVar

from msgspec import Struct

from kagzi.api.operations import Chunk, CompleteStep, FailStep, Write
from kagzi.app import Kagzi
from kagzi.core.failure import Failure
from kagzi.core.run import Run, RunStatus
from kagzi.core.step import Step, StepKind, step_name
from kagzi.errors import Conflict, InvalidRequest
from kagzi.ids import RandomIds
from kagzi.sdk.definitions import Workflow
from kagzi.sdk.handle import Handle
from kagzi.sdk.worker.worker import Worker
from kagzi.store.protocol.changes import Applied
from kagzi.store.sqlite import SqliteStore
from kagzi.testing.clock import VirtualClock
from kagzi.testing.environment import virtual_engine, virtual_worker
from kagzi.testing.simulation.process import Process
from kagzi.testing.stillness import unless_stuck
from kagzi.testing.virtual import VirtualLoop

P = ParamSpec("P")
R = TypeVar("R")

_SHOWN: Final = 500  # characters of a value in a message


class CrashReport(Struct, frozen=True):
    """What `crash_everywhere` has done: how often something was recorded in a run, and how often a worker died."""

    recorded: int
    crashes: int


class NotCrashSafe(AssertionError):
    """A workflow came to another end, or the world saw something else of it, because a worker died."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n\n".join(problems))
        self.problems = tuple(problems)


def crash_everywhere(
    workflow: Workflow[P, Any],
    *args: Any,
    effects: Any = None,
    reset: Callable[[], object] | None = None,
    signals: Iterable[tuple[str, Any]] = (),
    **kwargs: Any,
) -> CrashReport:
    """Run a workflow with a crash before and after each moment at which something is recorded; NotCrashSafe names what
    comes out differently, and the step that is not idempotent.

    `effects` is what the world sees: a list, dict or set that your fakes write to, which is put back as it is now
    before each run and at the end; or a function that reads it, with `reset` to put it back. Without it only results
    are compared. `signals` are sent to each run at its start: `signals=[("approved", True)]`. It all happens in
    memory on virtual time; the number of runs is twice the number of recorded events.
    """
    if not isinstance(workflow, Workflow):
        raise InvalidRequest(f"crash_everywhere() takes a workflow, as made by @app.workflow, not {workflow!r:.100}")
    if asyncio._get_running_loop() is not None:
        raise InvalidRequest("crash_everywhere() has event loops of its own; call it in a `def` test")
    if workflow._app._engine is not None:  # type: ignore[attr-defined]
        raise InvalidRequest("crash_everywhere() opens the app itself; call it outside of `with app:`")
    world = _World(effects, reset)
    told = tuple(signals)

    def trial(crash: _Moment | None) -> _Outcome:
        world.restore()
        return _Trial(workflow, args, kwargs, told, crash).run(world)

    try:
        plain = trial(None)
        _check_repeatable(workflow, plain, trial(None))
        moments = [_Moment(number, before) for number in range(plain.recorded) for before in (True, False)]
        problems: dict[object, str] = {}
        for moment in moments:
            if (problem := _compare(workflow, plain, trial(moment))) is not None:
                problems.setdefault(*problem)
    finally:
        world.restore()
    if problems:
        raise NotCrashSafe(list(problems.values()))
    return CrashReport(recorded=plain.recorded, crashes=len(moments))


class _Moment(Struct, frozen=True):
    """The process dies when this commit, counted from 0, is made: before it, or after."""

    number: int
    before: bool


class _Outcome(Struct, kw_only=True):
    status: RunStatus
    output: bytes | None
    failure: Failure | None
    steps: dict[str, Step]  # that have ended, in the order in which the workflow saw it
    effects: Any
    recorded: int
    repeated: list[str]  # the steps whose bodies were cut off, or whose results were lost

    @property
    def end(self) -> object:
        failure = self.failure
        return self.status, self.output, None if failure is None else (failure.type, failure.message)

    def __str__(self) -> str:
        if self.failure is not None:
            return f"{self.status.value}, {self.failure.type}: {self.failure.message}"[:_SHOWN]
        return f"{self.status.value}, {(self.output or b'').decode(errors='replace')}"[:_SHOWN]


class _World:
    """What `effects` shows."""

    def __init__(self, effects: Any, reset: Callable[[], object] | None) -> None:
        self._effects = effects
        self._reset = reset
        if callable(effects):
            if reset is None:
                raise InvalidRequest(
                    "effects= is a function, so reset= is needed: what puts the world back before each run"
                )
        elif effects is not None:
            if not isinstance(effects, (list, dict, set)):
                raise InvalidRequest(
                    f"effects must be a list, dict or set that steps write to, or a function that reads what they did, "
                    f"not {effects!r:.100}"
                )
            self._before = copy.deepcopy(effects)

    def restore(self) -> None:
        if self._reset is not None:
            self._reset()
        if self._effects is None or callable(self._effects):
            return
        self._effects.clear()
        before = copy.deepcopy(self._before)
        self._effects.extend(before) if isinstance(before, list) else self._effects.update(before)

    def read(self) -> Any:
        return copy.deepcopy(self._effects() if callable(self._effects) else self._effects)


class _Trial:
    """One run, from its start to its end, with at most one crash on the way."""

    def __init__(
        self,
        workflow: Workflow[Any, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        signals: tuple[tuple[str, Any], ...],
        crash: _Moment | None,
    ) -> None:
        self._workflow = workflow
        self._app: Kagzi = workflow._app  # type: ignore[assignment]
        self._call = args, kwargs, signals
        self._clock = VirtualClock()
        self._host = VirtualLoop(self._clock)
        self._store = SqliteStore(None, now=self._clock.now, inline=True)
        self._random = Random(0)
        self._process = Process("worker", self._host, self._failed)
        self._over: asyncio.Future[Any] = self._host.create_future()
        self._run_id: str | None = None
        self._workers: list[Worker] = []  # of one process after the other
        self.crash = crash
        self.commits = 0
        self.repeated: list[str] = []

    def run(self, world: _World) -> _Outcome:
        app = self._app
        ids = app._ids
        with _silence(unless=self.crash is None):
            try:
                run, steps = self._host.run_until_complete(self._live())
            finally:
                app._engine = app._opening = None
                app._ids = ids
                self._bury()
        return _Outcome(
            status=run.status,
            output=run.output,
            failure=None if run.error is None else Failure.decode(run.error),
            steps={step.step_id: step for step in sorted(steps, key=_seq) if step.completed_seq is not None},
            effects=world.read(),
            recorded=self.commits,
            repeated=self.repeated,
        )

    def _bury(self) -> None:
        self._process.crash()
        with _silence():
            for worker in self._workers:
                for attempt in worker._held.values():
                    if attempt.execution is not None:
                        attempt.execution.evict()
            self._process.bury()
        self._host.close()

    async def _live(self) -> tuple[Run, tuple[Step, ...]]:
        await self._store.open()
        try:
            self._begin()
            run, steps = await self._over
            return run, steps
        finally:
            await self._store.close()

    def _begin(self) -> None:
        self._process.start(self._main)
        self._process.loop.clock = self._clock  # type: ignore[attr-defined]  # for kagzi.now()

    async def _main(self) -> None:
        """The life of a process."""
        app = self._app
        ids = RandomIds(self._clock.now, entropy=self._random.randbytes)
        queues = app.queues_named()
        engine = virtual_engine(_CrashingStore(self._store, self), self._clock, ids)
        await engine.open()
        for dead in self._workers:
            # What the end of its lease would come to, without the time until then, in which timeouts could pass.
            await engine.workers.deregister(dead.worker_id)
        app._engine = app._opening = None  # of a process that was killed
        app._ids = ids
        await app.open(engine)
        try:
            worker = virtual_worker(engine, app, self._clock, ids, queues=queues, strict=True)
            self._workers.append(worker)
            async with app.resources():
                await worker.start()
                handle = await self._start()
                ended = handle._wait()
                run = await unless_stuck(ended, engine, namespace=app.namespace, queues=queues, loop=self._host)
                steps = await engine.workflows.steps(app.namespace, handle.id)
                self._over.set_result((run, steps))
        finally:
            await app.close()

    async def _start(self) -> Handle[Any]:
        args, kwargs, signals = self._call
        if self._run_id is None:
            handle: Handle[Any] = await self._workflow.start(*args, **kwargs)
            self._run_id = handle.id
        else:
            handle = self._app.handle(self._run_id)
        for number, (name, value) in enumerate(signals):
            with contextlib.suppress(Conflict):  # it has finished
                await handle.signal(name, value, key=f"signal {number}")  # which may have been sent before the crash
        return handle

    def _failed(self, _: Process, error: BaseException) -> None:
        if not self._over.done():
            self._over.set_exception(error)

    def die(self, lost: Iterable[str]) -> None:
        held = self._workers[-1]._held.values()
        cut_off = [call.step_id for attempt in held for call in attempt._bodies]
        self.repeated = sorted({*lost, *cut_off})
        self._process.crash()
        self._host.call_soon(self._begin)


@contextlib.contextmanager
def _silence(*, unless: bool = False) -> Iterator[None]:
    """Keeps to itself what workers say that are killed on purpose."""
    loggers = [logging.getLogger(name) for name in ("kagzi", "kagzi.worker", "kagzi.workflow")]
    levels = [logger.level for logger in loggers]
    try:
        if not unless:
            for logger in loggers:
                logger.setLevel(logging.CRITICAL + 1)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class _CrashingStore:
    """The store that outlives its processes. Everything is passed on; when its moment has come, the process dies."""

    def __init__(self, store: SqliteStore, trial: _Trial) -> None:
        self._store = store
        self.work = _CrashingWork(store, trial)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def open(self) -> None:
        """It is open."""

    async def close(self) -> None:
        """Another process goes on with it."""

    def sibling(self) -> _CrashingStore:
        return self


class _CrashingWork:
    def __init__(self, store: SqliteStore, trial: _Trial) -> None:
        self._work = store.work
        self._trial = trial

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    async def apply(self, writes: Sequence[Write]) -> Applied:
        chunks = [write for write in writes if isinstance(write, Chunk)]
        if not chunks:
            return await self._work.apply(writes)
        trial = self._trial
        number, trial.commits = trial.commits, trial.commits + 1
        crash = trial.crash if trial.crash is not None and trial.crash.number == number else None
        if crash is not None and crash.before:
            await self._die(_recorded(chunks))
        applied = await self._work.apply(writes)
        if crash is not None:
            await self._die(())
        return applied

    async def _die(self, lost: Iterable[str]) -> None:
        self._trial.die(lost)
        await asyncio.get_running_loop().create_future()  # for ever: nothing of this process goes on


def _recorded(chunks: Iterable[Chunk]) -> list[str]:
    """The steps whose bodies have run, and of which these chunks would tell."""
    return [
        operation.step_id
        for chunk in chunks
        for operation in chunk.operations
        if isinstance(operation, (CompleteStep, FailStep)) and operation.kind is StepKind.FUNCTION
    ]


def _seq(step: Step) -> int:
    return step.completed_seq or 0


# Comparing.


def _check_repeatable(workflow: Workflow[Any, Any], first: _Outcome, second: _Outcome) -> None:
    """Two runs without a crash have to be the same before any can be compared with them."""
    if first.failure is not None and _is_nondeterminism(first.failure):
        raise NotCrashSafe([f"{workflow.name} is not deterministic: {first.failure.message}"])
    told = f"\n  first:  {first}{_shown_effects(first)}\n  second: {second}{_shown_effects(second)}"
    for one, other in zip(first.steps.values(), second.steps.values(), strict=False):
        if one.step_id != other.step_id:
            raise NotCrashSafe(
                [
                    f"{workflow.name} is not deterministic: of two runs without any crash, one came to "
                    f"{step_name(one.step_id)!r} where the other came to {step_name(other.step_id)!r}. Decide by "
                    f"arguments, by what steps return, or by kagzi.now() and kagzi.random().{told}"
                ]
            )
        if one.output != other.output:
            break
    apart = first.end != second.end or first.steps.keys() != second.steps.keys()
    if apart or not _same(first.effects, second.effects):
        step = _first_difference(first, second)
        culprit = "" if step is None else f", first of all what step {step_name(step)!r} returns"
        raise NotCrashSafe(
            [
                f"two runs of {workflow.name} without any crash are different{culprit}: nothing can be compared with "
                f"them. Let steps do the same in each run (kagzi_env.mock, reset=).{told}"
            ]
        )


def _compare(workflow: Workflow[Any, Any], plain: _Outcome, crashed: _Outcome) -> tuple[object, str] | None:
    """What is different because of a crash: what it is about, to tell it once, and the words for it."""
    names = [step_name(step_id) for step_id in crashed.repeated]
    ran_again = f"the body of {_listed(names)} ran again" if names else "the workflow was executed again"
    if crashed.end == plain.end and crashed.steps.keys() != plain.steps.keys():
        one, other = _listed(_missing(crashed, plain)), _listed(_missing(plain, crashed))
        return "deterministic", (
            f"{workflow.name} is not deterministic: without a crash it came to {other or 'nothing'} where it came to "
            f"{one or 'nothing'} after one. Decide by arguments, by what steps return, or by kagzi.now() and "
            "kagzi.random(), which are the same when the workflow is executed again."
        )
    if crashed.end != plain.end:
        if crashed.failure is not None and _is_nondeterminism(crashed.failure):
            return "deterministic", (
                f"{workflow.name} is not deterministic: after a crash it was executed again and did something else.\n"
                f"  {crashed.failure.message}"
            )
        step = _first_difference(plain, crashed)
        about = (
            f"{workflow.name} came to another end because a worker died"
            if step is None
            else f"step {step_name(step)!r} is not idempotent: when it runs again, it returns something else"
        )
        return ("end", step), f"{about} ({ran_again}).\n  without a crash: {plain}\n  with a crash:    {crashed}"
    if not _same(plain.effects, crashed.effects):
        about = (
            f"step {_listed(names)} is not idempotent: its worker died before its result was recorded, so its body ran "
            "again, and the world saw that."
            if names
            else f"the world saw something else because a worker died ({ran_again})."
        )
        return ("effects", tuple(names)), (
            f"{about} Give the other side a key to know the repeat by (run_id and step_id of kagzi.current()).\n"
            f"  without a crash: {plain.effects!r:.{_SHOWN}}\n"
            f"  with a crash:    {crashed.effects!r:.{_SHOWN}}"
        )
    return None


def _is_nondeterminism(failure: Failure) -> bool:
    return failure.type.rpartition(".")[2] == "NonDeterminismError"


def _missing(one: _Outcome, other: _Outcome) -> list[str]:
    """The steps of one that the other has not."""
    return [step_name(step_id) for step_id in one.steps if step_id not in other.steps]


def _first_difference(one: _Outcome, other: _Outcome) -> str | None:
    for step_id, step in one.steps.items():
        found = other.steps.get(step_id)
        if found is not None and step.kind is StepKind.FUNCTION and found.output != step.output:
            return step_id
    return None


def _same(one: Any, other: Any) -> bool:
    """In any order, because bodies that run side by side have none."""
    if isinstance(one, list) and isinstance(other, list):
        return sorted(map(repr, one)) == sorted(map(repr, other))
    return bool(one == other)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in dict.fromkeys(names))


def _shown_effects(outcome: _Outcome) -> str:
    return "" if outcome.effects is None else f"; effects {outcome.effects!r:.{_SHOWN}}"
