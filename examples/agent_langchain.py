"""An agent of LangChain that books a trip: what its model and its tools have answered survives a crash.

    pip install "kagzi[langchain]"
    python examples/agent_langchain.py

Kill it while it books (`kill -9`) and start it again: neither the model nor the searches are repeated. The model here
is a class, so that the example needs no key; in yours it is `create_agent("openai:gpt-5", ...)` or any other.
"""

import asyncio
import os
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

import kagzi
from kagzi import Handle, Kagzi, Retry
from kagzi.contrib.langchain import KagziMiddleware

# A short lease, so that nobody has to wait half a minute for the second process to take over.
app = Kagzi(os.environ.get("KAGZI_URL"), lease=os.environ.get("LEASE", "2s"))


class PretendedModel(BaseChatModel):
    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        results = [str(message.content) for message in messages if isinstance(message, ToolMessage)]
        print(f"the model is asked with {len(results)} results", flush=True)
        if not results:
            calls = [call("search", "lisbon", place="Lisbon"), call("search", "porto", place="Porto")]
            answer = AIMessage("", tool_calls=calls)
        elif len(results) == 2:
            answer = AIMessage("", tool_calls=[call("book", "booking", flight=min(results))])
        else:
            answer = AIMessage(f"Done: {results[-1]}")
        return ChatResult(generations=[ChatGeneration(message=answer)])

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        return self

    @property
    def _llm_type(self) -> str:
        return "pretended"


def call(tool: str, id: str, **arguments: str) -> ToolCall:
    return ToolCall(name=tool, args=arguments, id=id)


@tool
async def search(place: str) -> str:
    """Find flights."""
    print(f"searching for flights to {place}", flush=True)
    return f"flight to {place}"


@tool
async def book(flight: str) -> str:
    """Book a flight, if a person agrees. It is part of the workflow, so it may wait for days; the booking is a step."""
    kagzi.set_value("asks", f"book {flight}")
    if not await kagzi.wait_signal("allowed", bool, timeout="3 days", default=False):
        return "a person has refused this"
    return await kagzi.run_step("send booking", send_booking, flight)


async def send_booking(flight: str) -> str:
    print(f"booking the {flight}", flush=True)
    await asyncio.sleep(float(os.environ.get("BOOKING_SECONDS", "2")))
    return f"booked the {flight}"


agent = create_agent(
    PretendedModel(),
    tools=[search, book],
    # Searching twice does no harm.
    middleware=[KagziMiddleware("travel", tools={"search": {"retry": Retry(attempts=3)}, "book": False})],
)


@app.workflow
async def travel(wish: str) -> str:
    state = await agent.ainvoke({"messages": [("user", wish)]})
    return str(state["messages"][-1].content)


async def agree(run: Handle[str]) -> None:
    """What a person does who looks at the run: reads what it asks, and answers."""
    asked = ""
    while not asked:
        await asyncio.sleep(0.1)
        asked = await run.value("asks", str, default="")
    print("allowed:", asked, flush=True)
    await run.signal("allowed", True)


async def main() -> None:
    async with app, app.worker():
        run = await travel.options(id="trip-1").start("the sea, and not too expensive")
        person = asyncio.create_task(agree(run))
        print("the agent says:", await run.result())
        person.cancel()


if __name__ == "__main__":
    asyncio.run(main())
