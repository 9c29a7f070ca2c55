"""Every example runs, as the program it is, and does what it says."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from examples import (
    agent,
    api_client,
    backfill_month,
    changing_runs,
    exactly_once,
    fan_out,
    human_approval,
    idempotent_start,
    long_sleep,
    nightly_report,
    order_with_children,
    outage,
    retries_and_errors,
    saga,
    subscription,
    tenants,
)
from kagzi.testing import run_virtually

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(script: Path, directory: Path, timeout: float = 60) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KAGZI_")}
    environment["COLUMNS"] = "80"
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_tests_of_an_example_pass() -> None:
    """As users run theirs: in a process of its own, the plugin found by its entry point."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "examples/testing"]
    done = subprocess.run(command, cwd=EXAMPLES.parent, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout


def test_every_example_is_covered() -> None:
    here = Path(__file__).read_text()
    for script in EXAMPLES.glob("*.py"):
        assert script.stem == "__init__" or script.stem in here, f"{script.name} has no test"


def test_basics(tmp_path: Path) -> None:
    first = run(EXAMPLES / "basics.py", tmp_path)
    second = run(EXAMPLES / "basics.py", tmp_path)
    assert "Hello, Ada! (11 letters; started run" in first
    assert "found run" in second
    assert re.findall(r"run (\S+)\)", first) == re.findall(r"run (\S+)\)", second)
    assert (tmp_path / ".kagzi" / "kagzi.db").exists()


async def test_retries_and_errors() -> None:
    story = await retries_and_errors.main()
    assert story[:3] == ["worked at attempt 3", "declined: over the limit", "gave up on the stuck step"]
    assert story[3].endswith("CardDeclined")


async def test_an_order_with_children() -> None:
    assert await order_with_children.main() == ["label-book", "refunded piano", "label-pen"]


def test_long_sleep_takes_a_month_of_virtual_time() -> None:
    async def scenario() -> tuple[list[str], int]:
        handle = await long_sleep.trial.start("ada")
        sent = await handle.result()
        return sent, (await handle.get()).executions

    sent, executions = run_virtually(long_sleep.app, scenario)
    assert [mail.split(": ")[1] for mail in sent] == ["welcome", "how is it going?", "your trial ended after 30 days"]
    assert executions == 3, "claimed once at the start and once after each sleep"


def test_long_sleep_as_a_program(tmp_path: Path) -> None:
    assert "sleeps until" in run(EXAMPLES / "long_sleep.py", tmp_path)


def test_nightly_report_of_three_nights_of_virtual_time() -> None:
    async def scenario() -> list[str]:
        nightly = await nightly_report.make_schedule()
        await asyncio.sleep(3 * 86_400)
        return sorted(run.output for run in (await nightly.runs()).items)

    reports = run_virtually(nightly_report.app, scenario)
    assert len(reports) == 3
    assert all(re.fullmatch(r"Lisbon sold 1\d\d on \d{4}-\d\d-\d\d", report) for report in reports)


def test_nightly_report_as_a_program(tmp_path: Path) -> None:
    first = run(EXAMPLES / "nightly_report.py", tmp_path)
    assert re.search(r"(28|29|30|31) reports of last month were started", first)
    assert "0 reports of last month were started" in run(EXAMPLES / "nightly_report.py", tmp_path)


def test_a_month_is_backfilled_once_with_a_report_of_each_day() -> None:
    async def scenario() -> tuple[list[int], list[str]]:
        schedule = await backfill_month.make_schedule()
        since, until = (datetime(2025, month, 1, tzinfo=backfill_month.BERLIN) for month in (3, 4))
        started = [await schedule.backfill(since, until) for _ in range(2)]
        await asyncio.sleep(60)
        return started, sorted(run.output[0] for run in (await schedule.runs(page_size=100)).items)

    started, days = run_virtually(backfill_month.app, scenario)
    assert started == [31, 0]
    assert days == [f"2025-03-{day:02}" for day in range(1, 32)]


def test_a_schedule_declared_in_code_as_a_program(tmp_path: Path) -> None:
    said = run(EXAMPLES / "declared_schedule.py", tmp_path)
    assert "heartbeat: every 1s, declared in code: True" in said
    assert len(re.findall(r"^\d\d:\d\d:\d\d shop is up$", said, re.M)) == 2


async def test_changing_runs(tmp_path: Path) -> None:
    assert await changing_runs.main(f"sqlite:///{tmp_path / 'kagzi.db'}") == [
        "moved 1: charged book, fee, by bike",
        "restarted: charged pen, fee, by bike",
        "its id leads to the new run: True",
        "forked: charged pen, fee, by bike",
        "replayed 3 events with today's code",
        "the old code would do something else",
    ]


async def test_fan_out() -> None:
    assert await fan_out.main() == (5760, 5760, "near")


async def test_tenants() -> None:
    acme, small, cities = await tenants.main()
    assert acme <= 2
    assert small == 1
    assert cities == ["LISBON", "OSLO", "PUNE", "QUITO", "RIGA"]


async def test_an_api_with_a_rate() -> None:
    total, answered, refused, most = await api_client.main()
    assert (total, answered, refused) == (29_200, 24, 0)
    assert most <= 2


async def test_an_outage() -> None:
    assert await outage.main() == [
        "would retry 8 runs",
        "8 found, 8 retried, 0 skipped, 0 failed",
        "8 of 8 charged",
        "each reserved 1 time",
    ]


async def test_exactly_once() -> None:
    assert await exactly_once.main() == ["paid in attempt 3", "ada has 10000", "max has 90000"]


def test_primes() -> None:
    command = [sys.executable, "-W", "error", "-m", "examples.primes"]
    done = subprocess.run(command, cwd=EXAMPLES.parent, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "2262 primes below 20,000\n", done.stderr


async def test_idempotent_start() -> None:
    assert await idempotent_start.main() == [
        "1 run, started 1 time",
        "order-7 paid 500",
        "Conflict",
        "somebody was here before",
    ]


async def test_saga() -> None:
    good, bad = await saga.main()
    assert good == ["flight for Lisbon", "car for Lisbon", "hotel for Lisbon"]
    assert bad == ["no 9 rooms left for Oslo", "cancelled car for Oslo", "cancelled flight for Oslo"]


async def test_human_approval() -> None:
    assert await human_approval.main() == [
        "order-1 was approved by ann",
        "order-2 was refused by bob",
        "order-3 was refused: nobody answered",
        "bob got 2 mails",
    ]


def test_human_approval_waits_for_days_of_virtual_time() -> None:
    async def scenario() -> tuple[str, int]:
        run = await human_approval.approval.start("order-4", "ann", "1 day", "3 days")
        return await run.result(), (await run.get()).executions

    refused, executions = run_virtually(human_approval.app, scenario)
    assert refused == "order-4 was refused: nobody answered"
    assert executions == 3, "claimed at the start, for the reminder and at the end"


@pytest.mark.faults
@pytest.mark.parametrize(
    ("script", "library"),
    [("agent_pydantic_ai.py", "pydantic_ai"), ("agent_openai.py", "agents"), ("agent_langchain.py", "langchain")],
)
def test_an_agent_that_is_killed_asks_its_model_nothing_again(script: str, library: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KAGZI_")} | {"LEASE": "5s"}
    command = [sys.executable, "-W", "error", str(EXAMPLES / script)]
    said: list[str] = []
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment | {"BOOKING_SECONDS": "600"}, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        for line in first.stdout:
            said.append(line.strip())
            if line.startswith("booking"):
                first.kill()
    assert first.returncode == -9
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment | {"BOOKING_SECONDS": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said += done.stdout.splitlines()
    text = "\n".join(said)  # threads print, too, so two of them may share a line
    asked = re.findall(r"the model is asked with \d+", text)
    assert len(asked) == len(set(asked)) == 3
    assert sorted(re.findall(r"searching for flights to (Lisbon|Porto)", text)) == ["Lisbon", "Porto"]
    # It was killed in the first, and a body that was cut off runs again.
    assert text.count("booking the flight to Lisbon") == 2
    assert text.count("the agent says: Done: booked the flight to Lisbon") == 1


async def test_agent() -> None:
    question, answer, steps = await agent.main()
    assert question == "may I refund 42?"
    assert answer == "The order was refunded, as the rules allow."
    assert [step for step in steps if step.startswith("think")] == ["think", "think#2", "think#3"]
    assert {"map/use/search", "map/use#2/search", "map#2/use/@@allowed", "map#2/use/refund"} <= set(steps)


@pytest.mark.faults
def test_the_demo_survives_kill_9_within_thirty_seconds(tmp_path: Path) -> None:
    told = run(EXAMPLES / "demo" / "main.py", tmp_path, timeout=90)
    assert "kill -9" in told
    closing = told[told.index("What just happened") :]
    assert max(map(len, closing.splitlines())) <= 80, "it is no wider than the terminal"
    closing = " ".join(closing.split())
    assert "the card was charged 1 time" in closing
    assert "ran the step that was cut off once more (pack)" in closing
    moments = [float(moment) for moment in re.findall(r"^ *([\d.]+) s ", told, re.MULTILINE)]
    assert moments[-1] < 30


def test_dead_letter(tmp_path: Path) -> None:
    lines = run(EXAMPLES / "dead_letter.py", tmp_path).splitlines()
    assert lines == [
        "payment of a",
        "failed",
        "payment of c",
        "dead letter: checkout('b', -1): -1 cents cannot be charged",
    ]


def test_a_subscription_is_one_run_for_as_long_as_it_lasts() -> None:
    async def scenario() -> tuple[int, int]:
        run = await subscription.subscription.start(subscription.Account("Ada"))
        for change in ("large", "end"):
            await asyncio.sleep(100 * 86_400)
            await run.signal("change", change)
        account = await run.result()
        return account.months, account.paid

    assert run_virtually(subscription.app, scenario) == (8, 4 * 5 + 4 * 20)


def test_the_program_of_a_subscription(tmp_path: Path) -> None:
    assert re.search(
        r"Ada paid \d+ in \d+ months, in one run that began anew \d+ times", run(EXAMPLES / "subscription.py", tmp_path)
    )
