"""`kagzi dev` as a process: from nothing to a run in the dashboard, and a worker that follows its files."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from pathlib import Path

from tests.cli.conftest import SHOP, Shell, read_until, until


def get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as response:
        return str(response.read().decode())


def address_of(text: str) -> str:
    found = re.search(r"http://127\.0\.0\.1:\d+", text)
    assert found is not None
    return found[0]


def test_without_an_app_there_is_a_demo_that_says_so(shell: Shell) -> None:
    dev = shell.spawn("dev", "--http-port", "0")
    said = read_until(dev, "dashboard: ")
    assert "no app was named, so this is a demo" in said
    run = f"{address_of(said)}/api/v1/runs/demo-1"
    read_until(dev, "is up")
    until(lambda: "Waiting for signal approved" in (json.loads(get(run))["why"] or ""))
    assert "packing" in get(f"{address_of(said)}/runs/demo-1")
    assert "and waits for signal approved" in shell("runs", "signal", "demo-1", "aproved").err
    assert "It was sent signal aproved, which it does not wait for" in get(f"{address_of(said)}/runs/demo-1")
    assert shell("runs", "signal", "demo-1", "approved", "--value", "true").code == 0
    until(lambda: json.loads(get(run))["status"] == "COMPLETED")
    dev.send_signal(signal.SIGTERM)
    _, rest = dev.communicate(timeout=60)
    assert dev.returncode == 0, rest
    assert "has stopped" in rest  # the worker, in order


def test_a_worker_follows_the_files_of_its_app(shell: Shell) -> None:
    shop = shell.directory / "shop.py"
    shop.write_text(SHOP)
    dev = shell.spawn("dev", "shop.py", "--http-port", "0")
    page = address_of(read_until(dev, "dashboard: "))
    assert "workflows checkout (version 1)" in read_until(dev, "is up")
    # Everybody on this machine can read arguments, and a URL may hold a password.
    (worker,) = Path(f"/proc/{dev.pid}/task/{dev.pid}/children").read_text().split()[-1:]
    assert "sqlite" not in Path(f"/proc/{worker}/cmdline").read_text()
    shop.write_text("this is no Python")
    assert "the worker starts anew" in read_until(dev, "it waits for a change of a file")
    shop.write_text(SHOP.replace("async def checkout", "async def purchase"))
    os.utime(shop, (2_000_000_000, 2_000_000_000))
    assert "workflows purchase (version 1)" in read_until(dev, "is up")
    assert "Workers" in get(f"{page}/workers")
    dev.send_signal(signal.SIGTERM)
    assert dev.wait(timeout=60) == 0


def test_an_app_that_cannot_be_imported_is_waited_for(shell: Shell) -> None:
    lines, shop = shell.directory / "lines.py", shell.directory / "shop.py"
    lines.write_text("this is no Python")
    dev = shell.spawn("dev", "shop.py", "--http-port", "0")
    assert dev.wait(timeout=60) == 2  # no such file: the command is wrong
    shop.write_text(SHOP.replace("app = Kagzi()", "from lines import CURRENCY\n\napp = Kagzi()"))
    dev = shell.spawn("dev", "shop.py", "--http-port", "0")
    said = read_until(dev, "it waits for a change of a file")
    assert "lines.py" in said
    assert "this is no Python" in said
    assert "shop.py raises SyntaxError when it is imported" in said
    lines.write_text("CURENCY = 'INR'\n")
    assert "cannot import name 'CURRENCY'" in read_until(dev, "it waits for a change of a file")
    lines.write_text("CURRENCY = 'INR'\n")
    assert "workflows checkout (version 1)" in read_until(dev, "is up")
    dev.send_signal(signal.SIGTERM)
    assert dev.wait(timeout=60) == 0


def test_a_workflow_that_blocks_is_an_error_while_developing(shell: Shell) -> None:
    blocking = SHOP.replace("async def checkout", "async def other")
    (shell.directory / "shop.py").write_text(
        f"{blocking}\n\n@app.workflow\nasync def reads() -> str:\n    return open('shop.py').read()\n"
    )
    dev = shell.spawn("dev", "shop.py", "--http-port", "0")
    read_until(dev, "is up")
    done = shell("start", "reads", "--wait")
    assert done.code != 0
    assert "open('shop.py')" in done.out + done.err
    dev.send_signal(signal.SIGTERM)
    assert dev.wait(timeout=60) == 0
