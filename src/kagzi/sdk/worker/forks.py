"""Processes that step bodies fork: `os.fork`, `multiprocessing`, `ProcessPoolExecutor`.

A forked child begins as a copy of its worker, and without this it would act as one:

* It inherits the handlers of SIGTERM and SIGINT, and the pipe by which they wake the event loop, whose other end is the
  worker's. `Process.terminate()` and the end of `with Pool()` would drain the worker and not end the child.
* When its copy of the body ends, it would go on as a second worker, on the connections of the first.

Signals are held up while a process forks: between the fork and the first line that the child executes they would still
be the worker's. One that came meanwhile ends the child as it would have done a moment later: what its handler raises
(KeyboardInterrupt, for one) Python only prints there, and the child would go on as if nobody had sent it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterable
from typing import Any, NoReturn

in_child = False  # this process was forked by a body

_before: dict[signal.Signals, Any] = {}  # how signals were handled before the worker did so
_masks = threading.local()
_watching = False


def watch() -> None:
    """Makes forked children no workers from now on. A process that calls this is a worker, whatever forked it."""
    global _watching, in_child
    in_child = False
    if not _watching and hasattr(os, "register_at_fork"):
        _watching = True
        os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals_through, after_in_child=_become_child)


def keep_from_children(numbers: Iterable[signal.Signals]) -> None:
    """This process is about to handle these signals; its children handle them as it did until now."""
    for number in numbers:
        _before[number] = signal.getsignal(number)


def leave(error: BaseException | None) -> NoReturn:
    """Ends a forked child whose copy of a body has ended, as the end of a program does."""
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _hold_signals() -> None:
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))


def _let_signals_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _become_child() -> None:
    global in_child
    in_child = True
    signal.set_wakeup_fd(-1)
    for number, handler in _before.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
    try:
        _let_signals_through()
    except BaseException as error:
        leave(error)
