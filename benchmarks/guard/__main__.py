"""The cost guard: `python -m benchmarks.guard`, or `make bench-guard`. Exit code 1 if a cost is above its bound."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.environments import ROOT
from benchmarks.guard import growth
from benchmarks.guard.bounds import FILE, Bounds, Verdict
from benchmarks.guard.callgrind import CannotCount
from benchmarks.guard.measuring import PYTHON, Measured, measure


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=__doc__)
    parser.add_argument("--record", action="store_true", help=f"write what is counted into {FILE.name} instead")
    parser.add_argument("--against", metavar="COMMIT", help="count nothing; show which functions have grown since")
    options = parser.parse_args(arguments)
    if options.against:
        return _show_growth(options.against)
    try:
        measured = measure()
    except CannotCount as error:
        print(error, file=sys.stderr)
        return 2
    bounds = Bounds.load()
    if options.record:
        bounds.record(measured, _commit()).save()
        return 0
    return judge(bounds, measured)


def judge(bounds: Bounds, measured: Sequence[Measured]) -> int:
    broken: list[Verdict] = []
    for counted in measured:
        print(f"\n{counted.part} {counted.version}, instructions")
        if not bounds.know(counted):
            for name, cost in counted.costs.items():
                print(f"  {name:24}{cost:13,.0f}")
            print(f"  not compared: {FILE.name} has no numbers for this version (--record adds them)")
            continue
        for verdict in bounds.judge(counted):
            broken += [] if verdict.met else [verdict]
            said = "" if verdict.met else f"  BROKEN: at most {verdict.most:,.0f}"
            print(f"  {verdict.name:24}{verdict.recorded:13,.0f} ->{verdict.cost:13,.0f} {verdict.growth:+7.1%}{said}")
    if not broken:
        print(f"\nEvery cost is within its bound ({bounds.tolerance:.0%} above {bounds.commit[:8]}).")
        return 0
    print(f"\n{len(broken)} of the costs are above {bounds.tolerance:.0%} more than at {bounds.commit[:8]}:")
    for each in broken:
        print(f"  {each.part}: {each.name}, {each.recorded:,.0f} -> {each.cost:,.0f} ({each.growth:+.1%})")
    if any(each.part == PYTHON for each in broken):
        _show_growth(bounds.commit)
    return 1


def _show_growth(commit: str) -> int:
    try:
        lines = growth.since(commit)
    except growth.NoCommit as error:
        print(error, file=sys.stderr)
        return 2
    print(f"\nFunctions that have grown most since {commit[:8]}, in bytecodes for a run of W1 and for a step of W2:")
    print("\n".join(lines))
    return 0


def _commit() -> str:
    said = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return said.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
