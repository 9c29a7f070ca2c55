"""A schedule that stands beside its workflow: a worker that starts makes it, and changes it when the code has changed.

    python examples/declared_schedule.py     # looks after a service every second, twice

It is found by its name, so a deploy with other times takes over the same schedule. What a person pauses stays paused,
and what a person changes stays changed until `kagzi schedules reset heartbeat`.
"""

import asyncio

import kagzi
from kagzi import Cron, Kagzi

app = Kagzi()


@app.step
async def look_at(service: str) -> str:
    return f"{service} is up"


@app.workflow(schedule=Cron("every 1s", name="heartbeat", args=["shop"], catchup=3, overlap="skip"))
async def heartbeat(service: str) -> str:
    at = kagzi.scheduled_for()
    assert at is not None
    return f"{at:%H:%M:%S} {await look_at(service)}"


async def main() -> None:
    async with app, app.worker():
        schedule = await app.schedules.get("heartbeat")
        while (info := await schedule.info()).successful_runs < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        print(f"{info.name}: {info.cron}, declared in code: {info.declared}")
        for run in sorted((await schedule.runs()).items, key=lambda run: run.scheduled_for or run.created_at)[:2]:
            print(run.output or f"{run.status} still")
        await schedule.pause("the example is over")


if __name__ == "__main__":
    asyncio.run(main())
