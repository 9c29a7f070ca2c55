"""python -m kagzi.testing.simulation: run one seed to the letter, or a campaign of many."""

from __future__ import annotations

import argparse
import sys

from kagzi.clock import SystemClock
from kagzi.core.instant import SECOND
from kagzi.testing.simulation.campaign import Campaign
from kagzi.testing.simulation.world import World

_LAST_LINES = 60
_BULK_ONE_OF = 10  # worlds for which there is one more, with jobs and debounced starts
_WHOLE = 40  # of those, which see everything that there is to see in them


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kagzi.testing.simulation",
        description="Run engines, workers and clients on virtual time, with faults from a seed.",
    )
    parser.add_argument("--seed", type=int, help="run this one world; the same seed gives the same log")
    parser.add_argument("--log", action="store_true", help="with --seed: print everything that happened")
    parser.add_argument("--seeds", type=int, default=500, help="run so many worlds (default: 500)")
    parser.add_argument("--first", type=int, default=0, help="with --seeds: begin with this seed")
    parser.add_argument("--failures", type=int, default=5, help="with --seeds: stop after so many failures")
    parser.add_argument(
        "--bulk",
        action="store_true",
        help="only worlds with jobs and debounced starts (with --seeds they are run beside the others, one for ten)",
    )
    chosen = parser.parse_args(arguments)
    if chosen.seed is not None:
        return _one(chosen.seed, bulk=chosen.bulk, log=chosen.log)
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    if chosen.bulk:
        return _many(Campaign(bulk=True), seeds, chosen.failures)
    status = _many(Campaign(), seeds, chosen.failures)
    few = range(seeds.start // _BULK_ONE_OF, seeds.stop // _BULK_ONE_OF)
    return status or (_many(Campaign(bulk=True), few, chosen.failures, whole=len(few) >= _WHOLE) if few else 0)


def _one(seed: int, *, bulk: bool, log: bool) -> int:
    world = World(seed, bulk=bulk)
    try:
        world.run()
    except Exception as error:
        _print(world.lines() if log else world.lines()[-_LAST_LINES:])
        print(f"seed {seed} FAILED after {world.host.time():.3f} s: {type(error).__name__}: {error}")
        return 1
    if log:
        _print(world.lines())
    runs = len(world.checker.runs)
    print(f"seed {seed} passed: {world.host.time():.3f} s, {runs} runs, {world.ledger.bodies} step bodies")
    return 0


def _many(campaign: Campaign, seeds: range, failures: int, *, whole: bool = True) -> int:
    clock = SystemClock()
    began = clock.monotonic()
    shown = began

    def speed(campaign: Campaign) -> str:
        minutes = max(clock.monotonic() - began, 1) / SECOND / 60
        return f"{campaign.seeds} seeds, {campaign.seeds / minutes:,.0f} a minute, {len(campaign.failed)} failed"

    def progress(campaign: Campaign) -> None:
        nonlocal shown
        if clock.monotonic() - shown >= 5 * SECOND:
            shown = clock.monotonic()
            print(f"  {speed(campaign)}", file=sys.stderr, flush=True)

    campaign.run(seeds, progress=progress, most_failures=failures)
    for failed in campaign.failed:
        _print(failed.lines[-_LAST_LINES:])
        print(f"seed {failed.seed} FAILED: {type(failed.error).__name__}: {failed.error}")
        print(f"  again, with everything: python -m kagzi.testing.simulation {campaign.again(failed.seed)} --log\n")
    print(
        f"{speed(campaign)}; {campaign.virtual_seconds / 3600:,.1f} hours of virtual time, "
        f"{campaign.bodies:,} step bodies"
    )
    if campaign.failed:
        return 1
    if whole and (absent := campaign.missing()):
        print("this batch does not count, because in none of its worlds occurred:")
        _print([f"  {name}" for name in absent])
        return 2
    return 0


def _print(lines: list[str]) -> None:
    for line in lines:
        print(line)


if __name__ == "__main__":
    sys.exit(main())
