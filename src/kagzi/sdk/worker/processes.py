"""The parent of several worker processes: `kagzi worker shop.py --processes 4`, `app.run_worker(processes=4)`.

It starts the command that started itself, once for each process, and waits. It opens nothing and holds no lease, so
nothing is lost with it. Processes are started afresh and never forked: gRPC, pools and threads do not survive a fork.
Each is a worker like any other, with an id, leases and slots of its own: if one dies, the others recover its runs.

Each process holds one end of a channel whose other end only the parent has. When the parent is gone, however it died,
its processes see the end of the channel and drain (`member.py`). They are in process groups of their own: Ctrl-C of a
terminal reaches the parent alone, which tells each of them once.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from kagzi.clock import Clock
from kagzi.core.duration import format_span
from kagzi.core.instant import SECOND, Instant, Span
from kagzi.errors import InvalidRequest
from kagzi.ids import IdSource
from kagzi.process import usable_cores
from kagzi.sdk.worker.member import REFUSED, UNUSABLE, VARIABLE, written
from kagzi.sdk.worker.restarts import Restarts

logger = logging.getLogger("kagzi.worker")

MOST_PROCESSES: Final = 256
_FAILED: Final = 1
_USAGE: Final = 2
_USAGE_WITHIN: Final[Span] = 5 * SECOND
_LOOK_SECONDS: Final = 60.0
_STOPS: Final = (signal.SIGTERM, signal.SIGINT)


def process_count(processes: object) -> int:
    """Returns the number of processes that is meant; InvalidRequest if there cannot be as many."""
    if processes == "auto":
        return usable_cores() if sys.platform != "win32" else 1
    if isinstance(processes, bool) or not isinstance(processes, int) or not 1 <= processes <= MOST_PROCESSES:
        raise InvalidRequest(
            f'processes must be a whole number from 1 to {MOST_PROCESSES}, or "auto", not {processes!r:.100}'
        )
    if processes > 1 and sys.platform == "win32":
        raise InvalidRequest(
            "processes: on Windows a worker is one process, since there are no signals to drain the others by; start "
            "several workers instead"
        )
    return processes


def check_shared(url: str) -> None:
    """Refuses a home that each process would have for itself."""
    if url.lower().startswith("memory:"):
        raise InvalidRequest(
            "processes: memory:// lives within one process, so each would have runs of its own; name an SQLite file, a "
            "PostgreSQL or a server"
        )


def run_processes(count: int, *, slots: int, url: str, clock: Clock, ids: IdSource) -> int:
    """Starts this very program `count` times, and returns its exit code when all of them have ended."""
    check_shared(url)
    group = Processes(_own_command(), count, clock=clock, ids=ids, environ=os.environ)
    logger.info(
        "group %s: %d processes with %d slots each, up to %d runs at once", group.group, count, slots, count * slots
    )
    return group.run()


def _own_command() -> list[str]:
    words = sys.orig_argv[1:]
    if not words or words == ["-"] or hasattr(sys, "ps1"):
        raise InvalidRequest("processes: each of them starts this program anew, so it has to be a file or a module")
    return [sys.executable, *words]


class _Place:
    """One process of the group: now, and after its restarts."""

    def __init__(self, number: int, name: str, restarts: Restarts) -> None:
        self.number = number
        self.name = name
        self.restarts = restarts
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: socket.socket | None = None
        self.started_at: Instant = 0
        self.start_at: Instant | None = 0  # None: it runs, or is not started again


class Processes:
    """`count` processes of one command, until told to stop. For the main thread of a process."""

    def __init__(
        self, command: Sequence[str], count: int, *, clock: Clock, ids: IdSource, environ: Mapping[str, str]
    ) -> None:
        self._command = list(command)
        self._count = count
        self._monotonic = clock.monotonic
        self._environ = environ
        self.group = ids.token()[:8]
        self._places = [
            _Place(number, f"process {number}/{count}", Restarts(ids.jitter)) for number in range(1, count + 1)
        ]
        self._stops = 0  # how often it was told to
        self._code = 0

    def run(self) -> int:
        """Returns the exit code of the group when all its processes have ended: 0 if they have drained."""
        if threading.current_thread() is not threading.main_thread():
            raise InvalidRequest("processes: they are started and ended by signals, which only the main thread gets")
        with _signals() as heard:
            while True:
                self._start_due()
                if not any(place.process or place.start_at is not None for place in self._places):
                    return self._code
                for number in _wait(heard, self._seconds_to_next_start()):
                    if number in _STOPS:
                        self._told_to_stop(signal.Signals(number))
                self._reap()

    # Starting.

    def _start_due(self) -> None:
        now = self._monotonic()
        for place in self._places:
            if place.start_at is not None and place.start_at <= now:
                self._start(place)

    def _start(self, place: _Place) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            said = written(place.number, self._count, self.group, theirs.fileno())
            place.process = subprocess.Popen(
                self._command,
                env={**self._environ, VARIABLE: said},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        place.channel = ours
        place.started_at, place.start_at = self._monotonic(), None
        logger.info("%s of group %s is pid %d", place.name, self.group, place.process.pid)

    def _seconds_to_next_start(self) -> float:
        due = [place.start_at for place in self._places if place.start_at is not None]
        return min(_LOOK_SECONDS, max(0.0, (min(due) - self._monotonic()) / SECOND)) if due else _LOOK_SECONDS

    # Stopping.

    def _told_to_stop(self, number: signal.Signals) -> None:
        self._stops += 1
        if self._stops == 1:
            logger.info("%s: group %s drains", number.name, self.group)
        else:
            logger.warning("%s again: %s", number.name, "stopping now" if self._stops == 2 else "killing what is left")
        self._stop_all(signal.SIGTERM if self._stops <= 2 else signal.SIGKILL)

    def _stop_all(self, number: signal.Signals) -> None:
        """Has every process told, and none started any more."""
        self._stops = max(self._stops, 1)
        for place in self._places:
            place.start_at = None
            if place.process is not None:
                place.process.send_signal(number)  # nothing happens if it has ended and was not waited for yet

    # Ends.

    def _reap(self) -> None:
        ended = dict(self._ends())
        for place in self._places:
            process = place.process
            if process is None:
                continue
            code = ended[process.pid] if process.pid in ended else process.poll()
            if code is not None:
                process.returncode = code
                place.process = None
                self._ended(place, code, process.pid)

    def _ends(self) -> Iterator[tuple[int, int]]:
        """Yields the ends of all children of the first process of a container, which is the parent of orphans, too."""
        if os.getpid() != 1:
            return
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            yield pid, os.waitstatus_to_exitcode(status)

    def _ended(self, place: _Place, code: int, pid: int) -> None:
        lived = self._monotonic() - place.started_at
        word = _last_word(place)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"has ended with exit code {code}"
        if self._stops:
            # A process that was told before it could drain held nothing yet.
            if code not in (0, -signal.SIGTERM):
                self._code = self._code or _FAILED
                logger.warning("%s (pid %d) %s", place.name, pid, how)
        elif code == 0:
            logger.info("%s (pid %d) has drained, and is not started again", place.name, pid)
        elif word == UNUSABLE or (code == _USAGE and lived < _USAGE_WITHIN):
            self._give_up(place, "what it was told cannot be used (see above)", _USAGE)
        elif word == REFUSED:
            self._give_up(place, "the server refuses its key (see above)", _FAILED)
        elif (pause := place.restarts.pause(lived)) is None:
            self._code = _FAILED
            logger.error("%s (pid %d) %s, five times within a minute: it is not started again", place.name, pid, how)
        else:
            place.start_at = self._monotonic() + pause
            logger.warning("%s (pid %d) %s; it starts again in %s", place.name, pid, how, _shown(pause))

    def _give_up(self, place: _Place, why: str, code: int) -> None:
        logger.error("%s has ended: %s; the others stop, too", place.name, why)
        self._code = code
        self._stop_all(signal.SIGTERM)


def _shown(pause: Span) -> str:
    return format_span(pause // 100_000 * 100_000)


def _last_word(place: _Place) -> bytes:
    channel, place.channel = place.channel, None
    if channel is None:
        return b""
    with channel:
        try:
            return channel.recv(1)
        except OSError:  # none, or a process of its own still holds the other end
            return b""


@contextmanager
def _signals() -> Iterator[int]:
    """Gives a descriptor from which the numbers of signals can be read that have arrived."""
    heard, written_to = os.pipe()
    os.set_blocking(heard, False)
    os.set_blocking(written_to, False)
    before = {number: signal.getsignal(number) for number in (*_STOPS, signal.SIGCHLD)}
    woken = signal.set_wakeup_fd(written_to)
    for number in before:
        signal.signal(number, _nothing)  # what counts is the number in the pipe
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(woken)
        os.close(heard)
        os.close(written_to)


def _nothing(*_: object) -> None:
    pass


def _wait(heard: int, seconds: float) -> bytes:
    """Returns the numbers of signals that have arrived, as soon as there is one; nothing when the time is over."""
    if not select.select([heard], [], [], seconds)[0]:
        return b""
    try:
        return os.read(heard, 4096)
    except BlockingIOError:
        return b""
