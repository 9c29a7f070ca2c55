"""An agent of pydantic-ai that books a trip: what its model and its tools have answered survives a crash.

    pip install "kagzi[pydantic-ai]"
    python examples/agent_pydantic_ai.py

Kill it while it books (`kill -9`) and start it again: neither the model nor the searches are repeated. The model here
is a function, so that the example needs no key; in yours it is `Agent("openai:gpt-5", ...)` or any other.
"""

import asyncio
import os

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from kagzi import Handle, Kagzi, Retry
from kagzi.contrib.pydantic_ai import KagziDurability

# A short lease, so that nobody has to wait half a minute for the second process to take over.
app = Kagzi(os.environ.get("KAGZI_URL"), lease=os.environ.get("LEASE", "2s"))


async def pretended_model(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    print(f"the model is asked with {len(messages)} messages", flush=True)
    results = [str(part.content) for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
    if len(messages) == 1:
        return ModelResponse(
            parts=[
                ToolCallPart("search", {"place": "Lisbon"}, tool_call_id="lisbon"),
                ToolCallPart("search", {"place": "Porto"}, tool_call_id="porto"),
            ]
        )
    if len(messages) == 3:
        return ModelResponse(parts=[ToolCallPart("book", {"flight": min(results)}, tool_call_id="booking")])
    return ModelResponse(parts=[TextPart(f"Done: {results[0]}")])


agent = Agent(
    FunctionModel(pretended_model),
    name="travel",
    capabilities=[KagziDurability(model={"retry": Retry(attempts=5), "timeout": "2m"}, approvals="approval")],
)


@agent.tool_plain(metadata={"kagzi": {"retry": Retry(attempts=3)}})  # searching twice does no harm
async def search(place: str) -> str:
    print(f"searching for flights to {place}", flush=True)
    return f"flight to {place}"


@agent.tool_plain(requires_approval=True)
async def book(flight: str) -> str:
    print(f"booking the {flight}", flush=True)
    await asyncio.sleep(float(os.environ.get("BOOKING_SECONDS", "2")))
    return f"booked the {flight}"


@app.workflow
async def travel(wish: str) -> str:
    result = await agent.run(wish)
    return result.output


async def agree(run: Handle[str]) -> None:
    """What a person does who looks at the run: reads what it asks, and answers."""
    questions: list[dict[str, str]] = []
    while not questions:
        await asyncio.sleep(0.1)
        questions = await run.value("approvals", list[dict[str, str]], default=[])
    for question in questions:
        print("allowed:", question["tool"], question["arguments"], flush=True)
        await run.signal(question["signal"], True)


async def main() -> None:
    async with app, app.worker():
        run = await travel.options(id="trip-1").start("the sea, and not too expensive")
        person = asyncio.create_task(agree(run))
        print("the agent says:", await run.result())
        person.cancel()


if __name__ == "__main__":
    asyncio.run(main())
