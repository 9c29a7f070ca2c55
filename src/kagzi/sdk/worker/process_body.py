"""A process of a worker's pool, for steps with `executor="process"`.

    python -m kagzi.sdk.worker.process_body CHANNEL LIFELINE

It runs one body at a time in its main thread. Another thread listens: it hears that a body is to stop, and that the
worker is gone, with which this process ends at once, and what its bodies have started with it. A body in C that lets no
other thread run would keep that one from hearing, so the kernel is asked to kill as well, where it can: when the worker
is gone nobody holds the other end of the lifeline.

A copy of this process that a body forks is no part of the pool: it has no channel, on which its words would be taken
for those of the body, and when its copy of the body ends, so does it.
"""

from __future__ import annotations

import asyncio
import fcntl
import inspect
import logging
import os
import select
import signal
import socket
import sys
import threading
import traceback
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, NoReturn
from weakref import ref

from kagzi.core.exceptions import failure_of
from kagzi.core.run_value import Progress
from kagzi.sdk.worker import forks
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
    framed,
    read_to_process,
)
from kagzi.sdk.worker.process_references import Reference, find_step


class Channel:
    """The way to the worker."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel: socket.socket | None = channel
        self._guard = threading.Lock()
        self.runs: SimpleQueue[Run] = SimpleQueue()
        self.cancelled = threading.Event()  # of the body that runs
        self.home = ""  # where its run lives
        self.gone = False

    @property
    def is_open(self) -> bool:
        return self._channel is not None

    def let_go(self) -> None:
        """Closes the channel in a forked copy of this process."""
        channel, self._channel = self._channel, None
        self._guard = threading.Lock()  # another thread may have held it
        if channel is not None:
            channel.close()

    def send(self, message: FromProcess) -> None:
        data = framed(message)
        with self._guard:
            if self._channel is not None:
                self._channel.sendall(data)

    def lives_in(self, engine: object, home: str) -> bool:  # noqa: ARG002
        """Returns whether runs that are started there live where the run of this body does."""
        return self.is_open and bool(home) and home == self.home

    def hear_progress(self, said: Progress) -> None:
        self.send(Said(said.fraction, said.message))

    def listen(self) -> None:
        while True:
            message = read_to_process(self._read(int.from_bytes(self._read(HEADER_BYTES), "big")))
            if isinstance(message, SetUp):
                sys.path[:] = message.path
                logging.basicConfig(handlers=[_Forward(self)], level=message.log_level)
            elif isinstance(message, Cancel):
                self.cancelled.set()
            else:
                self.runs.put(message)

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._channel.recv(size - len(data)) if self._channel is not None else b""
            if not part:
                end()  # the worker is gone: nobody wants to know what becomes of this
            data += part
        return bytes(data)


class _Forward(logging.Handler):
    """Logs of this process are the worker's."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel
        self._of_copies = logging.StreamHandler()

    def emit(self, record: logging.LogRecord) -> None:
        if not self._channel.is_open:
            self._of_copies.handle(record)
            return
        try:
            self._channel.send(_logged(record))
        except Exception:
            self.handleError(record)  # as every handler does: a line that cannot be written is no failure of the body


def _logged(record: logging.LogRecord) -> Logged:
    problem = record.exc_info
    words = _printable("".join(traceback.format_exception(*problem))) if problem and problem[0] else None
    text, path, function = (_printable(each) for each in (record.getMessage(), record.pathname, record.funcName or ""))
    return Logged(_printable(record.name), record.levelno, text, path, record.lineno, function, words)


def _printable(text: str) -> str:
    """Returns the text without what has no UTF-8 form, as parts of file names may have none."""
    return text.encode(errors="backslashreplace").decode()


def run(channel: Channel, wanted: Run) -> FromProcess:
    """Runs the body of a step, and returns what became of it."""
    channel.cancelled = threading.Event()
    channel.home = wanted.home
    info = StepInfo(
        wanted.run_id,
        wanted.step_id,
        wanted.attempt,
        wanted.workflow,
        wanted.namespace,
        channel.cancelled,
        ref(channel),  # type: ignore[arg-type]  # what a body needs of an attempt
    )

    def body() -> bytes:
        current_step.set(info)
        step = find_step(Reference(wanted.module, wanted.qualname, wanted.step))
        signature = step.signature.with_codec(None)  # what is stored is sealed by the process that stores it
        args, kwargs = signature.copy_input(wanted.input)
        result: Any = step.fn(*args, **kwargs)
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
        return signature.settle_result(result)[0]

    try:
        answer: FromProcess = Returned(wanted.number, copy_context().run(body))
    except BaseException as error:
        if forks.in_child:
            forks.leave(error)
        return Raised(wanted.number, failure_of(error).encode())
    if forks.in_child:
        forks.leave(None)
    return answer


async def _awaited(result: Any) -> Any:
    return await result


def end() -> NoReturn:
    """Ends this process, and what its bodies have started: it leads a group of its own."""
    os.killpg(0, signal.SIGKILL)
    os._exit(0)


def end_with(lifeline: int) -> None:
    """Has the kernel end this process when the other end of the lifeline is closed. Where it cannot, the listener
    does."""
    if hasattr(fcntl, "F_SETSIG"):
        # Opened anew, and kept open: who gets the signal is noted in the open file, and all processes of a pool inherit
        # the same one, so that only the last of them would hear.
        own = os.open(f"/proc/self/fd/{lifeline}", os.O_RDONLY | os.O_CLOEXEC)
        fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(own, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # closed before anybody looked
        end()


def main(descriptor: int, lifeline: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker
    for passed in (descriptor, lifeline):
        os.set_inheritable(passed, False)
    end_with(lifeline)
    channel = Channel(socket.socket(fileno=descriptor))
    forks.watch()
    os.register_at_fork(after_in_child=channel.let_go)
    threading.Thread(target=channel.listen, name="kagzi-channel", daemon=True).start()
    while True:
        channel.send(run(channel, channel.runs.get()))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
