"""What happens when steps fail: policies, errors that give up at once, timeouts, and errors caught by the workflow.

python examples/retries_and_errors.py
"""

import asyncio

import kagzi
from kagzi import Kagzi, NonRetryable, Retry, StepTimeout, WorkflowFailed

app = Kagzi("memory://")


class CardDeclined(NonRetryable):
    """Trying again would not help."""


@app.step(retry=Retry(attempts=5, first="50ms", factor=2, cap="1s"))
async def flaky() -> str:
    """Fails twice. Each failed attempt is recorded before the next one starts."""
    if kagzi.attempt() < 3:
        raise ConnectionError(f"attempt {kagzi.attempt()} found the network down")
    return f"worked at attempt {kagzi.attempt()}"


@app.step
async def charge(cents: int) -> str:
    if cents > 10_000:
        raise CardDeclined("over the limit")
    return "paid"


@app.step(timeout="100ms", retry=Retry.none)
async def stuck() -> None:
    await asyncio.sleep(60)


@app.workflow
async def shop(cents: int) -> list[str]:
    story = [await flaky()]
    try:
        story.append(await charge(cents))
    except CardDeclined as declined:  # the same class, with the same message, on every replay
        story.append(f"declined: {declined}")
    try:
        await stuck()
    except StepTimeout:
        story.append("gave up on the stuck step")
    return story


@app.workflow
async def careless(cents: int) -> str:
    return await charge(cents)


async def main() -> list[str]:
    async with app, app.worker():
        story = await shop.run(20_000)
        for line in story:
            print(line)
        run = await careless.start(20_000)
        try:
            await run.result(timeout=30)
        except WorkflowFailed as failed:
            print(f"the run failed: {failed}")
            story.append(failed.failure.type if failed.failure else "")
        return story


if __name__ == "__main__":
    asyncio.run(main())
