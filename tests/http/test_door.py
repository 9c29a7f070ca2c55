"""Proxies before the port: who the peer is, and which pages are our own."""

from __future__ import annotations

from typing import Any

import pytest

from kagzi.errors import InvalidRequest
from kagzi.http.door import Door, read_proxies
from kagzi.ports.keyless import Keyless

PROXIES = read_proxies("10.0.0.0/8, 127.0.0.1,::1")


@pytest.mark.parametrize(
    ("client", "forwarded", "peer"),
    [
        ("10.1.2.3", ["203.0.113.9"], "203.0.113.9"),
        ("10.1.2.3", ["198.51.100.1, 203.0.113.9, 10.4.4.4"], "203.0.113.9"),  # what stands before was sent by the peer
        ("10.1.2.3", ["198.51.100.1", "203.0.113.9"], "203.0.113.9"),
        ("127.0.0.1", ["2001:db8::7"], "2001:db8::7"),
        ("10.1.2.3", [], "10.1.2.3"),
        ("10.1.2.3", ["unknown"], "10.1.2.3"),
        ("10.1.2.3", ["x, 10.9.9.9"], "10.9.9.9"),
        ("203.0.113.9", ["198.51.100.1"], "203.0.113.9"),  # anybody can send the header
    ],
)
def test_the_word_of_trusted_proxies_alone_is_taken(client: str, forwarded: list[str], peer: str) -> None:
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    scope: dict[str, Any] = {"type": "http", "client": (client, 5), "headers": headers}
    Door(Keyless.NOBODY, proxies=PROXIES).see(scope)
    assert scope["client"][0] == peer
    untouched = {**scope, "client": (client, 5)}
    Door(Keyless.NOBODY).see(untouched)
    assert untouched["client"] == (client, 5)


@pytest.mark.parametrize("text", ["10.0.0.1/8", "kagzi.example", "10.0.0.0/33"])
def test_proxies_that_cannot_be_read_are_told(text: str) -> None:
    with pytest.raises(InvalidRequest, match="KAGZI_TRUSTED_PROXIES"):
        read_proxies(text)


def test_pages_under_the_public_address_are_our_own() -> None:
    door = Door(Keyless.NOBODY, public_url="https://Kagzi.example:443/runs")
    for origin, own in (
        ("https://kagzi.example", True),
        ("http://kagzi.example", False),
        ("https://kagzi.example:99999", False),
        ("http://127.0.0.1:8420", True),
        ("https://kagzi.example:8443", False),
        ("https://evil.example", False),
        ("null", False),
        ("", False),
    ):
        assert door.is_own(origin, "127.0.0.1:8420") is own, origin
    assert not Door(Keyless.NOBODY).is_own("https://kagzi.example", "127.0.0.1:8420")
