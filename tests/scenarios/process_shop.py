"""A module of steps that run in processes, which those import."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kagzi
from kagzi import Kagzi, NonRetryable, Retry

app = Kagzi("memory://")
ONCE = Retry(attempts=1)


@dataclass
class Page:
    number: int
    words: list[str]


class Unprintable(NonRetryable):
    def __init__(self, page: int) -> None:
        super().__init__(f"page {page} cannot be printed")
        self.page = page


@app.step(executor="process")
def render(page: Page) -> tuple[Page, int, str]:
    me = kagzi.current()
    kagzi.progress(0.5, f"page {page.number}")
    logging.getLogger("shop").warning("rendering %s", me.step_id)
    return Page(page.number + 1, page.words * 2), os.getpid(), f"{me.workflow}/{me.step_id}/{me.attempt}"


@app.step(executor="process")
async def render_async(number: int) -> int:
    await asyncio.sleep(0)
    return number + 1


@app.step(executor="process")
def refuse(page: int) -> None:
    raise Unprintable(page)


@app.step(executor="process", retry=Retry.fixed("10ms", attempts=3))
def die() -> int:
    if kagzi.attempt() == 1:
        os.kill(os.getpid(), 9)
    if kagzi.attempt() == 2:
        os._exit(3)
    return kagzi.attempt()


@app.workflow
async def book() -> dict[str, Any]:
    page, pid, name = await render(Page(1, ["a"]))
    pages = await asyncio.gather(*(render(Page(number, [])) for number in range(4)))
    try:
        await refuse(7)
    except Unprintable as error:
        refused = [type(error).__name__, error.page, str(error)]
    return {
        "page": [page.number, page.words],
        "pids": sorted({pid, *(each[1] for each in pages)}),
        "name": name,
        "numbers": [each[0].number for each in pages],
        "async": await render_async(1),
        "refused": refused,
        "died": await die(),
    }


@app.step(executor="process", timeout="3s", retry=ONCE)
def compute_for_ever(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    while True:
        sum(range(1000))


@app.step(executor="process")
def hold(file: str) -> str:
    """Stops by itself when it is told to."""
    Path(file).write_text(str(os.getpid()))
    while not kagzi.cancelled():
        time.sleep(0.01)
    Path(f"{file}-told").touch()
    return "told"


@app.step(executor="process")
def deaf(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    time.sleep(600)


@app.step(executor="process")
def log_badly(number: int) -> int:
    logging.getLogger("shop").warning("%d pages", "no number")
    logging.getLogger("shop").warning("half a pair: \udcff")
    return number


@app.step(executor="process")
def fork(number: int) -> int:
    """Its copy returns, too."""
    if os.fork() == 0:
        logging.getLogger("shop").warning("in a copy")
        return -1
    os.wait()
    return number


@app.workflow
async def odd_bodies() -> list[int]:
    return [await step(number) for number, step in enumerate((log_badly, fork, render_async, fork, render_async))]


def _with_child(file: str) -> None:
    child = subprocess.Popen(["sleep", "600"])
    Path(file).write_text(f"{os.getpid()} {child.pid}")


@app.step(executor="process", timeout="2s", retry=ONCE)
def wait_for_child(file: str) -> None:
    _with_child(file)
    time.sleep(600)


@app.step(executor="process", retry=ONCE)
def die_beside_a_copy(file: str) -> None:
    copy = os.fork()
    if copy == 0:
        time.sleep(600)
    Path(file).write_text(f"{os.getpid()} {copy}")
    os.kill(os.getpid(), 9)


@app.step(executor="process")
def hold_all_threads_up(file: str) -> None:
    """In C, which lets no other thread of Python run: for days."""
    _with_child(file)
    re.match(r"(a+)+$", "a" * 60 + "b")


@app.step(executor="process")
def start_another(url: str) -> str:
    app.url = url  # as the program's own would be, once it is imported
    with app:
        return plain.start_sync().id


@app.workflow
async def plain() -> None: ...


@app.workflow
async def starter(url: str) -> str:
    return await start_another(url)


@app.step(executor="process")
def take_anything(what: object) -> None: ...


@app.workflow
async def one(step: str, argument: str) -> None:
    steps = (wait_for_child, die_beside_a_copy, hold_all_threads_up)
    await {"compute": compute_for_ever, "hold": hold, "deaf": deaf, **{each.name: each for each in steps}}[step](
        argument
    )


@app.workflow
async def bad_argument() -> None:
    await take_anything(object())
