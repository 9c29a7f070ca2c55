"""How a script talks to the harness: the task comes as an argument, JSON lines go out on stdout.

Libraries print: whatever they write to stdout goes to stderr, and only `Channel` has the real one.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, TextIO

from benchmarks.workloads import Task, Values


class Channel:
    def __init__(self) -> None:
        self._out: TextIO = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def task(self) -> Task:
        return Task.from_json(json.loads(sys.argv[1]))

    def progress(self, text: str) -> None:
        self._send({"event": "progress", "text": text})

    def result(self, values: Values) -> None:
        self._send({"event": "result", "values": values})

    def wrong(self, problem: str) -> None:
        self._send({"event": "wrong", "problem": problem})

    def _send(self, message: dict[str, Any]) -> None:
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()
