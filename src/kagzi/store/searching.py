"""How far a listing looks for runs that match its filter.

A filter that nothing matches would read the whole table, ten seconds for ten million runs, and be interrupted. So a
listing looks at a bounded number of runs beyond its cursor and says how far it came; the caller goes on from there if
it wants to. It looks at few first, because most pages are full after those. Where the looking ends is found before the
runs are read, so that runs which are deleted meanwhile do not move that border over runs nobody has looked at.
"""

from __future__ import annotations

from typing import Final

from kagzi.api.workflows import RunFilter

BITES: Final = (1_000, 19_000)


def is_search(filter: RunFilter) -> bool:
    """Says whether runs may have to be passed over. Those without a filter are what is listed."""
    return filter != RunFilter(namespace=filter.namespace)
