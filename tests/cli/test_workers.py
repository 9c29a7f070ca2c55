"""Looking after real workers, on a database and through a server."""

from __future__ import annotations

import json
import re
import signal
import sqlite3

import pytest

from tests.cli.conftest import Shell, read_until, served, until
from tests.warm import Process

FAST = {"KAGZI_WORKER_HEARTBEAT_INTERVAL_SECS": "0.2"}
NOBODY = "00000000-0000-4000-8000-000000000009"


@pytest.fixture(params=["sqlite", "grpc"])
def home(request: pytest.FixtureRequest, shop: Shell) -> Shell:
    """A shop whose settings say where its runs live."""
    shop.environ |= FAST
    if request.param == "grpc":
        shop.environ["KAGZI_URL"] = served(shop)
    else:
        shop("migrate")  # commands that only look make no database
    return shop


def worker_of(shell: Shell, *arguments: str) -> tuple[Process, str]:
    process = shell.spawn("worker", "shop.py", *arguments)
    found = re.search(r"worker ([0-9a-f-]{36}) is up", read_until(process, "is up"))
    assert found is not None
    return process, found[1]


def charging(shell: Shell) -> Process:
    """A process that waits for a run whose first step has begun, and ends when there is a file `go-1`."""
    waiting = shell.spawn("start", "checkout", "-i", '["1", 5]', "--wait")
    read_until(waiting, "is stored")
    until(lambda: (shell.directory / "begun-1").exists())
    return waiting


def drains(shell: Shell) -> list[tuple[str, str]]:
    """Of the workers of the default namespace, as the audit log has them."""
    entries = shell("audit", "--url", "sqlite:///.kagzi/kagzi.db", "-n", "default", "--json").json["entries"]
    return [(entry["target"], entry["result"]) for entry in entries if "drain" in entry["action"].lower()]


def ended(process: Process) -> tuple[int, str]:
    _, err = process.communicate(timeout=60)
    return process.returncode, err


def test_a_worker_is_listed_shown_and_drained(home: Shell) -> None:
    process, worker_id = worker_of(home, "-c", "7")
    waiting = charging(home)
    listed = home("workers", "list", "--json")
    assert listed.code == 0, listed
    assert listed.json["next"] is None
    (found,) = listed.json["workers"]
    for command in ("show", "drain"):
        assert home("workers", command, worker_id, "-n", "elsewhere").code == 3
    assert (found["worker_id"], found["status"], found["pid"]) == (worker_id, "ONLINE", process.pid)
    assert (found["queues"], found["concurrency"]) == (["default"], 7)
    assert [(each["workflow"], each["version"]) for each in found["workflows"]] == [
        ("checkout", "1"),
        ("kagzi.step", "1"),
    ]
    assert home("workers", "list").out.split("\t")[:3] == [worker_id, "ONLINE", "default"]
    assert home("workers", "list", "-s", "offline", "--json").json["workers"] == []
    assert home("workers", "list", "-q", "other", "--json").json["workers"] == []
    shown = home("workers", "show", worker_id, "--json").json
    assert shown == found | {name: shown[name] for name in ("active", "last_heartbeat_at")}
    assert f"pid\t{process.pid}" in home("workers", "show", worker_id).out

    drained = home("workers", "drain", worker_id, "--json")
    assert (drained.code, drained.json["status"]) == (0, "DRAINING"), drained
    assert "told with its next heartbeat" in drained.err
    said = read_until(process, "asks worker")
    assert "1 run in hand" in said
    assert process.poll() is None  # its step is running
    # What comes now is for others.
    other, _ = worker_of(home)
    (home.directory / "go-2").touch()
    second = home("start", "checkout", "-i", '["2", 6]', "--wait", "--timeout", "60")
    assert json.loads(second.out) == {"paid": "2:6", "sent": "shipped"}, second
    assert process.poll() is None
    (home.directory / "go-1").touch()
    code, err = ended(process)
    assert code == 0, err
    assert f"worker {worker_id} has stopped" in err
    out, _ = waiting.communicate(timeout=60)
    assert json.loads(out) == {"paid": "1:5", "sent": "shipped"}
    assert home("workers", "show", worker_id, "--json").json["status"] == "OFFLINE"
    gone = home("workers", "drain", worker_id)
    assert (gone.code, gone.out) == (5, ""), gone
    assert "OFFLINE already" in gone.err
    until(lambda: drains(home) == [(f"worker {worker_id}", "CONFLICT"), (f"worker {worker_id}", "OK")])
    other.send_signal(signal.SIGTERM)
    assert ended(other)[0] == 0


def test_waiting_until_a_worker_has_stopped(home: Shell) -> None:
    process, worker_id = worker_of(home)
    done = home("workers", "drain", worker_id, "--wait", "--json")
    assert (done.code, done.json["status"]) == (0, "OFFLINE"), done
    assert ended(process)[0] == 0
    assert done.err == ""


def test_waiting_no_longer_than_that(shop: Shell) -> None:
    shop.environ |= FAST
    process, worker_id = worker_of(shop)
    charging(shop)
    done = shop("workers", "drain", worker_id, "--wait", "--timeout", "300ms")
    assert (done.code, done.out) == (124, ""), done
    assert "goes on draining" in done.err
    process.kill()


def test_a_worker_that_was_killed_is_gone_when_it_has_not_been_heard_of_for_too_long(shop: Shell) -> None:
    """No other process is up that could have noticed."""
    process, worker_id = worker_of(shop)
    process.kill()
    process.wait()
    with sqlite3.connect(shop.directory / ".kagzi" / "kagzi.db") as connection:
        connection.execute("UPDATE workers SET last_heartbeat_at = last_heartbeat_at - 31000000")
        assert connection.execute("SELECT status FROM workers").fetchall() == [("ONLINE",)]
    connection.close()
    doctor = shop("doctor", "--json").json  # first: it changes nothing, while the others may come to mark the worker
    assert doctor["counts"]["workers_online"] == 0
    (told,) = [each["message"] for each in doctor["components"] if each["name"] == "workers"]
    assert told == "0 online"
    assert shop("workers", "list", "-s", "online", "--json").json["workers"] == []
    assert [each["status"] for each in shop("workers", "list", "--json").json["workers"]] == ["OFFLINE"]
    assert shop("workers", "show", worker_id, "--json").json["status"] == "OFFLINE"
    assert "OFFLINE already" in shop("workers", "drain", worker_id).err


def test_workers_that_are_not_there(home: Shell) -> None:
    for command in ("show", "drain"):
        unknown = home("workers", command, NOBODY)
        assert (unknown.code, unknown.out) == (3, ""), unknown
        assert NOBODY in unknown.err
        malformed = home("workers", command, "nobody")
        assert (malformed.code, malformed.out) == (2, ""), malformed
        assert "Traceback" not in malformed.err
    assert home("workers", "list").out == ""
    assert home("workers", "list", "--page", "forged").code == 2
    assert home("workers", "list", "--status", "asleep").code == 2
