"""What the answers of transactions promise, and whether the rows keep it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kagzi.api.operations import (
    Answer,
    CancelAnswer,
    Chunk,
    ChunkAnswer,
    CompleteRun,
    ParkRun,
    RepeatRun,
    RunOperation,
    SendSignal,
    SignalAnswer,
    Started,
    StartRun,
    StepOperation,
    TakeOutcome,
    TerminateRun,
    Write,
    lets_go_as,
)
from kagzi.api.workers import Heartbeat, HeartbeatAnswer, Poll, Polled
from kagzi.core.run import RunStatus
from kagzi.testing.simulation.checks.repeats import check_successor
from kagzi.testing.simulation.checks.rows import RunRow, of_poll, wrong

if TYPE_CHECKING:
    from kagzi.testing.simulation.world import World


class Answers:
    def __init__(self, world: World, runs: dict[str, RunRow]) -> None:
        self._world = world
        self._runs = runs  # as they are after the transaction
        self._sent: set[tuple[str, str]] = set()  # run and key of every signal that was answered

    def check(self, method: str, args: tuple[Any, ...], answer: Any) -> None:
        """A transaction has been committed and is about to be answered."""
        if method == "apply":
            self._check_answers(args[0], answer.answers)
        elif method == "claim":
            self._check_claims(args[0], answer)
        elif method == "workers.heartbeats":
            for heartbeat, beaten in zip(args[0], answer, strict=True):
                self._check_heartbeat(heartbeat, beaten.answer)

    def _check_answers(self, writes: Sequence[Write], answers: Sequence[Answer]) -> None:
        begun = {answer.run_id for answer in answers if isinstance(answer, Started)}
        terminated = {write.run_id for write in writes if isinstance(write, TerminateRun)}
        for write, answer in zip(writes, answers, strict=True):
            if isinstance(write, StartRun):
                if isinstance(answer, Started):
                    self._check_started(write, answer, begun)
                continue
            if not isinstance(write, Chunk):
                self._world.operation(type(write).__name__)
                if isinstance(answer, SignalAnswer) and isinstance(write, SendSignal):
                    self._check_sent(write, answer)
                if isinstance(answer, CancelAnswer):
                    self._check_cancelled(answer)
                if isinstance(write, RepeatRun):
                    self._check_repeated(write, answer)
                continue
            for operation in write.operations:
                self._world.operation(type(operation).__name__)
            run = self._runs.get(write.run_id)
            newest = run is not None and bool(run.tokens) and run.tokens[-1] == write.token
            if answer is ChunkAnswer.LEASE_LOST:
                if (
                    run is not None
                    and run.token == write.token
                    and (run.status is RunStatus.RUNNING or lets_go_as(write, run.status))
                ):
                    raise wrong(write.run_id, "refused a chunk of its holder")
                self._world.operation("refused chunk")
            elif write.run_id in terminated:
                continue  # it was taken, and then the run was ended in the same transaction
            elif answer in (ChunkAnswer.DONE, ChunkAnswer.NEWS):
                if run is None or not newest or run.token != write.token:
                    raise wrong(write.run_id, f"took a chunk under the token {write.token}")  # (2)
                if answer is ChunkAnswer.NEWS and isinstance(write.operations[-1], CompleteRun):
                    self._world.operation("declined completion")
                self._check_recorded(run, write, news=answer is ChunkAnswer.NEWS)

    def _check_recorded(self, run: RunRow, chunk: Chunk, *, news: bool) -> None:
        """What was acknowledged is there. (4)"""
        for operation in chunk.operations:
            if not isinstance(operation, StepOperation) or any(step.generation for step in run.steps.values()):
                continue  # it may have been set aside since
            step = run.steps.get((operation.step_id, operation.attempt))
            if isinstance(operation, TakeOutcome):
                if step is None or step.completed_seq != operation.completed_seq:
                    raise wrong(run.run_id, f"does not have the outcome that was taken: {operation} is {step}")
                continue
            if step is None or (
                operation.completed_seq is not None
                and (step.completed_seq, step.output, step.error)
                != (operation.completed_seq, operation.output, operation.error)
            ):
                raise wrong(run.run_id, f"does not have what was acknowledged: {operation} is {step}")
        last = chunk.operations[-1]
        if news and isinstance(last, CompleteRun) and run.cancel_requested:
            return
        if news and isinstance(last, ParkRun) and run.inbox_seq > last.inbox_seq:
            self._world.operation("declined park")
            return
        if isinstance(last, RunOperation) and run.status is not last.status:
            raise wrong(run.run_id, f"is {run.status} after {type(last).__name__} was acknowledged")

    def _check_started(self, start: StartRun, answer: Started, begun: set[str]) -> None:
        self._world.operation("StartRun")
        run = self._runs.get(answer.run_id)
        # A start that comes again finds its run, also if that has given its id up since; another one finds a run that
        # gives it up in this very transaction, to a start behind it.
        had_it = (
            run is not None
            and start.external_id == run.former_id
            and (run.run_id == start.run_id or run.superseded_by in begun)
        )
        if run is None or run.namespace != start.namespace or (run.external_id != start.external_id and not had_it):
            raise wrong(answer.run_id, f"is the answer to {start}")
        if answer.born and (start.lease is None or start.lease.token not in run.tokens):
            raise wrong(answer.run_id, "is said to be born under a lease it never had")

    def _check_sent(self, signal: SendSignal, answer: SignalAnswer) -> None:
        row = self._runs[answer.run_id].signals.get(signal.key)
        if row is None or (row.seq, row.name, row.value) != (answer.seq, signal.name, signal.value):
            raise wrong(answer.run_id, f"was told {signal}, answered {answer} and has {row}")
        sent = (answer.run_id, signal.key)
        if answer.repeated is not (sent in self._sent):
            raise wrong(answer.run_id, f"was told {signal} and answered {answer}")
        self._sent.add(sent)
        if answer.repeated:
            self._world.operation("repeated signal")

    def _check_repeated(self, request: RepeatRun, answer: Answer) -> None:
        source, new = self._runs.get(request.of_run_id), self._runs.get(request.run_id)
        if source is None:
            return
        check_successor(self._world, request, answer, source)
        for key, row in source.signals.items():
            copied = None if new is None else new.signals.get(key)
            if copied is not None and (copied.seq, copied.sent_at) == (row.seq, row.sent_at):
                self._sent.add((request.run_id, key))

    def _check_cancelled(self, answer: CancelAnswer) -> None:
        run = self._runs[answer.run_id]
        told = run.status is RunStatus.CANCELLED or (bool(run.cancel_requested) and not run.status.finished)
        if answer.status is not run.status or answer.effective is not told:
            raise wrong(answer.run_id, f"is {run.status}, and whoever cancelled it heard {answer}")

    def _check_heartbeat(self, heartbeat: Heartbeat, answer: HeartbeatAnswer) -> None:
        for run_id, token in heartbeat.held:
            run = self._runs.get(run_id)
            if run is None or run.token != token or run.status is not RunStatus.RUNNING:
                continue
            if bool(run.cancel_requested) is not (run_id in answer.cancelled):
                raise wrong(run_id, "was cancelled, and its holder did not hear it by its heartbeat")  # (12)

    def _check_claims(self, poll: Poll, polled: Polled) -> None:
        for claim in polled.claims:
            run = self._runs[claim.run_id]
            if run.token != claim.token or not of_poll(claim.token, poll) or run.worker_id != poll.worker_id:
                raise wrong(claim.run_id, "was given to a worker that does not hold it")
            seqs = [step.completed_seq for step in claim.history if step.completed_seq is not None]
            if claim.inbox_seq != run.inbox_seq:
                raise wrong(claim.run_id, f"was given away with the inbox up to {claim.inbox_seq}")
            if claim.cancel_requested is not bool(run.cancel_requested):
                raise wrong(claim.run_id, "was given to a worker that does not hear of its cancellation")  # (12)
            if len(seqs) != run.last_seq:
                raise wrong(claim.run_id, f"was given away with the events {seqs} of {run.last_seq}")
            children = {step.child_run_id: step.status for step in claim.history if step.child_run_id is not None}
            for step in run.steps.values():
                if (
                    step.child_run_id is not None
                    and not step.generation
                    and children.get(step.child_run_id) != step.status
                ):
                    raise wrong(claim.run_id, f"was given away without {step}")
