"""`make demo`: an order workflow on SQLite survives the death of its worker, before your eyes.

Two worker processes, one after the other. The first is killed with SIGKILL in the middle of a step; the second one goes
on where the first one was cut off. Takes about fifteen seconds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="kagzi-demo-") as directory:
        os.environ["KAGZI_URL"] = f"sqlite:///{directory}/demo.db"
        os.environ["DEMO_LEDGER"] = f"{directory}/ledger"
        sys.path.insert(0, str(HERE))
        demo = Demo(Path(directory))
        try:
            return asyncio.run(demo.run())
        except KeyboardInterrupt:
            return 130
        finally:
            demo.stop_workers()


class Demo:
    def __init__(self, directory: Path) -> None:
        self.ledger = directory / "ledger"
        self.log = directory / "worker.log"
        self.workers: list[subprocess.Popen[bytes]] = []
        self.killed: int | None = None
        self.started = time.monotonic()
        self.print: Callable[[str], object] = print
        log = logging.getLogger("kagzi")
        log.addHandler(Teller(self))
        log.propagate = False

    async def run(self) -> int:
        import shop

        from kagzi import StepStatus

        async with shop.app:
            order = shop.Order(id="order-42", cents=4_999, items=["book", "lamp", "teapot"])
            run = await shop.fulfil.options(id=order.id).start(order)
            self.say(f"Order {order.id} is durable in an SQLite file. No worker is running yet.")
            self.start_worker("A worker process starts and takes the order.")
            with View(self) as view:
                result = asyncio.create_task(run.result(timeout=60))
                while not result.done():
                    steps = await run.steps()
                    view.show(await run.status(), steps)
                    packing = any(s.name == "pack" and s.status is StepStatus.RUNNING for s in steps)
                    if packing and self.killed is None:
                        self.kill_worker()
                        self.start_worker("A second worker starts; it takes over when the dead one's lease has ended.")
                    await asyncio.sleep(0.1)
                view.show(await run.status(), await run.steps())
            receipt = await result
            self.conclude(receipt)
        return 0

    def start_worker(self, story: str) -> None:
        with self.log.open("ab") as log:
            worker = subprocess.Popen([sys.executable, str(HERE / "shop.py")], stderr=log)
        self.workers.append(worker)
        self.say(f"{story} (process {worker.pid})")

    def kill_worker(self) -> None:
        worker = self.workers[0]
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        self.killed = worker.pid
        self.say(f"kill -9 {worker.pid}: the worker is dead in the middle of packing.")

    def stop_workers(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.terminate()
                try:
                    worker.wait(10)
                except subprocess.TimeoutExpired:
                    worker.kill()
                    worker.wait()

    def done_by(self, what: str) -> list[int]:
        """Which processes ran the body of a step, by their own testimony."""
        if not self.ledger.exists():
            return []
        lines = [line.split("\t") for line in self.ledger.read_text().splitlines()]
        return [int(pid) for name, pid in lines if name == what]

    def say(self, text: str) -> None:
        self.print(f"{time.monotonic() - self.started:5.1f} s  {text}")

    def conclude(self, receipt: object) -> None:
        bodies = Counter(line.split("\t")[0] for line in self.ledger.read_text().splitlines())
        twice = ", ".join(sorted(name for name, count in bodies.items() if count > 1))
        print(f"\nResult: {receipt}\n")
        told = (
            f"What just happened: process {self.killed} was killed with SIGKILL while it was packing. Process "
            f"{self.workers[1].pid} replayed the recorded steps without running them again (the card was charged "
            f"{bodies['charge_card']} time), ran the step that was cut off once more ({twice}), slept, and finished "
            f"the order. Nothing was running but Python and one SQLite file."
        )
        print(textwrap.fill(told, min(100, shutil.get_terminal_size().columns)))


class Teller(logging.Handler):
    """What the engine in this process has to say belongs to the story."""

    def __init__(self, demo: Demo) -> None:
        super().__init__(logging.WARNING)
        self._demo = demo

    def emit(self, record: logging.LogRecord) -> None:
        self._demo.say(f"engine: {record.getMessage()}")


class View:
    """A live tree on a terminal; elsewhere a line whenever a step ends."""

    def __init__(self, demo: Demo) -> None:
        from rich.console import Console
        from rich.live import Live

        self._demo = demo
        self._console = Console()
        self._live = Live(console=self._console, refresh_per_second=10) if self._console.is_terminal else None
        self._seen: set[str] = set()

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
            # Lines go above the tree while it lives.
            self._demo.print = lambda text: self._console.print(text, highlight=False, markup=False)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._demo.print = print

    def show(self, status: object, steps: tuple[object, ...]) -> None:
        if self._live is None:
            self._print_new(steps)
        else:
            self._live.update(self._tree(status, steps))

    def _print_new(self, steps: tuple[object, ...]) -> None:
        for step in steps:
            key = f"{step.step_id} {step.status}"  # type: ignore[attr-defined]
            if key not in self._seen:
                self._seen.add(key)
                name = step.step_id.replace("@", "")  # type: ignore[attr-defined]
                self._demo.say(f"  {name}: {step.status.lower()}")  # type: ignore[attr-defined]

    def _tree(self, status: object, steps: tuple[object, ...]) -> object:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text
        from rich.tree import Tree

        table = Table.grid(padding=(0, 1))
        tree = Tree(Text.assemble(("fulfil order-42  ", "bold"), (str(status), _COLOURS.get(str(status), "yellow"))))
        ended = 0
        for step in sorted(steps, key=lambda step: step.started_at):  # type: ignore[attr-defined]
            name, state = step.step_id, str(step.status)  # type: ignore[attr-defined]
            ended += state == "COMPLETED"
            mark, colour = _MARKS.get(state, ("•", "white"))
            people = self._demo.done_by(_body(name))
            by = " and again in ".join(f"process {pid}" for pid in people)
            tree.add(
                Text.assemble((f"{mark} ", colour), (name.replace("@sleep", "sleep 2 s"), "bold"), (f"  {by}", "dim"))
            )
        if str(status) == "SLEEPING":
            tree.add(Text.assemble(("◌ ", "blue"), ("sleep 2 s", "bold"), ("  no process holds the run", "dim")))
        table.add_row(tree)
        table.add_row(ProgressBar(total=7, completed=ended, width=40))
        return table


_COLOURS = {"COMPLETED": "green", "FAILED": "red", "RUNNING": "cyan", "SLEEPING": "blue"}
_MARKS = {"COMPLETED": ("✔", "green"), "RUNNING": ("▶", "cyan"), "FAILED": ("✘", "red"), "CANCELLED": ("○", "dim")}


def _body(step_id: str) -> str:
    return step_id.replace("[", " ").rstrip("]")


if __name__ == "__main__":
    sys.exit(main())
