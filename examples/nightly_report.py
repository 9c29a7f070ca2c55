"""A report every night at two, and those of a month that has passed.

    python examples/nightly_report.py     # makes it, backfills last month, exits; any later worker goes on

The test of this example (tests/examples) lets three nights pass on virtual time, in no time.
"""

import asyncio
from datetime import UTC, datetime, timedelta

import kagzi
from kagzi import Conflict, Kagzi, ScheduleHandle

app = Kagzi()


@app.step
async def sales_of(day: str) -> int:
    return 100 + int(day[-2:])


@app.workflow
async def nightly_report(shop: str) -> str:
    at = kagzi.scheduled_for()  # the instant it was fired for, however late it began; the same in a retry
    day = f"{(at or kagzi.now()) - timedelta(days=1):%Y-%m-%d}"
    return f"{shop} sold {await sales_of(day)} on {day}"


async def make_schedule() -> ScheduleHandle:
    try:
        return await app.schedules.create(
            "nightly-report", nightly_report, "Lisbon", cron="0 2 * * *", tz="Europe/Lisbon"
        )
    except Conflict:  # made when this program ran before
        return await app.schedules.get("nightly-report")


async def main() -> None:
    for at in app.schedules.preview("0 2 * * *", tz="Europe/Lisbon", count=3):
        print(f"will report at {at:%Y-%m-%d %H:%M %Z}")
    async with app, app.worker():
        nightly = await make_schedule()
        end = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        started = await nightly.backfill((end - timedelta(days=1)).replace(day=1), end)
        print(f"{started} reports of last month were started")
        while (info := await nightly.info()).successful_runs < info.total_runs:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        newest = max(run.output for run in (await nightly.runs(page_size=100)).items)
        print(f"{info.successful_runs} are done; the newest: {newest}")


if __name__ == "__main__":
    asyncio.run(main())
