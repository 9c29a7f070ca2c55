"""A month of reports that nobody made at the time: one run for each day, three at a time, and harmless to repeat.

    python examples/backfill_month.py     # the second time it finds all of them made

A backfill goes by the schedule's own times and zone, so the days of daylight saving have one report each, too. Here the
schedule is new and paused: it is there to be backfilled.
"""

import asyncio
from datetime import datetime
from zoneinfo import ZoneInfo

import kagzi
from kagzi import Conflict, Kagzi, Limit, ScheduleHandle

app = Kagzi()
BERLIN = ZoneInfo("Europe/Berlin")


@app.step
async def visitors_of(day: str) -> int:
    return 1000 + int(day[-2:])


@app.workflow(concurrency=Limit(3))  # what is made up for leaves room for what is due
async def daily_visitors() -> tuple[str, int]:
    at = kagzi.scheduled_for()
    assert at is not None
    day = f"{at.astimezone(BERLIN):%Y-%m-%d}"
    return day, await visitors_of(day)


async def make_schedule() -> ScheduleHandle:
    try:
        return await app.schedules.create(
            "daily-visitors", daily_visitors, cron="30 2 * * *", tz="Europe/Berlin", enabled=False
        )
    except Conflict:  # made when this program ran before
        return await app.schedules.get("daily-visitors")


async def main() -> list[tuple[str, int]]:
    async with app, app.worker():
        schedule = await make_schedule()
        since, until = (datetime(2025, month, 1, tzinfo=BERLIN) for month in (3, 4))
        started = await schedule.backfill(since, until)
        while (info := await schedule.info()).successful_runs < info.total_runs:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        reports: list[tuple[str, int]] = sorted(run.output for run in (await schedule.runs(page_size=100)).items)
        print(f"{started} reports of {len(reports)} were made now, from {reports[0][0]} to {reports[-1][0]}")
        return reports


if __name__ == "__main__":
    asyncio.run(main())
