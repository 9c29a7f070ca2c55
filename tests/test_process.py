from __future__ import annotations

import asyncio
import sys

import pytest

from kagzi.process import new_event_loop


@pytest.mark.skipif(sys.platform == "win32", reason="there is no uvloop")
def test_our_processes_run_on_uvloop_where_it_is_installed() -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        assert type(runner.get_loop()).__module__.startswith("uvloop")


def test_and_on_asyncio_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        assert isinstance(runner.get_loop(), asyncio.SelectorEventLoop)
