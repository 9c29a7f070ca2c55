"""What handles failures, said from a shell."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Shell


def test_a_namespace_has_a_handler_until_it_is_taken_back(shop: Shell) -> None:
    shop("migrate")
    changed = shop("namespaces", "update", "default", "--on-failure", "notify_ops@ops", "--json")
    assert changed.code == 0, changed
    assert (changed.json["on_failure"], changed.json["on_failure_queue"]) == ("notify_ops", "ops")
    assert "notify_ops" in shop("namespaces", "show", "default").out
    changed = shop("namespaces", "update", "default", "--on-failure", "notify_ops", "--json")
    assert (changed.json["on_failure"], changed.json["on_failure_queue"]) == ("notify_ops", None)
    described = shop("namespaces", "update", "default", "--description", "a shop", "--json")
    assert described.json["on_failure"] == "notify_ops"
    changed = shop("namespaces", "update", "default", "--no-on-failure", "--json")
    assert (changed.json["on_failure"], changed.json["on_failure_queue"]) == (None, None)


def test_a_run_has_the_handler_that_its_start_names(shop: Shell) -> None:
    started = shop("start", "checkout", "-i", '["1", 5]', "--on-failure", "notify_ops@ops", "--json")
    assert started.code == 0, started
    assert shop("runs", "show", started.json["run_id"], "--json").json["on_failure"] == "notify_ops"


@pytest.mark.parametrize("wrong", ["@ops", "notify_ops@", ""])
def test_a_handler_that_is_no_name_is_wrong_usage(shop: Shell, wrong: str) -> None:
    refused = shop("start", "checkout", "--on-failure", wrong)
    assert refused.code == 2
    assert "is not WORKFLOW or WORKFLOW@QUEUE" in refused.err


def test_a_failed_run_and_what_handles_it_name_each_other(shell: Shell) -> None:
    (shell.directory / "pager.py").write_text("""
import kagzi

app = kagzi.Kagzi()

@app.workflow(on_failure="notify_ops")
async def checkout() -> None:
    raise ValueError("no such order")
""")
    failed = shell("run", "pager.py:checkout", "--id", "one")
    assert failed.code == 1, failed
    (handler,) = shell("runs", "show", "one", "--json").json["handled_by"]
    assert f"handled_by\tnotify_ops {handler['run_id']} PENDING\n" in shell("runs", "show", "one").out
    assert (
        f"handles\t{shell('runs', 'show', 'one', '--json').json['run_id']}\n"
        in shell("runs", "show", handler["run_id"]).out
    )
