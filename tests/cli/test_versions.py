"""Versions of workflows, from a shell."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kagzi import Kagzi
from kagzi.cli import versions
from tests.cli.conftest import Shell, read_until, served


@pytest.fixture(params=["sqlite", "grpc"])
def home(request: pytest.FixtureRequest, shop: Shell) -> Shell:
    """A shop whose settings say where its runs live."""
    if request.param == "grpc":
        shop.environ["KAGZI_URL"] = served(shop)
    else:
        shop("migrate")  # commands that only look make no database
    return shop


def test_versions_are_listed_and_the_default_is_chosen(home: Shell) -> None:
    nothing = home("versions", "checkout")
    assert (nothing.code, nothing.out) == (0, "")
    assert "no versions of checkout in namespace default of" in nothing.err
    refused = home("versions", "checkout", "--default", "1")
    assert refused.code == 2
    assert "no worker has ever offered workflow checkout" in refused.err
    worker = home.spawn("worker", "shop.py")
    read_until(worker, "is up")
    started = home("start", "checkout", "-i", '["1", 5]', "--delay", "1h", "--json")
    assert home("runs", "show", started.json["run_id"], "--json").json["version"] == "1"
    assert "no worker" not in started.err
    (listed,) = home("versions", "checkout", "--json").json["versions"]
    assert (listed["version"], listed["default"], listed["chosen"], listed["workers_online"]) == ("1", True, False, 1)
    assert (listed["pending"], listed["running"], listed["sleeping"], listed["can_be_retired"]) == (1, 0, 0, False)
    line = home("versions").out.splitlines()[0].split("\t")
    assert line[:7] == ["checkout", "1", "newest", "1", "1", "0", "0"]

    # What it takes, as its worker says. A server keeps what it reads of runs for a while.
    (home.directory / "go-2").touch()
    assert home("start", "checkout", "-i", '["2", 5]', "--wait").code == 0
    shown = home("workflows", "show", "checkout", "--json").json
    assert (shown["workflow"], shown["version"]) == ("checkout", "1")
    taken = list(shown["input_schema"]["properties"])
    rows = [line.split("\t")[0] for line in home("workflows", "show", "checkout").out.splitlines()]
    assert rows == taken
    assert home("workflows", "list").out.split("\t")[:3] == ["checkout", "1", "1"]
    assert home("workflows", "show", "nobody").code == 3
    none = "no worker has ever offered workflow chekout in namespace default; did you mean checkout?"
    assert none in home("workflows", "show", "chekout").err
    scheduled = home("schedules", "create", "nightly", "chekout", "0 2 * * *")
    assert (scheduled.code, "did you mean checkout?" in scheduled.err) == (0, True), scheduled
    assert "did you mean" not in home("schedules", "create", "hourly", "checkout", "@hourly", "--input", '["3", 5]').err
    assert "did you mean checkout?" in home("start", "chekout", "--delay", "1h").err
    assert none in home("workflows", "show", "chekout").err, "also when there are runs of it"
    # And how its newest runs have done.
    told = shown["report"]
    assert (told["runs"], told["whole"], told["runs_by_status"]) == (2, True, {"PENDING": 1, "COMPLETED": 1})
    assert (told["failure_rate"], told["took"]["count"], told["failures"]) == (0.0, 1, [])
    assert sorted((step["name"], step["attempts"]) for step in told["steps"]) == [("charge", 1), ("ship", 1)]

    refused = home("versions", "checkout", "--default", "2")
    assert refused.code == 2
    assert "known are 1" in refused.err
    forced = home("versions", "checkout", "--default", "2", "--force")
    assert forced.code == 0, forced
    rows = {line.split("\t")[1]: line.split("\t") for line in forced.out.splitlines()}
    assert (rows["2"][2:4], rows["1"][2:4]) == (["chosen", "0"], ["-", "1"])
    started = home("start", "checkout", "-i", '["1", 5]')
    assert "has workflow checkout, version 2, now; the run waits for one" in started.err
    assert "no worker" in home("versions", "checkout").out
    assert "newest" in home("versions", "checkout", "--no-default").out
    changes: list[str] = []
    until = time.monotonic() + 30
    while len(changes) < 4 and time.monotonic() < until:  # a server writes entries somewhat later, together
        entries = home("audit", "--url", "sqlite:///.kagzi/kagzi.db", "-n", "default", "--json").json["entries"]
        changes = [entry["result"] for entry in entries if "version" in entry["action"].lower()]
    assert sorted(changes) == ["INVALID_ARGUMENT", "INVALID_ARGUMENT", "OK", "OK"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--default", "2"), "for one workflow; say which"),
        (("--no-default",), "for one workflow; say which"),
        (("w", "--default", "2", "--no-default"), "not both"),
        (("w", "--force"), "--force is for --default"),
    ],
)
def test_what_makes_no_sense_is_wrong_usage(shop: Shell, arguments: tuple[str, ...], complaint: str) -> None:
    refused = shop("versions", *arguments)
    assert refused.code == 2
    assert complaint in refused.err


async def make_database(url: str) -> None:
    async with Kagzi(url):
        pass


def test_choosing_takes_one_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC's poller may still call the first loop of a process when a second one has begun, and complains on stderr."""
    loops = []

    def run(main: Coroutine[Any, Any, Any]) -> Any:
        loops.append(main)
        return asyncio.run(main)

    monkeypatch.setattr(versions, "run", run)
    place = f"sqlite:///{tmp_path / 'kagzi.db'}"
    asyncio.run(make_database(place))
    done = CliRunner().invoke(versions.versions, ["checkout", "--default", "2", "--force", "--url", place])
    assert done.exit_code == 0, done
    assert "chosen" in done.output
    assert len(loops) == 1
