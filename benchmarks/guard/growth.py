"""Which functions have grown since a commit: bytecodes that W1 and W2 execute in each, here and there.

Bytecodes are counted by Python itself, by a trace function. They say where the work is, but not what it costs: what
is done in C counts as the one bytecode that calls it.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from benchmarks.environments import ROOT
from benchmarks.guard import embedded

_SHOWN: Final = 10  # functions of each segment

_Bytecodes = Mapping[str, Mapping[str, float]]  # by segment and function


class NoCommit(Exception):
    """The repository does not have the commit, or there is none."""


def since(commit: str) -> list[str]:
    """Returns lines that name them, the one that has grown most first."""
    with tempfile.TemporaryDirectory(prefix="kagzi-guard-") as directory:
        there = Path(directory) / "there"
        made = subprocess.run(
            ["git", "worktree", "add", "--quiet", "--detach", str(there), commit],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            raise NoCommit(f"git cannot check out {commit[:8]} to compare with: {made.stderr.strip()}")
        try:
            before, now = _count(there), _count(ROOT)
        finally:
            shutil.rmtree(there)
            subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=False)
    lines: list[str] = []
    for segment, functions in now.items():
        total, old = sum(functions.values()), sum(before[segment].values())
        lines.append(f"{segment}: {old:,.0f} -> {total:,.0f} ({total / old - 1:+.1%})")
        grown = {name: count - before[segment].get(name, 0) for name, count in functions.items()}
        for name in sorted(grown, key=lambda name: -grown[name])[:_SHOWN]:
            if grown[name] >= old / 1000:
                lines.append(f"  {grown[name]:+8,.0f} ({grown[name] / old:+.1%})  {name}")
    return lines


def _count(root: Path) -> _Bytecodes:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.guard.growth"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(ROOT)]), "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        check=True,
    )
    counts: _Bytecodes = json.loads(done.stdout)
    return counts


def main() -> None:
    """Counts with the Kagzi that is imported, and prints it as JSON."""
    counts: dict[str, Counter[CodeType]] = {name: Counter() for name in embedded.UNITS}
    segment: str | None = None

    def trace(frame: FrameType, event: str, argument: object) -> Any:  # noqa: ARG001
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == "opcode" and segment is not None:
            counts[segment][frame.f_code] += 1
        return trace

    def mark(name: str) -> None:
        nonlocal segment
        segment = name if segment is None else None
        sys.settrace(trace if segment else None)

    gc.disable()
    embedded.run(mark)
    told = {
        name: {_name(code): count / units for code, count in counts[name].items()}
        for name, units in embedded.UNITS.items()
        if name != "calibration"
    }
    print(json.dumps(told))


def _name(code: CodeType) -> str:
    """Returns `engine/batcher.py Batcher.submit`, or the same for a module of others."""
    path = Path(code.co_filename)
    parts = path.parts
    where = "/".join(parts[parts.index("kagzi") + 1 :] if "kagzi" in parts else parts[-2:])
    return f"{where} {getattr(code, 'co_qualname', code.co_name)}"


if __name__ == "__main__":
    main()
