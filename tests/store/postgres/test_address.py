from __future__ import annotations

import pytest

from kagzi.connect import make_store
from kagzi.errors import InvalidRequest
from kagzi.settings import mask_url
from kagzi.store.postgres.address import CONNECT_SECONDS, Address, read_address


@pytest.mark.parametrize(
    ("url", "servers"),
    [
        ("postgresql://kim:pw@a/shop", ["postgresql://kim:pw@a/shop"]),
        (
            "postgresql://kim:p%40w@a:5432,b:5433,[::1]:5434/shop?sslmode=require&target_session_attrs=read-write",
            [f"postgresql://kim:p%40w@{host}/shop?sslmode=require" for host in ("a:5432", "b:5433", "[::1]:5434")],
        ),
        ("postgres://a,b", ["postgres://a", "postgres://b"]),
        (
            "postgresql:///shop?host=a,b&port=1,2",
            ["postgresql:///shop?host=a&port=1", "postgresql:///shop?host=b&port=2"],
        ),
        (
            "postgresql://kim@/shop?host=/run/pg,b&port=1",
            ["postgresql://kim@/shop?host=%2Frun%2Fpg&port=1", "postgresql://kim@/shop?host=b&port=1"],
        ),
        ("postgresql:///shop", ["postgresql:///shop"]),
    ],
)
def test_every_server_has_a_url_of_its_own(url: str, servers: list[str]) -> None:
    assert list(read_address(url).servers) == servers


def test_options_for_us_are_not_passed_on() -> None:
    address = read_address("postgresql://a,b/shop?pgbouncer=true&connect_timeout=3&target_session_attrs=primary")
    assert address == Address(("postgresql://a/shop", "postgresql://b/shop"), "a,b/shop", True, 3.0)
    assert read_address("postgresql://kim:hunter2@a/shop").where == "a/shop as kim"
    assert read_address("postgresql://a/shop").connect_seconds == CONNECT_SECONDS


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://kim:hunter2@a:54x2,b/shop", "malformed"),
        ("postgresql://kim:hunter2@a,b:99999/shop", "malformed"),
        ("postgresql://kim:hunter2@[::1/shop", "malformed"),
        ("postgresql://kim:hunter2@a/shop?nonsense", "malformed"),
        ("mysql://kim:hunter2@a/shop", "begins with postgresql://"),
        ("postgresql://kim:hunter2@a/shop?target_session_attrs=standby", "must be read-write"),
        ("postgresql://kim:hunter2@a/shop?connect_timeout=soon", "number of seconds"),
        ("postgresql://kim:hunter2@a/shop?pgbouncer=maybe", "true, false or auto"),
        ("postgresql://kim:hunter2@/shop?host=a,b,c&port=1,2", "as many as it has hosts"),
    ],
)
def test_what_cannot_be_used_is_said_without_the_password(url: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        read_address(url)
    assert "hunter2" not in str(caught.value)


def test_a_url_with_several_hosts_is_accepted_and_shown_without_its_password() -> None:
    url = "postgresql://kim:hunter2@a:5432,b:5433/shop?target_session_attrs=read-write"
    assert mask_url(url) == "postgresql://kim:***@a:5432,b:5433/shop?target_session_attrs=read-write"
    make_store(url)
