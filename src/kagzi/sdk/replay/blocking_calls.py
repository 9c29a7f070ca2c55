"""Notices calls of workflow code that block: `open()`, sockets, processes, `time.sleep`, threads. They are reported
where they begin, with file and line.

Where such a call is an error, Python tells of all of them by audit events, to a hook that is installed once in a
process. Such a hook is called for each event of the process, and those that an execution causes itself (it sets the
hooks of async generators for each turn) make a step cost some percent more, also if the hook does nothing: most of it
is what Python does to call one. So where it is a warning only, the functions that begin such a call are wrapped
instead, which costs nothing elsewhere. `open` is a special one, because a frame of ours would be in the traceback of
every file that is missing: it is exchanged while workflow code runs (`WorkflowLoop.drain`). Threads are told of by
`side_threads`, which wraps their start.

What the import system, logging, tracebacks and time zones open is not the workflow's doing, and neither is what Kagzi
does.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from asyncio import _get_running_loop
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any, Final

from kagzi.errors import NonDeterminismError
from kagzi.sdk.replay.loop import WorkflowLoop, place_of_call

logger = logging.getLogger("kagzi.workflow")

_SLEEP: Final = "time.sleep()"
_NETWORK: Final = "a connection of its own"
_PROCESS: Final = "a process of its own"
# By the name of the event, what is told of it.
_CALLS: Final = {
    "open": "open()",
    "time.sleep": _SLEEP,
    "socket.bind": _NETWORK,
    "socket.connect": _NETWORK,
    "socket.getaddrinfo": _NETWORK,
    "socket.gethostbyaddr": _NETWORK,
    "socket.gethostbyname": _NETWORK,
    "socket.sendmsg": _NETWORK,
    "socket.sendto": _NETWORK,
    "subprocess.Popen": _PROCESS,
    "os.exec": _PROCESS,
    "os.fork": _PROCESS,
    "os.forkpty": _PROCESS,
    "os.posix_spawn": _PROCESS,
    "os.spawn": _PROCESS,
    "os.system": _PROCESS,
}
_MOST_PLACES: Final = 1_000
# What opens files for reasons of its own, whoever calls it.
_INNOCENT: Final = frozenset(
    {"importlib", "inspect", "linecache", "logging", "pkgutil", "tokenize", "traceback", "warnings"}
)
_IMPORTS: Final = ("<frozen importlib", "<frozen zipimport")
_STDLIB: Final = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_PACKAGES: Final = ("site-packages", "dist-packages")
# Frames of ours that stand between a call and who makes it.
_BETWEEN: Final = frozenset({__name__, "kagzi.sdk.replay.side_threads"})


class _Here(threading.local):
    busy = False  # with telling of a call: what a log handler opens meanwhile is not the workflow's


_here = _Here()
_watching = threading.Lock()
_listening = threading.Lock()
_told: set[str] = set()
_open = open


def watch_blocking_calls(*, all_of_them: bool) -> None:
    """Notices blocking calls of this process's workflow code from now on; those that few programs make only if all are
    to be noticed. Once is enough."""
    if _watching.acquire(blocking=False):
        _wrap(time, "sleep", _SLEEP)
        _wrap(socket.socket, "connect", _NETWORK)
        _wrap(socket, "getaddrinfo", _NETWORK)
        _wrap(subprocess.Popen, "__init__", _PROCESS)
        _wrap(os, "system", _PROCESS)
    if all_of_them and _listening.acquire(blocking=False):
        sys.addaudithook(_hook)


# With what it needs as defaults: at the end of the interpreter the globals of a module are gone before its last events.
def _hook(
    event: str,
    args: tuple[Any, ...],
    calls: dict[str, str] = _CALLS,
    running: Callable[[], object] = _get_running_loop,
    workflow: type[WorkflowLoop] = WorkflowLoop,
) -> None:
    if event in calls:
        loop = running()
        if type(loop) is workflow:
            what = calls[event]
            if event == "open":
                what = f"open({args[0]!r:.200})"
                if "zoneinfo" in what:
                    return  # `ZoneInfo("Europe/Berlin")` reads it once, in C
            notice(what, loop)


@wraps(open)
def watched_open(*args: Any, **kwargs: Any) -> Any:
    loop = _get_running_loop()
    if type(loop) is WorkflowLoop:
        what = f"open({args[0] if args else kwargs.get('file')!r:.200})"
        if "zoneinfo" not in what:
            notice(what, loop)
    return _open(*args, **kwargs)


def _wrap(owner: Any, name: str, what: str) -> None:
    function = getattr(owner, name)

    @wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        loop = _get_running_loop()
        if type(loop) is WorkflowLoop:
            notice(what, loop)
        return function(*args, **kwargs)

    setattr(owner, name, watched)


def notice(what: str, loop: WorkflowLoop) -> None:
    """Tells of a blocking call of workflow code, once for each place; raises where such calls are errors."""
    if loop.blocking_calls == "off" or loop.evicting or _here.busy:
        return
    _here.busy = True
    try:
        if not _is_workflows(sys._getframe(1)):
            return
        place = place_of_call()
        message = (
            f"workflow {loop.execution.describe()} has {what} at {place}: it holds up every run of its worker, and "
            "happens again at each replay. Do it in a step"
        )
        if loop.blocking_calls == "error":
            loop.mistake = NonDeterminismError(message)  # for a workflow that catches it
            raise loop.mistake
        if place not in _told and len(_told) < _MOST_PLACES:
            _told.add(place)
            logger.warning(message, extra=loop.execution.about())
    finally:
        _here.busy = False


def _is_workflows(frame: FrameType | None) -> bool:
    """Returns whether a call was made by workflow code, or a library that it uses: the nearest frame outside of the
    standard library is not Kagzi's, and nothing in between does such things for reasons of its own."""
    found = False
    while frame is not None and frame.f_code is not WorkflowLoop._run_ready.__code__:
        file, module = frame.f_code.co_filename, frame.f_globals.get("__name__", "")
        package = module.partition(".")[0]
        if package in _INNOCENT or file.startswith(_IMPORTS):
            return False
        if not found and module not in _BETWEEN and not _is_stdlib(file):
            if package == "kagzi":
                return False
            found = True
        frame = frame.f_back
    return found


def _is_stdlib(file: str) -> bool:
    return file.startswith("<frozen ") or (
        file.startswith(_STDLIB) and not any(package in file for package in _PACKAGES)
    )
