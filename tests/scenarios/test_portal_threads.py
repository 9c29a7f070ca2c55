"""What blocking code has opened is gone behind `with app:`, however the block ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kagzi import Kagzi, KagziError

FOR_EVER = 60.0


def new_app(directory: Path) -> Kagzi:
    app = Kagzi(f"sqlite:///{directory / 'kagzi.db'}")

    @app.workflow(name="greet")
    async def greet(name: str) -> str:
        return f"Hello {name}"

    return app


def nothing_but_the_block(app: Kagzi) -> None:
    with app:
        pass


def a_call_before_it(app: Kagzi) -> None:
    app.find_workflow("greet", "1").start_sync("Ada")  # type: ignore[union-attr]
    with app:
        pass


def blocks_in_one_another(app: Kagzi) -> None:
    with app:
        with app:
            assert portals()
        assert portals()
    assert not portals()
    with app:
        assert portals()


def an_error_in_it(app: Kagzi) -> None:
    with pytest.raises(ValueError, match="mine"), app:
        raise ValueError("mine")


def a_worker_in_it(app: Kagzi) -> None:
    with app, app.worker_sync():
        assert app.find_workflow("greet", "1").run_sync("Ada") == "Hello Ada"  # type: ignore[union-attr]


def a_worker_of_another_thread(app: Kagzi) -> None:
    worker = threading.Thread(target=app.run_worker)
    with app:
        worker.start()
        assert app.find_workflow("greet", "1").run_sync("Ada") == "Hello Ada"  # type: ignore[union-attr]
    worker.join(FOR_EVER)
    assert not worker.is_alive()


def a_database_that_cannot_be_opened(app: Kagzi) -> None:
    (Path(app.url.removeprefix("sqlite:///")).parent / "file").touch()
    cannot = Kagzi(app.url.replace("kagzi.db", "file/kagzi.db"))
    for _ in range(3):
        with pytest.raises(KagziError), cannot:
            raise AssertionError("it was opened")


def portals() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kagzi-portal"]


@pytest.mark.parametrize(
    "block",
    [
        nothing_but_the_block,
        a_call_before_it,
        blocks_in_one_another,
        an_error_in_it,
        a_worker_in_it,
        a_worker_of_another_thread,
        a_database_that_cannot_be_opened,
    ],
)
def test_no_thread_is_left_of(block: Callable[[Kagzi], None], tmp_path: Path) -> None:
    others = set(threading.enumerate())

    block(new_app(tmp_path))

    assert [thread for thread in portals() if thread not in others] == []
