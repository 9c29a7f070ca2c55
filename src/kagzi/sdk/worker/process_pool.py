"""Steps with `executor="process"`: a pool of processes for bodies that compute.

A `def` body runs on a thread, and threads of Python take turns: a body that computes holds up the event loop and all
the others. In a process it does not, and unlike a thread a process can be ended: when its time is over, or nobody wants
its result.

Processes are started afresh and never forked, when a step first needs one, and kept for the next. Bodies are imported
there by name (`process_references.py`), arguments and results travel as the bytes that are recorded. The lease of the
run is the worker's, whose heartbeats a computing process cannot hold up.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kagzi.core.exceptions import exception_of
from kagzi.core.failure import Failure
from kagzi.core.run_value import Progress
from kagzi.errors import InvalidRequest, Unavailable
from kagzi.process import usable_cores
from kagzi.sdk.worker.bodies import StepInfo, current_step
from kagzi.sdk.worker.process_messages import (
    HEADER_BYTES,
    Cancel,
    FromProcess,
    Logged,
    Raised,
    Returned,
    Run,
    Said,
    SetUp,
    ToProcess,
    framed,
    read_from_process,
)
from kagzi.sdk.worker.process_references import Reference

if TYPE_CHECKING:
    from kagzi.sdk.worker.attempt import Attempt

logger = logging.getLogger("kagzi.worker")

# For a body that looks at kagzi.cancelled(); less than the worker waits for one that was cancelled.
_GRACE_SECONDS: Final = 1.0


def in_process(fn: Callable[..., Any], reference: Reference) -> Callable[..., Any]:
    """Makes the body of a step that runs in a process."""

    @functools.wraps(fn)
    async def run(*args: Any, **kwargs: Any) -> Any:
        info = current_step.get()
        attempt = info.held_by() if info.held_by is not None else None
        if attempt is None:
            raise InvalidRequest(f"the step {reference.step} was called outside of a worker")
        pool = attempt.process_pool()
        if pool is None:  # on virtual time, where nothing happens beside the loop
            result = fn(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result
        return await pool.run(attempt, info, reference)

    return run


class ProcessPool:
    """The processes of one worker."""

    def __init__(self, most: int | None, home: str = "") -> None:
        self._home = home
        self._slots = asyncio.Semaphore(most or usable_cores())
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._numbers = itertools.count(1)
        self._lifeline: tuple[int, int] | None = None
        self._starting: set[asyncio.Future[_Process]] = set()
        self._closed = False

    async def run(self, attempt: Attempt, info: StepInfo, reference: Reference) -> Any:
        call = attempt.call_of(info)
        if call is None:
            return None  # nobody waits for it any more
        if not call.input_hash:
            raise InvalidRequest(
                f"the step {info.step_id} runs in a process of its own, which gets arguments as they are recorded, and "
                "these have no JSON form: give it plain data"
            )
        wanted = Run(
            reference.module,
            reference.qualname,
            reference.step,
            call.input,
            info.run_id,
            info.step_id,
            info.attempt,
            info.workflow,
            info.namespace,
            next(self._numbers),
            self._home,
        )
        with attempt.waiting(call) as begins:  # for a process, which is not on its clock
            async with self._slots:
                process = await self._taken()
                begins()
                try:
                    answer = await process.run(wanted, attempt.hear_progress)
                finally:
                    if process.usable:
                        self._idle.append(process)
                    else:
                        self._all.discard(process)
        if isinstance(answer, Raised):
            raise exception_of(Failure.decode(answer.failure))
        return call.codec.copy_result(answer.output)

    async def _taken(self) -> _Process:
        while self._idle:
            process = self._idle.pop()
            if process.alive:
                return process
            self._all.discard(process)
        if self._closed:
            raise Unavailable("the worker is closed, and starts no process any more")
        if self._lifeline is None:
            self._lifeline = os.pipe()
        starting = asyncio.ensure_future(_Process.start(self._lifeline[0]))
        self._starting.add(starting)
        starting.add_done_callback(self._started)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(self._not_needed)
            raise

    def _started(self, starting: asyncio.Future[_Process]) -> None:
        self._starting.discard(starting)
        if not starting.cancelled() and starting.exception() is None:
            self._all.add(starting.result())

    def _not_needed(self, starting: asyncio.Future[_Process]) -> None:
        if not starting.cancelled() and starting.exception() is None:
            self._idle.append(starting.result())

    async def close(self) -> None:
        self._closed = True
        if self._starting:
            await asyncio.wait(self._starting)
        processes, self._all = self._all, set()
        for process in processes:
            process.kill()
        for process in processes:
            await process.gone()
        lifeline, self._lifeline = self._lifeline, None
        for end in lifeline or ():
            os.close(end)


class _Process:
    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self.usable = True
        self._stopping: asyncio.Future[None] | None = None

    @classmethod
    async def start(cls, lifeline: int) -> _Process:
        ours, theirs = socket.socketpair()
        with theirs:
            # In a session of its own: Ctrl-C of a terminal is for the worker, and what its bodies start ends with it.
            process = await asyncio.to_thread(
                subprocess.Popen,
                [sys.executable, "-m", "kagzi.sdk.worker.process_body", str(theirs.fileno()), str(lifeline)],
                pass_fds=(theirs.fileno(), lifeline),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        started = cls(process, *await asyncio.open_unix_connection(sock=ours))
        started._send(SetUp(sys.path, logging.getLogger().getEffectiveLevel()))
        return started

    async def run(self, wanted: Run, hear_progress: Callable[[Progress], None]) -> Returned | Raised:
        self._send(wanted)
        answer = asyncio.ensure_future(self._answer(wanted.number, hear_progress))
        answer.add_done_callback(_retrieve)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            # To its end, although a body may be cancelled more than once.
            self.usable = False
            self._stopping = asyncio.ensure_future(self._stop(answer))
            await asyncio.shield(self._stopping)
            raise
        except (EOFError, OSError):
            self.kill()
            raise Unavailable(f"the process of step {wanted.step_id} {await self._how_it_ended()}") from None

    async def _stop(self, answer: asyncio.Future[Any]) -> None:
        self._send(Cancel())
        await asyncio.wait((answer,), timeout=_GRACE_SECONDS)
        self.kill()
        await self.gone()

    async def _answer(self, number: int, hear_progress: Callable[[Progress], None]) -> Returned | Raised:
        while True:
            message = await self._read()
            if isinstance(message, Returned | Raised):
                if message.number != number:
                    raise EOFError("the answer to another call")  # whatever it is, it is no process of ours any more
                return message
            if isinstance(message, Said):
                hear_progress(Progress(message.fraction, message.message))
            else:
                _log(message)

    async def _read(self) -> FromProcess:
        size = int.from_bytes(await self._reader.readexactly(HEADER_BYTES), "big")
        message: FromProcess = read_from_process(await self._reader.readexactly(size))
        return message

    def _send(self, message: ToProcess) -> None:
        self._writer.write(framed(message))

    @property
    def alive(self) -> bool:
        return self.usable and self._process.poll() is None

    def kill(self) -> None:
        self.usable = False
        if self._process.returncode is None:  # nobody has waited for it, so its number is still its own
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)  # what its bodies have started, too
        self._process.kill()
        self._writer.close()

    async def gone(self) -> int:
        return await asyncio.to_thread(self._process.wait)

    async def _how_it_ended(self) -> str:
        code = self._process.poll()
        if code is None:
            code = await self.gone()
        if code < 0:
            return (
                f"was killed by {signal.Signals(-code).name} before it returned; if nobody did that, the system may "
                "have run out of memory"
            )
        return f"ended with exit code {code} before the step returned"


def _retrieve(answer: asyncio.Future[Any]) -> None:
    """Takes the error of a future whose caller may be gone, so that asyncio does not log it."""
    if not answer.cancelled():
        answer.exception()


def _log(line: Logged) -> None:
    log = logging.getLogger(line.name)
    if log.isEnabledFor(line.level):
        record = log.makeRecord(
            line.name, line.level, line.path, line.line, line.text, (), None, line.function, sinfo=line.traceback
        )
        log.handle(record)
