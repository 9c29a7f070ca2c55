"""Classes of the program that was started, by the name that other programs know."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Two programs of one file: the one that is started, and one that imports it.
_PROGRAM = """
import asyncio, sys
from kagzi import Kagzi, WorkflowFailed
from kagzi.core.classes import dotted_name, find_class

class CardDeclined(Exception):
    class Reason: ...

app = Kagzi(sys.argv[1] if len(sys.argv) > 1 else None)

@app.workflow
async def pay() -> None:
    raise CardDeclined("no")

async def wait() -> None:
    async with app:
        try:
            await (await app.find("pay-1", pay)).result()
        except WorkflowFailed as error:
            print(isinstance(error.__cause__, CardDeclined), error.failure.type)

async def work() -> None:
    async with app, app.worker():
        try:
            await (await pay.options(id="pay-1").start()).result()
        except WorkflowFailed as error:
            print(isinstance(error.__cause__, CardDeclined), error.failure.type)

if __name__ == "__main__":
    for each in (CardDeclined, CardDeclined.Reason):
        assert find_class(dotted_name(each)) is each
        assert find_class("__main__" + dotted_name(each).removeprefix("shop")) is each
    assert find_class("shop.Nothing") is None
    asyncio.run(wait() if sys.argv[2] == "wait" else work())
"""


@pytest.mark.parametrize("worker_is_main", [True, False])
def test_an_error_is_rebuilt_where_one_side_is_the_program(tmp_path: Path, worker_is_main: bool) -> None:
    (tmp_path / "shop.py").write_text(_PROGRAM)
    url = f"sqlite:///{tmp_path / 'kagzi.db'}"

    def told(what: str, *, started: bool) -> str:
        imports = f"import asyncio, sys; sys.argv[1:] = [{url!r}]; import shop; asyncio.run(shop.{what}())"
        command = ["shop.py", url, what] if started else ["-c", imports]
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert told("work", started=worker_is_main) == "True shop.CardDeclined"
    assert told("wait", started=not worker_is_main) == "True shop.CardDeclined"
