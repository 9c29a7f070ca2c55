"""Many worlds, each disturbed in its own way: everything that must hold, holds in all of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kagzi.testing.simulation.campaign import Campaign
from tests.simulation.seeds import BATCHES, BULK_SEEDS, batch


@pytest.mark.timeout(600)  # a batch takes half a minute where nothing else runs
@pytest.mark.parametrize("number", range(BATCHES))
def test_a_batch_of_worlds(number: int) -> None:
    check(Campaign(), batch(number))


@pytest.mark.timeout(600)
def test_worlds_with_jobs_and_debounced_starts() -> None:
    check(Campaign(bulk=True), BULK_SEEDS)


def check(campaign: Campaign, seeds: Sequence[int]) -> None:
    campaign.run(seeds)

    if campaign.failed:
        failed = campaign.failed[0]
        story = "\n".join(failed.lines[-40:])
        pytest.fail(
            f"{story}\n\nseed {failed.seed}: {failed.error}\n"
            f"again, with everything: python -m kagzi.testing.simulation {campaign.again(failed.seed)} --log",
            pytrace=False,
        )
    assert campaign.seeds == len(seeds)
    absent = campaign.missing()
    assert not absent, "this batch does not count, because in none of its worlds occurred: " + ", ".join(absent)
