"""Namespaces: making, listing, describing, disabling."""

from __future__ import annotations

from kagzi.core.instant import SECOND
from kagzi.core.namespace import Namespace
from kagzi.testing.conformance.bench import NAMESPACE, Bench


class TestNamespaces:
    async def test_one_is_made_once(self, bench: Bench) -> None:
        made = await bench.store.namespaces.create("team-made", "Team", "For the team")
        assert made == Namespace(
            namespace="team-made",
            display_name="Team",
            description="For the team",
            enabled=True,
            created_at=bench.now(),
            updated_at=bench.now(),
        )
        assert await bench.store.namespaces.create("team-made", "Other", "") is None
        assert await bench.store.namespaces.get("team-made") == made
        assert await bench.store.namespaces.get("nobody") is None

    async def test_the_default_is_always_there(self, bench: Bench) -> None:
        found = await bench.store.namespaces.get(NAMESPACE)
        assert found is not None
        assert found.enabled

    async def test_what_is_not_said_stays(self, bench: Bench) -> None:
        made = await bench.store.namespaces.create("team-changed", "Team", "Old")
        assert made is not None
        bench.clock.advance(SECOND)
        changed = await bench.store.namespaces.update("team-changed", None, "New", None)
        assert changed is not None
        assert (changed.display_name, changed.description, changed.enabled) == ("Team", "New", True)
        assert (changed.created_at, changed.updated_at) == (made.created_at, bench.now())
        assert await bench.store.namespaces.update("nobody", "x", None, None) is None

    async def test_disabled_ones_are_told(self, bench: Bench) -> None:
        await bench.store.namespaces.create("team-disabled", "", "")
        await bench.store.namespaces.update("team-disabled", None, None, False)
        assert "team-disabled" in await bench.store.namespaces.disabled()
        await bench.store.namespaces.update("team-disabled", None, None, True)
        assert "team-disabled" not in await bench.store.namespaces.disabled()

    async def test_they_are_listed_by_name(self, bench: Bench) -> None:
        names = ["list-B", "list-a", "list-é", "list-Z"]
        for name in names:
            await bench.store.namespaces.create(name, "", "")
        listed = [found.namespace for found in await bench.store.namespaces.page("list-", 100)]
        assert [name for name in listed if name.startswith("list-")] == ["list-B", "list-Z", "list-a", "list-é"]
        assert [found.namespace for found in await bench.store.namespaces.page("list-Z", 1)] == ["list-a"]
