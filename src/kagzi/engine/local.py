"""The engine in this process: services, batcher, wake-ups and duties over one store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from kagzi.api.events import Change, ScheduleChange
from kagzi.api.operations import Write
from kagzi.api.workers import Polled
from kagzi.clock import Clock, SystemClock
from kagzi.core.health import Health
from kagzi.core.load import Load
from kagzi.core.page import PageTokens
from kagzi.engine import health
from kagzi.engine.admin import Admin
from kagzi.engine.adopters import Adopters
from kagzi.engine.aftermath import Aftermath
from kagzi.engine.agenda import Agenda
from kagzi.engine.announcements import Announcements
from kagzi.engine.audit import Audit
from kagzi.engine.batcher import Lanes
from kagzi.engine.counting import Counting
from kagzi.engine.database_clock import DatabaseClock
from kagzi.engine.events import Events
from kagzi.engine.heartbeats import Heartbeats
from kagzi.engine.jobs import Jobs
from kagzi.engine.keys import Keys
from kagzi.engine.known_runs import KnownRuns
from kagzi.engine.leases import Leases
from kagzi.engine.limits import Limits
from kagzi.engine.load import LoadReader
from kagzi.engine.namespaces import Namespaces
from kagzi.engine.news import News
from kagzi.engine.patience import Patience
from kagzi.engine.polls.hand_backs import HandBacks
from kagzi.engine.polls.polls import Polls
from kagzi.engine.polls.worker_polls import Surroundings
from kagzi.engine.pulse import Pulse
from kagzi.engine.results import Results
from kagzi.engine.schedules import Schedules
from kagzi.engine.settings import EngineSettings
from kagzi.engine.supervisor import Supervisor
from kagzi.engine.timed import timed
from kagzi.engine.transactions import Transactions
from kagzi.engine.unserved import UnservedLooks
from kagzi.engine.versions import VersionRegistry
from kagzi.engine.wakeups import Wakeups
from kagzi.engine.workers import Workers
from kagzi.engine.workflows import Workflows
from kagzi.errors import Unavailable
from kagzi.ids import IdSource, RandomIds
from kagzi.metrics.counters import Metrics
from kagzi.store.protocol.changes import Applied, Changed, Queue, Recovered
from kagzi.store.protocol.overview import Horizon
from kagzi.store.protocol.schedules import Fired
from kagzi.store.protocol.store import Store


class Duties(Protocol):
    """What runs in the background of an engine (see `kagzi.coordinator`)."""

    def read(self, horizon: Horizon) -> None: ...

    async def run(self) -> None: ...


class HeldRuns(Protocol):
    """What duties ask of limits (see `kagzi.engine.limits`)."""

    async def repair(self) -> bool: ...

    async def declare(self, namespace: str) -> None: ...


class UnservedRuns(Protocol):
    """What duties ask about runs that no worker executes (see `kagzi.engine.unserved`)."""

    @property
    def wanted(self) -> bool: ...

    async def look(self) -> bool: ...


class MakeDuties(Protocol):
    def __call__(
        self,
        store: Store,
        changed: Callable[[Changed], None],
        settings: EngineSettings,
        *,
        jitter: Callable[[], float],
        new_run_id: Callable[[], str],
        fired: Callable[[Fired], None],
        submit: Callable[[Write], Awaitable[Any]],
        limits: HeldRuns,
        unserved: UnservedRuns,
    ) -> Duties: ...


class LocalEngine:
    """`api.engine.Engine` over a store.

    `coordinate` makes the background duties; composition roots pass `Coordinator`, which this layer does not
    know. Without `background`, nothing here looks at the database by itself: for an engine that only sends
    heartbeats.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        settings: EngineSettings = EngineSettings(),  # noqa: B008 (frozen)
        coordinate: MakeDuties | None = None,
        background: bool = True,
        metrics: Metrics | None = None,
    ) -> None:
        self.store = store
        self.metrics = metrics or Metrics()
        self.settings = settings.check()
        self._clock = clock or SystemClock()
        self._ids = ids or RandomIds(self._clock.now)
        self._coordinate = coordinate
        self._background = background
        self._parts: _Parts | None = None

    @property
    def workflows(self) -> Workflows:
        return self._opened.workflows

    @property
    def workers(self) -> Workers:
        return self._opened.workers

    @property
    def transactions(self) -> Transactions:
        """The transactions of steps, for workers in this process; no part of the contract."""
        return self._opened.transactions

    @property
    def leases(self) -> Leases:
        return self._opened.leases

    @property
    def admin(self) -> Admin:
        return self._opened.admin

    @property
    def namespaces(self) -> Namespaces:
        return self._opened.namespaces

    @property
    def versions(self) -> VersionRegistry:
        return self._opened.versions

    @property
    def limits(self) -> Limits:
        return self._opened.limits

    @property
    def jobs(self) -> Jobs:
        return self._opened.jobs

    @property
    def schedules(self) -> Schedules:
        return self._opened.schedules

    @property
    def events(self) -> Events:
        return self._opened.events

    @property
    def keys(self) -> Keys:
        return self._opened.keys

    @property
    def audit(self) -> Audit:
        return self._opened.audit

    @property
    def page_tokens(self) -> PageTokens:
        return PageTokens(self.store.page_secret)

    @property
    def wakeups(self) -> Wakeups:
        return self._opened.wakeups

    @property
    def results(self) -> Results:
        return self._opened.results

    @property
    def database_clock(self) -> DatabaseClock:
        return self._opened.clock

    async def open(self) -> None:
        if self._parts is not None:
            return
        await self.store.open()
        parts = _Parts(self.store, self._ids, self.settings, self._coordinate, self._background, self.metrics)
        self._parts = parts
        if self._background:
            try:
                await parts.namespaces.look()
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        """Waits for commits in flight. Polls end with nothing, waits for results with Unavailable."""
        parts, self._parts = self._parts, None
        if parts is not None:
            try:
                await parts.close()
            finally:
                await self.store.close()

    async def health(self) -> Health:
        _ = self._opened
        return await health.check(self.store, self.settings)

    async def load(self) -> Load | None:
        """Returns how much work waits and how many workers there are for it, at most a few seconds old; None if the
        database does not answer. Also counts what could not be counted without asking it (see `counting`)."""
        return await self._opened.load()

    def silence(self) -> float:
        """Returns for how many seconds the database has not answered the pulse. Asks nothing itself."""
        return self._opened.silence()

    def sibling(self) -> LocalEngine:
        return LocalEngine(
            self.store.sibling(),
            clock=self._clock,
            ids=self._ids,
            settings=self.settings,
            background=False,
            metrics=self.metrics,
        )

    async def __aenter__(self) -> LocalEngine:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def _opened(self) -> _Parts:
        if self._parts is None:
            raise Unavailable("the engine is not open; call open() first, or use it in `async with`")
        return self._parts


class _Parts:
    """Everything that belongs to a running event loop, made when the engine is opened."""

    def __init__(
        self,
        store: Store,
        ids: IdSource,
        settings: EngineSettings,
        coordinate: MakeDuties | None,
        background: bool,
        metrics: Metrics,
    ) -> None:
        self._stale = settings.worker_stale
        self._metrics = metrics
        self._store = store = timed(store, metrics)
        self._loop = asyncio.get_running_loop()
        self.clock = DatabaseClock()
        agenda = Agenda(settings.tick)
        self._look_soon = agenda.look_soon
        self._announcements = Announcements(store.wakeups.announce, settings.announce_every)
        self.wakeups = Wakeups(self.clock, self._announcements, agenda.look_soon)
        self.results = Results(self._announcements, agenda.check_soon)
        self.events = Events(ids.token, self.clock.now, agenda.check_soon)
        self._known = known = KnownRuns()
        self.adopters = adopters = Adopters()
        self._counting = Counting(metrics, known, self.clock.now)
        self._news = News()
        self.limits = Limits(store, self.wakeups, agenda.look_soon)
        self._aftermath = Aftermath(
            known,
            adopters,
            self.wakeups,
            self.results,
            self.events,
            self.clock,
            self._news,
            self._announcements,
            agenda.look_soon,
            self.limits.look_for_room,
        )
        self.load = LoadReader(self._load)
        self._lanes = Lanes(
            store, settled=self._settled, settings=settings, jitter=ids.jitter, withhold=adopters.withhold
        )
        self.namespaces = namespaces = Namespaces(store)
        self._patience = patience = Patience(settings.patience, ids.jitter)
        self.versions = VersionRegistry(store, settings.worker_stale, self.wakeups, patience)
        self.workflows = Workflows(
            store,
            self._lanes,
            self.wakeups,
            self.results,
            known,
            adopters,
            namespaces,
            self.versions,
            settings,
            patience,
        )
        self._heartbeats = Heartbeats(store, settings, released=self._changed)
        self.polls = Polls(
            self.wakeups,
            Surroundings(
                claim=lambda poll: store.work.claim(poll, settings.lease),
                claimed=self._claimed,
                now=self.clock.now,
                new_token=ids.token,
                adopters=adopters,
                hand_backs=HandBacks(self._lanes.submit),
                settings=settings,
            ),
        )
        self.audit = Audit(store)
        self.schedules = Schedules(
            store,
            namespaces,
            self.versions,
            settings,
            new_run_id=ids.run_id,
            started=self._started,
            changed=agenda.look_soon,
            tell=self.events.schedule,
            audit=self.audit.record,
            patience=patience,
        )
        self.workers = Workers(
            store,
            self._lanes,
            self.polls,
            adopters,
            namespaces,
            self._heartbeats,
            self._news,
            self._changed,
            self.limits.declare,
            settings,
            self.schedules,
        )
        self.transactions = Transactions(store, self._settled, settings)
        self.leases = Leases(store, on_confirmed=self._heartbeats.confirmed)
        self.admin = Admin(store, settings.worker_stale)
        self.jobs = Jobs(store, namespaces, self.versions, changed=agenda.look_soon)
        self.keys = Keys(store, settings)
        self._supervisor = Supervisor(ids.jitter)
        self.silence: Callable[[], float] = lambda: 0.0
        if background:
            duties = None
            if coordinate is not None:
                duties = coordinate(
                    store,
                    self._done,
                    settings,
                    jitter=ids.jitter,
                    new_run_id=ids.run_id,
                    fired=self._fired,
                    submit=self._lanes.submit,
                    limits=self.limits,
                    unserved=UnservedLooks(store, self.wakeups, self.polls, self._stale),
                )
            self._pulse = Pulse(
                store,
                agenda,
                self.wakeups,
                self.results,
                known,
                settings,
                jitter=ids.jitter,
                listen=self._listen,
                watched=lambda: self.events.on,
                before_look=self.polls.forget_unused,
                on_horizon=None if duties is None else duties.read,
            )
            self._supervisor.start("pulse", self._pulse.run)
            if duties is not None:
                self.silence = self._pulse.silence
                self._supervisor.start("coordinator", duties.run)

    async def close(self) -> None:
        self._patience.end()
        await self.audit.close()
        self.events.close()
        await self.polls.stop_offering()
        await self._lanes.close()
        await self._heartbeats.close()
        await self.limits.close()
        self.wakeups.close()
        self.polls.close()
        self.results.close()
        self._news.close()
        await self._announcements.close()
        await self._supervisor.close()

    # What follows from what. The parts do not know each other; who hears of what is written here.

    def _settled(self, writes: list[Write], applied: Applied) -> None:
        """Follows up on a durable batch."""
        self._counting.settled(writes, applied.answers)
        let_go = self._aftermath.settled(writes, applied.answers)
        if applied.woken:
            self._counting.started(applied.woken)
            self._aftermath.woken(applied.woken)
        if let_go:
            self._loop.call_soon(self.polls.let_go, let_go)  # after those who wait for these runs

    def _changed(self, runs: Sequence[Recovered]) -> None:
        """Follows up on runs that a duty, a heartbeat or a leaving worker changed."""
        self._counting.changed(runs)
        self._aftermath.changed(runs)
        if runs:
            self._look_soon()  # where there are limits, there may be room now

    def _fired(self, fired: Fired) -> None:
        """Follows up on a turn of the schedules."""
        if fired.late is not None:
            self._metrics.schedule_lag.observe(fired.late)
        for turn in fired.turns:
            for change, count in ((ScheduleChange.FIRED, turn.started), (ScheduleChange.SKIPPED, turn.skipped)):
                if count:
                    self._metrics.schedule_firings.add((turn.namespace, change.value), count)
                    self.events.schedule(turn.namespace, turn.schedule_id, change, count)
        self._started(fired.runs)
        self._aftermath.told_to_end(fired.told)
        self._aftermath.woken(fired.woken)
        self._look_soon()  # when they are due next

    def _started(self, runs: Sequence[Recovered]) -> None:
        """Follows up on runs that schedules or jobs have started."""
        self._counting.started(runs)
        self._aftermath.fired(runs)

    def _done(self, changed: Changed) -> None:
        """A duty was done."""
        self._changed(changed.runs)
        self._aftermath.woken(changed.woken)

    def _claimed(self, queues: tuple[Queue, ...], polled: Polled, worker_id: str) -> None:
        self.wakeups.claimed(queues, polled.now)
        self._aftermath.claimed(polled.claims, worker_id)
        if polled.held:
            self.limits.look_for_room(queues[0][0])  # the first of each line is told when its turn comes

    async def _load(self) -> Load:
        load = await self._store.overview.load(self._stale)
        await self._counting.look_up(self._store, load.now)
        return load

    def _listen(self, on: bool) -> None:
        if on:
            self._supervisor.start("listen", self._hear)
        else:
            self._supervisor.stop("listen")

    async def _hear(self) -> None:
        await self._store.wakeups.listen(
            self._heard_work, self._heard_finished, self._heard_anything, self._aftermath.heard_news
        )
        # A store may also just subscribe and return; it is unsubscribed when it is closed.
        await asyncio.get_running_loop().create_future()

    def _heard_work(self, queue: Queue) -> None:
        self.wakeups.wake(queue)
        if self.events.on:
            self.events.queue(*queue)

    def _heard_finished(self, namespace: str, run_id: str) -> None:
        if self.events.on:
            self.events.run(namespace, run_id, Change.FINISHED)
        self._known.ended_elsewhere(run_id)
        self.results.maybe_finished(namespace, run_id)

    def _heard_anything(self) -> None:
        if self.events.on:
            self.events.anything()
        self._known.ended_elsewhere(None)
        self._pulse.look_at_everything()
