"""A process of a worker's pool, for steps with `executor="process"`.

    python -m kagzi.sdk.worker.process_body DESCRIPTOR

It runs one body at a time in its main thread. Another thread listens: it hears that a body is to stop, and that the
worker is gone, with which this process ends at once, whatever it does.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any
from weakref import ref

from kagzi.core.failure import Failure
from kagzi.core.run_value import Progress
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
        self._channel = channel
        self._guard = threading.Lock()
        self.runs: SimpleQueue[Run] = SimpleQueue()
        self.cancelled = threading.Event()  # of the body that runs

    def send(self, message: FromProcess) -> None:
        with self._guard:
            self._channel.sendall(framed(message))

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
            part = self._channel.recv(size - len(data))
            if not part:
                os._exit(0)  # the worker is gone: nobody wants to know what becomes of this
            data += part
        return bytes(data)


class _Forward(logging.Handler):
    """Logs of this process are the worker's."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        problem = record.exc_info
        words = "".join(traceback.format_exception(*problem)) if problem and problem[0] else None
        self._channel.send(
            Logged(
                record.name,
                record.levelno,
                record.getMessage(),
                record.pathname,
                record.lineno,
                record.funcName or "",
                words,
            )
        )


def run(channel: Channel, wanted: Run) -> FromProcess:
    """What became of a step."""
    channel.cancelled = threading.Event()
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
        step.signature.resolve()
        args, kwargs = step.signature.decode_input(wanted.input)
        result: Any = step.fn(*args, **kwargs)
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
        return step.signature.settle_result(result)[0]

    try:
        return Returned(copy_context().run(body))
    except BaseException as error:
        return Raised(Failure.from_exception(error).encode())


async def _awaited(result: Any) -> Any:
    return await result


def main(descriptor: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker
    channel = Channel(socket.socket(fileno=descriptor))
    threading.Thread(target=channel.listen, name="kagzi-channel", daemon=True).start()
    while True:
        channel.send(run(channel, channel.runs.get()))


if __name__ == "__main__":
    main(int(sys.argv[1]))
