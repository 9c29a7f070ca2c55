"""The test kit: `kagzi_env` in `def` and `async def` tests, mocks, and what mistakes get."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import kagzi
from kagzi import Kagzi, Retry
from kagzi.core.run import RunStatus
from kagzi.errors import InvalidRequest, WorkflowFailed
from kagzi.testing import Deadlock, Environment, NeedsVirtualTime

ROOT = Path(__file__).resolve().parents[2]
app = Kagzi("memory://")


@app.step(retry=Retry(attempts=3, first="1h", cap="1 day", jitter=0.0))
async def send(to: str) -> str:
    raise RuntimeError("no mail in tests")


@app.step
def pack(sku: str) -> str:
    return f"box with {sku}"


@app.workflow
async def trial(to: str) -> list[str]:
    sent = [await send(to)]
    await kagzi.sleep("trial", "30 days")
    return [*sent, await send(to)]


@app.workflow(queue="shop")
async def approved(sku: str) -> str | None:
    if await kagzi.wait_signal("approved", bool):
        return await pack.options(key=sku)(sku)
    return None


def test_time_passes_when_the_test_says_so(kagzi_env: Environment) -> None:
    sent = kagzi_env.mock(send, return_value="sent")
    began = kagzi_env.now
    run = kagzi_env.start(trial, "ada")
    assert run.status is RunStatus.SLEEPING
    kagzi_env.advance("29d")
    assert (run.status, sent.call_count) == (RunStatus.SLEEPING, 1)
    kagzi_env.advance("1d")
    assert (run.status, run.result()) == (RunStatus.COMPLETED, ["sent", "sent"])
    assert run.step_names == ["send", "trial", "send"]
    assert sent.calls == [(("ada",), {}), (("ada",), {})]
    assert timedelta(days=30) <= kagzi_env.now - began < timedelta(days=31)


def test_time_skips_by_itself_while_a_result_is_waited_for(kagzi_env: Environment) -> None:
    with kagzi_env.mock(send, side_effect=[ConnectionError("down"), "late", "sent"]) as sent:
        run = kagzi_env.start(trial, "ada")
        assert run.result() == ["late", "sent"]
        sent.assert_called_with("ada")
    assert [step.attempt for step in run.steps if step.name == "send"] == [1, 2, 1]


async def test_the_same_in_async_tests_without_a_plugin_for_them(kagzi_env: Environment, tmp_path: Path) -> None:
    async def fake(to: str) -> str:
        return f"to {to}"

    assert tmp_path.exists()
    with kagzi_env.mock(send, side_effect=fake):
        run = await kagzi_env.astart(trial, "ada")
        await kagzi_env.aadvance("1d")
        assert run.step_names == ["send"]
        assert await run.result() == ["to ada", "to ada"]
        assert await trial.run("bob") == ["to bob", "to bob"]  # the app is open here
        with pytest.raises(InvalidRequest, match=r"await `kagzi_env\.astart"):
            kagzi_env.start(trial, "eve")


class TestInAClass:
    async def test_of_async_tests(self, kagzi_env: Environment) -> None:
        run = await kagzi_env.astart(approved.options(id="7"), "book")
        await app.signal("7", "approved", True)
        assert await run.result() == "box with book"


def test_signals_and_keys_and_queues_of_their_own(kagzi_env: Environment) -> None:
    run = kagzi_env.start(approved.options(id="order-7"), "book")
    kagzi_env.signal("order-7", "approved", True)
    assert (run.result(), run.step_names) == ("box with book", ["approved", "pack[book]"])
    other = kagzi_env.start(approved, "pen")
    other.signal("approved", False)
    assert other.result() is None
    assert [record.run_id for record in kagzi_env.runs(approved)] == [run.id, other.id]


def test_schedules_fire_as_time_passes(kagzi_env: Environment) -> None:
    kagzi_env.mock(send, return_value="sent")
    kagzi_env.use(app)
    kagzi_env.run(app.schedules.create("daily", trial, "ada", cron="0 12 * * *"))
    kagzi_env.advance("3d")
    assert len(kagzi_env.runs(trial)) == 3


def clock() -> tuple[Kagzi, list[str]]:
    """An app that declares a schedule, in a queue that only its workflow names, and the moments it fired for."""
    app, told = Kagzi("memory://"), []

    @app.workflow(queue="reports", schedule=kagzi.Cron("0 6 * * *", tz="Asia/Kolkata"))
    async def morning() -> None:
        told.append(str(kagzi.scheduled_for()))

    return app, told


def test_schedules_in_code_fire_as_time_passes(kagzi_env: Environment) -> None:
    app, told = clock()
    kagzi_env.use(app)
    kagzi_env.advance("3d")
    assert [each[11:] for each in told] == ["06:00:00+05:30"] * 3
    app, told = clock()

    async def scenario() -> None:
        await kagzi.sleep("30d")

    kagzi.testing.run_virtually(app, scenario)
    assert len(told) == 30


def test_mocks_end_with_their_block_and_have_been_called_by_then(kagzi_env: Environment) -> None:
    with kagzi_env.mock(pack, side_effect=ValueError("no boxes")):
        run = kagzi_env.start(approved, "book")
        run.signal("approved", True)
        with pytest.raises(WorkflowFailed, match="no boxes"):
            run.result()
    with kagzi_env.mock(pack, return_value="bag") as packed:
        run = kagzi_env.start(approved, "book")
        run.signal("approved", True)
    assert packed.call_count == 1
    assert run.result() == "bag"
    assert pack.call("book") == "box with book"


@pytest.mark.parametrize("step", [send, pack], ids=["async def", "def"])
def test_a_mock_with_too_few_entries_says_so_at_once(kagzi_env: Environment, step: Any) -> None:
    kagzi_env.mock(step, side_effect=[])
    run: Any = kagzi_env.start(trial, "ada") if step is send else kagzi_env.start(approved, "book")
    if step is pack:
        run.signal("approved", True)
    with pytest.raises(WorkflowFailed, match="was called 1 times, and side_effect has 0 entries"):
        run.result()
    assert len(run.steps) - (step is pack) == 1  # not tried again


def test_a_run_that_waits_for_ever_is_a_deadlock(kagzi_env: Environment) -> None:
    run = kagzi_env.start(approved, "book")
    with pytest.raises(Deadlock, match="approved"):
        run.result()


def test_mistakes_say_what_to_do_and_change_nothing() -> None:
    with Environment() as env:
        with pytest.raises(InvalidRequest, match=r"kagzi_env\.use"):
            env.runs()
        with pytest.raises(InvalidRequest, match="body of a step"):
            env.mock(trial, return_value=1)  # type: ignore[arg-type]
        for copy in (send.options(key="ada"), send.options(name="other")):
            with pytest.raises(InvalidRequest, match="give the step itself"):
                env.mock(copy, return_value="sent")
        for given in ({}, {"return_value": 1, "side_effect": ValueError}):
            with pytest.raises(InvalidRequest, match="one of the two"):
                env.mock(send, **given)
        with pytest.raises(InvalidRequest, match="takes a workflow"):
            env.start(send, "ada")  # type: ignore[arg-type]
        env.use(app)
        with pytest.raises(InvalidRequest, match="used here already"):
            env.use(app)
    with pytest.raises(InvalidRequest, match="has ended with its test"):
        env.start(trial, "ada")
    assert send.fn.__name__ == "send"


def test_the_same_on_a_database_with_real_time(tmp_path: Path) -> None:
    url, namespace = app.url, app.namespace
    with Environment(f"sqlite:///{tmp_path / 'kagzi.db'}") as env:
        run = env.start(approved, "book")
        run.signal("approved", True)
        assert (run.result(), run.step_names) == ("box with book", ["approved", "pack[book]"])
        assert run.record.namespace != namespace
        env.mock(send, return_value="sent")
        sleeper = env.start(trial, "ada")
        with pytest.raises(NeedsVirtualTime, match="sleeps until"):
            sleeper.result()
        with pytest.raises(NeedsVirtualTime, match="it lets 1d pass"):
            env.advance("1d")
    assert (app.url, app.namespace) == (url, namespace)


@pytest.mark.postgres
def test_a_suite_is_run_again_on_a_real_database(postgres_database: str) -> None:
    """As users do, in a process of its own: what needs virtual time is skipped and says so."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "examples/testing"]
    done = subprocess.run(
        [*command, f"--kagzi-url={postgres_database}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "needs virtual time: it lets 2d pass" in done.stdout
