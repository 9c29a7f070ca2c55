"""What step bodies really did: an append-only file outside of Kagzi, one line at entry and one at exit.

The product's own rows cannot prove that a body ran once. Each line is one write to a file opened with O_APPEND
and is on disk before the body goes on, so a process that is killed leaves whole lines. Moments are those of
CLOCK_MONOTONIC, which is the same for all processes of a machine.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import kagzi


class Ledger:
    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, event: str, **more: Any) -> None:
        """Called by a step body: who did what, when."""
        info = kagzi.current()
        line: dict[str, Any] = {
            "event": event,
            "run": info.run_id,
            "step": info.step_id,
            "attempt": info.attempt,
            "pid": os.getpid(),
        }
        line |= {"at": time.monotonic(), **more}
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, json.dumps(line).encode() + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lines(self, event: str | None = None, **wanted: Any) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        if event is not None:
            wanted["event"] = event
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [line for line in lines if all(line.get(name) == value for name, value in wanted.items())]

    def check_acknowledged_once(self) -> None:
        """No body whose result was acknowledged ran again.

        Bodies note the phase of their workflow they belong to. A body of a later phase starts only when the results
        of all earlier ones are durable, so once it was seen, a body of an earlier phase must not be.
        """
        reached: dict[str, int] = {}
        for line in self.lines("enter"):
            phase = line["phase"]
            assert phase >= reached.get(line["run"], 0), f"ran again after it was acknowledged: {line}"
            reached[line["run"]] = phase
