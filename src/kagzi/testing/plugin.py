"""The pytest plugin: the fixture `kagzi_env`, in `def` and `async def` tests, and the option `--kagzi-url`.

It is found by its entry point; `-p no:kagzi` leaves it out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from kagzi.testing.kit import Environment


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("kagzi").addoption(
        "--kagzi-url",
        metavar="URL",
        help="run tests with the fixture kagzi_env on this database or server, such as postgresql://localhost/test, "
        "instead of in memory; those that need virtual time are skipped",
    )


@pytest.fixture
def kagzi_env(request: pytest.FixtureRequest) -> Iterator[Environment]:
    """An engine in memory, a worker, and a clock that jumps: see docs/testing.md."""
    from kagzi.testing.kit import Environment  # only for tests that ask for it

    with Environment(request.config.getoption("--kagzi-url"), no_time=_skip) as env:
        yield env


def _skip(reason: str) -> NoReturn:
    pytest.skip(f"needs virtual time: {reason}")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs an `async def` test that asks for `kagzi_env` on the loop of its environment. No other plugin is needed for
    that, and one that has wrapped the test is passed by: on its loop the clock would not jump."""
    env: Any = pyfuncitem.funcargs.get("kagzi_env")
    if env is None:
        return None
    test: Callable[..., Any] = inspect.unwrap(pyfuncitem.obj)
    if not inspect.iscoroutinefunction(test):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    env.drive(lambda: test(**given))
    return True
