from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata

import pytest

from kagzi.cli.grpc_core import prepare_grpc


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRPC_VERBOSITY", "GRPC_EXPERIMENTS"):
        monkeypatch.setenv(name, "")  # so that it is as before afterwards
        monkeypatch.delenv(name)


def test_what_the_user_said_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_VERBOSITY", "INFO")
    monkeypatch.setenv("GRPC_EXPERIMENTS", "tcp_rcv_lowat")
    prepare_grpc(verbose=False)
    assert (os.environ["GRPC_VERBOSITY"], os.environ["GRPC_EXPERIMENTS"]) == ("INFO", "tcp_rcv_lowat")


def test_it_speaks_when_it_is_to() -> None:
    prepare_grpc(verbose=True)
    assert "GRPC_VERBOSITY" not in os.environ


@pytest.mark.parametrize("version", ["1.9999.0", "9.0", "nonsense"])
def test_a_version_that_nobody_has_tried_is_left_alone(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: version)
    prepare_grpc(verbose=False)
    assert "GRPC_EXPERIMENTS" not in os.environ


def test_the_installed_version_takes_it_without_a_word() -> None:
    script = (
        "from kagzi.cli.grpc_core import prepare_grpc\n"
        "prepare_grpc(verbose=True)\n"
        "import os, grpc\n"
        "grpc.insecure_channel('127.0.0.1:1').close()\n"
        "print(os.environ.get('GRPC_EXPERIMENTS'))"
    )
    made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert "event_engine" in made.stdout
    assert "Unknown experiment" not in made.stderr
