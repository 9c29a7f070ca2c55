"""The program that the tests of this folder run, kill and stop: an app, and a worker process for it.

python -m tests.faults.program '{"url": …, "ledger": …, "kagzi": {…}, "worker": {…}}'
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import kagzi
from kagzi import Kagzi, Retry
from tests.faults.ledger import Ledger

QUICKLY = Retry.fixed("50ms", attempts=5)


class Program:
    def __init__(self, url: str, ledger: Path, **settings: Any) -> None:
        self.app = app = Kagzi(url, **settings)
        self.ledger = ledger_ = Ledger(ledger)
        note = ledger_.note
        directory = ledger.parent

        def released(tag: str) -> bool:
            return (directory / f"release-{tag}").exists()

        @app.step(retry=QUICKLY)
        async def link(phase: int, pause: float) -> int:
            note("enter", phase=phase)
            await asyncio.sleep(pause)
            note("exit", phase=phase)
            return phase

        @app.step(retry=QUICKLY)
        def blocking_link(phase: int, pause: float) -> int:
            note("enter", phase=phase)
            time.sleep(pause)
            note("exit", phase=phase)
            return phase

        @app.step(retry=QUICKLY)
        async def hold(tag: str, seconds: float) -> int:
            """Until it is let go of, or the time is over."""
            note("enter", phase=1, tag=tag)
            end = time.monotonic() + seconds
            try:
                while time.monotonic() < end and not released(tag):
                    await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                note("cancelled", tag=tag)
                raise
            note("exit", phase=1, tag=tag)
            return os.getpid()

        @app.step(retry=QUICKLY)
        def hold_thread(tag: str, seconds: float) -> int:
            note("enter", phase=1, tag=tag)
            end = time.monotonic() + seconds
            while time.monotonic() < end and not released(tag):
                time.sleep(0.01)
            note("exit", phase=1, tag=tag)
            return os.getpid()

        @app.step(retry=QUICKLY)
        async def block(how: str, seconds: float) -> None:
            note("enter", phase=1)
            end = time.monotonic() + seconds
            if how == "sleep":
                time.sleep(seconds)  # noqa: ASYNC251 (what it must not do)
            while time.monotonic() < end:
                sum(range(1000))
            note("exit", phase=1)

        @app.step(retry=QUICKLY)
        async def die(only_once: bool) -> str:
            """Take the whole process along."""
            note("enter", phase=100)
            if only_once and len(ledger_.lines("enter", phase=100, run=kagzi.current().run_id)) > 1:
                return "survived"
            os._exit(139)

        @app.step(retry=Retry.fixed("10ms", attempts=2), timeout="300ms")
        async def slow() -> None:
            note("enter", phase=1)
            await asyncio.sleep(60)

        @app.step(retry=Retry.fixed("10ms", attempts=2), timeout="300ms")
        async def stubborn() -> None:
            note("enter", phase=1)
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    note("cancelled")

        @app.step(retry=Retry.fixed("10ms", attempts=2), timeout="300ms")
        def hanging() -> None:
            note("enter", phase=1)
            while not released("hanging"):
                time.sleep(0.01)
            note("exit", phase=1)

        @app.step(retry=Retry.fixed("10ms", attempts=3), timeout="5s")
        async def held_at_first(tag: str) -> int:
            """Hangs at the first attempt, then answers."""
            note("enter", phase=1, tag=tag)
            if kagzi.attempt() == 1:
                await asyncio.sleep(60)
                note("exit", phase=1, tag=tag)
            return kagzi.attempt()

        @app.workflow
        async def chain(length: int, pause: float) -> int:
            return sum([await link(phase, pause) for phase in range(length)])

        @app.workflow
        async def mixed(length: int, pause: float) -> int:
            """Steps of both kinds, one by one and side by side, and a short timer."""
            total = 0
            for phase in range(0, length, 3):
                total += await link(phase, pause)
                total += sum(await asyncio.gather(*(blocking_link(phase + 1, pause) for _ in range(2))))
                await asyncio.sleep(0.02)
                total += await link(phase + 2, pause)
            return total

        @app.workflow
        async def collecting(count: int) -> list[int]:
            """Waits for so many signals, one after the other, and works on every fifth."""
            items: list[int] = []
            for number in range(count):
                items.append(await kagzi.wait_signal("item", int))
                kagzi.set_value("items", len(items))
                if number % 5 == 4:
                    await link(number, 0.01)
            return items

        @app.workflow
        async def holding(tag: str, seconds: float, thread: bool = False) -> int:
            await link(0, 0)
            pid = await (hold_thread if thread else hold)(tag, seconds)
            await link(2, 0)
            return pid

        @app.workflow
        async def undoing(tag: str, seconds: float, to_undo: float = 0.2) -> None:
            await link(0, 0)
            try:
                await hold(tag, seconds)
            finally:
                await link(2, to_undo)
                await link(3, 0)

        @app.workflow
        async def two_effects(seconds: float) -> str:
            async def body() -> str:
                note("first", phase=1)
                await asyncio.sleep(seconds)
                note("second", phase=1)
                return "done"

            return await kagzi.run_step("effects", body)

        @app.workflow
        async def blocking(how: str, seconds: float) -> str:
            await block(how, seconds)
            return "done"

        @app.workflow
        async def deadly(before: int, only_once: bool = False) -> str:
            for phase in range(before):
                await link(phase, 0)
            return await die(only_once)

        @app.workflow
        async def dies_after_each(times: int) -> int:
            """Makes progress between crashes."""
            for phase in range(times):
                await kagzi.run_step(f"die-{phase}", die_once, phase)
                await link(2 * phase + 1, 0)
            return times

        def die_once(phase: int) -> None:
            mine = {"run": kagzi.current().run_id, "phase": 2 * phase}
            note("enter", phase=2 * phase)
            if len(ledger_.lines("enter", **mine)) == 1:
                os.kill(os.getpid(), signal.SIGKILL)

        @app.workflow
        async def naps(times: int, seconds: float) -> int:
            for phase in range(times):
                await link(phase, 0)
                await asyncio.sleep(seconds)
            return times

        @app.workflow
        async def too_slow(kind: str) -> None:
            await {"slow": slow, "stubborn": stubborn, "hanging": hanging}[kind]()

        @app.workflow
        async def second_try(tag: str) -> int:
            return await held_at_first(tag)

        @app.workflow
        async def kid(number: int) -> int:
            await link(0, 0.01)
            return number

        @app.workflow
        async def fan(count: int) -> list[int]:
            """So many children at a time."""
            return await asyncio.gather(*(kid.run(number) for number in range(count)))

        @app.step(retry=QUICKLY)
        async def bury(run_id: str) -> None:
            note("buried", failed=run_id)

        @app.workflow
        async def mourn(failed: kagzi.FailedRun) -> None:
            await bury(failed.run_id)

        @app.workflow(on_failure=mourn)
        async def doomed() -> None:
            await kagzi.wait_signal("never")

        self.fan, self.doomed = fan, doomed
        self.chain, self.mixed, self.holding, self.two_effects = chain, mixed, holding, two_effects
        self.blocking, self.deadly, self.dies_after_each = blocking, deadly, dies_after_each
        self.naps, self.too_slow, self.second_try, self.undoing = naps, too_slow, second_try, undoing
        self.collecting = collecting

    def release(self, tag: str) -> None:
        """Let the bodies that hold this tag go."""
        (self.ledger.path.parent / f"release-{tag}").touch()


def total_of_mixed(length: int) -> int:
    return sum(phase + 2 * (phase + 1) + phase + 2 for phase in range(0, length, 3))


def deafen() -> None:
    """Make every hint to other processes fail to arrive, in this process."""
    from kagzi.store.postgres.wakeups import Wakeups

    async def announce(*_: object) -> None:
        return None

    async def listen(*_: object) -> None:
        await asyncio.get_running_loop().create_future()

    setattr(Wakeups, "announce", announce)  # noqa: B010 (another signature)
    setattr(Wakeups, "listen", listen)  # noqa: B010


def end_with_parent() -> None:
    """A test that is killed cannot clean up; its end of our standard input is closed all the same."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()
    options = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if options.get("deaf"):
        deafen()
    program = Program(options["url"], Path(options["ledger"]), **options["kagzi"])
    program.app.run_worker(**options["worker"])


if __name__ == "__main__":
    main()
