"""A workflow that sleeps for a month. It holds no process, no connection and no memory meanwhile.

    python examples/long_sleep.py     # starts it, shows that it sleeps, and exits; any later worker wakes it

The test of this example (tests/examples) runs the whole month on virtual time, in no time.
"""

import asyncio
from datetime import timedelta

import kagzi
from kagzi import Kagzi, RunStatus

app = Kagzi()


@app.step
async def send_mail(to: str, text: str) -> str:
    return f"to {to}: {text}"


@app.workflow
async def trial(user: str) -> list[str]:
    began = kagzi.now()
    sent = [await send_mail(user, "welcome")]
    await kagzi.sleep("first week", "1 week")
    sent.append(await send_mail(user, "how is it going?"))
    await kagzi.sleep_until("end of trial", began + timedelta(days=30))
    sent.append(await send_mail(user, f"your trial ended after {(kagzi.now() - began).days} days"))
    return sent


async def main() -> None:
    async with app, app.worker():
        run = await trial.options(id="trial-of-ada").start("ada")
        while (record := await run.get()).status not in (RunStatus.SLEEPING, RunStatus.COMPLETED):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        if record.available_at is not None and record.status is RunStatus.SLEEPING:
            print(f"run {run.id} sleeps until {record.available_at:%Y-%m-%d %H:%M} UTC; this process may end")


if __name__ == "__main__":
    asyncio.run(main())
