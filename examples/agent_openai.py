"""An agent of the OpenAI Agents SDK that books a trip: what its model and its tools have answered survives a crash.

    pip install "kagzi[openai-agents]"
    python examples/agent_openai.py

Kill it while it books (`kill -9`) and start it again: neither the model nor the searches are repeated. The model here
is a class, so that the example needs no key; in yours it is `Agent(model="gpt-5", ...)`.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, Usage, function_tool
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from kagzi import Handle, Kagzi, Retry
from kagzi.contrib.openai_agents import durable, run

# A short lease, so that nobody has to wait half a minute for the second process to take over.
app = Kagzi(os.environ.get("KAGZI_URL"), lease=os.environ.get("LEASE", "2s"))


class PretendedModel(Model):
    async def get_response(self, *_: Any, input: Any, **__: Any) -> ModelResponse:
        results = [item["output"] for item in input if item.get("type") == "function_call_output"]
        print(f"the model is asked with {len(results)} results", flush=True)
        if not results:
            return answer(call("search", "lisbon", place="Lisbon"), call("search", "porto", place="Porto"))
        if len(results) == 2:
            return answer(call("book", "booking", flight=min(results)))
        text = ResponseOutputText(text=f"Done: {results[-1]}", type="output_text", annotations=[])
        return answer(
            ResponseOutputMessage(id="1", content=[text], role="assistant", status="completed", type="message")
        )

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def answer(*output: Any) -> ModelResponse:
    return ModelResponse(output=list(output), usage=Usage(), response_id=None)


def call(tool: str, id: str, **arguments: str) -> ResponseFunctionToolCall:
    text = json.dumps(arguments)
    return ResponseFunctionToolCall(name=tool, call_id=id, arguments=text, type="function_call")


@function_tool
async def search(place: str) -> str:
    print(f"searching for flights to {place}", flush=True)
    return f"flight to {place}"


@function_tool(needs_approval=True)
async def book(flight: str) -> str:
    print(f"booking the {flight}", flush=True)
    await asyncio.sleep(float(os.environ.get("BOOKING_SECONDS", "2")))
    return f"booked the {flight}"


agent = durable(
    Agent(name="travel", model=PretendedModel(), tools=[search, book]),
    model={"retry": Retry(attempts=5), "timeout": "2m"},
    tools={"search": {"retry": Retry(attempts=3)}},  # searching twice does no harm
)


@app.workflow
async def travel(wish: str) -> str:
    result = await run(agent, wish, approvals="approval")
    return str(result.final_output)


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
        trip = await travel.options(id="trip-1").start("the sea, and not too expensive")
        person = asyncio.create_task(agree(trip))
        print("the agent says:", await trip.result())
        person.cancel()


if __name__ == "__main__":
    asyncio.run(main())
