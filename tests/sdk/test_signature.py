from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kagzi
from kagzi.errors import InvalidRequest
from kagzi.sdk.payload import decode
from kagzi.sdk.signature import Signature, signature_of
from tests.sdk.values import CONTEXT, Breaks, Line, Model, Odd, Order, function

if TYPE_CHECKING:
    from somewhere_else import Unseen  # type: ignore[import-not-found]


def example(a: int, b: str = "b", *rest: float, key: Order | None = None, **more: bool) -> None: ...


def test_wrong_calls_fail_like_pythons_own() -> None:
    def two(a: int, b: int) -> None: ...

    signature = Signature(two, name="two")
    for args, kwargs in [((), {}), ((1,), {}), ((1, 2, 3), {}), ((1,), {"c": 2}), ((1,), {"a": 1}), ((1, 2), {"c": 1})]:
        with pytest.raises(TypeError, match=r"^two\(\) "):
            signature.encode_arguments(args, kwargs)
    with pytest.raises(TypeError, match="missing"):
        Signature(function(int)).encode_input((), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "stored"),
    [
        ((1,), {}, b"[1]"),
        ((1, "x", 2.0, 3.0), {}, b'[1,"x",2.0,3.0]'),
        ((1,), {"key": None}, b'{"a":1,"key":null}'),
        ((1, "x", 2.0), {"flag": True}, b'{"a":1,"b":"x","rest":[2.0],"flag":true}'),
        ((), {"a": 1, "other": False}, b'{"a":1,"other":false}'),
    ],
)
def test_stars(args: tuple[Any, ...], kwargs: dict[str, Any], stored: bytes) -> None:
    signature = Signature(example)
    assert signature.encode_arguments(args, kwargs) == stored
    again = signature.decode_arguments(stored)

    def bound(a: Any, b: Any = "b", *rest: Any, key: Any = None, **more: Any) -> Any:
        return a, b, rest, key, more

    assert bound(*again[0], **again[1]) == bound(*args, **kwargs)


def test_positional_only_and_gaps() -> None:
    def gaps(a: int, /, b: int = 2, c: int = 3, *, d: int = 4) -> Any:
        return a, b, c, d

    signature = Signature(gaps)
    assert signature.encode_arguments((1,), {"c": 9}) == b'{"a":1,"c":9}'
    assert signature.decode_arguments(b'{"a":1,"c":9}') == ((1,), {"c": 9})
    assert signature.encode_arguments((1,), {"c": 9, "b": 8}) == b"[1,8,9]"
    assert signature.decode_arguments(b"[1]") == ((1,), {})
    with pytest.raises(TypeError):
        signature.encode_arguments((), {"a": 1})


def test_arguments_from_elsewhere() -> None:
    def one(order: Line) -> None: ...
    def many(items: list[int]) -> None: ...
    def optional(n: int = 1) -> None: ...
    def none() -> None: ...
    def two(a: int, b: int = 2) -> None: ...

    line = Line("a", Decimal("1"))
    for data in (
        b'[{"sku":"a","price":"1"}]',
        b'{"order":{"sku":"a","price":"1"}}',
        b' {"sku":"a","price":"1"}',
    ):
        args, kwargs = Signature(one).decode_arguments(data)
        assert (*args, *kwargs.values()) == (line,)
    assert Signature(many).decode_arguments(b"[[1,2]]") == (([1, 2],), {})
    assert Signature(many).decode_arguments(b"[1,2]") == (([1, 2],), {})
    assert Signature(many).decode_arguments(b"[5]") == (([5],), {})
    assert Signature(optional).decode_arguments(b"null") == ((), {})
    assert Signature(optional).decode_arguments(b"7") == ((7,), {})
    for data in (b"null", b"[]", b"{}"):
        assert Signature(none).decode_arguments(data) == ((), {})
    assert Signature(two).decode_arguments(b'{"b":1,"a":3}') == ((), {"a": 3, "b": 1})
    for data, error in [
        (b"null", TypeError),
        (b"[]", TypeError),
        (b"[1,2,3]", TypeError),
        (b'{"b":1}', TypeError),
        (b'{"a":1,"z":1}', TypeError),
        (b'["x"]', InvalidRequest),
        (b'{"a":"x"}', InvalidRequest),
        (b"[1", InvalidRequest),
        (b"", TypeError),
        (b"[" * 100_000, InvalidRequest),
        (b'["\xff"]', InvalidRequest),
    ]:
        with pytest.raises(error):
            Signature(two, name="two").decode_arguments(data)


@given(data=st.binary())
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for signature in (Signature(example), Signature(function(Order)), Signature(function(Model | int))):
        try:
            args, kwargs = signature.decode_arguments(data)
        except (TypeError, InvalidRequest):
            continue
        assert isinstance(args, tuple)
        assert isinstance(kwargs, dict)


@given(a=st.integers(), b=st.text(), c=st.lists(st.integers()), d=st.booleans(), split=st.integers(0, 4))
def test_one_call_has_one_form(a: int, b: str, c: list[int], d: bool, split: int) -> None:
    def call(a: int, b: str, c: list[int], d: bool) -> tuple[Any, ...]:
        return a, b, c, d

    signature = signature_of(call)
    values = {"a": a, "b": b, "c": c, "d": d}
    args = tuple(list(values.values())[:split])
    kwargs = dict(reversed(list(values.items())[split:]))
    data = signature.encode_arguments(args, kwargs)
    assert data == signature.encode_arguments(tuple(values.values()), {})
    again_args, again_kwargs = signature.decode_arguments(data)
    assert call(*again_args, **again_kwargs) == call(*args, **kwargs)


def test_step_arguments_that_cannot_be_written_are_recorded_by_their_repr() -> None:
    def step(session: Odd, n: int, *, other: Any = None) -> None: ...

    signature = Signature(step)
    assert signature.encode_input((Odd(), 2), {}) == signature.encode_input((Odd(), 2), {})
    data, decodable = signature.encode_input((Odd(), 2), {"other": Breaks()})
    assert not decodable
    assert " at 0x" not in decode(data)
    assert decode(data).endswith("Breaks>)")
    data, decodable = signature.encode_input((Odd(), "x" * 100_000), {})
    assert len(data) < 3000
    assert signature_of(lambda n: n).settle_input((1,), {})[:2] == (b"[1]", crc32(b"[1]"))


def test_a_result_that_belies_its_annotation_is_refused() -> None:
    def wrong() -> int: ...

    signature = Signature(wrong, name="wrong")
    with pytest.raises(InvalidRequest, match="the result of wrong cannot be read as int"):
        signature.settle_result("text")


# Annotations.


async def with_context(ctx: kagzi.Context, n: int) -> int:
    return n


def unseen(a: Unseen, b: int, c: list[Unseen]) -> Unseen: ...


def test_the_context_is_left_out() -> None:
    signature = Signature(with_context)
    assert signature.context_class is kagzi.Context
    assert signature.encode_arguments((3,), {}) == b"[3]"
    assert signature.decode_arguments(b"[3]") == ((3,), {})
    assert Signature(function(Any)).context_class is None


def test_a_context_for_checkers_only_is_left_out() -> None:
    def quoted(ctx: Context, n: int) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert Signature(quoted).context_class is kagzi.Context


def test_annotations_that_cannot_be_resolved_are_plain_and_somebody_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    signature = Signature(unseen)
    with caplog.at_level(logging.WARNING, "kagzi"):
        data = signature.encode_arguments(({"x": 1}, 2, []), {})
    assert signature.decode_arguments(data) == (({"x": 1}, 2, []), {})
    assert signature.decode_result(signature.encode_result((1, 2))) == [1, 2]
    assert "Unseen" in caplog.text
    with pytest.raises(InvalidRequest, match="'b'"):  # the others still count
        signature.decode_arguments(b'[1,"x",2]')


def test_local_types_are_found_where_they_are_given() -> None:
    @dataclass
    class Local:
        n: int

    def step(value: Local) -> Local: ...

    signature = Signature(step, localns={"Local": Local})
    assert signature.decode_arguments(signature.encode_arguments((Local(1),), {})) == ((Local(1),), {})


def test_signatures_of_odd_callables() -> None:
    class Caller:
        def __call__(self, n: int) -> str: ...
        def method(self, n: int) -> str: ...

    for fn in (Caller(), Caller().method, partial(example, 1, "b"), len, print, int, min):
        signature = signature_of(fn)
        assert signature.decode_arguments(signature.encode_arguments((1,), {})) == ((1,), {})


def test_inline_signatures_are_kept_by_code_but_not_confused() -> None:
    def make(annotation: Any) -> Callable[..., Any]:
        def inner(value):  # type: ignore[no-untyped-def]
            """Annotated below."""

        inner.__annotations__ = {"value": annotation}
        return inner

    assert signature_of(make(int)) is signature_of(make(int))
    assert signature_of(make(Decimal)).decode_arguments(b'["1"]') == ((Decimal(1),), {})
    assert signature_of(make(str)).decode_arguments(b'["1"]') == (("1",), {})


class Zip:
    def encode(self, data: bytes, context: kagzi.PayloadContext) -> bytes:
        return zlib.compress(data)

    def decode(self, data: bytes, context: kagzi.PayloadContext) -> bytes:
        return zlib.decompress(data)


class Salted:
    """Other bytes every time, as an encrypting codec with a random nonce gives them."""

    def __init__(self) -> None:
        self.count = 0

    def encode(self, data: bytes, context: kagzi.PayloadContext) -> bytes:
        self.count += 1
        return bytes([self.count]) + data

    def decode(self, data: bytes, context: kagzi.PayloadContext) -> bytes:
        return data[1:]


def test_the_hash_of_an_input_is_that_of_its_json_whatever_the_codec_makes_of_it() -> None:
    def step(n: int) -> int: ...

    salted = Signature(step, codec=Salted())
    first, second = salted.encode_input_strictly((1,), {}), salted.encode_input_strictly((1,), {})
    assert first == second == salted.settle_input((1,), {})[:2] == Signature(step).settle_input((1,), {})[:2]
    assert salted.settle_input((2,), {})[1] != first[1]
    assert salted.encode_arguments((1,), {}, CONTEXT) != salted.encode_arguments((1,), {}, CONTEXT)


def test_a_codec_wraps_every_payload() -> None:
    def step(n: int, odd: Any = None) -> int: ...

    signature = Signature(step, codec=Zip())
    for data in (signature.encode_arguments((1,), {}, CONTEXT), signature.encode_result(1, CONTEXT)):
        assert zlib.decompress(data) in (b"[1]", b"1")
    seal = signature.seal
    assert seal is not None
    assert b"Odd" in zlib.decompress(seal(signature.encode_input((1, Odd()), {})[0], CONTEXT))
    assert signature.decode_arguments(signature.encode_arguments((1,), {}, CONTEXT), CONTEXT) == ((1,), {})
    assert signature.decode_result(signature.encode_result(1, CONTEXT), CONTEXT) == 1
    data, value = signature.settle_result(5, CONTEXT)
    assert (zlib.decompress(data), value) == (b"5", 5)
    plain = signature_of(step)
    assert plain.with_codec(Zip()).encode_result(1, CONTEXT) == zlib.compress(b"1")
    assert plain.encode_result(1) == b"1"


def test_a_method_and_its_function_are_not_mixed_up() -> None:
    class Shop:
        def price(self, cents):  # type: ignore[no-untyped-def]
            return cents

    assert signature_of(Shop().price).encode_arguments((5,), {}) == b"[5]"
    assert signature_of(Shop.price).encode_arguments((1, 5), {}) == b"[1,5]"
    with pytest.raises(TypeError, match="too many"):
        signature_of(Shop().price).encode_arguments((1, 5), {})


# Which calls are the same.


@dataclass
class Ratio:
    by: float


def _rates(amount: float, *, rate: float = 1, by: dict[str, float] | None = None) -> None: ...


def _untyped(a, b=(1, 2)): ...  # type: ignore[no-untyped-def]


def _names(names: set[str], more: list[set[str]] | None = None) -> None: ...


def _plain(a: int, b: int = 5, c: str = "c") -> None: ...


def _ratio(ratio: Ratio, *rest: float, **more: float) -> None: ...


SAME_CALLS: list[tuple[Callable[..., None], list[tuple[tuple[Any, ...], dict[str, Any]]]]] = [
    (_plain, [((1,), {}), ((1, 5), {}), ((1, 5, "c"), {}), ((), {"a": 1}), ((1,), {"c": "c"}), ((), {"b": 5, "a": 1})]),
    (_plain, [((1, 5, "d"), {}), ((1,), {"c": "d"})]),
    (_rates, [((1,), {}), ((1.0,), {"rate": 1}), ((1,), {"rate": 1.0, "by": None}), ((), {"amount": 1.0})]),
    (_rates, [((1,), {"by": {"a": 1, "b": 2}}), ((1.0,), {"by": {"b": 2.0, "a": 1.0}})]),
    (_untyped, [(({"a": 1, "b": 2},), {}), (({"b": 2, "a": 1}, (1, 2)), {}), (({"b": 2, "a": 1}, [1, 2]), {})]),
    (_names, [(({"a", "b"},), {}), ((["b", "a"],), {}), (({"b", "a"}, None), {})]),
    (
        _ratio,
        [
            ((Ratio(1), 2), {"x": 3, "y": 4}),
            ((Ratio(1.0), 2.0), {"y": 4.0, "x": 3.0}),
            (({"by": 1}, 2), {"x": 3, "y": 4}),
        ],
    ),
]
OTHER_CALLS: list[tuple[Callable[..., None], list[tuple[tuple[Any, ...], dict[str, Any]]]]] = [
    (_plain, [((1,), {}), ((1, 6), {}), ((1, 5, "d"), {}), ((2,), {})]),
    (_untyped, [((1,), {}), ((1.5,), {}), ((True,), {}), (("1",), {}), ((None,), {}), ((1, (2, 1)), {})]),
    (_ratio, [((Ratio(1),), {}), ((Ratio(1), 1), {}), ((Ratio(1),), {"x": 1})]),
    (_names, [((set(),), {}), (({"a"},), {}), (({"a", "b"},), {}), (({"a"}, []), {}), (({"a"}, [{"a"}]), {})]),
]


@pytest.mark.parametrize("number", range(len(SAME_CALLS)))
def test_calls_that_do_the_same_are_the_same_to_a_replay_and_to_a_start(number: int) -> None:
    fn, calls = SAME_CALLS[number]
    signature = Signature(fn)
    assert len({signature.settle_input(args, kwargs)[1] for args, kwargs in calls}) == 1
    assert len({signature.encode_input_strictly(args, kwargs)[1] for args, kwargs in calls}) == 1
    assert len({signature.canonical_arguments(signature.encode_arguments(args, kwargs)) for args, kwargs in calls}) == 1
    assert len({signature.canonical_call(args, kwargs) for args, kwargs in calls}) == 1


@pytest.mark.parametrize("number", range(len(OTHER_CALLS)))
def test_calls_that_do_something_else_are_not(number: int) -> None:
    fn, calls = OTHER_CALLS[number]
    signature = Signature(fn)
    assert len({signature.settle_input(args, kwargs)[1] for args, kwargs in calls}) == len(calls)
    assert len({signature.canonical_call(args, kwargs) for args, kwargs in calls}) == len(calls)


def test_a_recorded_call_stays_the_same_when_its_function_gets_another_default() -> None:
    def before(a: int, b: int = 1) -> None: ...

    def after(a: int, b: int = 1, c: dict[str, float] | None = None) -> None: ...

    for args in ((1,), (1, 2)):
        assert Signature(before).settle_input(args, {})[1] == Signature(after).settle_input(args, {})[1]
        assert Signature(before).settle_input(args, {})[1] == crc32(msgspec.json.encode(args))


def test_dicts_are_stored_in_the_order_of_their_program() -> None:
    def step(by: dict[str, set[int]], other: Any) -> dict[str, Any]: ...

    signature = Signature(step)
    given = {"b": {3, 1, 2}, "a": {1}}
    args, _ = signature.decode_arguments(signature.encode_arguments((given, given), {}))
    assert [list(each) for each in args] == [["b", "a"]] * 2
    assert list(signature.decode_result(signature.encode_result(given))) == ["b", "a"]


def test_a_schedule_that_is_declared_alike_is_the_same_declaration() -> None:
    hashes = set()
    for kwargs in (
        {"by": {"a": 1, "b": 2}},
        {"by": {"b": 2.0, "a": 1.0}, "rate": 1},
        {"by": {"b": 2, "a": 1}, "rate": 1.0},
    ):
        app = kagzi.Kagzi("memory://")

        @app.workflow(schedule=kagzi.Cron("0 9 * * *", args=[1], kwargs=kwargs))
        async def nightly(amount: float, rate: float = 1, by: dict[str, float] | None = None) -> None: ...

        hashes.add(app.declared_schedules()[0].hash)
    assert len(hashes) == 1
