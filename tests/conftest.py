from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from kagzi.store.postgres.arrays import expect_lists

pytest_plugins = ["tests.measures", "tests.parts", "tests.postgres_server"]

# The same examples every time, and as much time for each as the machine needs: what passes today passes tomorrow.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

# A shell that starts the suite in the background has it ignore SIGINT, and every process that it starts would, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

expect_lists()  # so that every statement of ours is tried as in a server


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of the test's own, empty: the test runs on each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'kagzi.db'}"
    found: str = request.getfixturevalue("postgres_database")
    return found
