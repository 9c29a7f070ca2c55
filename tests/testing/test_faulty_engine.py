"""An engine that drops, repeats and loses calls, from a seed."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kagzi.api.operations import Started, StartRun
from kagzi.core.run import RunStatus
from kagzi.engine.local import LocalEngine
from kagzi.errors import NotFound, Unavailable
from kagzi.store.sqlite.store import SqliteStore
from kagzi.testing.faulty import FaultyEngine, UnreliableTransport

RUN = "0190a5f2-7c3e-7d31-9a51-{:012x}"


def start(number: int) -> StartRun:
    return StartRun(namespace="default", run_id=RUN.format(number), workflow_type="order", task_queue="default")


async def start_many(seed: int, **rates: float) -> tuple[list[str], int, list[tuple[str, str]]]:
    async with LocalEngine(SqliteStore(None)) as real:
        transport = UnreliableTransport(real, Random(seed), **rates)
        engine = FaultyEngine(transport)
        await engine.open()
        told: list[str] = []
        for number in range(60):
            try:
                answer: Started = await engine.workflows.start(start(number))
                told.append(answer.status)
            except Unavailable:
                told.append("unavailable")
        made = 0
        for number in range(60):
            try:
                made += (await real.workflows.get("default", RUN.format(number))).status is RunStatus.PENDING
            except NotFound:
                pass
        await engine.close()
        return told, made, transport.calls


async def test_without_faults_it_is_the_engine() -> None:
    told, made, calls = await start_many(1)

    assert told == [RunStatus.PENDING] * 60
    assert made == 60
    assert calls == [("start", "answered")] * 60


async def test_dropped_calls_do_nothing() -> None:
    told, made, _ = await start_many(1, drop=0.3)

    assert 0 < told.count("unavailable") < 60
    assert made == 60 - told.count("unavailable")


async def test_lost_answers_hide_what_was_done() -> None:
    told, made, _ = await start_many(1, lose=0.3)

    assert 0 < told.count("unavailable") < 60
    assert made == 60


async def test_repeats_and_delays_change_nothing() -> None:
    told, made, calls = await start_many(1, repeat=0.5, delay=0.5, longest=0.002)

    assert told == [RunStatus.PENDING] * 60
    assert made == 60
    assert ("start", "repeated") in calls


@pytest.mark.parametrize("rates", [{"drop": 0.2, "lose": 0.2, "repeat": 0.2}])
async def test_the_same_seed_gives_the_same_faults(rates: dict[str, Any]) -> None:
    first, second, other = [await start_many(seed, **rates) for seed in (5, 5, 6)]

    assert first[0] == second[0]
    assert first[0] != other[0]
