"""`kagzi.run_step` for libraries that call steps in tasks of their own: identity and context."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest

import kagzi
from kagzi import InvalidRequest, Kagzi, run_step
from kagzi.testing import run_virtually

customer: ContextVar[str] = ContextVar("customer", default="nobody")


async def graph_of_version_1(call: Callable[[], Awaitable[str]]) -> str:
    return await asyncio.create_task(call(), name="graph")


async def graph_of_version_2(call: Callable[[], Awaitable[str]]) -> str:
    async with asyncio.TaskGroup() as group:
        node = group.create_task(graph_of_version_1(call))
    return node.result()


def agent(url: str, library: Callable[[Callable[[], Awaitable[str]]], Awaitable[str]], paid: list[str]) -> Kagzi:
    app = Kagzi(url)

    def ask(question: str) -> str:
        paid.append(question)
        return f"{question}!"

    @app.workflow
    async def talk() -> list[str]:
        async def model(question: str) -> str:
            return await run_step("model", ask, question, key=question, rooted=True)

        answers = [await library(lambda: model("first"))]
        answers += await asyncio.gather(library(lambda: model("left")), library(lambda: model("right")))
        await kagzi.wait_signal("go on")
        return [*answers, await library(lambda: model("last"))]

    return app


async def test_a_library_that_names_its_tasks_otherwise_pays_for_nothing_twice(home: str) -> None:
    paid: list[str] = []
    before = agent(home, graph_of_version_1, paid)
    talk = before.find_workflow("talk", "1")
    assert talk is not None
    async with before, before.worker():
        run = await talk.start()
        async with asyncio.timeout(60):
            while len(paid) < 3 or await run.status() != "SLEEPING":
                await asyncio.sleep(0.02)
        steps = {step.step_id for step in await run.steps()}
    assert {"model[first]", "model[left]", "model[right]"} <= steps
    after = agent(home, graph_of_version_2, paid)
    async with after, after.worker():
        same = after.handle(run.id)
        await same.signal("go on")
        assert await same.result(timeout=60) == ["first!", "left!", "right!", "last!"]
    assert sorted(paid) == ["first", "last", "left", "right"]


@pytest.mark.parametrize("threads", [True, False], ids=["def", "async def"])
def test_a_body_sees_what_its_caller_has_set_beside_our_own(threads: bool) -> None:
    app = Kagzi("memory://")

    def look() -> tuple[str, str, int]:
        customer.set("changed by the body")
        return before(), kagzi.current().run_id, kagzi.attempt()

    def before() -> str:
        return seen.pop() if seen else ""

    seen: list[str] = []

    def body() -> tuple[str, str, int]:
        seen.append(customer.get())
        return look()

    async def awaited() -> tuple[str, str, int]:
        return body()

    @app.workflow
    async def flow() -> list[Any]:
        customer.set("ann")
        fn: Any = body if threads else awaited
        own = await run_step("own", fn)
        callers = await run_step("callers", fn, context="caller")
        return [own, callers, customer.get(), kagzi.current().run_id]

    own, callers, after, run_id = run_virtually(app, flow.run)
    assert own == ["nobody", run_id, 1]
    assert callers == ["ann", run_id, 1]
    assert after == "ann"


def test_rooted_steps_keep_their_name_in_groups_and_are_numbered_in_the_run() -> None:
    app = Kagzi("memory://")

    @app.workflow
    async def flow() -> None:
        async def twice() -> None:
            await run_step("say", str, 1, rooted=True)
            await run_step("say", str, 2, rooted=True)

        await asyncio.create_task(twice())
        await kagzi.parallel(run_step("a", str, 3, rooted=True), run_step("b", str, 4))

    async def main() -> list[str]:
        run = await flow.start()
        await run.result()
        return [step.step_id for step in await run.steps()]

    ids = run_virtually(app, main)
    assert ids[:3] == ["say", "say#2", "a"]
    assert ids[3].endswith("/b")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rooted": "yes"}, "rooted must be True or False"),
        ({"context": "mine"}, 'context must be "caller" or "worker"'),
        ({"key": ""}, "step key"),
        ({"key": 7}, "step key"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        run_step("x", lambda: 1, **options)


def test_an_option_that_may_be_meant_for_the_function_is_refused() -> None:
    def store(key: str) -> str:
        return key

    with pytest.raises(InvalidRequest, match="pass a lambda"):
        run_step("store", store, key="k")
    assert run_step("store", lambda: store(key="k")) == "k"  # type: ignore[comparison-overlap]
