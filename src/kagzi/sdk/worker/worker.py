"""The worker: polls for runs, drives them in its slots, drains when told to.

One task polls. Claimed runs are begun from plain callbacks, and so is everything that happens to them (see
`attempt.py`). Heartbeats are somebody else's business (`heartbeat.py`), usually on another thread: the methods they
call say so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from kagzi import tracing
from kagzi.api.engine import Engine
from kagzi.api.operations import BirthLease, StartRun
from kagzi.api.transactions import Transactions
from kagzi.api.workers import Claim, DeclaredLimit, Heartbeat, HeartbeatAnswer, Poll, Polled
from kagzi.clock import Clock
from kagzi.core.duration import format_span
from kagzi.core.instant import SECOND, Instant, Span
from kagzi.core.limits import CLAIMS
from kagzi.core.retry import Retry
from kagzi.errors import KagziError, SchemaMismatch, VersionMismatch
from kagzi.ids import IdSource
from kagzi.sdk.replay.blocking_calls import watch_blocking_calls
from kagzi.sdk.replay.loop import BlockingCalls
from kagzi.sdk.replay.side_threads import watch_threads
from kagzi.sdk.standalone import STANDALONE
from kagzi.sdk.worker import forks
from kagzi.sdk.worker.attempt import Attempt
from kagzi.sdk.worker.beginning import Registry, begin_run, run_retry
from kagzi.sdk.worker.bodies import Bodies
from kagzi.sdk.worker.engine_clock import Bounds, EngineClock
from kagzi.sdk.worker.headstart import Headstart
from kagzi.sdk.worker.heartbeat import HeartbeatThread
from kagzi.sdk.worker.process_pool import ProcessPool
from kagzi.sdk.worker.refusals import Refusals
from kagzi.sdk.worker.registering import Registering
from kagzi.sdk.worker.settings import WorkerSettings
from kagzi.sdk.worker.slots import Slots
from kagzi.sdk.worker.suspects import Suspects
from kagzi.sdk.worker.tally import Tally
from kagzi.sdk.worker.traced import TracedAttempt

logger = logging.getLogger("kagzi.worker")

# How long a worker that stops waits for its last words to be stored, if the engine is out of reach.
_HAND_BACK: Span = 2 * SECOND
_LEAVE_SECONDS = 3.0
_TELL_SECONDS = 1.0
_TRIAL_LOOK_SECONDS = 0.02
_HEAR_AGAIN_SECONDS = 1.0


class Heart(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def hurry(self) -> None:
        """Notes that the time between heartbeats has become shorter."""
        ...


class Worker:
    def __init__(
        self,
        engine: Engine,
        registry: Registry,
        *,
        namespace: str,
        clock: Clock,
        ids: IdSource,
        settings: WorkerSettings,
        heart: Callable[[Engine, Worker], Heart] = HeartbeatThread,
        around_def: Callable[[], contextlib.AbstractContextManager[object]] | None = None,
        transactions: Transactions | None = None,
        home: str = "",
    ) -> None:
        self.worker_id = ids.token()
        self.transactions = transactions  # for steps, if the engine has the database itself
        self._log = logging.LoggerAdapter(logger, {"worker_id": self.worker_id})
        self._registering = Registering(
            engine,
            self.worker_id,
            namespace=namespace,
            types=registry.workflow_types(),
            interfaces=registry.workflow_interfaces,
            settings=settings,
            log=self._log,
        )
        self.ids = ids
        self.monotonic = clock.monotonic
        self.settings = settings
        self.draining = False
        self.shortcut = ""  # what to press to have `hurry` called, for people
        self.slots = Slots(settings.concurrency, self._slot_freed)
        self._home = home
        self._process_pool: ProcessPool | None = None  # made for the first step that needs one
        self.bodies = Bodies(monotonic=clock.monotonic, threads=settings.threads, around=around_def)
        self.loop: asyncio.AbstractEventLoop
        self._engine = engine
        self.commit = engine.workers.commit
        self._attempt: Callable[[Worker, Claim, Bounds, Span], Attempt] = Attempt
        self._registry = registry
        self._namespace = namespace
        self._make_heart = heart
        self._heart: Heart | None = None
        self._held: dict[str, Attempt] = {}
        self._engine_clock = EngineClock()
        self._reserved_at: dict[str, Span] = {}  # by the token of the lease
        self._confirming: set[asyncio.Task[None]] = set()
        self._heard = 0
        self._tally = Tally()
        self.finished = self._tally.finished
        self._pace: Span = self._registering.interval  # what heartbeats now wait for
        self._backlog = False  # the last claim came back full, so more may be due: starts would jump the queue
        self._slot_free = asyncio.Event()
        self._idle = asyncio.Event()
        self._hurry = asyncio.Event()
        self.told_to_stop = asyncio.Event()  # by an operator or by `refusal`; whoever hosts the worker may stop it then
        self.refusal: KagziError | None = None  # why the engine does not want this worker any more
        self._refusals = Refusals(clock.monotonic)
        self._headstart = Headstart()
        self._suspects = Suspects(
            lambda attempt: self._begin_all([attempt]), lambda: list(self._held.values()), clock.monotonic
        )
        self._leaving: asyncio.Task[None] | None = None
        warned = "error" if settings.strict and settings.blocking_calls == "warn" else settings.blocking_calls
        self._blocking_calls: BlockingCalls = warned
        self._polls = 0
        self._polling: asyncio.Task[None] | None = None
        self._detach: Callable[[], None] | None = None
        self.read_inbox = engine.workers.read_inbox
        self._looking: asyncio.Task[None] | None = None
        self._hearing: asyncio.Task[None] | None = None  # of news, from an engine in another process

    # Life.

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        watch_threads()
        if self._blocking_calls != "off":
            watch_blocking_calls(all_of_them=self._blocking_calls == "error")
        forks.watch()
        if (tracer := tracing.tracer()) is not None:
            self._attempt = partial(TracedAttempt, tracer=tracer)
        await self._registering.register()
        self._suspects.crashes = self._registering.suspect_crashes
        self._pace = self._registering.interval
        self._heart = self._make_heart(self._engine, self)
        await self._heart.start()
        if self.settings.adopt:
            self._detach = self._engine.workers.attach(self, self._namespace, self.settings.queues)
        if self._detach is None:
            self._hearing = asyncio.create_task(self._hear_for_ever(), name="kagzi-news")
        if self.settings.schedules:
            self._looking = asyncio.create_task(self._registering.look_at_schedules(), name="kagzi-schedules")
        self._polling = asyncio.create_task(self._poll_for_ever(), name="kagzi-poll")
        written = [each for each in self._registering.types if each.name != STANDALONE]
        self._log.info(
            "worker %s is up: queues %s; workflows %s; %d slots",
            self.worker_id,
            ", ".join(self.settings.queues),
            ", ".join(f"{each.name} (version {each.version})" for each in written) or "none but single steps",
            self.slots.concurrency,
        )

    def works_for(self, engine: object) -> bool:
        return self._engine is engine

    def process_pool(self) -> ProcessPool | None:
        """The pool in which steps with executor="process" run; None on virtual time."""
        if self._process_pool is None and self.settings.threads:
            self._process_pool = ProcessPool(self.settings.step_processes, self._home)
        return self._process_pool

    async def stop(self, grace: Span | None = None) -> None:
        """Drains: claims nothing more, lets running bodies finish within the grace time, hands everything back."""
        is_news = not self.draining  # to the engine: an operator who asks for it asks there
        self.draining = True
        grace = self.settings.grace if grace is None else grace
        self._tell_waited_for(grace)
        if self._leaving is not None:
            await self._leaving
        await self._take_nothing_new()
        telling: asyncio.Task[None] | None = None
        if self._held and is_news:
            # Beside the draining, which waits for nobody.
            telling = self.loop.create_task(self._say(lambda me: self._engine.workers.drain(me), _TELL_SECONDS))
        self.loop.call_soon(self._each_held, Attempt.drain)
        if not await self._idle_within(grace, unless=self._hurry):
            self.loop.call_soon(self._each_held, Attempt.hand_back)
            if not await self._idle_within(_HAND_BACK):
                self.loop.call_soon(self._each_held, lambda attempt: attempt.abandon("the worker stops"))
                await asyncio.sleep(0)
        self.bodies.close()
        if self._process_pool is not None:
            await self._process_pool.close()
        for task in (self._hearing, self._looking):
            if task is not None:
                task.cancel()
        if telling is not None:
            await telling
        # Asked for in there: an engine that was closed meanwhile has no workers to ask for.
        await self._say(lambda me: self._engine.workers.deregister(me), _LEAVE_SECONDS)
        if self._heart is not None:
            await self._heart.stop()
        self._log.info(
            "worker %s has stopped: %d completed, %d failed", self.worker_id, self._tally.completed, self._tally.failed
        )

    def _tell_waited_for(self, grace: Span) -> None:
        """Says what draining waits for. Loudly where that may be long, since somebody may have pressed Ctrl-C and sees
        nothing happen."""
        if steps := self.bodies.running:
            still, them = ("1 step still runs", "it") if steps == 1 else (f"{steps} steps still run", "them")
            cut_short = f"; {self.shortcut} hands {them} back" if self.shortcut else ""
            self._log.warning("worker %s drains: %s; up to %s%s", self.worker_id, still, format_span(grace), cut_short)
        elif self._held:
            self._log.info("worker %s drains: %s in hand", self.worker_id, self._runs_held())

    def _runs_held(self) -> str:
        return "1 run" if len(self._held) == 1 else f"{len(self._held)} runs"

    async def _say(self, words: Callable[[str], Awaitable[None]], seconds: float) -> None:
        """Tells the engine something that it can do without; a failure is let pass."""
        with contextlib.suppress(KagziError, TimeoutError):
            async with asyncio.timeout(seconds):
                await words(self.worker_id)

    async def _take_nothing_new(self) -> None:
        if self._detach is not None:
            self._detach()
            self._detach = None
        if self._polling is not None:
            polling, self._polling = self._polling, None
            polling.cancel()
            # A claim may be under way, and comes to its end first, unless the engine is out of reach. Then it counts as
            # heard, so the next heartbeat gives its runs back.
            await asyncio.wait([polling], timeout=_LEAVE_SECONDS)
            self._heard = self._polls

    def hurry(self) -> None:
        """Cuts the grace time of `stop` short: bodies that are still running are stopped and their runs handed back."""
        self._hurry.set()

    async def _hear_for_ever(self) -> None:
        """Asks an engine in another process what has arrived for runs that are held here. Should that fail, heartbeats
        tell the same, later."""
        while True:
            try:
                for news in await self._engine.workers.news(self.worker_id, self._namespace, self.settings.poll_wait):
                    tell = self.cancel if news.cancelled else partial(self.hear_news, inbox_seq=news.inbox_seq)
                    # In a callback of its own, because runs are driven outside of any task.
                    self.loop.call_soon(tell, news.run_id)
            except VersionMismatch:
                return
            except KagziError:
                await asyncio.sleep(_HEAR_AGAIN_SECONDS)
            except Exception as error:
                # Nobody foresaw this, and nobody awaits this task: without a word runs would only hear by heartbeats.
                self._log.error("worker %s: waiting for news failed; it is tried again", self.worker_id, exc_info=error)
                await asyncio.sleep(_HEAR_AGAIN_SECONDS)

    async def __aenter__(self) -> Worker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _idle_within(self, length: Span, unless: asyncio.Event | None = None) -> bool:
        """Returns whether all runs were let go of in this time."""
        hurried = None if unless is None else asyncio.ensure_future(unless.wait())
        deadline = self.loop.time() + length / SECOND
        try:
            while self._held:
                self._idle.clear()
                idle = asyncio.ensure_future(self._idle.wait())
                waited = {idle} if hurried is None else {idle, hurried}
                try:
                    await asyncio.wait(
                        waited,
                        timeout=max(0.0, deadline - self.loop.time()),
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                finally:
                    idle.cancel()
                if self._held and (self.loop.time() >= deadline or (hurried is not None and hurried.done())):
                    return False
        finally:
            if hurried is not None:
                hurried.cancel()
        return True

    def _each_held(self, do: Callable[[Attempt], None]) -> None:
        for attempt in list(self._held.values()):
            do(attempt)

    # Polling.

    async def _poll_for_ever(self) -> None:
        while True:
            while (full := self._room() <= 0) or self._suspects.claims_nothing():
                if full:
                    self._slot_free.clear()
                    self.slots.awaited = True
                    await self._slot_free.wait()
                    self.slots.awaited = False
                else:
                    await asyncio.sleep(_TRIAL_LOOK_SECONDS)
            self._polls += 1
            room = min(self._room(), CLAIMS)
            poll = Poll(
                namespace=self._namespace,
                worker_id=self.worker_id,
                queues=self.settings.queues,
                types=self._registering.types,
                limit=room,
                number=self._polls,
                token=self.ids.token(),
                wait=self.settings.poll_wait,
                adopts=True,
                ending=max(0, room - max(0, self.slots.free)),
            )
            await self._poll(poll)

    def _room(self) -> int:
        """Returns how many runs to ask for."""
        return self.slots.room if self._backlog else self.slots.free

    async def _poll(self, poll: Poll) -> None:
        """Makes one poll, repeated with the same number and token until it is answered: a repeat claims nothing
        twice."""
        failures = 0
        sent: Span = 0
        polled: Polled | None = None
        while polled is None:
            sent = self.monotonic()
            try:
                polled = await self._engine.workers.poll(poll)
            except Exception as error:
                failures += 1
                if not isinstance(error, KagziError):
                    self._log.exception("polling failed")
                elif failures in (1, 10, 100):
                    self._log.warning("polling failed (%d in a row): %s", failures, error)
                self.not_renewed(error)
                await asyncio.sleep(min(0.05 * 2 ** min(failures, 8), 5.0) * (0.5 + self.ids.jitter()))
        if failures:
            self._log.info("polling works again after %d failures", failures)
        self._refusals.answered()
        self._backlog = len(polled.claims) >= poll.limit
        room = max(0, self.slots.room)
        attempts = []
        if polled.claims:
            bounds = self._engine_clock.heard(sent, polled.now, self.monotonic(), polled.waited)
            attempts = [self._hold(claim, bounds, polled.now - bounds.high) for claim in polled.claims]
        # Only now: a heartbeat that has heard of this poll and does not list its runs gives them away.
        self._heard = poll.number
        if len(attempts) > room:
            # Runs that had lent their slots have taken them back since the poll was sent.
            self.loop.call_soon(_hand_back, attempts[room:])
            del attempts[room:]
        if attempts:
            self.loop.call_soon(self._begin_all, self._suspects.sift(attempts))
            if self._backlog:
                await asyncio.sleep(0)  # those that come to their end at once make room for what is asked for next
            elif len(self._held) == len(attempts):
                await self._headstart.of(attempts)

    def _hold(self, claim: Claim, bounds: Bounds, leased_at: Span) -> Attempt:
        old = self._held.pop(claim.run_id, None)
        if old is not None:
            # Our own lease ran out and we claimed the run again before we noticed.
            old.abandon("it was claimed again")
        self.slots.take()
        attempt = self._held[claim.run_id] = self._attempt(self, claim, bounds, leased_at)
        if claim.lease // 3 < self._pace and self._heart is not None:
            self._pace = claim.lease // 3
            self._heart.hurry()
        return attempt

    def _begin_all(self, attempts: list[Attempt]) -> None:
        doubtful: list[Attempt] = []
        for attempt in attempts:
            if attempt.gone:
                continue
            if attempt.lease_is_safe(self.monotonic()):
                self._begin(attempt)
            else:
                doubtful.append(attempt)
        if doubtful:
            task = self.loop.create_task(self._confirm(doubtful))
            self._confirming.add(task)
            task.add_done_callback(self._confirming.discard)

    async def _confirm(self, attempts: list[Attempt]) -> None:
        """Asks about claims that may have been so long on their way that they are out of date, before they are
        begun."""
        heartbeat, at = self.heartbeat()
        with contextlib.suppress(KagziError, TimeoutError):
            async with asyncio.timeout(self._registering.interval / SECOND):
                self.renewed(heartbeat, at, await self._engine.workers.heartbeat(heartbeat))
        self.loop.call_soon(self._begin_confirmed, attempts)

    def _begin_confirmed(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            if attempt.gone:
                continue
            if attempt.lease_is_safe(self.monotonic()):
                self._begin(attempt)
            else:
                attempt.abandon("its claim arrived too late")

    def _begin(self, attempt: Attempt) -> None:
        """Begins one run. What is wrong with it must not keep the others of its claim from beginning."""
        try:
            if self.draining:
                attempt.hand_back()
                return
            begin_run(
                attempt,
                self._registry,
                payload_limit=self._registering.payload_limit,
                strict=self.settings.strict,
                blocking_calls=self._blocking_calls,
            )
        except Exception as error:
            attempt.broke(error)

    # What attempts call.

    def run_retry(self, claim: Claim) -> Retry | None:
        """Returns the run's own policy: what was said at its start, else at its definition."""
        return run_retry(claim, self._registry)

    @property
    def declared_limits(self) -> tuple[DeclaredLimit, ...]:
        return self.settings.limits

    def release(self, attempt: Attempt) -> None:
        if self._held.get(attempt.run_id) is attempt:
            del self._held[attempt.run_id]
        self.slots.release(attempt)
        self._suspects.left(attempt)
        if not self._held:
            self._idle.set()
            self._headstart.end()

    def _slot_freed(self) -> None:
        self._slot_free.set()

    # Runs born beside us (api.workers.Adopter).

    def reserve(self, start: StartRun) -> BirthLease | None:
        if self.draining or self._backlog or self.slots.free <= 0 or self._suspects.claims_nothing():
            return None
        if start.version is None or self._registry.find_workflow(start.workflow_type, start.version) is None:
            return None
        self.slots.reserved += 1
        token = self.ids.token()
        self._reserved_at[token] = self.monotonic()
        return BirthLease(worker_id=self.worker_id, token=token, length=start.lease_length or self._registering.lease)

    def adopt(self, claim: Claim, now: Instant) -> None:
        self.slots.reserved -= 1
        bounds = self._engine_clock.heard(self._reserved_at.pop(claim.token), now, self.monotonic())
        self._begin_all([self._hold(claim, bounds, now - bounds.high)])

    def decline(self, lease: BirthLease) -> None:
        self._reserved_at.pop(lease.token, None)
        self.slots.reserved -= 1
        if self._room() > 0:
            self._slot_free.set()

    def claimable(self, limit: int) -> int:
        self.slots.claiming = max(0, min(limit, self._room() + self.slots.claiming))
        return self.slots.claiming

    def claimed(self) -> None:
        self.slots.claiming = 0

    def cancel(self, run_id: str) -> None:
        attempt = self._held.get(run_id)
        if attempt is not None:
            attempt.cancel()

    def hear_news(self, run_id: str, inbox_seq: int) -> None:
        attempt = self._held.get(run_id)
        if attempt is not None:
            attempt.hear_news(inbox_seq)

    def lose(self, run_id: str) -> None:
        attempt = self._held.get(run_id)
        if attempt is not None:
            attempt.abandon("it has ended elsewhere")

    # What heartbeats call, from their own thread (heartbeat.Held).

    def heartbeat(self) -> tuple[Heartbeat, Span]:
        at = self.monotonic()
        heard = self._heard  # before the list: a claim heard of later may be missing from it
        held = tuple((attempt.run_id, attempt.token) for attempt in list(self._held.values()))
        return Heartbeat(
            worker_id=self.worker_id, held=held, heard=heard, completed=self._tally.completed, failed=self._tally.failed
        ), at

    def heartbeat_interval(self) -> Span:
        shortest = min((attempt.claim.lease for attempt in list(self._held.values())), default=self._registering.lease)
        self._pace = min(self._registering.interval, shortest // 3)
        return self._pace

    def renewed(self, sent: Heartbeat, at: Span, answer: HeartbeatAnswer) -> None:
        self._refusals.answered()
        if answer.now:
            self._engine_clock.heard(at, answer.now, self.monotonic())
        not_ours_for_longer = {*answer.lost, *answer.unrenewed}
        for run_id, token in sent.held:
            attempt = self._held.get(run_id)
            if attempt is not None and attempt.token == token and run_id not in not_ours_for_longer:
                attempt.leased_at = max(attempt.leased_at, at)
        if answer.lost or answer.news or answer.drain or not answer.known:
            with contextlib.suppress(RuntimeError):  # the worker's loop has closed
                self.loop.call_soon_threadsafe(self._heard_back, dict(sent.held), answer)

    def not_renewed(self, error: Exception) -> None:
        if isinstance(error, SchemaMismatch):
            # It does not become another database by waiting.
            with contextlib.suppress(RuntimeError):  # the worker's loop has closed
                self.loop.call_soon_threadsafe(self.give_up, error, "its database is not the one it was opened on")
            return
        refusal = self._refusals.final(error, self._registering.lease)
        if refusal is not None:
            with contextlib.suppress(RuntimeError):  # the worker's loop has closed
                self.loop.call_soon_threadsafe(self._refused, refusal)

    def _refused(self, refusal: KagziError) -> None:
        self.give_up(
            type(refusal)(
                f"the server has refused this worker for {format_span(self._registering.lease)}: {refusal}. What it "
                "held is taken over by other workers; start it again with a key of the role worker"
            ),
            "the server refuses this worker",
        )

    def give_up(self, refusal: KagziError, reason: str) -> None:
        """Lets go of everything and takes nothing more: this worker cannot be of use."""
        if self.draining:
            return
        self.refusal = refusal
        self._log.error("worker %s takes nothing more: %s", self.worker_id, refusal)
        self._leave_off()
        self._each_held(lambda attempt: attempt.abandon(reason))

    def _leave_off(self) -> None:
        """Takes nothing new from now on, and tells the host of the worker."""
        self.draining = True
        self._leaving = self.loop.create_task(self._take_nothing_new())
        self.told_to_stop.set()

    def _heard_back(self, sent: dict[str, str], answer: HeartbeatAnswer) -> None:
        for run_id in answer.lost:
            attempt = self._held.get(run_id)
            if attempt is not None and attempt.token == sent[run_id]:
                attempt.abandon("its lease was lost")
        for run_id in answer.cancelled:
            attempt = self._held.get(run_id)
            if attempt is not None and attempt.token == sent[run_id]:
                attempt.cancel()
        for run_id, inbox_seq in answer.news:
            self.hear_news(run_id, inbox_seq)
        if not answer.known and not self.draining:
            self._log.warning("the engine took worker %s for dead; registering again", self.worker_id)
            self._registering.register_again()
        if answer.drain and not self.draining:
            self._log.info("an operator asks worker %s to drain: %s in hand", self.worker_id, self._runs_held())
            self._leave_off()
            self._each_held(Attempt.drain)


def _hand_back(attempts: list[Attempt]) -> None:
    for attempt in attempts:
        attempt.hand_back()
