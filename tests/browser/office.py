"""Workflows for somebody to watch."""

from __future__ import annotations

import asyncio

import kagzi
from kagzi import Kagzi, Retry
from kagzi.api.operations import StartRun
from kagzi.clock import SystemClock
from kagzi.engine.local import LocalEngine
from kagzi.ids import RandomIds

HOSTILE = '</code><script>document.title = "owned"</script><img src=x onerror="document.title=\'owned\'">'
_ids = RandomIds(SystemClock().now)


class Office:
    def __init__(self, url: str) -> None:
        self.app = app = Kagzi(url)
        self.go = asyncio.Event()
        self.broken = True
        go = self.go

        @app.step(retry=Retry(attempts=1))
        async def wait_for_it(name: str) -> str:
            await go.wait()
            return f"done {name}"

        @app.step(retry=Retry(attempts=1))
        async def fragile() -> str:
            if self.broken:
                raise ValueError(f"it is broken {HOSTILE}")
            return HOSTILE

        @app.step
        async def quick(number: int) -> int:
            return number

        @app.workflow(name="slow")
        async def slow(name: str) -> str:
            """Takes its time."""
            return await wait_for_it(name)

        @app.workflow(name="failing", retry=Retry(attempts=1))
        async def failing() -> str:
            return await fragile()

        @app.workflow(name="approval")
        async def approval() -> bool:
            return await kagzi.wait_signal("approved", bool)

        @app.workflow(name="sleepy")
        async def sleepy() -> None:
            await asyncio.sleep(86_400)

        @app.workflow(name="many")
        async def many(count: int) -> None:
            await kagzi.map(quick, range(count), name="all of them")


async def start(engine: LocalEngine, workflow: str, input: bytes = b"[]") -> str:
    request = StartRun(
        namespace="default", run_id=_ids.run_id(), workflow_type=workflow, task_queue="default", input=input
    )
    return (await engine.workflows.start(request)).run_id
