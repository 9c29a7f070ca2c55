"""Two processes on one database: a worker, and commands that start and watch its runs."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from pathlib import Path

import pytest

from kagzi import Debounce, Kagzi
from tests.cli.conftest import Shell, read_until, until
from tests.warm import Process


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def home(request: pytest.FixtureRequest, shop: Shell) -> Shell:
    """A shop whose settings say where its runs live: nowhere in particular, or in PostgreSQL."""
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_database")
        (shop.directory / "kagzi.toml").write_text(f"url = '{url}'\n")
    return shop


def stop(process: Process) -> tuple[int, str]:
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    return process.returncode, err


def test_a_run_from_start_to_end(home: Shell) -> None:
    (home.directory / "go-42").touch()
    worker = home.spawn("worker", "shop.py", "-c", "5")
    read_until(worker, "is up")
    order = ("start", "checkout", "--input", '["42", 999]', "--id", "order-42", "--tag", "batch=7", "--tag", "by=me")
    done = home.afresh(*order, "--wait", "--timeout", "60")
    assert done.code == 0, done
    assert json.loads(done.out) == {"paid": "42:999", "sent": "shipped"}
    assert "is stored in namespace default of " in done.err
    assert "no worker" not in done.err

    again = home("start", "checkout", "--input", '["42", 999]', "--id", "order-42", "--json")
    assert again.code == 0, again
    run_id = again.json["run_id"]
    assert "already" in again.err
    assert again.json == {"run_id": run_id, "id": "order-42", "status": "COMPLETED", "already_exists": True}

    shown = home("runs", "show", "order-42", "--json")
    assert shown.code == 0, shown
    assert shown.json["run_id"] == run_id
    assert shown.json["status"] == "COMPLETED"
    assert shown.json["tags"] == {"batch": "7", "by": "me"}
    assert "tags\tbatch=7 by=me\n" in home("runs", "show", "order-42").out
    for wrong in ("batch", "batch=7=", "=7"):
        refused = home("start", "checkout", "--tag", "batch=7", "--tag", wrong)
        assert (refused.code, "--tag" in refused.err) == (2, True), refused
    assert [step["name"] for step in shown.json["steps"]] == ["charge", "ship"]

    watched = home.afresh("runs", "watch", run_id[:18])
    assert watched.code == 0, watched
    assert json.loads(watched.out) == {"paid": "42:999", "sent": "shipped"}
    assert "charge: COMPLETED" in watched.err

    bad = home("start", "checkout", "--input", '{"order": "43", "cents": -1}', "--wait", "--timeout", "60")
    assert bad.code == 1, bad
    assert bad.out == ""
    assert "failed: ValueError: cannot charge -1" in bad.err
    failed = home("runs", "list", "--status", "failed").out.split("\t")[0]
    told = home("runs", "show", failed)
    assert '    raise ValueError(f"cannot charge {cents}")\nValueError: cannot charge -1\n' in told.out, told
    watched = home("runs", "watch", failed)
    assert re.search(r"charge: FAILED after \S+: ValueError: cannot charge -1\n", watched.err), watched

    listed = home("runs", "list", "--status", "completed")
    assert listed.out.split("\t")[:4] == [run_id, "order-42", "checkout", "default"]
    assert len(listed.out.splitlines()) == 1
    page = home("runs", "list", "--json", "--limit", "1").json
    assert [run["status"] for run in page["runs"]] == ["FAILED"]
    older = home("runs", "list", "--jsonl", "--page", page["next"]).out.splitlines()
    assert [json.loads(line)["run_id"] for line in older] == [run_id]

    often = ("start", "checkout", "--debounce", "1h", "--debounce-key", "43")
    first = home(*often, "--input", '["43", 1]', "--json")
    joins = home(*often, "--debounce-most", "2h", "--input", '["43", 2]', "--json")
    assert (joins.json, "joins run" in joins.err) == (first.json | {"already_exists": True}, True), joins
    shown = home("runs", "show", first.json["run_id"])
    assert "key '43', 2 starts became this run: first " in shown.out, shown
    assert "with its input, start " in shown.out, shown
    assert "; begins " in shown.out, shown
    due = home("start", "checkout", "-q", "nobody", "--input", '["44", 1]', "--json")
    assert (due.json["status"], due.json["already_exists"]) == ("PENDING", False)
    awake = home("runs", "wake", due.json["run_id"])
    assert (awake.code, "need not be woken: it is due" in awake.err) == (5, True)
    assert home("runs", "show", first.json["run_id"], "--json").json["input"] == ["43", 2]
    for wrong in (
        ("--debounce-key", "43"),
        ("--debounce", "1h", "--debounce-key", ""),
        ("--debounce", "1h", "--id", "x"),
    ):
        assert home("start", "checkout", *wrong).code == 2

    code, err = stop(worker)
    assert code == 0, err
    assert "has stopped: 1 completed, 1 failed" in err


def test_a_start_by_name_that_joins_another_says_so(shell: Shell) -> None:
    app = Kagzi(f"sqlite:///{shell.directory}/kagzi.db")

    @app.workflow(debounce=Debounce("1h", key="document"))
    async def index(document: str, page: int) -> None: ...

    async def register() -> None:
        async with app, app.worker():
            pass

    asyncio.run(register())
    at = ("--url", f"sqlite:///{shell.directory}/kagzi.db")
    first = shell("start", "index", "--input", '["a", 1]', *at)
    joins = shell("start", "index", "--input", '["a", 2]', *at)
    assert (joins.out, f"this joins run {first.out.strip()}" in joins.err) == (first.out, True), joins


def test_the_options_of_a_start_reach_the_run(shop: Shell) -> None:
    options = ("--queue", "late", "--priority", "7", "--delay", "1h", "--id", "one")
    assert shop("start", "checkout", "-i", '["1", 5]', *options).code == 0
    shown = shop("runs", "show", "one", "--json").json
    assert (shown["queue"], shown["priority"], shown["id"]) == ("late", 7, "one"), shown
    assert shown["available_at"] > shown["created_at"], shown


def test_a_worker_drains_on_sigterm(shop: Shell) -> None:
    worker = shop.spawn("worker", "shop", "--queue", "default", "--log-format", "json")
    read_until(worker, "is up")
    waiting = shop.spawn("start", "checkout", "-i", '["7", 1]', "--wait")
    read_until(waiting, "is stored")
    until(lambda: (shop.directory / "begun-7").exists())
    worker.send_signal(signal.SIGTERM)
    read_until(worker, "drains: 1 step still runs; up to 25s; SIGTERM again hands it back")
    assert worker.poll() is None
    (shop.directory / "go-7").touch()
    _, err = worker.communicate(timeout=60)
    assert worker.returncode == 0, err
    for line in err.splitlines():
        assert {"at", "level", "logger", "message"} <= json.loads(line).keys()
    # Charged once, by the worker that was told to stop; shipped by the next one.
    second = shop.spawn("worker", "shop.py:app")
    out, _ = waiting.communicate(timeout=60)
    assert json.loads(out) == {"paid": "7:1", "sent": "shipped"}
    assert stop(second)[0] == 0


def test_a_wait_that_takes_too_long(shop: Shell) -> None:
    done = shop("start", "checkout", "-i", '["1", 1]', "--wait", "--timeout", "300ms")
    assert done.code == 124, done
    assert "has not finished within 300ms; it goes on" in done.err
    assert done.out == ""


def test_an_interrupted_wait(shop: Shell) -> None:
    waiting = shop.spawn("start", "checkout", "-i", '["1", 1]', "--wait")
    read_until(waiting, "is stored")
    waiting.send_signal(signal.SIGINT)
    waiting.communicate(timeout=60)
    assert waiting.returncode == 130


def test_inputs(shop: Shell) -> None:
    (shop.directory / "order.json").write_text('["5", 2]')
    assert shop("start", "checkout", "--input", "@order.json", "--id", "file").code == 0
    assert shop("start", "checkout", "--input", "-", "--id", "stdin", stdin='{"order": "6", "cents": 3}').code == 0
    assert shop("start", "checkout", "--id", "none").code == 0
    inputs = [shop("runs", "show", name, "--json").json["input"] for name in ("file", "stdin", "none")]
    assert inputs == [["5", 2], {"order": "6", "cents": 3}, []]
    for text, words in (
        ("{", "--input is not JSON"),
        ("order", """accepted: JSON such as '["42", 999]' or '"text"', @FILE, or - for standard input"""),
        ("@nothing.json", "nothing.json cannot be read: No such file"),
    ):
        done = shop("start", "checkout", "--input", text)
        assert done.code == 2, done
        assert words in done.err
    conflict = shop("start", "other", "--input", "1", "--id", "file")
    assert conflict.code == 5, conflict
    assert shop("start", "checkout", "--timeout", "1s").code == 2


def test_runs_that_are_not_there(shop: Shell) -> None:
    shop("migrate")
    for name in ("order-1", "01a1e143-ba83-701c-b5bf-b67ae6d578b3", "01a1e143"):
        done = shop("runs", "show", name)
        assert done.code == 3, done
        assert "there is no run" in done.err
    first = shop("start", "checkout").out.strip()
    shop("start", "checkout")
    several = shop("runs", "show", first[:4])  # two months
    assert several.code == 2, several
    assert "several runs begin with" in several.err
    assert shop("runs", "show", first).code == 0


def test_namespaces_are_apart(shop: Shell) -> None:
    shop("start", "checkout", "--namespace", "a")
    assert shop("runs", "list").out == ""
    assert len(shop("runs", "list", KAGZI_NAMESPACE="a").out.splitlines()) == 1


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nothing", "there is no module 'nothing' here or on the Python path"),
        ("shop:nothing", "shop has no 'nothing'; apps in it: app"),
        ("shop:charge", "shop:charge is a Step, not a Kagzi app"),
        ("nothing.py", "nothing.py does not exist"),
        ("shop.py:other", "shop.py has no 'other'"),
        (":app", "':app' does not name an app"),
        ("empty.py", "empty.py has no Kagzi app; make one there with: app = Kagzi()"),
        ("two.py", "two.py has several apps (first, second); say which one: two.py:first"),
        ("broken.py", "broken.py raises ZeroDivisionError when it is imported"),
        ("needs", "needs raises ModuleNotFoundError when it is imported"),
        ("idle.py", "this app has no workflows"),
        ("a-b.py", "'a-b' is not a name in Python"),
    ],
)
def test_apps_that_cannot_be_found(shop: Shell, target: str, words: str) -> None:
    files = {
        "empty.py": "",
        "two.py": "from kagzi import Kagzi\nfirst, second = Kagzi(), Kagzi()",
        "broken.py": "def divide():\n    return 1 / 0\ndivide()",
        "needs.py": "import surely_not_installed",
        "idle.py": "from kagzi import Kagzi\napp = Kagzi()",
        "a-b.py": "",
    }
    for name, text in files.items():
        (shop.directory / name).write_text(text)
    done = shop("worker", target)
    assert done.code == 2, done
    assert words in done.err
    assert "importlib" not in done.err
    if target == "broken.py":
        assert "return 1 / 0" in done.err


def test_the_app_may_be_named_by_settings(shop: Shell) -> None:
    assert "which app?" in shop("worker").err
    (shop.directory / "kagzi.toml").write_text("app = 'nothing:app'\n")
    assert "no module 'nothing'" in shop("worker").err
    assert "no module 'other'" in shop("worker", KAGZI_APP="other:app").err


def test_a_worker_without_its_database(shop: Shell, tmp_path: Path) -> None:
    done = shop("worker", "shop.py", "--url", "postgresql://nobody:hunter2@127.0.0.1:1/nothing")
    assert done.code == 4, done
    assert "cannot reach PostgreSQL at 127.0.0.1:1" in done.err
    assert "hunter2" not in done.err + done.out


def test_a_worker_on_another_database_is_noticed(shop: Shell) -> None:
    """The trap of a program that names its own URL: the command looks elsewhere, and nobody comes."""
    worker = shop.spawn("worker", "shop.py", "--url", "sqlite:///shop.db")
    said = read_until(worker, "is up")
    assert "runs live in namespace default of sqlite:///shop.db" in said
    alone = shop("start", "checkout", "--wait", "--timeout", "100ms")
    assert alone.code == 124, alone
    assert "no worker serves queue default in namespace default of sqlite:///" in alone.err
    assert ".kagzi/kagzi.db" in alone.err
    (run_id,) = [row.split("\t")[0] for row in shop("runs", "list").out.splitlines()]
    assert "no worker serves queue default" in shop("runs", "watch", run_id, "--timeout", "100ms").err
    unknown = shop("start", "chekout", "--url", "sqlite:///shop.db")
    assert unknown.code == 0, unknown
    assert "has workflow chekout, version 1" in unknown.err
    assert stop(worker)[0] == 0


def test_who_sees_nothing_is_told_where(shop: Shell) -> None:
    shop("migrate", "--url", "sqlite:///empty.db")
    for what, command in (("runs", "kagzi start WORKFLOW"), ("workers", "kagzi worker shop.py")):
        none = shop(what, "list", "--url", "sqlite:///empty.db", "-n", "shop")
        where = f"no {what} in namespace shop of sqlite:///empty.db"
        assert (none.code, none.out, none.err) == (0, "", f"{where}; {command} starts one\n")
        assert shop(what, "list", "--url", "sqlite:///empty.db", "--json").err == ""
    said = "no keys in sqlite:///empty.db; kagzi keys create ci --role client makes one\n"
    assert shop("keys", "list", "--url", "sqlite:///empty.db").err == said
    assert shop("audit", "--url", "sqlite:///empty.db").err == "no entries in sqlite:///empty.db\n"


@pytest.mark.parametrize(
    "arguments", [("start", "checkout"), ("runs", "list"), ("keys", "create", "me", "-r", "admin"), ("migrate",)]
)
def test_commands_refuse_what_is_gone_when_they_end(arguments: tuple[str, ...], shop: Shell) -> None:
    refused = shop(*arguments, "--url", "memory://")
    assert (refused.code, refused.out) == (2, "")
    assert "memory:// lives within one process" in refused.err


def test_a_url_that_is_none_is_refused_by_its_source(shop: Shell) -> None:
    for command in (("runs", "list"), ("doctor",), ("worker", "shop.py"), ("start", "checkout")):
        refused = shop(*command, KAGZI_URL="orders.db")
        assert (refused.code, refused.out) == (2, ""), refused
        assert "KAGZI_URL must be a URL" in refused.err
    assert "--url must be a URL" in shop("runs", "list", "--url", "orders.db").err


def test_how_long_to_wait_is_for_those_who_wait(shop: Shell) -> None:
    for command in (("start", "checkout"), ("workers", "drain", "0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a44")):
        refused = shop(*command, "--timeout", "5s")
        assert refused.code == 2
        assert "--timeout is for --wait" in refused.err
