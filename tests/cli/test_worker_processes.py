"""Several worker processes of one command: real ones, real signals."""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import Any

import pytest

from tests.cli.conftest import Shell, read_until, served, until

PROGRAM = """
if __name__ == "__main__":
    app.run_worker(processes=2, grace="60s")
"""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres), "grpc"])
def home(request: pytest.FixtureRequest, shop: Shell) -> Shell:
    if request.param == "postgres":
        shop.environ["KAGZI_URL"] = request.getfixturevalue("postgres_database")
    elif request.param == "grpc":
        shop.environ["KAGZI_URL"] = served(shop)
    shop.environ["KAGZI_WORKER_HEARTBEAT_INTERVAL_SECS"] = "0.5"
    return shop


def members_of(home: Shell, status: str = "online") -> list[dict[str, Any]]:
    """None while the database is still being made, which the command says instead."""
    answer = home("workers", "list", "-s", status, "--json")
    found: list[dict[str, Any]] = answer.json["workers"] if answer.out else []
    return found


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_killed_process_comes_back_and_sigterm_drains_all(home: Shell) -> None:
    parent = home.spawn("worker", "shop.py", "-c", "3", "--processes", "2")
    said = read_until(parent, "is up") + read_until(parent, "is up")
    group = re.search(r"group (\w{8}): 2 processes with 3 slots each, up to 6 runs at once", said)
    assert group is not None
    members = members_of(home)
    assert [each["labels"]["process"] for each in members] in (["1/2", "2/2"], ["2/2", "1/2"])
    assert {each["labels"]["group"] for each in members} == {group[1]}
    assert {f"of {group[1]}" in line for line in home("workers", "list").out.splitlines()} == {True}
    os.kill(members[0]["pid"], signal.SIGKILL)
    said = read_until(parent, "is up")
    assert "was killed by SIGKILL; it starts again in" in said
    (home.directory / "go-1").touch()
    done = home("start", "checkout", "-i", '["1", 5]', "--wait", "--timeout", "60")
    assert done.code == 0, done
    parent.send_signal(signal.SIGTERM)
    _, err = parent.communicate(timeout=60)
    assert parent.returncode == 0, err
    assert not any(alive(each["pid"]) for each in members)


def test_processes_drain_when_their_parent_is_killed(shop: Shell) -> None:
    """A step that runs comes to its end."""
    with (shop.directory / "shop.py").open("a") as file:
        file.write(PROGRAM)
    parent = shop.start([sys.executable, "shop.py"])
    until(lambda: (shop.directory / ".kagzi" / "kagzi.db").exists() and len(members_of(shop)) == 2)
    members = members_of(shop)
    waiting = shop.spawn("start", "checkout", "-i", '["1", 5]', "--wait")
    until(lambda: (shop.directory / "begun-1").exists())
    parent.kill()
    parent.wait()
    until(lambda: sum(alive(each["pid"]) for each in members) == 1)  # the one with the step
    (shop.directory / "go-1").touch()
    until(lambda: not any(alive(each["pid"]) for each in members))
    (run,) = shop("runs", "list", "--json").json["runs"]
    assert run["status"] == "PENDING"  # its step is recorded, the rest is for another worker
    waiting.kill()


def test_a_group_is_drained_from_afar(shop: Shell) -> None:
    shop.environ["KAGZI_WORKER_HEARTBEAT_INTERVAL_SECS"] = "0.2"
    parent = shop.spawn("worker", "shop.py", "--processes", "2")
    said = read_until(parent, "is up") + read_until(parent, "is up")
    group = re.search(r"group (\w{8}):", said)
    assert group is not None
    assert shop("workers", "drain", "--group", "nobody").code == 3
    assert shop("workers", "drain").code == 2
    done = shop("workers", "drain", "--group", group[1], "--wait")
    assert done.code == 0, done
    _, err = parent.communicate(timeout=60)
    assert parent.returncode == 0, err
    assert err.count("has drained, and is not started again") == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("nothing.py", "--processes", "2"), "nothing.py does not exist"),
        (("shop.py", "--processes", "2", "--url", "memory://"), "memory:// lives within one process"),
        (("shop.py", "--processes", "none"), "neither a number nor auto"),
        (("shop.py", "--processes", "257"), "from 1 to 256"),
    ],
)
def test_processes_that_cannot_be(shop: Shell, arguments: tuple[str, ...], told: str) -> None:
    done = shop.afresh("worker", *arguments)
    assert (done.code, done.out) == (2, ""), done
    assert told in done.err
    assert "Traceback" not in done.err
