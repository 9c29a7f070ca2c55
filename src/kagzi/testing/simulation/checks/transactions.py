"""What each kind of transaction may do to a run, said a second time, independent of the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from kagzi.api.operations import (
    CancelRun,
    Chunk,
    CompleteRun,
    EndCancelledRun,
    FailRun,
    HandBackRun,
    ParkRun,
    RetryRun,
    RunOperation,
    SendSignal,
    TerminateRun,
)
from kagzi.api.workers import Heartbeat, Poll
from kagzi.core.instant import SECOND, Instant
from kagzi.core.job import JobAction
from kagzi.core.run import CANCEL_GRACE, CLAIMABLE, RunStatus
from kagzi.core.step import StepKind, StepStatus
from kagzi.store.lines import HELD
from kagzi.store.unserved import ASIDE
from kagzi.testing.simulation.checks.families import outcomes_told, waits_for_child
from kagzi.testing.simulation.checks.rows import RunRow, difference, of_poll, wrong
from kagzi.testing.simulation.signals import waits_for

if TYPE_CHECKING:
    from kagzi.testing.simulation.world import World


# Delayed both ways, between processes that are paused or blocked.
LONGEST_CALL = 60 * SECOND
# No run of the workload needs nearly as many claims.
MOST_EXECUTIONS = 60


class Transactions:
    """Judges what became of one run in one transaction."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.revoked: dict[str, Instant] = {}  # when a run was last taken from a holder whose lease was good
        self._judges: dict[str, Callable[[RunRow, RunRow, Instant, tuple[Any, ...]], None]] = {
            "apply": self._after_apply,
            "claim": self._after_claim,
            "workers.heartbeats": self._after_heartbeats,
            "workers.deregister": self._after_deregister,
            "duties.recover_runs": self._after_recovery,
            "duties.time_out_steps": self._after_step_timeouts,
            "duties.time_out_runs": self._after_deadlines,
            "duties.set_runs_aside": self._after_setting_aside,
            "duties.end_cancelled_runs": self._after_cancel_grace,
            "schedules.fire": self._after_firing,
            "versions.move_runs": self._after_moves,
            "limits.unhold": self._after_moves_in_line,
            "limits.change": self._after_moves_in_line,
            "limits.declare": self._after_moves_in_line,
            "jobs.run_batch": self._after_job,
        }

    def judge(self, method: str, old: RunRow, new: RunRow, now: Instant, args: tuple[Any, ...]) -> None:
        judge = self._judges.get(method)
        if judge is None:
            raise wrong(new.run_id, f"was changed by {method}: {difference(old, new)}")
        told_only = method not in ("apply", "jobs.run_batch")
        if told_only and new.status is old.status and outcomes_told(old, new):
            self._after_news(old, new, now)
            return
        judge(old, new, now, args)

    def _after_apply(self, old: RunRow, new: RunRow, now: Instant, args: tuple[Any, ...]) -> None:
        # The token stays on a run that was let go of: a chunk that comes late, or twice, changes nothing then.
        chunks = [
            write
            for write in args[0]
            if isinstance(write, Chunk)
            and write.run_id == new.run_id
            and write.token == old.token
            and old.status is RunStatus.RUNNING
        ]
        requests = [
            write for write in args[0] if isinstance(write, CancelRun | TerminateRun) and write.run_id == new.run_id
        ]
        if requests:
            self._after_requests(old, new, now, requests, bool(chunks))
            return
        signals = any(isinstance(write, SendSignal) and write.run_id == new.run_id for write in args[0])
        told = signals or bool(outcomes_told(old, new))
        if told and not chunks:
            self._after_news(old, new, now)
            return
        if not chunks:
            raise wrong(new.run_id, f"was changed without its lease: {difference(old, new)}")  # (2)
        if (new.token, new.worker_id, new.executions, new.crashes) != (
            old.token,
            old.worker_id,
            old.executions,
            old.crashes,
        ):
            raise wrong(new.run_id, f"got another holder or counter: {difference(old, new)}")
        ends = [chunk.operations[-1] for chunk in chunks if isinstance(chunk.operations[-1], RunOperation)]
        # One that was declined may come again, beside the one that its holder has sent since.
        last = next((end for end in ends if end.status is new.status), ends[0] if ends else None)
        if new.status is not old.status and (last is None or last.status is not new.status):
            raise wrong(new.run_id, f"became {new.status} by {last}")
        if getattr(last, "family", None) is False and (new.parent_run_id is not None or new.has_children):
            raise wrong(new.run_id, f"ended as if it had no family: {new}")
        if new.attempts != old.attempts + isinstance(last, RetryRun):
            raise wrong(new.run_id, f"has {new.attempts} attempts after {old.attempts}")  # (5)
        if isinstance(last, ParkRun) and new.status is RunStatus.SLEEPING:
            self._world.ledger.check_parked(new)  # (16)
        match last:
            case HandBackRun(available_at=None):
                sound = new.available_at is not None and new.available_at <= now
            case RetryRun() | HandBackRun() if new.cancel_requested:
                sound = new.available_at is not None and new.available_at <= now
            case ParkRun(inbox_seq=seen) if new.status is RunStatus.SLEEPING and seen < old.inbox_seq:
                raise wrong(new.run_id, "was parked by a holder that had not heard of its cancellation")  # (12)
            case ParkRun(available_at=at) | RetryRun(available_at=at) | HandBackRun(available_at=at):
                sound = new.available_at == at or new.status is RunStatus.RUNNING
            case CompleteRun() if new.status is RunStatus.RUNNING:
                sound = bool(old.cancel_requested)
            case CompleteRun() if old.cancel_requested and not was_told(new):
                raise wrong(new.run_id, "completed, and was never told that it is cancelled")  # (12)
            case CompleteRun(output=output):
                sound = new.output == output or len(output) > 1000
            case FailRun(error=error):
                sound = new.error == error
            case EndCancelledRun(error=error):
                sound = new.error == error and bool(old.cancel_requested)
            case _:
                sound = new.available_at == old.available_at
        if not sound and not (told and new.status is RunStatus.SLEEPING and new.available_at == now):
            raise wrong(new.run_id, f"was not left as {last} says: {difference(old, new)}")

    def _after_news(self, old: RunRow, new: RunRow, now: Instant) -> None:
        """Signals have come, or outcomes of children, and nothing else."""
        fresh = [row for key, row in new.signals.items() if key not in old.signals]
        outcomes = outcomes_told(old, new)
        if new.inbox_seq != old.inbox_seq + len(fresh) + len(outcomes):
            raise wrong(new.run_id, f"got {fresh} and {outcomes}: {difference(old, new)}")
        expected = msgspec.structs.replace(old, inbox_seq=new.inbox_seq)
        if old.status is RunStatus.SLEEPING:
            woken = {
                "signal": any(waits_for(old, row.name) for row in fresh),
                "outcome": any(waits_for_child(old, step.child_run_id) for step in outcomes),
            }
            for what, is_so in woken.items():
                if is_so:
                    self._world.operation(f"{what} that woke a run")
            if any(woken.values()) and (old.claim_key or 0) > now and old.claim_key != HELD:
                expected.available_at, expected.claim_key = now, new.claim_key
        if difference(expected, new):
            raise wrong(new.run_id, f"was changed by {fresh} and {outcomes}: {difference(expected, new)}")

    def _after_requests(
        self,
        old: RunRow,
        new: RunRow,
        now: Instant,
        requests: list[CancelRun | TerminateRun],
        beside_chunks: bool,
    ) -> None:
        if any(isinstance(request, TerminateRun) for request in requests):
            if not new.status.finished or (new.status is RunStatus.CANCELLED and new.token is not None):
                raise wrong(new.run_id, f"was not terminated: {difference(old, new)}")
            self.revoked[new.run_id] = now
            return
        if beside_chunks:
            return  # they came first, and the run may have been let go of by them
        if new.status is not (RunStatus.CANCELLED if old.started_at is None else old.status):
            raise wrong(new.run_id, f"became {new.status} when it was cancelled")
        news = (not old.cancel_requested) + len(new.signals) - len(old.signals) + len(outcomes_told(old, new))
        if not new.cancel_requested or new.inbox_seq != old.inbox_seq + news:
            raise wrong(new.run_id, f"was not told that it is cancelled: {difference(old, new)}")  # (12)
        if new.status in CLAIMABLE and (new.available_at is None or new.available_at > now):
            raise wrong(new.run_id, "sleeps on although it was cancelled")  # (12)
        if (new.token, new.lease_expires_at, new.executions) != (old.token, old.lease_expires_at, old.executions):
            raise wrong(new.run_id, f"lost its holder when it was cancelled: {difference(old, new)}")

    def _after_job(self, old: RunRow, new: RunRow, now: Instant, args: tuple[Any, ...]) -> None:
        action = self._world.checker.action
        ended = new.status is not old.status
        if action is JobAction.TERMINATE and ended:
            self._after_requests(
                old, new, now, [TerminateRun(namespace=new.namespace, run_id=new.run_id)], beside_chunks=False
            )
        elif action is JobAction.CANCEL and (ended or new.cancel_requested != old.cancel_requested):
            self._after_requests(
                old, new, now, [CancelRun(namespace=new.namespace, run_id=new.run_id)], beside_chunks=False
            )
        elif action is JobAction.MOVE and new.version != old.version:
            self._after_moves(old, new, now, args)
        elif outcomes_told(old, new):
            self._after_news(old, new, now)
        elif action is not JobAction.WAKE or difference(
            msgspec.structs.replace(old, available_at=now, claim_key=new.claim_key), new
        ):
            raise wrong(new.run_id, f"was changed by a job that is to {action} runs: {difference(old, new)}")

    def _after_firing(self, old: RunRow, new: RunRow, now: Instant, args: tuple[Any, ...]) -> None:  # noqa: ARG002
        if old.schedule_group_id is None:
            raise wrong(new.run_id, f"was changed by a schedule that is not its own: {difference(old, new)}")
        request = CancelRun(namespace=new.namespace, run_id=new.run_id)
        self._after_requests(old, new, now, [request], beside_chunks=False)

    def _after_cancel_grace(self, old: RunRow, new: RunRow, now: Instant, args: tuple[Any, ...]) -> None:  # noqa: ARG002
        if new.status is old.status and new.status in CLAIMABLE:
            same = msgspec.structs.replace(old, cancel_deadline=new.cancel_deadline, held_key=new.held_key)
            if difference(same, new) or new.cancel_deadline != now + CANCEL_GRACE or new.held_key is None:
                raise wrong(new.run_id, f"was not given time to clean up: {difference(old, new)}")
            return
        if new.status is not RunStatus.CANCELLED or old.cancel_deadline is None or old.cancel_deadline > now:
            raise wrong(new.run_id, "was ended before the time it had to clean up was over")
        self.revoked[new.run_id] = now

    def _after_claim(self, old: RunRow, new: RunRow, now: Instant, args: tuple[Any, ...]) -> None:
        poll: Poll = args[0]
        if new.status is old.status and new.claim_key == HELD:
            self._after_moves_in_line(old, new, now, args)
            return
        if old.status is RunStatus.RUNNING and new.token == old.token and of_poll(new.token, poll):
            if new.lease_length is None or new.lease_expires_at != now + new.lease_length:
                raise wrong(new.run_id, "has a lease of another length after a repeated poll")
            return
        if old.status not in CLAIMABLE or new.status is not RunStatus.RUNNING:
            raise wrong(new.run_id, f"was claimed while {old.status}")  # (6)
        if old.available_at is None or old.available_at > now:
            raise wrong(new.run_id, f"was claimed {(old.available_at or 0) - now} µs before its time")  # (7)
        if not of_poll(new.token, poll) or new.worker_id != poll.worker_id or new.token == old.token:
            raise wrong(new.run_id, "was claimed under a token that is not fresh")
        if new.namespace != poll.namespace or new.task_queue not in poll.queues:
            raise wrong(new.run_id, f"was claimed by a worker of {poll.namespace}, {poll.queues}")  # (15)
        if (new.attempts, new.crashes, new.executions) != (old.attempts, old.crashes, old.executions + 1):
            raise wrong(new.run_id, f"has other counters after a claim: {difference(old, new)}")  # (5)
        if new.lease_length is None or new.lease_expires_at != now + new.lease_length:
            raise wrong(new.run_id, "has a lease of another length")
        if old.started_at is not None and new.started_at != old.started_at:
            raise wrong(new.run_id, "has another start than before")
        if new.executions > MOST_EXECUTIONS:
            raise wrong(new.run_id, f"was claimed {new.executions} times and does not come to its end")  # (13)

    def _after_heartbeats(self, old: RunRow, new: RunRow, now: Instant, args: tuple[Any, ...]) -> None:
        beats: tuple[Heartbeat, ...] = tuple(beat for beat in args[0] if beat.worker_id == old.worker_id)
        held = {pair for beat in beats for pair in beat.held}
        if not beats or old.status is not RunStatus.RUNNING:
            raise wrong(new.run_id, "was changed by the heartbeat of somebody else")
        if new.status is RunStatus.RUNNING:
            if (new.run_id, new.token) not in held:
                raise wrong(new.run_id, "was renewed although its holder does not know of it")
            if new.lease_length is None or new.lease_expires_at != now + new.lease_length:
                raise wrong(new.run_id, "was renewed to another length")
        else:
            if (new.run_id, old.token) in beats[-1].held:
                raise wrong(new.run_id, "was taken from its holder")
            self._check_burnt_nothing(old, new)

    def _after_deregister(self, old: RunRow, new: RunRow, now: Instant, args: tuple[Any, ...]) -> None:  # noqa: ARG002
        if old.worker_id != args[0] or old.status is not RunStatus.RUNNING:
            raise wrong(new.run_id, "went back because somebody else left")
        self._check_burnt_nothing(old, new)

    def _after_recovery(self, old: RunRow, new: RunRow, now: Instant, args: tuple[Any, ...]) -> None:
        if old.status is not RunStatus.RUNNING or old.lease_expires_at is None or old.lease_expires_at > now:
            raise wrong(new.run_id, "was recovered although its lease holds")
        progressed = old.crashed_seq is None or old.last_seq > max(old.crashed_seq, 0)
        crashes = 1 if progressed else old.crashes + 1
        if new.crashes != crashes:
            raise wrong(new.run_id, f"has {new.crashes} crashes after {old.crashes}")
        if new.token is not None or (new.attempts, new.executions) != (old.attempts, old.executions):
            raise wrong(new.run_id, f"was recovered badly: {difference(old, new)}")
        poison = new.crashes >= args[1]
        if new.status is not (RunStatus.FAILED if poison else RunStatus.PENDING):
            raise wrong(new.run_id, f"is {new.status} after {new.crashes} crashes")

    def _after_step_timeouts(self, old: RunRow, new: RunRow, now: Instant, args: tuple[Any, ...]) -> None:  # noqa: ARG002
        if new.status is not old.status or old.status is RunStatus.RUNNING:
            self.revoked[new.run_id] = now
            if new.status is not RunStatus.PENDING or new.token is not None:
                raise wrong(new.run_id, f"was not taken from its holder: {difference(old, new)}")
            if not any(
                step.timeout_at is not None and step.timeout_at <= now and step.status is StepStatus.RUNNING
                for step in old.steps.values()
            ):
                raise wrong(new.run_id, "was taken from its holder although no step is late")
            self._check_burnt_nothing(old, new)

    def _after_setting_aside(self, old: RunRow, new: RunRow, now: Instant, _args: tuple[Any, ...]) -> None:
        # Only its place changes, and only between what is due and what is set aside.
        place = new.claim_key or 0
        if msgspec.structs.replace(old, claim_key=new.claim_key) != new or ASIDE not in (old.claim_key, new.claim_key):
            raise wrong(new.run_id, f"was set aside or brought back otherwise: {difference(old, new)}")
        if place != ASIDE and place > now:
            raise wrong(new.run_id, f"was brought back and is not due: {difference(old, new)}")

    def _after_moves(self, old: RunRow, new: RunRow, now: Instant, args: tuple[Any, ...]) -> None:  # noqa: ARG002
        self._world.operation("run moved to another version")
        self._world.moved[new.run_id] = new.last_seq
        if old.status not in CLAIMABLE or difference(msgspec.structs.replace(old, version=new.version), new):
            raise wrong(new.run_id, f"was moved, and is otherwise: {difference(old, new)}")

    def _after_moves_in_line(self, old: RunRow, new: RunRow, now: Instant, args: tuple[Any, ...]) -> None:  # noqa: ARG002
        """Only its place changes, and what it counts for, should nobody have said that."""
        same = msgspec.structs.replace(
            old,
            claim_key=new.claim_key,
            held_key=new.held_key,
            cancel_deadline=new.cancel_deadline,
            limit_name=old.limit_name or new.limit_name,
            limit_key=new.limit_key if old.limit_key is None else old.limit_key,
        )
        if difference(same, new) or HELD not in (old.claim_key, new.claim_key):
            raise wrong(new.run_id, f"was held or let go otherwise: {difference(old, new)}")
        if old.claim_key == HELD and new.held_key != old.held_key:
            raise wrong(new.run_id, f"lost its place in its line: {difference(old, new)}")

    def _after_deadlines(self, old: RunRow, new: RunRow, now: Instant, args: tuple[Any, ...]) -> None:  # noqa: ARG002
        if new.status is not RunStatus.TIMED_OUT or old.deadline_at is None or old.deadline_at > now:
            raise wrong(new.run_id, "timed out before its deadline")
        self.revoked[new.run_id] = now

    def _check_burnt_nothing(self, old: RunRow, new: RunRow) -> None:
        counters = (new.attempts, new.crashes, new.executions) == (old.attempts, old.crashes, old.executions)
        if new.status is not RunStatus.PENDING or new.token is not None or not counters:
            raise wrong(new.run_id, f"went back badly: {difference(old, new)}")


def was_told(run: RunRow) -> bool:
    return any(step.kind is StepKind.CANCEL for step in run.events.values())
