"""Runs one workload of one system in a process of its own and brings back what it measured."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

from benchmarks.environments import ROOT
from benchmarks.workloads import Measurement, Setting, Task, Values

LONGEST_SECONDS = 300.0
KEPT_LINES = 30


class ScriptFailed(Exception):
    """A script died, took too long, or found that its system gave wrong answers."""


async def run(python: Path, setting: Setting, task: Task, say: Callable[[str], None]) -> Measurement:
    """Measure once. The script's stderr is shown only if it fails."""
    process = await asyncio.create_subprocess_exec(
        str(python),
        "-m",
        f"benchmarks.systems.{setting.system}_worker",
        json.dumps(task.to_json()),
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    complaints = asyncio.create_task(_last_lines(process.stderr))
    try:
        async with asyncio.timeout(LONGEST_SECONDS):
            values, problem = await _listen(process.stdout, say)
            await process.wait()
    except TimeoutError:
        values, problem = None, f"not done after {LONGEST_SECONDS:.0f} s"
    finally:
        # The script is the leader of a session: its own worker process ends with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if values is None:
        raise ScriptFailed(problem or f"exit code {process.returncode}\n{await complaints}")
    return Measurement(setting, task.workload, values)


async def _listen(stdout: asyncio.StreamReader, say: Callable[[str], None]) -> tuple[Values | None, str | None]:
    values: Values | None = None
    problem: str | None = None
    async for line in stdout:
        message = json.loads(line)
        match message["event"]:
            case "progress":
                say(message["text"])
            case "result":
                values = message["values"]
            case "wrong":
                problem = message["problem"]
    return values, problem


async def _last_lines(stream: asyncio.StreamReader) -> str:
    kept: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)
    async for line in stream:
        kept.append(line.decode(errors="replace").rstrip())
    return "\n".join(kept)
