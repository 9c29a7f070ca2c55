from __future__ import annotations

import gc
import shutil
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from kagzi.store.sqlite import SqliteStore
from tests.postgres_databases import in_thread

pytest_plugins = ["tests.measures", "tests.parts", "tests.postgres_server", "tests.warm"]

# The same examples every time, and as much time for each as the machine needs: what passes today passes tomorrow.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

# A shell that starts the suite in the background has it ignore SIGINT, and every process that it starts would, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Keeps what has been imported out of every collection of garbage to come: it is there to the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest) -> str:
    """A database of the test's own, without a run: the test runs on each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('sqlite_file')}"
    found: str = request.getfixturevalue("postgres_database")
    return found


@pytest.fixture
def sqlite_file(tmp_path: Path, migrated_file: Path) -> str:
    """The path of a database of the test's own, migrated, without a run."""
    return str(shutil.copyfile(migrated_file, tmp_path / "kagzi.db"))


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sqlite") / "migrated.db"

    async def migrate() -> None:
        store = SqliteStore(str(path))
        await store.open()
        await store.close()

    in_thread(migrate)
    return path
