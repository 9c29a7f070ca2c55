"""Histories are exported from every home, and replayed by the command."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kagzi import Kagzi, RunStatus
from kagzi.cli.main import cli, exit_code
from kagzi.errors import KagziError
from kagzi.sdk.histories import export_history
from kagzi.testing import Differs, replay

SHOP = """
import asyncio, kagzi
app = kagzi.Kagzi({url!r})

@app.step
async def charge(cents: int) -> int:
    return cents

@app.step
async def mail(cents: int) -> str:
    return str(cents)

@app.workflow
async def checkout(cents: int) -> str:
    async with asyncio.timeout(60):
        {first}
    await kagzi.wait_signal("go")
    return await mail(kagzi.random().randrange(cents))
"""


# What a database answers is the subject of other tests; here it is what the commands ask, in process and on the wire.
HOMES = pytest.mark.parametrize("home", ["sqlite", "sqlite-grpc"], indirect=True)


async def kagzi(*arguments: str) -> Result:
    """What a command says. It has a loop of its own, beside the server's."""
    result = await asyncio.to_thread(CliRunner().invoke, cli, list(arguments))
    if isinstance(result.exception, KagziError):
        result.exit_code = exit_code(result.exception)
    return result


async def make_run(url: str) -> str:
    """A finished run of the shop; returns its id."""
    scope: dict[str, Kagzi] = {}
    exec(SHOP.format(url=url, first="await charge(cents)"), scope)
    app = scope["app"]
    checkout = app.find_workflow("checkout", "1")
    assert checkout is not None
    async with app, app.worker():
        run = await checkout.options(id="order-1").start(100)
        await run.signal("go")
        await run.result(timeout=60)
        history = await export_history(app.engine, await app.engine.workflows.get("default", run.id))
    assert replay(history, app).events == 4  # the first timer, charge, go, mail
    other: dict[str, Kagzi] = {}
    exec(SHOP.format(url=url, first="await mail(cents)"), other)
    with pytest.raises(Differs, match=r"recorded: step charge COMPLETED\n  present:  waits for step mail"):
        replay(history, other["app"])
    return run.id


async def test_a_history_is_the_same_from_every_home(home: str) -> None:
    await make_run(home)


@HOMES
async def test_the_commands(home: str, tmp_path: Path) -> None:
    url = home
    run_id = await make_run(url)
    same, other = tmp_path / "same_shop.py", tmp_path / "other_shop.py"
    same.write_text(SHOP.format(url=url, first="await charge(cents)"))
    other.write_text(SHOP.format(url=url, first="await mail(cents)"))
    history = tmp_path / "run.json"
    exported = await kagzi("runs", "export", "order-1", "--url", url)
    assert exported.exit_code == 0, exported
    history.write_text(exported.stdout)
    assert json.loads(exported.stdout)["run_id"] == run_id
    forked = await kagzi("runs", "fork", "order-1", "--from", "mail", "--url", url, "--json")
    assert forked.exit_code == 0, forked
    (fork,) = json.loads(forked.stdout)["runs"]
    shown = json.loads((await kagzi("runs", "show", fork["run_id"], "--url", url, "--json")).stdout)
    assert (fork["of_run_id"], shown["origin"]) == (run_id, run_id)
    refused = await kagzi("runs", "fork", "order-1", "--from", "pay", "--url", url)
    assert refused.exit_code == 3, refused
    assert "charge" in refused.stderr  # the steps that there are
    done = await kagzi("replay", str(history), str(same))
    assert (done.exit_code, done.stdout) == (0, "1 of 1 runs come out as recorded, 0 differ\n")
    for arguments in ((str(history),), ("--workflow", "checkout", "--last", "5")):
        differs = await kagzi("replay", *arguments, str(other))
        assert differs.exit_code == 1, differs
        assert "present:  waits for step mail, at " in differs.output
        assert f"{other}:16 in checkout" in differs.output
    assert json.loads((await kagzi("replay", str(history), str(other), "--json")).stdout)[0]["same"] is False
    assert (await kagzi("replay", "--workflow", "nothing", str(same))).exit_code == 3
    assert (await kagzi("replay", str(same))).exit_code == 2
    assert (await kagzi("replay", str(history), "--workflow", "checkout", str(same))).exit_code == 2
    assert (await kagzi("replay", str(tmp_path / "none.json"), str(same))).exit_code == 2


async def test_one_run_that_differs_is_enough_whatever_the_others_do(sqlite_file: str, tmp_path: Path) -> None:
    url = f"sqlite:///{sqlite_file}"
    await make_run(url)
    app = tmp_path / "mixed_shop.py"
    app.write_text(SHOP.format(url=url, first="await charge(cents)"))
    recorded = (await kagzi("runs", "export", "order-1", "--url", url)).stdout
    histories = {
        "same": recorded,
        "differs": recorded.replace('"charge"', '"refund"'),
        "unknown": recorded.replace('"checkout"', '"another"'),
    }
    for name, history in histories.items():
        assert (name == "same") is (history == recorded)
        (tmp_path / f"{name}.json").write_text(history)
    for names, code in (
        (("same", "same"), 0),
        (("same", "differs"), 1),
        (("differs", "same"), 1),
        (("differs", "unknown"), 1),
        (("unknown", "differs", "same"), 1),
        (("same", "unknown"), 0),  # passed over, and counted
    ):
        done = await kagzi("replay", *(str(tmp_path / f"{name}.json") for name in names), str(app))
        assert (names, done.exit_code) == (names, code), done.output


@HOMES
async def test_runs_are_moved_by_a_command_if_the_code_replays_them(home: str, tmp_path: Path) -> None:
    url = home
    versions = {"1": "await charge(cents)", "2": "await (mail if cents == 7 else charge)(cents)"}
    old = SHOP.format(url=url, first=versions["1"])
    new = SHOP.format(url=url, first=versions["2"]).replace("@app.workflow", '@app.workflow(version="2")')
    shop = tmp_path / "moved_shop.py"
    shop.write_text(new)

    async def parked() -> None:
        scope: dict[str, Kagzi] = {}
        exec(old, scope)
        app = scope["app"]
        checkout = app.find_workflow("checkout", "1")
        assert checkout is not None
        async with app, app.worker():
            for cents in (5, 7):
                run = await checkout.options(id=f"order-{cents}").start(cents)
                while await run.status() is not RunStatus.SLEEPING:
                    await asyncio.sleep(0.02)

    await parked()
    move = ("versions", "move", "checkout", "--from", "1", "--to", "2", "--url", url)
    assert (await kagzi(*move, str(shop))).exit_code == 2  # an app is for --check
    assert (await kagzi(*move, "--check")).exit_code == 2  # which app?
    assert "known are 1" in str((await kagzi(*move, "--check", str(shop))).exception)
    for flags, said in ((("--dry-run",), "1 runs of checkout would go"), ((), "1 runs of checkout went")):
        done = await kagzi(*move, "--check", "--force", *flags, str(shop))
        assert done.exit_code == 1, done
        assert "(order-7) at event" in done.output
        assert f"would run again: charge (new: mail), at {shop}:16 in checkout" in done.output
        assert f"{said} from version 1 to 2" in done.output
    done = await kagzi(*move, "--check", "--force", "--json", str(shop))
    document = json.loads(done.stdout)
    assert (document["moved"], document["changed"], [each["id"] for each in document["refused"]]) == (0, 0, ["order-7"])
