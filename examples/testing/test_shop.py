"""Run them with `pytest examples/testing`; nothing but pytest is needed."""

from __future__ import annotations

import pytest

from examples.testing import shop
from kagzi.testing import Environment, NotCrashSafe, crash_everywhere


def test_a_delivery_takes_three_days(kagzi_env: Environment) -> None:
    with kagzi_env.mock(shop.charge, return_value="paid by card") as charged:
        run = kagzi_env.start(shop.right, 999)
        kagzi_env.advance("2 days")
        assert not run.status.finished
        kagzi_env.advance("1 day")
        assert run.result() == "paid by card"
    charged.assert_called_once_with(999)
    assert run.step_names == ["charge", "delivery"]


async def test_the_same_in_an_async_test(kagzi_env: Environment) -> None:
    run = await kagzi_env.astart(shop.right, 999)
    assert await run.result() == "paid"  # three days later, which takes no time at all
    assert run.step_names == ["charge", "delivery"]


def test_the_right_one_survives_a_crash_everywhere() -> None:
    assert crash_everywhere(shop.right, 999, effects=shop.charges).crashes == 4


def test_a_doubled_effect_is_found() -> None:
    with pytest.raises(NotCrashSafe, match="step 'thank' is not idempotent"):
        crash_everywhere(shop.doubled, "ada", 999, effects=shop.mails)


def test_a_workflow_that_is_not_deterministic_is_found() -> None:
    with pytest.raises(NotCrashSafe, match="not_deterministic is not deterministic"):
        crash_everywhere(shop.not_deterministic)
