"""A benchmark whose bars are not all met says so by its exit code, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as bench
from benchmarks import growth
from benchmarks.growth import Comparison
from benchmarks.server import __main__ as server
from benchmarks.server.bars import Verdict
from benchmarks.workloads import Measurement


class NoLimits:
    def lines(self) -> list[str]:
        return []

    def to_json(self) -> dict[str, Any]:
        return {}


@pytest.fixture(autouse=True)
def nothing_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def look(url: str | None, seconds: float) -> NoLimits:
        return NoLimits()

    async def check_durable(url: str) -> dict[str, str]:
        return {}

    for module in (bench, growth, server):
        monkeypatch.setattr(module.machine, "look", look)
        monkeypatch.setattr(module.databases, "check_durable", check_durable)
        monkeypatch.setattr(module, "bench_directory", lambda: tmp_path / "results")
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(bench, "python_of", lambda *_: Path("python"))
    monkeypatch.setattr(bench, "versions_of", lambda _: {})


@pytest.mark.parametrize(("bytes_per_run", "code"), [(3_300.0, 0), (3_301.0, 1)])
def test_the_comparison_with_peers(monkeypatch: pytest.MonkeyPatch, bytes_per_run: float, code: int) -> None:
    async def measured(options: Any, python: Path, key: str, setting: Any, url: str | None) -> Measurement:
        return Measurement(setting, key, {"steps_per_second": 1.0, "bytes_per_run": bytes_per_run})

    monkeypatch.setattr(bench, "_measure_one", measured)

    assert bench.main(["--only", "w2", "--systems", "kagzi", "--stores", "sqlite"]) == code


@pytest.mark.parametrize(("factor", "code"), [(1.2, 0), (1.21, 1)])
async def test_growth(monkeypatch: pytest.MonkeyPatch, factor: float, code: int) -> None:
    async def compared(self: growth.Growth) -> list[Comparison]:
        return [Comparison("sqlite", "W1", 1.0, 1.0, "a second", factor, growth.MOST_SLOWER_WHEN_FULL)]

    monkeypatch.setattr(growth.Growth, "compare", compared)

    assert await growth.measure(growth.Options(("sqlite",), 1, 1, 1, True, None), None) == code


@pytest.mark.parametrize(("value", "code"), [(2.0, 0), (2.1, 1)])
async def test_a_server(monkeypatch: pytest.MonkeyPatch, value: float, code: int) -> None:
    class Site:
        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *_: object) -> None: ...

    async def woken(site: object, sleepers: int) -> list[Verdict]:
        return [Verdict("late", value, "ms", most=2.0)]

    monkeypatch.setattr(server, "site", lambda _: Site())
    monkeypatch.setattr(server, "waking", woken)

    assert await server.measure(server.Options(("waking",), 1, 1.0, 1, 1, 1, None), "postgresql://nowhere") == code
