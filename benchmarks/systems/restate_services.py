"""The workflows of all systems as Restate's users write them, for granian to serve."""

from __future__ import annotations

from datetime import timedelta

import restate
from restate.serde import JsonSerde

from benchmarks.systems.driver import CHILDREN, PARALLEL_STEPS
from benchmarks.systems.stopwatch import stopwatch

SLEEP_SECONDS = 2.0

bench = restate.Service("bench")
# Said here, or the SDK would work it out from the annotations of `add_one` at every call.
INTEGER = restate.RunOptions[int](serde=JsonSerde())


async def add_one(x: int) -> int:
    return x + 1


@bench.handler()
async def one_step(ctx: restate.Context, x: int) -> int:
    return await ctx.run_typed("add_one", add_one, INTEGER, x=x)


@bench.handler()
async def ten_steps(ctx: restate.Context, x: int) -> int:
    for _ in range(10):
        x = await ctx.run_typed("add_one", add_one, INTEGER, x=x)
    return x


@bench.handler()
async def hundred_steps(ctx: restate.Context, x: int) -> int:
    for _ in range(100):
        x = await ctx.run_typed("add_one", add_one, INTEGER, x=x)
    return x


@bench.handler()
async def parallel_steps(ctx: restate.Context, x: int) -> int:
    steps = [ctx.run_typed("add_one", add_one, INTEGER, x=x + i) for i in range(PARALLEL_STEPS)]
    await restate.gather(*steps)
    return sum([await step for step in steps])


@bench.handler()
async def sleeper(ctx: restate.Context, x: int) -> int:
    stopwatch.begin(x)
    await ctx.sleep(timedelta(seconds=SLEEP_SECONDS))
    stopwatch.end(x)
    return x


@bench.handler()
async def family(ctx: restate.Context, x: int) -> int:
    children = [ctx.service_call(one_step, arg=x + i) for i in range(CHILDREN)]
    await restate.gather(*children)
    return sum([await child for child in children])


talking = restate.Workflow("talking")


@talking.main()
async def told(ctx: restate.WorkflowContext, x: int) -> int:
    found = await ctx.promise("go", type_hint=int).value()
    stopwatch.end(x)
    return found


@talking.handler()
async def go(ctx: restate.WorkflowSharedContext, x: int) -> None:
    await ctx.promise("go", type_hint=int).resolve(x)


app = restate.app([bench, talking])
