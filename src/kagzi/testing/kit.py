"""The environment of a test: workflows run on a real engine, and time passes when the test says so.

>>> def test_trial(kagzi_env):
...     with kagzi_env.mock(send_mail, return_value="sent"):
...         run = kagzi_env.start(trial, "ada")
...         kagzi_env.advance("30 days")
...         assert run.result() == ["sent", "sent"]
...     assert run.step_names == ["send_mail", "trial", "send_mail"]

The event loop of an environment runs only while the test is in one of its methods, in the thread of the test: nothing
happens behind its back. On virtual time, what a test reads of a run is what it has come to without time passing.

With a URL it is a real database with real time, each environment in a namespace of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import datetime
from random import Random
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar, cast

from kagzi.app import Kagzi
from kagzi.clock import SystemClock
from kagzi.core.duration import Duration, format_span, parse_duration
from kagzi.core.instant import SECOND, to_datetime
from kagzi.core.limits import PAGE_SIZE, check_name
from kagzi.core.options import names_its_options
from kagzi.core.run import RunStatus
from kagzi.core.step import StepKind
from kagzi.engine.local import LocalEngine
from kagzi.errors import InvalidRequest
from kagzi.ids import RandomIds
from kagzi.sdk.definitions import Step, Workflow
from kagzi.sdk.handle import Handle
from kagzi.sdk.records import RunRecord, StepRecord
from kagzi.store.sqlite import SqliteStore
from kagzi.testing.clock import VirtualClock
from kagzi.testing.environment import virtual_engine, virtual_worker
from kagzi.testing.mocks import _NOT_GIVEN, StepMock, mock_step
from kagzi.testing.stillness import unless_stuck
from kagzi.testing.virtual import VirtualLoop

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_MOMENT = 1 / SECOND  # time passes only when nothing is ready any more
_LOOK_SECONDS = 1.0
_PATIENCE_SECONDS = 30.0  # how long a run may sleep on real time


class NeedsVirtualTime(Exception):
    """A test moves the clock, or waits for a run that sleeps for long, and its environment has real time."""


def _refuse(reason: str) -> NoReturn:
    raise NeedsVirtualTime(reason)


class Environment:
    """What the fixture `kagzi_env` gives. Use it in `with` outside of pytest.

    In `async def` tests `astart`, `aadvance` and `ause` take the place of `start`, `advance` and `use`, and everything
    of the app itself can be awaited.
    """

    def __init__(self, url: str | None = None, *, seed: int = 0, no_time: Callable[[str], NoReturn] = _refuse) -> None:
        self._home: _Virtual | _Real = _Virtual(seed) if url is None else _Real(url)
        self._no_time = no_time
        self._runner = asyncio.Runner(loop_factory=self._home.new_loop)
        self._apps: dict[int, Kagzi] = {}
        self._mocks: list[StepMock] = []
        self._closed = False

    # Life.

    def __enter__(self) -> Environment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops the workers and closes the apps. The fixture does this at the end of its test."""
        if self._closed:
            return
        try:
            if self._apps:
                self._runner.run(self._home.close())
        finally:
            self._closed = True
            self._runner.close()
            for mock in reversed(self._mocks):
                mock.undo()

    def drive(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs an `async def` test on the loop of this environment."""
        self._check_outside("drive")
        return self._runner.run(main())

    # In `def` tests.

    @names_its_options
    def use(self, app: Kagzi, *, queues: tuple[str, ...] | None = None, concurrency: int = 100) -> None:
        """Opens an app here and gives it a worker, which `start` does by itself; for its schedules, for other queues
        than the default and those that its workflows name, or for a worker of another size."""
        self.run(self.ause(app, queues=queues, concurrency=concurrency))

    def start(self, workflow: Workflow[P, R], *args: P.args, **kwargs: P.kwargs) -> BlockingRun[R]:
        """Starts a run: `run = kagzi_env.start(checkout.options(id="order-42"), order)`."""
        return BlockingRun(self, self.run(self.astart(workflow, *args, **kwargs))._handle)

    def advance(self, length: Duration) -> None:
        """Lets so much time pass, and everything happen that is due by then: `kagzi_env.advance("1d")`."""
        self.run(self.aadvance(length))

    def signal(self, id: str, name: str, value: Any = None) -> None:
        """Tells the run with this id of your own something."""
        self.run(self._some_app("signal").signal(id, name, value))

    def runs(self, workflow: Workflow[Any, Any] | str | None = None) -> list[RunRecord]:
        """The runs so far, oldest first; only those of one workflow if it is given."""
        return self.look(self._list(self._some_app("runs"), workflow))

    async def _list(self, app: Kagzi, workflow: Workflow[Any, Any] | str | None) -> list[RunRecord]:
        name = workflow.name if isinstance(workflow, Workflow) else workflow
        page = await app.runs(workflow=name, page_size=PAGE_SIZE)
        runs = list(page.items)
        while page.next is not None:
            page = await app.runs(workflow=name, page_size=PAGE_SIZE, page_token=page.next)
            runs += page.items
        return sorted(runs, key=lambda run: (run.created_at, run.run_id))

    def run(self, awaitable: Awaitable[T]) -> T:
        """Awaits something of the app: `kagzi_env.run(app.schedules.create("nightly", cleanup, cron="0 2 * * *"))`."""

        async def awaited() -> T:
            return await self._home.patiently(awaitable)

        try:
            self._check_outside("run")
        except InvalidRequest:
            if isinstance(awaitable, Coroutine):
                awaitable.close()  # or Python warns that nobody has awaited it
            raise
        return self._runner.run(awaited())

    def look(self, awaitable: Awaitable[T]) -> T:
        """The same for what shows how far runs have come: first they go as far as they can without time passing."""
        try:
            self._check_outside("look")
        except InvalidRequest:
            if isinstance(awaitable, Coroutine):
                awaitable.close()
            raise
        return self.run(self._after_all(awaitable))

    async def _after_all(self, awaitable: Awaitable[T]) -> T:
        await self._home.settle()
        return await awaitable

    # In `async def` tests.

    @names_its_options
    async def ause(self, app: Kagzi, *, queues: tuple[str, ...] | None = None, concurrency: int = 100) -> None:
        self._check_open()
        if id(app) in self._apps:
            raise InvalidRequest("this app is used here already; say its queues before anything is started")
        if queues is None:
            queues = app.queues_named()
        await self._home.open(app, tuple(check_name(queue, "queue") for queue in queues), concurrency)
        self._apps[id(app)] = app

    async def astart(self, workflow: Workflow[P, R], *args: P.args, **kwargs: P.kwargs) -> AsyncRun[R]:
        if not isinstance(workflow, Workflow):
            raise InvalidRequest(f"start() takes a workflow, as made by @app.workflow, not {workflow!r:.100}")
        app = cast(Kagzi, workflow._app)
        if id(app) not in self._apps:
            await self.ause(app)
        return AsyncRun.of(await workflow.start(*args, **kwargs), self)

    async def aadvance(self, length: Duration) -> None:
        self._check_open()
        span = parse_duration(length, "length")
        if isinstance(self._home, _Real):
            self._no_time(f"it lets {format_span(span)} pass, and the database has real time")
        await asyncio.sleep(span / SECOND)

    # Everywhere.

    @property
    def now(self) -> datetime:
        """What time it is here."""
        return self._home.now()

    def mock(self, step: Step[Any, Any], *, return_value: Any = _NOT_GIVEN, side_effect: Any = _NOT_GIVEN) -> StepMock:
        """Replaces the body of a step, to the end of the `with` block or of the test.

        `return_value` is what each call returns; `side_effect` an exception that each call raises, a list of what one
        call after the other returns or raises, or a function to call instead. Retries are as with the real body.
        """
        self._check_open()
        mock = mock_step(step, self._before_undo, return_value=return_value, side_effect=side_effect)
        self._mocks.append(mock)
        return mock

    def _before_undo(self) -> None:
        """Lets calls of a mock happen that are due before its `with` block ends."""
        if self._apps and not self._closed and asyncio._get_running_loop() is None:
            self.run(self._home.settle())

    def _some_app(self, what: str) -> Kagzi:
        self._check_open()
        for app in self._apps.values():
            return app
        raise InvalidRequest(f"{what}() before anything was started here; say which app it is: kagzi_env.use(app)")

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequest(
                "this environment has ended with its test; ask for the fixture in the test that uses it"
            )

    def _check_outside(self, what: str) -> None:
        self._check_open()
        if asyncio._get_running_loop() is not None:
            raise InvalidRequest(
                f"{what}() and everything else that waits is for `def` tests; in an `async def` test, await "
                "`kagzi_env.astart(...)`, `kagzi_env.aadvance(...)`, and what the app itself has"
            )

    async def _result(self, handle: Handle[R], timeout: Duration | None) -> R:
        if isinstance(self._home, _Virtual) or timeout is not None:
            return await handle.result(timeout)
        while True:
            try:
                return await handle.result(_LOOK_SECONDS)
            except TimeoutError:
                run = await handle.get()
                if run.status is RunStatus.SLEEPING and run.available_at is not None:
                    rest = (run.available_at - self.now).total_seconds()
                    if rest > _PATIENCE_SECONDS:
                        self._no_time(
                            f"run {handle.id} sleeps until {run.available_at}, and the database has real time"
                        )


class BlockingRun(Generic[R]):
    """A run in a `def` test: what a `Handle` has, without `await`."""

    def __init__(self, env: Environment, handle: Handle[R]) -> None:
        self._env = env
        self.handle = handle

    def __repr__(self) -> str:
        return f"BlockingRun({self.id!r})"

    @property
    def id(self) -> str:
        return self.handle.id

    def result(self, timeout: Duration | None = None) -> R:
        """Waits for the run. On virtual time, time passes as fast as it can."""
        return self._env.run(self._env._result(self.handle, timeout))

    @property
    def record(self) -> RunRecord:
        return self._env.look(self.handle.get())

    @property
    def status(self) -> RunStatus:
        return self._env.look(self.handle.status())

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        """Every recorded attempt of every step so far."""
        return self._env.look(self.handle.steps())

    @property
    def step_names(self) -> list[str]:
        """The names of the steps that have ended, with their keys, in the order in which they did."""
        return _names(self.steps)

    def signal(self, name: str, value: Any = None) -> None:
        self._env.run(self.handle.signal(name, value))

    def cancel(self, *, grace: Duration | None = None) -> bool:
        return bool(self._env.run(self.handle.cancel(grace=grace)))

    def value(self, name: str, type: Any = Any) -> Any:
        return self._env.look(self.handle.value(name, type))

    def retry(self) -> BlockingRun[R]:
        return BlockingRun(self._env, self._env.run(self.handle.retry()))


class AsyncRun(Handle[R]):
    """A run in an `async def` test: a `Handle` that knows the names of its steps."""

    __slots__ = ("_env", "_handle")

    _env: Environment
    _handle: Handle[R]

    @classmethod
    def of(cls, handle: Handle[R], env: Environment) -> AsyncRun[R]:
        run = cls.__new__(cls)
        for name in Handle.__slots__:
            setattr(run, name, getattr(handle, name))
        run._env, run._handle = env, handle
        return run

    async def result(self, timeout: Duration | None = None) -> R:
        return await self._env._result(self._handle, timeout)

    @property
    def step_names(self) -> list[str]:
        """The names of the steps that have ended, with their keys, in the order in which they did."""
        reading = self.steps()
        try:
            reading.send(None)  # a database in memory answers at once
        except StopIteration as end:
            return _names(end.value)
        reading.close()
        raise InvalidRequest("a real database has to be asked: `[step.name for step in await run.steps()]`")


def _names(steps: tuple[StepRecord, ...]) -> list[str]:
    return [step.name for step in steps if step.completed_seq is not None and step.kind is not StepKind.CANCEL]


class _Virtual:
    """An engine in memory and a clock that jumps."""

    def __init__(self, seed: int) -> None:
        self._clock = VirtualClock()
        self._ids = RandomIds(self._clock.now, entropy=Random(seed).randbytes)
        self._engine: LocalEngine | None = None
        self._namespaces: set[str] = set()
        self._queues: set[str] = set()
        self._open = AsyncExitStack()

    def new_loop(self) -> asyncio.AbstractEventLoop:
        return VirtualLoop(self._clock)

    def now(self) -> datetime:
        return to_datetime(self._clock.now())

    async def open(self, app: Kagzi, queues: tuple[str, ...], concurrency: int) -> None:
        if self._engine is None:
            store = SqliteStore(None, now=self._clock.now, inline=True)
            self._engine = await self._open.enter_async_context(virtual_engine(store, self._clock, self._ids))
        ids = app._ids

        async def close() -> None:
            app._ids = ids
            await app.close()

        await app.open(self._engine)
        app._ids = self._ids  # from the seed
        self._open.push_async_callback(close)
        await self._open.enter_async_context(app.resources())
        await self._open.enter_async_context(
            virtual_worker(
                self._engine, app, self._clock, self._ids, queues=queues, concurrency=concurrency, strict=True
            )
        )
        self._namespaces.add(app.namespace)
        self._queues.update(queues)

    async def patiently(self, awaitable: Awaitable[T]) -> T:
        if self._engine is None or len(self._namespaces) != 1:
            return await awaitable
        (namespace,) = self._namespaces
        return await unless_stuck(awaitable, self._engine, namespace=namespace, queues=sorted(self._queues))

    async def settle(self) -> None:
        """Returns when everything waits for time to pass."""
        await asyncio.sleep(_MOMENT)

    async def close(self) -> None:
        await self._open.aclose()


class _Real:
    """A database, or a server, and the time that it has."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._clock = SystemClock()
        self._namespace = f"test-{RandomIds(self._clock.now).token()}"  # of nobody else's, whatever the database holds
        self._open = AsyncExitStack()

    def new_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.new_event_loop()

    def now(self) -> datetime:
        return to_datetime(self._clock.now())

    async def open(self, app: Kagzi, queues: tuple[str, ...], concurrency: int) -> None:
        before = app._url, app._namespace

        def restore() -> None:
            app._url, app._namespace = before

        app.url, app._namespace = self._url, self._namespace
        self._open.callback(restore)
        await self._open.enter_async_context(app)
        await self._open.enter_async_context(
            app.worker(queues=queues, concurrency=concurrency, grace="1s", strict=True)
        )

    async def patiently(self, awaitable: Awaitable[T]) -> T:
        return await awaitable

    async def settle(self) -> None:
        """Nobody knows when that would be."""

    async def close(self) -> None:
        await self._open.aclose()
