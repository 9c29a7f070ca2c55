"""Wait for a person: ask, remind after a while, decide at the latest after three days, and say meanwhile what is up.

    python examples/human_approval.py

While it waits the run holds no worker, no connection and no memory. The answer may come from a handle, from the command
`kagzi runs signal`, or over HTTP. The reminders come quickly here, so that the program ends.
"""

import asyncio
from dataclasses import dataclass

import kagzi
from kagzi import Kagzi

app = Kagzi("memory://")


@dataclass
class Decision:
    by: str
    approved: bool
    reason: str = ""


@app.step
async def write_mail(to: str, text: str) -> str:
    return f"{to}: {text}"


@app.workflow
async def approval(order: str, boss: str, remind_after: str, give_up_after: str) -> str:
    kagzi.set_value("waits for", boss)
    await write_mail(boss, f"please decide on {order}")
    decision = await kagzi.wait_signal("decision", Decision, timeout=remind_after, default=None)
    if decision is None:
        await write_mail(boss, f"{order} still waits for you")
        decision = await kagzi.wait_signal("decision", Decision, timeout=give_up_after, default=None)
    if decision is None:
        return f"{order} was refused: nobody answered"
    kagzi.set_value("decision", decision)
    return f"{order} was {'approved' if decision.approved else 'refused'} by {decision.by}"


async def main() -> list[str]:
    async with app, app.worker():
        quick = await approval.options(id="order-1").start("order-1", "ann", "1 day", "3 days")
        await app.signal("order-1", "decision", Decision("ann", approved=True))

        late = await approval.options(id="order-2").start("order-2", "bob", "1s", "3 days")
        await asyncio.sleep(1.3)
        print("order-2 waits for", await late.value("waits for", str))
        await late.signal("decision", Decision("bob", approved=False, reason="too dear"), key="mail-17")

        never = await approval.start("order-3", "eve", "100ms", "200ms")
        story = [await run.result() for run in (quick, late, never)]
        mails = [step.name for step in await late.steps()].count("write_mail")
    story.append(f"bob got {mails} mails")
    print("\n".join(story))
    return story


if __name__ == "__main__":
    asyncio.run(main())
