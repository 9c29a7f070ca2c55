"""Queues and what holds them back, from a shell."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Shell, served


@pytest.fixture(params=["sqlite", "grpc"])
def home(request: pytest.FixtureRequest, shop: Shell) -> Shell:
    """A shop whose settings say where its runs live."""
    if request.param == "grpc":
        shop.environ["KAGZI_URL"] = served(shop)
    else:
        shop("migrate")  # commands that only look make no database
    return shop


def test_queues_workflows_and_namespaces_are_paused_and_resumed(home: Shell) -> None:
    assert "no queues in" in home("queues", "list").err
    paused = home("queues", "pause", "mail", "--reason", "provider down", "--json")
    assert (paused.code, paused.json["scope"], paused.json["pause_reason"]) == (0, "queue", "provider down")
    line = home("queues", "list").out.splitlines()[0].split("\t")
    assert line[:2] == ["mail", "0"]
    assert line[-1].startswith("paused by cli:")
    home("start", "checkout", "-i", '["1", 5]', "-q", "mail")
    (queue,) = home("queues", "list", "--json").json["queues"]
    assert (queue["queue"], queue["pending"], queue["pause_reason"]) == ("mail", 1, "provider down")
    (run,) = home("runs", "list", "--json").json["runs"]
    assert "queue mail was paused by cli:" in home("runs", "show", run["run_id"]).out
    assert home("limits", "pause", "--workflow", "checkout").code == 0
    assert home("namespaces", "pause", "default").code == 0
    home("start", "checkout", "-i", '["2", 5]', "-q", "sms")
    states = {line.split("\t")[0]: line.split("\t")[-1] for line in home("queues", "list").out.splitlines()}
    assert states["sms"].startswith("namespace paused by cli:")
    doctor = home("doctor", "--json").json
    (pauses,) = [part for part in doctor["components"] if part["name"] == "pauses"]
    assert pauses["status"] == "degraded"
    for words in ("namespace default is paused by", "queue mail is paused by", "workflow checkout is", "provider down"):
        assert words in pauses["message"]
    limits = home("limits", "list", "--json").json["limits"]
    assert [(each["scope"], each["name"]) for each in limits] == [
        ("namespace", ""),
        ("queue", "mail"),
        ("workflow", "checkout"),
    ]
    assert "is open" in home("queues", "resume", "mail").err
    assert home("limits", "resume", "--workflow", "checkout").code == 0
    assert home("namespaces", "resume", "default").code == 0
    assert "nothing holds runs back in" in home("limits", "list").err
    assert home("namespaces", "pause", "nowhere").code == 3
    limited = home("limits", "set", "--queue", "mail", "--concurrency", "20")
    assert (limited.code, limited.err.strip()) == (0, "queue mail: at most 20 at once")
    slow = home("limits", "set", "--queue", "mail", "--concurrency", "20", "--rate", "5/1s", "--burst", "3")
    assert slow.err.strip() == "queue mail: at most 20 at once, 5 in 1s (burst 3) begin"
    assert (
        home("limits", "set", "--workflow", "checkout", "--key-concurrency", "5", "--json").json["key_concurrency"] == 5
    )
    rows = [line.split("\t") for line in home("limits", "list").out.splitlines()]
    assert rows == [
        ["queue", "mail", "20, 5 in 1s (burst 3)", "-", "0", "1", "set by hand"],
        ["workflow", "checkout", "-", "5", "0", "2", "set by hand"],
    ]
    assert home("limits", "clear", "--queue", "mail").err.strip() == "queue mail: no limit"
    assert home("limits", "set", "--queue", "mail").code == 2
    assert home("limits", "clear").code == 2
    entries = home("audit", "--url", "sqlite:///.kagzi/kagzi.db", "-n", "default", "--json").json["entries"]
    targets = {entry["target"] for entry in entries}
    assert {"queue mail", "workflow checkout", "namespace default"} <= targets


def test_a_name_that_nobody_uses_is_told_of(home: Shell) -> None:
    home("start", "checkout", "-i", '["1", 5]', "-q", "mail")
    for command in (("queues", "pause", "mial"), ("limits", "set", "--queue", "mial", "--concurrency", "2")):
        done = home(*command)
        assert done.code == 0
        said = "no worker serves queue mial now, and no run is in it; did you mean mail?"
        assert done.err.splitlines()[-1] == said
    for command in (("limits", "pause"), ("limits", "set", "--key-rate", "5/1m")):
        done = home(*command, "--workflow", "chekout")
        said = "no worker has offered workflow chekout, and no run of it is under way; did you mean checkout?"
        assert done.err.splitlines()[-1] == said
    assert "did you mean" not in home("queues", "pause", "mail").err


def test_shells_complete_what_is_there(home: Shell) -> None:
    for id in ("order-1", "order-2", "$(order)"):
        assert home("start", "checkout", "-q", "mail", "--id", id, "-i", '["1", 5]').code == 0

    def completed(*words: str) -> list[str]:
        environ = {"_KAGZI_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("kagzi", *words))}
        done = home(COMP_CWORD=str(len(words)), **environ)
        assert (done.code, done.err) == (0, "")
        return [line.removeprefix("plain,") for line in done.out.split()]

    # What would say something to a shell is left out.
    assert completed("runs", "show", "") == ["order-2", "order-1"]
    assert completed("runs", "cancel", "order-1", "--queue", "m") == ["mail"]
    assert completed("runs", "show", "nothing") == []
    home.environ["KAGZI_URL"] = "grpc://127.0.0.1:1"
    assert completed("workflows", "show", "") == []
