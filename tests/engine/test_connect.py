from __future__ import annotations

import builtins
import stat
from pathlib import Path
from typing import Any

import pytest

from kagzi.connect import connect, default_url
from kagzi.core.instant import SECOND
from kagzi.engine.local import LocalEngine
from kagzi.errors import InvalidRequest, MissingDependency
from kagzi.settings import Settings
from kagzi.store.sqlite import SqliteStore
from tests.engine.support import new_start

PASSWORD = "s3cret"


async def test_memory_is_an_engine_of_its_own_each_time() -> None:
    first, second = connect("memory://"), connect("memory://")
    assert isinstance(first, LocalEngine)
    assert isinstance(second, LocalEngine)
    async with first, second:
        started = await first.workflows.start(new_start(first))
        assert (await first.workflows.get("default", started.run_id)).run_id == started.run_id
        assert (await second.workflows.list(_everything())).items == ()


def _everything() -> Any:
    from kagzi.api.workflows import RunFilter

    return RunFilter()


async def test_a_file_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///my%20orders.db", f"sqlite:///{tmp_path}/my%20orders.db"):
        engine = connect(url)
        assert isinstance(engine, LocalEngine)
        async with engine:
            await engine.workflows.start(new_start(engine))
    assert (tmp_path / "my orders.db").is_file()
    engine = connect("sqlite:///my%20orders.db")
    assert isinstance(engine, LocalEngine)
    async with engine:
        assert len((await engine.workflows.list(_everything())).items) == 2


def test_settings_reach_the_engine() -> None:
    engine = connect("memory://", lease=3 * SECOND)
    assert isinstance(engine, LocalEngine)
    assert engine.settings.lease == 3 * SECOND
    with pytest.raises(InvalidRequest, match=r"unknown setting: leese; there are lease"):
        connect("memory://", leese=3)
    for bad in (0, -1, True, "3s", 1.5, None):
        with pytest.raises(InvalidRequest, match="lease must be"):
            connect("memory://", lease=bad)
    with pytest.raises(InvalidRequest, match="heartbeat must be shorter"):
        connect("memory://", lease=SECOND, heartbeat=SECOND)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "accepted: memory"),
        ("orders.db", "accepted: memory"),
        (None, "accepted: memory"),
        (b"memory://", "accepted: memory"),
        ("mysql://u:s3cret@host/db", "unknown database scheme 'mysql'; accepted: memory"),
        ("://u:s3cret@host", "unknown database scheme"),
        ("grpc://u:s3cret@host:50051", "not an API key"),
        ("grpcs://kgz_0011223344556677_secret@host", "is its password"),
        ("grpc://host:50051/path", "host and port alone"),
        ("memory://x", "takes nothing"),
        ("sqlite://orders.db", "third slash"),
        ("sqlite://", "third slash"),
        ("sqlite:///", "name of a file"),
        ("sqlite:////", "name of a file"),
        ("sqlite:///dir/", "name of a file"),
        ("sqlite:///:memory:", "use memory://"),
        ("sqlite:///a.db?mode=ro", "no options"),
        ("sqlite:///a\0.db", "accepted: memory"),
        ("postgresql://u:s3cret@host:port/db", "malformed"),
        ("postgresql://u:s3cret@[host/db", "malformed"),
    ],
)
def test_a_url_nobody_understands_says_what_is_accepted_and_shows_no_password(url: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        connect(url)
    assert PASSWORD not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_missing_driver_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith(("asyncpg", "kagzi.store.postgres"))]:
        monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def without_asyncpg(name: str, *args: Any, **named: Any) -> Any:
        if name.startswith("asyncpg"):
            raise ModuleNotFoundError("No module named 'asyncpg'", name="asyncpg")
        return real(name, *args, **named)

    monkeypatch.setattr(builtins, "__import__", without_asyncpg)
    with pytest.raises(MissingDependency, match=r'Run: pip install "kagzi\[postgres\]"'):
        connect("postgresql://localhost/db")


def test_postgres_is_chosen_by_both_schemes() -> None:
    for scheme in ("postgresql", "postgres"):
        engine = connect(f"{scheme}://user@localhost/db")
        assert isinstance(engine, LocalEngine)
        assert not isinstance(engine.store, SqliteStore)


# Where the database is when nobody says.


def test_the_settings_decide_first(tmp_path: Path) -> None:
    assert default_url(Settings(url="memory://", db_url="sqlite:///x.db"), tmp_path) == "memory://"
    assert default_url(Settings(db_url="sqlite:///x.db"), tmp_path) == "sqlite:///x.db"
    assert list(tmp_path.iterdir()) == []


def test_else_a_file_in_the_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    deep = tmp_path / "src" / "shop"
    deep.mkdir(parents=True)
    url = default_url(Settings(), deep)
    assert url == f"sqlite:///{tmp_path}/.kagzi/kagzi.db"
    assert (tmp_path / ".kagzi" / ".gitignore").read_text() == "*\n"
    assert stat.S_IMODE((tmp_path / ".kagzi").stat().st_mode) == 0o700
    (deep / ".kagzi").mkdir()
    assert default_url(Settings(), deep) == f"sqlite:///{deep}/.kagzi/kagzi.db"


async def test_strange_directories_work(tmp_path: Path) -> None:
    strange = tmp_path / "50% off? #1"
    strange.mkdir()
    (strange / "pyproject.toml").touch()
    engine = connect(default_url(Settings(), strange))
    assert isinstance(engine, LocalEngine)
    async with engine:
        pass
    assert (strange / ".kagzi" / "kagzi.db").is_file()


def test_a_directory_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / ".kagzi").touch()
    with pytest.raises(InvalidRequest, match="set KAGZI_URL"):
        default_url(Settings(), tmp_path)
