"""One simulated world, from a seed: built, disturbed, healed, judged.

First there are faults, and only safety is asked for. Then a core is healed (one engine, one worker, the way to the
store) while the rest may stay broken for ever, and everything must come to its end within a bound. Then the endings are
judged.
"""

from __future__ import annotations

import gc
import logging
from asyncio import _set_running_loop
from collections import Counter
from random import Random
from typing import Any

from kagzi.api.operations import Chunk, CompleteRun, Write
from kagzi.core.instant import SECOND
from kagzi.core.run import RunStatus
from kagzi.errors import Conflict, KagziError, LimitExceeded, NotFound
from kagzi.sdk.handle import Handle
from kagzi.store.sqlite.store import SqliteStore
from kagzi.testing.clock import VirtualClock
from kagzi.testing.faulty import Transport
from kagzi.testing.simulation.bulk import PLAIN_ORDERS, draw_bulk
from kagzi.testing.simulation.catalogue import workflow_named
from kagzi.testing.simulation.checks.checker import Checker
from kagzi.testing.simulation.checks.rows import Violation
from kagzi.testing.simulation.endings import input_of, judge_endings
from kagzi.testing.simulation.families import draw_families
from kagzi.testing.simulation.faults import CALM, Fault, Nemesis, draw_settings, draw_weather
from kagzi.testing.simulation.handlers import NAMESPACE_HANDLER, draw_handlers, has_namespace_handler
from kagzi.testing.simulation.held import HeldRows, has_held_rows
from kagzi.testing.simulation.ledger import Ledger
from kagzi.testing.simulation.limited import draw_keys, draw_limited
from kagzi.testing.simulation.link import Link
from kagzi.testing.simulation.network import Network, run_at_once
from kagzi.testing.simulation.node import Node
from kagzi.testing.simulation.operators import Operators
from kagzi.testing.simulation.orders import Order, draw_endings, draw_orders, patience_with
from kagzi.testing.simulation.process import Process
from kagzi.testing.simulation.restarts import draw_changed
from kagzi.testing.simulation.signals import Telling, draw_signals
from kagzi.testing.simulation.values import draw_values
from kagzi.testing.simulation.watched import WatchedStore
from kagzi.testing.virtual import Deadlock, Livelock, VirtualLoop

# After healing, everything has to end within this many seconds: a run that takes its process down each time is given up
# after ten leases and the pauses between them, which is all but a minute of it. A parent that is tried again starts
# such a child anew, and has as many times as long (`orders.patience_with`).
PATIENCE = 400.0
_EXTENSIONS = 3  # how often patience begins anew with the run that was born last


class World:
    def __init__(self, seed: int, *, bulk: bool = False, keep_log: bool = True) -> None:
        self.seed = seed
        self.bulk = bulk  # a world of another kind, with jobs and debounced starts, and streams of chance of its own
        streams = "kagzi bulk" if bulk else "kagzi"
        self.clock = VirtualClock()
        self.host = VirtualLoop(self.clock)
        self.coverage: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self.namespace_handler: str | None = None
        self._events: list[tuple[Any, ...]] = []
        self._keep_log = keep_log
        random = Random(f"{streams} {seed}")
        self.random = random
        self.settings = draw_settings(random)
        self.weather = draw_weather(random)
        self.until = random.uniform(15.0, 40.0)
        store = SqliteStore(None, now=self.clock.now, inline=True)
        run_at_once(store.open())
        self.store = store
        connection = store._database._writer._connection  # type: ignore[union-attr]
        assert connection is not None
        self.connection = connection
        self.checker = Checker(self, connection)
        self.ledger = Ledger(self)
        self.watched = WatchedStore(self, store)
        self.held = HeldRows(self, Random(f"{streams} locks {seed}"))
        self.network = Network(self, self.watched, Random(random.random()))
        self.operators = Operators(self, Random(f"{streams} operators {seed}"))
        # Claims bring no signals, as those of an older server, or when there are many: they have to be read.
        self.bare_claims = Random(f"{streams} inbox {seed}").random() < 0.5
        self._senders = Random(f"{streams} senders {seed}")
        self.moved: dict[str, int] = {}  # how many events a run had when it was moved to another version
        self._told: set[tuple[str, str]] = set()  # runs and keys of signals that were acknowledged
        self.nodes = self._draw_nodes(random)
        self.engines = [node for node in self.nodes if node.has_engine]
        self._nodes_by_process = {node.process.name: node for node in self.nodes}
        self.orders = self._draw_orders(random)
        if bulk:
            del self.orders[PLAIN_ORDERS:]
        draw_endings(Random(f"{streams} endings {seed}"), self.orders)
        draw_signals(Random(f"{streams} signals {seed}"), self.orders)
        draw_values(seed, Random(f"{streams} values {seed}"), self.orders)
        draw_families(seed, Random(f"{streams} families {seed}"), self.orders)
        draw_handlers(seed, self.orders)
        limiting = Random(f"{streams} limits {seed}")
        draw_keys(seed, limiting, self.orders)
        self.orders += draw_limited(seed, limiting, self.until)
        self.orders += draw_changed(seed, Random(f"{streams} restarts {seed}"), self.until)
        if bulk:
            self.orders += draw_bulk(Random(f"{streams} runs {seed}"), self.until)
        self._by_input = {input_of(order): order for order in self.orders}
        self._patience = PATIENCE * max(patience_with(order) for order in self.orders)
        self._last_birth, self._extensions = 0.0, 0
        self._deal_orders(random)
        self._nemesis = Nemesis(self, Random(random.random()))
        self._living = list(self.nodes)
        self.calm = False
        self._note_settings()

    # Building.

    def _draw_nodes(self, random: Random) -> list[Node]:
        engines = random.choice((2, 2, 3))
        remote = random.choice((0, 1, 1, 2))
        nodes = []
        for number in range(engines + remote):
            has_engine = number < engines
            process = Process(f"{'engine' if has_engine else 'remote'}-{number + 1}", self.host, self._trouble)
            process.world = self
            worker = not has_engine or number == 0 or (random.random() < 0.6 and remote < 2)
            nodes.append(Node(self, process, Random(random.random()), engine=has_engine, worker=worker))
        return nodes

    def _draw_orders(self, random: Random) -> list[Order]:
        return draw_orders(random, self.until)

    def link(self, process: Process, random: Random) -> Transport:
        """Returns the way from a process without an engine to those that have one."""
        return Link(self, process, random)

    def _clients(self, random: Random) -> list[Node]:
        return random.sample(self.nodes, random.choice((1, 2)))

    def _deal_orders(self, random: Random) -> None:
        clients = self._clients(random)
        for order in self.orders:
            chosen = clients if order.id is not None and random.random() < 0.4 else [random.choice(clients)]
            for client in chosen:
                client.orders.append(order)

    def _note_settings(self) -> None:
        settings = self.settings
        for fault, is_so in (
            (Fault.TINY_LEASE, settings.lease <= SECOND),
            (Fault.BATCH_OF_ONE, settings.batch_writes == 1),
            (Fault.CLAIM_OF_ONE, settings.claim_limit == 1),
        ):
            if is_so:
                self.happened(fault)
        self.log("world", f"{'bulk ' if self.bulk else ''}seed {self.seed}", f"{settings}", f"{self.weather}")

    # Living.

    def run(self) -> None:
        """Live to the end. Raises Violation if something is not as it must be."""
        watcher = _Watcher(self)
        collecting = gc.isenabled()
        gc.disable()
        try:
            with watcher:
                try:
                    self._live()
                finally:
                    watcher.world_is_over()
                    self._bury()
        finally:
            if collecting:
                gc.enable()
        if self.failure is not None:
            raise self.failure

    def _live(self) -> None:
        for node in self.nodes:
            self.host.call_later(self.random.uniform(0.0, 0.5), self._start, node)
        self.host.set_exception_handler(self._on_error)
        self._nemesis.begin()
        self.operators.begin()
        if has_held_rows(self.seed) and not self.bulk:
            self.held.begin()
        if has_namespace_handler(self.seed):
            self.host.call_later(self.until * 0.3, self._handle_all_failures)
        self.host.call_later(self.until, self._heal)
        try:
            self.host.run_forever()
        except (Deadlock, Livelock) as stuck:
            self.failed(Violation(str(stuck)))
        if self.failure is None:
            try:
                judge_endings(self)
            except Violation as violation:
                self.failed(violation)

    def _handle_all_failures(self) -> None:
        """An administrator wants to be told of them."""
        self.namespace_handler = NAMESPACE_HANDLER
        run_at_once(self.store.namespaces.update("default", None, None, None, (NAMESPACE_HANDLER, None)))
        self.log("world", "has a handler")

    def _start(self, node: Node) -> None:
        if node.process.alive:
            return
        if node.process.lives:
            self.happened(Fault.RESTART, node.process.name)
        else:
            self.log(node.process.name, "starts")
        node.start()

    def start_later(self, node: Node) -> None:
        if node in self._living:
            self.host.call_later(self.random.uniform(0.1, 1.0 if self.calm else 5.0), self._start, node)

    def crash(self, node: Node) -> None:
        self.happened(Fault.CRASH, node.process.name)
        node.process.crash()
        self.start_later(node)

    def _heal(self) -> None:
        self.calm = True
        self._nemesis.end()
        self.operators.heal()
        self.held.heal()
        self.weather = CALM if self.weather.notifications else self.weather.__class__(notifications=False)
        engine = self.random.choice(self.engines)
        core = [engine]
        if not engine.has_worker:
            core.append(self.random.choice([node for node in self.nodes if node.has_worker]))
        self.log("world", "heals", *[node.process.name for node in core])
        for node in self.nodes:
            if node in core or self.random.random() < 0.4:
                node.process.cut_off = False
                if node.process.loop.paused:
                    node.process.resume()
                if not node.process.alive:
                    self.host.call_later(0.1, self._start, node)
            else:
                self._leave_broken(node)
        self.engines = [node for node in self.engines if node in self._living]
        self.host.call_later(self._patience, self._out_of_patience)
        self.look_whether_over()

    def _leave_broken(self, node: Node) -> None:
        self.happened(Fault.LEFT_BROKEN, node.process.name)
        self._living.remove(node)
        match self.random.choice(("dead", "stopped", "cut off")):
            case "dead":
                node.process.crash()
            case "stopped":
                node.process.pause()
            case _:
                node.process.cut_off = True

    def _out_of_patience(self) -> None:
        rest = self._last_birth + self._patience - self.host.time()
        if rest > 0 and self._extensions < _EXTENSIONS:  # a run that crashes its worker takes minutes to be given up
            self._extensions += 1
            self.host.call_later(rest, self._out_of_patience)
            return
        stuck = [
            f"{run.run_id} is {run.status}, available_at {run.available_at}, lease until {run.lease_expires_at}"
            for run in self.checker.runs.values()
            if not run.status.finished
        ]
        waiting = [
            f"{node.process.name} waits for {node.waiting} results and has {len(node.orders)} orders to place"
            for node in self._living
            if node.waiting or node.orders
        ]
        waiting += [f"{job} goes on" for job in self.checker.jobs.open]
        self.failed(Violation(f"{self._patience:g} s after healing: {'; '.join(stuck + waiting)}"))

    def look_whether_over(self) -> None:
        if self.checker.live or self.operators.at_work or (not self.calm and any(node.orders for node in self.nodes)):
            return
        if self.checker.jobs.open:
            return
        if not any(node.orders or node.waiting for node in self._living):
            self.host.stop()

    def _bury(self) -> None:
        for node in self.nodes:
            node.process.crash()
        for node in self.nodes:
            node.evict()
            node.process.bury()
        _set_running_loop(None)
        self.host.close()
        run_at_once(self.store.close())

    # What happens.

    def node_of(self, process: Process) -> Node:
        return self._nodes_by_process[process.name]

    def is_cancelled_at_its_end(self, write: Write) -> bool:
        """Whether somebody asks for this run to end just before this is stored, which would complete it."""
        if not isinstance(write, Chunk) or not isinstance(write.operations[-1], CompleteRun):
            return False
        row = self.checker.runs.get(write.run_id)
        if row is None or row.cancel_requested or row.input is None or row.parent_run_id is not None:
            return False
        order = self._by_input.get((row.workflow_type, row.input))
        return order is not None and order.cancel_at_end

    def transaction(self, method: str, args: tuple[Any, ...], answer: Any) -> None:
        """The store has committed something."""
        self.coverage[f"store: {method}"] += 1
        if self._keep_log:
            self._log_transaction(method, args, answer)
        try:
            self.checker.after(method, args, answer)
        except Violation as violation:
            self.failed(violation)
            raise
        if not self.checker.live:
            self.look_whether_over()

    def happened(self, fault: Fault, *detail: Any) -> None:
        self.coverage[f"fault: {fault}"] += 1
        if detail:
            self.log("fault", fault, *detail)

    def operation(self, name: str) -> None:
        self.coverage[f"operation: {name}"] += 1

    def acknowledged(self, order: Order, handle: Handle[Any]) -> None:
        """A client was told that its run is durable."""
        if self.checker.known(handle.id) is None:
            raise self.violation(f"run {handle.id} was acknowledged and is not there")
        if order.run_id is not None and order.run_id != handle.id and order.id is not None:
            heir = self.checker.runs[order.run_id]
            while heir.superseded_by is not None:
                heir = self.checker.runs[heir.superseded_by]
            if heir.run_id != handle.id:
                raise self.violation(f"{order.id} is {order.run_id} and {handle.id}")
        order.run_id = handle.id

    def answered(self, order: Order, handle: Handle[Any], status: RunStatus, answer: Any) -> None:
        """A client was told how its run ended."""
        run = self.checker.runs[handle.id]
        if run.status is not status:
            raise self.violation(f"a client heard that run {handle.id} is {status}, and it is {run.status}")
        if status is RunStatus.COMPLETED:
            stored = workflow_named(order.workflow).signature.decode_result(run_output(self, handle.id))
            if stored != answer:
                raise self.violation(f"a client heard of another result of run {handle.id}")

    def born(self, namespace: str, run_id: str) -> None:
        """There is a new run: from now on it can be told something."""
        self._last_birth = self.host.time()
        run = run_at_once(self.store.runs.get(namespace, run_id))
        assert run is not None
        order = None if run.parent_run_id is not None else self._by_input.get((run.workflow_type, run.input))
        for telling in () if order is None else order.tellings:
            for after in telling.after:
                self.host.call_later(after, self._tell, run_id, run.external_id, telling, True)

    def _tell(self, run_id: str, external_id: str | None, telling: Telling, first: bool) -> None:
        """Somebody sends a signal; somebody else does until it is acknowledged."""
        if self.checker.runs[run_id].status.finished or (not first and (run_id, telling.key) in self._told):
            return
        able = [node for node in self._living if node.process.alive and node.app is not None]
        if able:
            node = self._senders.choice(able)
            node.process.spawn(node.tell(run_id, external_id, telling))
        self.host.call_later(3.0, self._tell, run_id, external_id, telling, False)

    def told(self, run_id: str, telling: Telling) -> None:
        """A sender was told that its signal is durable."""
        self._told.add((run_id, telling.key))
        if telling.key not in self.checker.runs[run_id].signals:
            raise self.violation(f"the signal {telling.key} for run {run_id} was acknowledged and is not there")

    def untold(self, run_id: str, telling: Telling, error: KagziError) -> None:
        """A sender was told that its signal was refused, or knows nothing of it."""
        if isinstance(error, Conflict) and self.checker.runs[run_id].status.finished:
            self.operation("signal for a run that has ended")
        elif isinstance(error, Conflict | NotFound | LimitExceeded):
            raise self.violation(f"the signal {telling.key} for run {run_id} was refused: {error}")

    def violation(self, what: str) -> Violation:
        violation = Violation(what)
        self.failed(violation)
        return violation

    def failed(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            self.log("world", "FAILED", str(error))
            self.host.stop()

    def _trouble(self, process: Process, error: BaseException) -> None:
        self.log(process.name, "trouble", repr(error))
        self.failed(error if isinstance(error, Violation) else Trouble(process.name, error))

    def _on_error(self, loop: Any, context: dict[str, Any]) -> None:  # noqa: ARG002
        error = context.get("exception") or RuntimeError(context.get("message"))
        self.failed(error)

    # The log.

    def log(self, *event: Any) -> None:
        if self._keep_log:
            self._events.append((self.clock.monotonic(), *event))

    def _log_transaction(self, method: str, args: tuple[Any, ...], answer: Any) -> None:
        if method == "apply":
            for write, said in zip(args[0], answer.answers, strict=True):
                kinds = [type(op).__name__ for op in getattr(write, "operations", (write,))]
                self.log("store", "+".join(kinds), write.run_id, repr(said)[:60])
        elif method == "claim":
            self.log("store", "claim", args[0].worker_id, args[0].number, *[claim.run_id for claim in answer.claims])
        elif method not in ("overview.horizon", "runs.finished_of"):
            self.log("store", method, repr(answer)[:200])

    def lines(self) -> list[str]:
        return [f"{at / SECOND:11.6f} " + " ".join(str(part) for part in event) for at, *event in self._events]

    def seen(self) -> Counter[str]:
        """Everything that occurred in this world."""
        seen = Counter(self.coverage)
        for transition, times in self.checker.transitions.items():
            seen[f"transition: {transition}"] += times
        return seen


class Trouble(AssertionError):
    """Product code raised where nobody expected it."""

    def __init__(self, process: str, error: BaseException) -> None:
        super().__init__(f"{process}: {error!r}")
        self.__cause__ = error


class _Watcher(logging.Handler):
    """Errors that the product only logs count, unless it means to log them."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world
        self._over = False
        self._logger = logging.getLogger("kagzi")

    def __enter__(self) -> None:
        self._before = (self._logger.level, self._logger.propagate)
        self._logger.setLevel(logging.ERROR)
        self._logger.propagate = False
        self._logger.addHandler(self)

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._before[0])
        self._logger.propagate = self._before[1]

    def world_is_over(self) -> None:
        """Nothing counts from now on: what coroutines say when they are closed did not happen in the world."""
        self._over = True

    def emit(self, record: logging.LogRecord) -> None:
        if self._over:
            return
        self._world.log("logged", record.getMessage())
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not record.name.startswith("kagzi.workflow"):
            self._world.failed(Trouble(record.getMessage(), error))


def run_output(world: World, run_id: str) -> bytes:
    run = run_at_once(world.store.runs.get("default", run_id))
    assert run is not None
    return run.output or b"null"
