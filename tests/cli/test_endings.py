"""Ending runs and running them again, on a database and through a server."""

from __future__ import annotations

import re

import pytest

from kagzi.owners import user_name
from tests.cli.conftest import Result, Shell, read_until, served

NOBODY = "01890000-0000-7000-8000-000000000009"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres), "grpc"])
def home(request: pytest.FixtureRequest, shop: Shell) -> Shell:
    """A shop whose settings say where its runs live. What becomes of runs there, tests/scenarios look at in process."""
    if request.param == "postgres":
        shop.environ["KAGZI_URL"] = request.getfixturevalue("postgres_database")
    if request.param == "grpc":
        shop.environ["KAGZI_URL"] = served(shop)
    return shop


def start(shell: Shell, order: str, cents: int = 5) -> str:
    started = shell("start", "checkout", "-i", f'["{order}", {cents}]', "--id", order)
    assert started.code == 0, started
    return started.out.strip()


def status(shell: Shell, run_id: str) -> str:
    found: str = shell("runs", "show", run_id, "--json").json["status"]
    return found


def test_the_ends_of_runs(home: Shell) -> None:
    one, two, three = (start(home, order) for order in ("one", "two", "three"))
    assert "why\tWaiting for a worker: no worker that is online serves queue default" in home("runs", "show", one).out
    # By the id it was started with, and by its own; nobody has begun them.
    cancelled = home("runs", "cancel", "one", two, "--json")
    assert cancelled.code == 0, cancelled
    assert cancelled.json["runs"] == [
        {"run": "one", "run_id": one, "effective": True, "status": "CANCELLED"},
        {"run": two, "run_id": two, "effective": True, "status": "CANCELLED"},
    ]
    again = home("runs", "cancel", "one")
    assert (again.code, again.out) == (0, f"{one}\tCANCELLED\n"), again
    later = home("start", "checkout", "-i", '["later", 5]', "--id", "later", "--delay", "1h")
    assert later.code == 0, later
    woken = home("runs", "wake", "later", "--json")
    assert woken.json["runs"] == [{"run": "later", "run_id": later.out.strip(), "woken": True, "status": "PENDING"}], (
        woken
    )
    again = home("runs", "wake", "later", "one")
    assert (again.code, again.out) == (5, ""), again
    assert "is CANCELLED and does not wait for a moment" in again.err
    # One that cannot be changed does not keep the others from it, and decides the exit code.
    ended = home("runs", "terminate", NOBODY, three, "--reason", "wrong price", "--json")
    assert ended.code == 3, ended
    assert ended.json["runs"][1] == {"run": three, "run_id": three, "effective": True, "status": "CANCELLED"}
    assert ended.json["runs"][0]["error"] == "NOT_FOUND"
    assert "Error: " in ended.err
    assert NOBODY in ended.err
    assert "wrong price" in home("runs", "show", three).out


@pytest.mark.parametrize("home", ["grpc"], indirect=True)  # the longest way there is
def test_a_run_that_is_being_driven_is_told(home: Shell) -> None:
    worker = home.spawn("worker", "shop.py", KAGZI_WORKER_HEARTBEAT_INTERVAL_SECS="0.2")
    read_until(worker, "is up")
    run_id = start(home, "one")
    while status(home, run_id) != "RUNNING":
        pass
    told = home("runs", "cancel", "one", "--grace", "30s", "--json")
    assert told.code == 0, told
    (found,) = told.json["runs"]
    assert found["effective"]
    watched = home("runs", "watch", "one", "--timeout", "60s", "--json")
    assert (watched.code, watched.json["status"]) == (1, "CANCELLED"), watched


@pytest.mark.parametrize("home", ["grpc"], indirect=True)  # the longest way there is
def test_finished_runs_are_run_again(home: Shell) -> None:
    worker = home.spawn("worker", "shop.py")
    read_until(worker, "is up")
    (home.directory / "go-good").touch()
    good = home("start", "checkout", "-i", '["good", 5]', "--id", "good", "--wait", "--timeout", "60", "--json")
    assert good.code == 0, good
    failed = home("start", "checkout", "-i", '["bad", -5]', "--id", "bad", "--wait", "--timeout", "60", "--json")
    assert failed.code == 1, failed
    retried = home("runs", "retry", "good", "bad", "--json")
    assert retried.code == 0, retried
    first, second = retried.json["runs"]
    assert (first["run"], first["of_run_id"]) == ("good", good.json["run_id"])
    assert (second["run"], second["of_run_id"]) == ("bad", failed.json["run_id"])
    watched = home("runs", "watch", first["run_id"], "--timeout", "60s", "--json")
    assert watched.json["output"] == {"paid": "good:5", "sent": "shipped"}
    rerun = home("runs", "rerun", "good")
    assert rerun.code == 0, rerun
    assert rerun.out.strip() not in (first["run_id"], good.json["run_id"])
    assert home("runs", "watch", rerun.out.strip(), "--timeout", "60s").code == 0
    # What has finished stays finished; what has not is not repeated.
    for command in ("cancel", "terminate"):
        late = home("runs", command, "good")
        assert (late.code, late.out) == (5, ""), late
        assert "is COMPLETED already" in late.err
    start(home, "waits")
    early = home("runs", "retry", "waits")
    assert (early.code, early.out) == (5, ""), early


@pytest.mark.parametrize("home", ["grpc"], indirect=True)  # the longest way there is
def test_many_runs_are_forked(home: Shell) -> None:
    home("start", "checkout", "-i", '["one", 5]', "--id", "one", "--tag", "day=1")
    home("start", "checkout", "-i", '["bad", -5]', "--id", "bad", "--tag", "day=1")
    open(home.directory / "go-one", "w").close()
    home.spawn("worker", "shop.py")
    for order in ("one", "bad"):
        home("runs", "watch", order, "--timeout", "60s")
    asked = ("runs", "fork", "--all", "--tag", "day=1", "--from", "ship")
    would = home(*asked, "--dry-run")
    assert (would.code, "would fork 2 runs; nothing is changed" in would.err) == (0, True), would
    done = home(*asked, "--yes")
    assert done.code == 0, done
    assert "COMPLETED: 1 done, 1 skipped (1 have no such step that has ended), 0 failed" in done.out
    (made,) = [run for run in home("runs", "list", "--tag", "day=1", "--json").json["runs"] if run["id"] is None]
    watched = home("runs", "watch", made["run_id"], "--timeout", "60s", "--json")
    assert watched.json["output"] == {"paid": "one:5", "sent": "shipped"}
    shown = home("jobs", "show", done.out.split()[1])
    assert "reasons\t1 have no such step that has ended" in shown.out, shown
    (job,) = home("jobs", "list", "--json").json["jobs"]
    assert (job["action"], job["from_step"], job["reasons"]) == (
        "fork",
        "ship",
        {"no_step": 1},
    )
    assert f"job {job['job_id']} is under way, also if this command ends" in done.err
    shown = dict(line.split("\t") for line in home("jobs", "show", job["job_id"]).out.splitlines())
    assert (shown["runs"], shown["reasons"]) == ("tag day=1", "1 have no such step that has ended")
    none = home("runs", "retry", "--all", "--tag", "day=2", "--dry-run")
    assert home("runs", "list", "--tag", "day=2").err.startswith("no such runs in namespace default")
    assert none.err.strip() == "would retry 0 runs; nothing is changed."
    for wrong, said in (
        (("runs", "fork", "--all", "--tag", "day=1", "-i", "[1]", "--yes"), "--input is for one run"),
        (("runs", "fork", "one", "bad", "-i", "[1]"), "--input is for one run"),
        (("runs", "fork", "one", "--dry-run"), "are for --all"),
        (("runs", "move", "one", "--from", "1", "--to", "2"), "moved by filters"),
        (("runs", "move", "--all", "--tag", "day=1", "--from", "1", "--to", "2", "--yes"), "which one in the filter"),
    ):
        refused = home(*wrong)
        assert (refused.code, said in refused.err) == (2, True), refused


def test_a_job_that_was_cancelled_has_not_done_what_was_asked(shop: Shell) -> None:
    for order in range(6):
        shop("start", "checkout", "-i", f'["{order}", 5]')
    shop("runs", "cancel", "--all", "--workflow", "checkout", "--yes")
    url = served(shop)  # it works on jobs
    retried = shop.spawn("runs", "retry", "--all", "--status", "cancelled", "--rate", "1", "--yes", "--url", url)
    found = re.search(r"job (\S+) is under way", read_until(retried, "is under way"))
    assert found is not None
    assert shop("jobs", "cancel", found[1], "--url", url).code == 0
    assert retried.wait(30) == 1
    assert shop("jobs", "watch", found[1], "--url", url).code == 1


def test_changes_by_command_are_audited(shop: Shell) -> None:
    run_id = start(shop, "one")
    changes = {
        "runs cancel one": f"run {run_id}",
        "runs terminate one": f"run {run_id}",
        "runs retry one": f"run {run_id}",
        "runs wake one": "run *",
        "runs fork one": "run *",
        "schedules create nightly checkout @daily": "schedule nightly",
        "schedules pause nightly": "schedule nightly",
        "schedules resume nightly": "schedule nightly",
        "schedules trigger nightly": "schedule nightly",
        "schedules delete nightly": "schedule nightly",
        "queues pause mail": "queue mail",
        "queues resume mail": "queue mail",
        "limits set --queue mail --concurrency 2": "queue mail",
        "limits clear --queue mail": "queue mail",
        "namespaces create other": "namespace other",
        "namespaces disable other": "namespace other",
    }
    told = {command: shop(*command.split()) for command in changes}
    assert shop("runs", "cancel", "nobody").code == 3
    entries = shop("audit", "--json", "--limit", "100").json["entries"]
    found = [(entry["action"], entry["target"], entry["namespace"]) for entry in reversed(entries)]
    assert len(found) == len(changes), (found, [(name, each.err) for name, each in told.items() if each.code])
    for (action, target, namespace), (command, expected) in zip(found, changes.items(), strict=True):
        assert command.startswith(action)
        assert target == expected or (expected.endswith("*") and target.startswith(expected[:-1])), command
        assert namespace == ("other" if "other" in command else "default")
    assert {entry["actor"] for entry in entries} == {f"cli:{user_name()}"}


def test_what_makes_no_sense(shop: Shell) -> None:
    def usage(*arguments: str) -> Result:
        refused = shop("runs", *arguments)
        assert refused.code == 2, refused
        assert "Traceback" not in refused.err
        return refused

    usage("cancel")
    usage("terminate", "one", "--grace", "5s")
    usage("cancel", "one", "--grace", "soon")
    start(shop, "one")
    usage("terminate", "one", "--reason", "x" * 100_000)
    assert shop("runs", "cancel", "one", "--url", "postgresql://nobody@127.0.0.1:1/x").code == 4
