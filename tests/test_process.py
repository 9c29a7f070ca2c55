from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from kagzi.process import new_event_loop, usable_cores


@pytest.mark.skipif(sys.platform == "win32", reason="there is no uvloop")
def test_our_processes_run_on_uvloop_where_it_is_installed() -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        assert type(runner.get_loop()).__module__.startswith("uvloop")


def test_and_on_asyncio_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        assert isinstance(runner.get_loop(), asyncio.SelectorEventLoop)


def test_cores_are_those_of_the_container(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/pod/inner").mkdir(parents=True)
    everything = usable_cores(tmp_path)
    (tmp_path / "proc/self/cgroup").write_text("0::/pod/inner\n")
    (tmp_path / "sys/fs/cgroup/pod/inner/cpu.max").write_text("max 100000\n")
    assert usable_cores(tmp_path) == everything
    (tmp_path / "sys/fs/cgroup/pod/cpu.max").write_text("50000 100000\n")
    assert usable_cores(tmp_path) == 1
