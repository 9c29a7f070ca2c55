"""kill -9 of the processes that fire schedules: each instant becomes one run all the same."""

from __future__ import annotations

import asyncio
import random
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from kagzi import RunStatus
from kagzi.api.schedules import CreateSchedule
from kagzi.clock import SystemClock
from kagzi.connect import connect
from kagzi.core.instant import SECOND
from kagzi.core.schedule import Overlap
from kagzi.engine.local import LocalEngine
from kagzi.ids import RandomIds
from tests.warm import PIPE, Process, Warm, clean_environ

# Fires schedules and does nothing else, until it is killed or its standard input ends.
COORDINATOR = """
import asyncio, sys
from kagzi.connect import connect

async def main(url):
    engine = connect(url)
    await engine.open()
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await engine.close()

asyncio.run(main(sys.argv[1]))
"""
SCHEDULES = 40
KILLS = 6


def kill(process: Process) -> None:
    process.kill()
    process.communicate()  # closes its pipes


async def test_each_instant_becomes_one_run_whoever_is_killed(url: str, tmp_path: Path, warm: Warm) -> None:
    program = tmp_path / "coordinator.py"
    program.write_text(COORDINATOR)

    def coordinator() -> Process:
        process = warm.start([str(program), url], directory=tmp_path, environ=clean_environ(), stdin=PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        return process

    # Without duties of its own: only the processes fire.
    opened = connect(url)
    assert isinstance(opened, LocalEngine)
    ids = RandomIds(SystemClock().now)
    async with LocalEngine(opened.store) as engine:
        made = [
            await engine.schedules.create(
                CreateSchedule(
                    namespace="default",
                    schedule_id=ids.run_id(),
                    workflow_type="w",
                    task_queue="q",
                    cron_expr="every 1s",
                    max_catchup=10_000,
                    overlap=Overlap.ALLOW,
                )
            )
            for _ in range(SCHEDULES)
        ]
        chance = random.Random(7)
        running = [await asyncio.to_thread(coordinator) for _ in range(2)]
        try:
            for _ in range(KILLS):
                await asyncio.sleep(chance.uniform(0.2, 1.5))
                victim = running.pop(chance.randrange(len(running)))
                kill(victim)
                running.append(await asyncio.to_thread(coordinator))
            # Whatever was missed meanwhile is made up for.
            until = (await engine.store.overview.horizon([])).now
            async with asyncio.timeout(60):
                for schedule in made:
                    while ((await engine.schedules.get("default", schedule.schedule_id)).next_fire_at or 0) <= until:
                        await asyncio.sleep(0.05)
        finally:
            for process in running:
                kill(process)
        for schedule in made:
            after = await engine.schedules.get("default", schedule.schedule_id)
            runs = await engine.store.schedules.page_of_runs("default", schedule.schedule_id, None, 10_000)
            instants = sorted(_instant(run.external_id) for run in runs)
            assert instants[0] == schedule.next_fire_at
            assert all(later - earlier == SECOND for earlier, later in pairwise(instants))
            assert (after.total_runs, after.skipped_runs) == (len(runs), 0)
            assert {run.status for run in runs} == {RunStatus.PENDING}


def _instant(external_id: str | None) -> int:
    assert external_id is not None
    return round(datetime.fromisoformat(external_id.partition(":")[2]).timestamp()) * SECOND
