"""The contract for workers: register, poll, commit, heartbeat, leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, TypeVar

from msgspec import Struct

from kagzi.api.operations import BirthLease, Chunk, ChunkAnswer, StartRun
from kagzi.api.reply import Reply
from kagzi.core.declaration import Declaration
from kagzi.core.instant import Instant, Span
from kagzi.core.limits import PAYLOAD_BYTES, SUSPECT_CRASHES
from kagzi.core.rate import RateLimit, slower
from kagzi.core.run import RunStatus
from kagzi.core.signal import Signal
from kagzi.core.step import Step
from kagzi.core.versions import WorkflowInterface
from kagzi.core.worker import WorkflowType

L = TypeVar("L", int, str)

INBOX_READ: Final = 100  # signals in one answer
INBOX_BYTES: Final = 65_536  # and in a claim at most this much of their values


class DeclaredLimit(Struct, frozen=True):
    """What a worker declares of a limit name: how many runs of it, and of each of its keys, may run at once over all
    workers."""

    name: str
    most: int | None = None
    key_most: int | None = None
    shares: str | None = None  # `name` is a workflow, whose runs count for the limits of this name
    rate: RateLimit | None = None  # how often runs may begin
    key_rate: RateLimit | None = None
    fair: bool = False  # its keys take turns


def smaller(one: DeclaredLimit, other: DeclaredLimit) -> DeclaredLimit:
    """Returns a limit that keeps to both: of each number the smaller one."""
    return DeclaredLimit(
        one.name,
        _least(one.most, other.most),
        _least(one.key_most, other.key_most),
        _least(one.shares, other.shares),
        slower(one.rate, other.rate),
        slower(one.key_rate, other.key_rate),
        one.fair or other.fair,
    )


def _least(one: L | None, other: L | None) -> L | None:
    return other if one is None else one if other is None else min(one, other)


class Registration(Struct, frozen=True, kw_only=True):
    """A worker introduces itself. It makes its own id, fresh at every start: host names and pids come back."""

    worker_id: str
    namespace: str
    queues: tuple[str, ...]
    types: tuple[WorkflowType, ...]
    hostname: str
    pid: int
    version: str
    concurrency: int
    labels: dict[str, str] = {}
    queue_limit: int | None = None  # runs of each of its queues at once, over all workers
    type_limits: dict[str, int] = {}  # the same by workflow
    limits: tuple[DeclaredLimit, ...] = ()  # the same by limit name and key
    schedules: tuple[Declaration, ...] = ()  # what its code declares, of its own types alone
    interfaces: tuple[WorkflowInterface, ...] = ()  # what its types are for and what they take
    look: bool = False  # it is registered: only its schedules are looked at again
    actor: str = ""  # who shows the key that it is registered with, and from where, as the audit log names them
    peer: str = ""


class Registered(Struct, frozen=True, kw_only=True):
    lease: Span  # how long a lease lasts unless the run says otherwise
    heartbeat: Span  # how often to send heartbeats
    payload_bytes: int = PAYLOAD_BYTES  # the most that is stored of one payload
    suspect_crashes: int = SUSPECT_CRASHES  # after so many a run is driven alone; 1 of `max_crashes=2`
    schedules: int = 0  # how many declarations were looked at; an older server none
    warnings: tuple[str, ...] = ()  # which of them do not count, and why


class Poll(Struct, frozen=True, kw_only=True):
    """Asks for up to `limit` runs, and waits up to `wait` for the first.

    `number` counts a worker's polls from 1 and `token` is fresh for each number: the token of every run claimed is made
    of it and of how often that run was claimed, so that no two claims of a run share one, even if a poll arrives twice.
    Repeating a poll (its answer was lost) with the same number and token returns the same runs. A poll that `adopts`
    may be answered with runs that were started while it waited: they are born leased to it. `ending`
    says how many of `limit` are slots of runs that have finished but whose end is not stored yet: the engine must not
    offer those a second time when it is.
    """

    namespace: str
    worker_id: str
    queues: tuple[str, ...]
    types: tuple[WorkflowType, ...]
    limit: int
    number: int
    token: str
    wait: Span
    adopts: bool = False
    ending: int = 0


class Claim(Struct, frozen=True, kw_only=True):
    """A leased run with everything needed to drive it."""

    namespace: str
    run_id: str
    token: str
    workflow_type: str
    version: str
    task_queue: str
    external_id: str | None
    input: bytes
    started_at: Instant  # of the run, at its first claim: time zero of the workflow's clock
    lease: Span
    attempts: int
    executions: int
    crashes: int
    inbox_seq: int
    history: tuple[Step, ...]  # every row of the run except old generations, events in order of completed_seq
    cancel_requested: bool = False  # the workflow is to be told, unless its history says that it was
    origin_run_id: str | None = None  # the run that this one continues: chance inside the workflow is drawn from its id
    retry_policy: bytes | None = None
    trace_context: str | None = None  # the span that started the run, as `kagzi.tracing` writes it
    # Whether it has children, or a parent that is told of its end. A worker that says False when it ends a run, because
    # the claim did and it has spawned nothing, spares the store looking for them.
    family: bool = False
    depth: int = 0  # generations above it
    handles_run_id: str | None = None  # the failed run that this one, or one above it, was started for
    scheduled_for: Instant | None = None  # the firing of a schedule that this run is, or when somebody has triggered it
    timezone: str | None = None  # of that schedule
    failed_input: bytes | None = None  # of a failure handler: what the failed run was given
    incarnation: int = 0  # how often it has begun anew (ContinueRun)
    executions_before: int = 0  # of `executions`, those before it did so last
    woken: str | None = None  # the note of a wake that ended its sleep: see `core.wake`
    lineage: str | None = None  # for whom its payloads may be sealed beside it: see `core.lineage`
    limited: bool = False  # claimed under a limit: another run may wait for its slot
    # All signals that it had not taken by `inbox_seq`, in their order. None: they have to be read, because they are too
    # many or too large, or the server is an older one.
    inbox: tuple[Signal, ...] | None = None


class Polled(Struct, frozen=True, kw_only=True):
    now: Instant  # the database's time at the claim
    claims: tuple[Claim, ...]
    # When the poll came, the database's time was at most `now` less this: what it waited for these runs. Less than 0 if
    # they were born before it came.
    waited: Span = 0
    more: bool = False  # others may be due behind those that were looked at
    held: bool = False  # some were held that may begin later, or in turn


class Heartbeat(Struct, frozen=True, kw_only=True):
    """Says that a worker is alive and holds these runs.

    `heard` is the highest poll number whose answer has arrived: a run claimed by an earlier poll and not listed here
    was lost on the way and goes back at once. A worker that keeps no list says `confirmed` instead:
    it holds what was confirmed (see `LeaseService`).
    """

    worker_id: str
    held: tuple[tuple[str, str], ...]  # (run_id, token)
    heard: int
    confirmed: bool = False
    namespace: str | None = None  # nothing happens if the worker is in another one; None: it may be in any
    completed: int = 0  # since the start of the worker
    failed: int = 0


class HeartbeatAnswer(Struct, frozen=True, kw_only=True):
    lost: tuple[str, ...] = ()  # runs that are no longer yours
    unrenewed: tuple[
        str, ...
    ] = ()  # runs that are yours, and locked by somebody: their leases end when they would have
    news: tuple[tuple[str, int], ...] = ()  # runs with something in their inbox, and how far it goes
    cancelled: tuple[str, ...] = ()  # of those, the runs that are to be told to end
    drain: bool = False
    known: bool = True  # False: the engine has no such live worker; register again
    now: Instant = 0  # the database's time; 0 if there is none to tell


class RunNews(Struct, frozen=True):
    """Says that something has arrived for a run, whose inbox goes up to this number (0 if that is not known), or that
    the run is to end."""

    run_id: str
    inbox_seq: int
    cancelled: bool = False


class Inbox(Struct, frozen=True, kw_only=True):
    """The signals and outcomes that have arrived for a run and were not taken yet, read under its lease. `inbox_seq` is
    the number of the newest entry at that moment."""

    inbox_seq: int
    cancel_requested: bool
    signals: tuple[Signal, ...]
    outcomes: tuple[Step, ...] = ()  # of children that have ended and were not taken yet, if they were asked for


class LeaseState(Struct, frozen=True, kw_only=True):
    """A run whose latest lease has this token, and everything recorded about it.

    The lease holds while `status` is RUNNING. Otherwise its holder has let go of the run and nobody has taken it since.
    """

    namespace: str
    run_id: str
    token: str
    worker_id: str
    status: RunStatus
    now: Instant  # the database's time
    confirmed: bool  # its holder was heard of since the claim (see LeaseService)
    input: bytes
    lease: Span
    attempts: int
    inbox_seq: int
    retry_policy: bytes | None
    history: tuple[Step, ...]
    failed_input: bytes | None = None  # as in Claim
    depth: int = 0
    incarnation: int = 0


class Adopter(Protocol):
    """Takes runs in the moment they are started: a worker in the engine's own process, or a poll that
    waits there."""

    def reserve(self, start: StartRun) -> BirthLease | None:
        """Returns a lease for this run if there is a free slot and no backlog, else None."""
        ...

    def adopt(self, claim: Claim, now: Instant) -> None:
        """Drives a run that is durable and RUNNING under the reserved lease."""
        ...

    def decline(self, lease: BirthLease) -> None:
        """Frees the slot of a lease under which no run was born."""
        ...


class AttachedWorker(Adopter, Protocol):
    """A worker in the engine's own process.

    Not part of the wire: a remote engine ignores it.
    """

    worker_id: str

    def claimable(self, limit: int) -> int:
        """Returns how many of `limit` runs still fit, just before a claim is made; their slots are kept until
        `claimed`."""
        ...

    def claimed(self) -> None: ...

    def cancel(self, run_id: str) -> None:
        """Tells the workflow of this run, if it is held here, that the run is to end."""
        ...

    def hear_news(self, run_id: str, inbox_seq: int) -> None:
        """Tells that the inbox of this run has grown to this number. If the run is held here, its news are read."""
        ...

    def lose(self, run_id: str) -> None:
        """Drops a run that has ended elsewhere."""
        ...


class WorkerService(Protocol):
    async def register(self, registration: Registration) -> Registered: ...

    async def poll(self, poll: Poll) -> Polled: ...

    def commit(self, chunk: Chunk) -> Reply[ChunkAnswer]:
        """Applies a chunk and answers when it is durable. A worker attaches a callback to it, which costs neither a
        task nor a turn of the loop for each chunk."""
        ...

    async def heartbeat(self, heartbeat: Heartbeat, within: Span | None = None) -> HeartbeatAnswer:
        """Renews the leases of a worker. An engine elsewhere that does not answer `within` this time is left for
        another one."""
        ...

    async def read_inbox(
        self,
        namespace: str,
        run_id: str,
        token: str,
        names: Sequence[str],
        *,
        children: bool = False,
        reconcile: bool = False,
    ) -> Inbox:
        """Returns what has arrived for a held run: the first INBOX_READ untaken signals of these names, and with
        `children` all outcomes that were not taken. With `reconcile` the engine first looks for children that have
        ended without telling. LeaseLost if the run is not held under this token."""
        ...

    async def news(self, worker_id: str, namespace: str, wait: Span) -> tuple[RunNews, ...]:
        """Returns news for runs that this worker holds as soon as there are any, and an empty answer when the time is
        over. For workers that are not attached. Heartbeats tell the same, later."""
        ...

    async def drain(self, worker_id: str, namespace: str | None = None) -> None:
        """Shows the worker as DRAINING from now on. It keeps the runs that it holds, by heartbeats as before. With a
        namespace: only a worker of it."""
        ...

    async def deregister(self, worker_id: str, namespace: str | None = None) -> None:
        """Ends the registration. Runs still held go back to their queues at once, and no attempt is counted. With a
        namespace: only a worker of it."""
        ...

    def attach(self, adopter: AttachedWorker, namespace: str, queues: tuple[str, ...]) -> Callable[[], None] | None:
        """Offer free slots to runs started in this process; the returned function takes the offer back. The worker is
        told of news from now on. None: this engine is not in the worker's process, which has to ask for them."""
        ...


class HostedWorkers(WorkerService, Protocol):
    """The contract for workers behind a server, which send many chunks in one call."""

    def commit_together(self, chunks: Iterable[Chunk]) -> list[Reply[ChunkAnswer]]:
        """Applies the chunks of one call, apart from those of the next one if they are worth a batch: then the worker
        goes on with the runs of the first call while those of the second are written."""
        ...


class LeaseService(Protocol):
    """The contract for unary worker calls, whose clients know neither tokens nor histories."""

    async def read(self, namespace: str, run_id: str, token: str, *, confirm: bool = False) -> LeaseState:
        """Returns what the holder of a lease may read. NotFound if there is no such run, LeaseLost if its lease has
        another token. With `confirm` the claim counts as heard of: heartbeats that list no runs renew it from now
        on."""
        ...
