from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.faults.processes import LEASE, Site
from tests.warm import Warm

MakeSite: TypeAlias = Callable[..., Site]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.faults)


@pytest.fixture
def make_site(tmp_path: Path, warm: Warm) -> Iterator[MakeSite]:
    """Sites whose worker processes end with the test; their logs are shown if it fails."""
    sites: list[Site] = []

    def make(url: str, **settings: Any) -> Site:
        site = Site(tmp_path, url, warm, **settings)
        sites.append(site)
        return site

    yield make
    for site in sites:
        site.close()
        print(site.logs())


@pytest.fixture
def site(url: str, make_site: MakeSite) -> Site:
    """With leases short enough to wait for their end, and longer than a busy machine keeps a worker waiting."""
    return make_site(url, lease=f"{LEASE:g}s")
