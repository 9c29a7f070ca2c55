"""Payloads that are large, deep, or both: pages show their beginning, and forms leave them where they are."""

from __future__ import annotations

import pytest

from kagzi.api.operations import SendSignal
from kagzi.core.failure import Failure
from kagzi.core.limits import PAYLOAD_BYTES
from kagzi.dashboard.text import REPORT_CHARACTERS, error_report
from kagzi.engine.local import LocalEngine
from tests.dashboard.support import Browser
from tests.dashboard.test_pages import start

_DEEP = b"[" * 800 + b"]" * 800
LARGE = b"[" + b",".join([_DEEP] * (PAYLOAD_BYTES // (len(_DEEP) + 1) - 1)) + b"]"
MOST = 100_000  # bytes of a page with some beginnings of payloads


@pytest.mark.parametrize("page", ["", "/fork"])
async def test_a_payload_that_is_deep_makes_no_long_page(quick: Browser, memory: LocalEngine, page: str) -> None:
    run_id = await start(memory, "shipping", LARGE)
    for number in range(3):
        await memory.workflows.signal(
            SendSignal(namespace="default", run_id=run_id, name="s", value=LARGE, key=str(number))
        )
    shown = await quick.open(f"/runs/{run_id}{page}")
    assert len(shown.html) < MOST


async def test_a_form_leaves_an_input_as_it_is_that_is_too_large_for_a_field(
    quick: Browser, memory: LocalEngine
) -> None:
    run_id = await start(memory, "shipping", LARGE)
    fork = await quick.open(f"/runs/{run_id}/fork")
    assert "too large to be changed here: 2,0" in fork.text
    assert fork.form("/fork").fields["input"] == ""
    forked = (await quick.send(fork.form("/fork"))).links["Start a copy …"].partition("like=")[2]
    assert (await memory.workflows.get("default", forked)).input == LARGE
    copy = await quick.open(f"/start?like={run_id}")
    assert "too large" in copy.text
    assert copy.form("/start").fields["input"] == ""


def test_an_error_with_many_inner_lines_is_cut_off() -> None:
    failure = Failure("a.B", "lines", traceback="x\n" * 60_000)
    for _ in range(14):
        failure = Failure("builtins.ExceptionGroup", "group", members=(failure,))
    assert len(error_report(failure.encode())) < REPORT_CHARACTERS + 1000
