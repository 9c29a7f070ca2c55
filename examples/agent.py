"""An agent: a model chooses tools in a loop, and what is dangerous waits for a person.

    python examples/agent.py

Each answer of the model and each call of a tool is a step: after a crash nothing is asked or paid for twice, and the
conversation goes on where it was. The model here is a list of answers, so that the example needs no key; in yours,
`think` calls one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import kagzi
from kagzi import Kagzi, Retry

app = Kagzi("memory://")

Message = dict[str, Any]

# What a model would say, one answer after the other.
ANSWERS: list[Message] = [
    {"calls": [{"tool": "search", "input": "order 42"}, {"tool": "search", "input": "refund rules"}]},
    {"calls": [{"tool": "refund", "input": "42"}]},
    {"text": "The order was refunded, as the rules allow."},
]
DANGEROUS = {"refund"}
MOST_TURNS = 10


@app.step(retry=Retry(attempts=5, first="1s"))
async def think(conversation: list[Message]) -> Message:
    turn = sum("calls" in message or "text" in message for message in conversation)
    return ANSWERS[turn]


@app.step
async def search(words: str) -> str:
    kagzi.progress(0.5, f"searching for {words}")
    return f"found: {words}"


@app.step
async def refund(order: str) -> str:
    # Give the other side a key such as f"{kagzi.current().run_id}/{order}", so that a second call is recognised.
    return f"refunded order {order}"


TOOLS: dict[str, Callable[[str], Awaitable[str]]] = {"search": search, "refund": refund}


async def use(call: Message) -> Message:
    """One call of a tool, after a person has agreed if it is dangerous."""
    if call["tool"] in DANGEROUS:
        kagzi.set_value("asks", f"may I {call['tool']} {call['input']}?")
        if not await kagzi.wait_signal("allowed", bool, timeout="1 day", default=False):
            return {"result": "a person has refused this"}
    return {"result": await TOOLS[call["tool"]](call["input"])}


@app.workflow
async def agent(task: str) -> str:
    conversation: list[Message] = [{"task": task}]
    for turn in range(MOST_TURNS):
        kagzi.progress(turn / MOST_TURNS, "thinking")
        answer = await think(conversation)
        conversation.append(answer)
        if "text" in answer:
            kagzi.progress(1, "done")
            return str(answer["text"])
        conversation += await kagzi.map(use, answer["calls"], limit=4)
    raise RuntimeError(f"no answer after {MOST_TURNS} turns")


async def main() -> tuple[str, str, list[str]]:
    async with app, app.worker():
        run = await agent.options(id="task-1").start("refund order 42 if the rules allow it")
        question = ""
        while not question:
            await asyncio.sleep(0.05)
            question = await run.value("asks", str, default="")
        print("the agent asks:", question)
        await run.signal("allowed", True)
        answer = await run.result()
        steps = [step.step_id for step in await run.steps()]
        print("the agent says:", answer)
    return question, answer, steps


if __name__ == "__main__":
    asyncio.run(main())
