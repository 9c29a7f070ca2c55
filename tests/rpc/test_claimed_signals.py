"""Signals that travel with the claim of the run they woke."""

from __future__ import annotations

from msgspec.structs import replace

from kagzi.api.workers import Claim
from kagzi.core.signal import Signal
from kagzi.rpc.limits import ANSWER_BYTES
from kagzi.rpc.server.services.histories import KeptClaims, claims_to_wire
from tests.sdk.test_heartbeat import new_claim


def with_signals(*values: bytes) -> Claim:
    signals = [Signal(key=f"k{n}", seq=n, name="go", value=value, sent_at=n) for n, value in enumerate(values, 1)]
    return replace(new_claim("run", 1), inbox=tuple(signals))


def test_all_signals_of_a_claim_are_sent_or_none() -> None:
    claims = [with_signals(b"1", b"2"), with_signals(b"1", b"2" * ANSWER_BYTES), with_signals()]
    some, large, none = claims_to_wire(claims, KeptClaims())
    assert [(one.key, one.value.data) for one in some.signals] == [("k1", b"1"), ("k2", b"2")]
    assert some.signals_complete
    assert (list(large.signals), large.signals_complete) == ([], False)
    assert (list(none.signals), none.signals_complete) == ([], True)
