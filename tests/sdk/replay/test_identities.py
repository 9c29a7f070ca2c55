"""A run may move between workers of different Pythons: steps have the same names on each, and events the same order.

Each Python compares itself with what is written down (`identities.py`); `make pythons` has all of them do so."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator

import pytest

from tests.sdk.replay import identities
from tests.sdk.replay.shapes import SHAPES

pytestmark = pytest.mark.filterwarnings(
    "ignore:coroutine .* was never awaited:RuntimeWarning"
)  # when a run is let go of

WRITTEN = identities.written()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Steps that fail on purpose are not worth a line each."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_every_shape_is_written_down() -> None:
    assert SHAPES.keys() == WRITTEN["shapes"].keys()
    assert len(SHAPES) >= 30


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_names_its_steps_alike_on_every_python_and_after_every_move(name: str) -> None:
    assert identities.of_shape(name) == WRITTEN["shapes"][name]


def test_random_programs_come_to_the_same_on_every_python() -> None:
    found = identities.of_programs()
    differ = [seed for seed, ended in enumerate(found) if ended != WRITTEN["programs"][seed]]
    assert differ == []


def test_wait_for_outside_of_workflows_is_the_one_of_this_python() -> None:
    async def main() -> None:
        async def which() -> asyncio.Task[object] | None:
            return asyncio.current_task()

        alone = await asyncio.wait_for(which(), 5) is not asyncio.current_task()
        assert alone is (sys.version_info < (3, 12))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.001)

    asyncio.run(main())
