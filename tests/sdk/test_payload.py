from __future__ import annotations

import math
import uuid
from collections import deque
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kagzi.core.values import reader, to_json
from kagzi.errors import InvalidRequest, NotSerializable
from kagzi.sdk.signature import Signature, signature_of
from tests.sdk.values import (
    Account,
    Address,
    Approved,
    Breaks,
    Cat,
    Circle,
    Colour,
    Dog,
    Excluding,
    Incomparable,
    Item,
    Left,
    Line,
    Login,
    Mark,
    Model,
    Mood,
    Odd,
    Order,
    Page,
    Person,
    Point,
    Rejected,
    Revealing,
    Right,
    Shape,
    SpecialMark,
    Square,
    Strict,
    SubModel,
    Team,
    function,
)

NOW = datetime(2026, 5, 4, 3, 2, 1, 7, tzinfo=UTC)
ORDER = Order(uuid.UUID(int=7), [Line("a", Decimal("1.10"))], NOW, Colour.BLUE, b"\xff\0", {"x"})

EXAMPLES: list[tuple[Any, Any]] = [
    (int, 1 << 80),
    (float, 1.5),
    (str, "text \0 ☃"),
    (bool, True),
    (None, None),
    (bytes, b"\xff\0"),
    (Decimal, Decimal("1.10")),
    (uuid.UUID, uuid.UUID(int=3)),
    (datetime, NOW),
    (date, NOW.date()),
    (time, time(1, 2, 3)),
    (timedelta, timedelta(days=3, microseconds=5)),
    (Path, Path("/tmp/x")),
    (Colour, Colour.BLUE),
    (Order, ORDER),
    (Order, Order(uuid.UUID(int=1), [], NOW, parent=ORDER)),
    (Address, {"street": "s"}),
    (Point, Point(1, 2.0)),
    (Item, Item("a", (1, 2))),
    (Page[Order], Page([ORDER])),
    (Cat | Dog, Dog("rex")),
    (Person, Person("p", NOW.date())),
    (list[Order], [ORDER]),
    (dict[int, Order], {1: ORDER}),
    (dict[Colour, int], {Colour.RED: 1}),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (tuple[int, str], (1, "a")),
    (tuple[Order, ...], (ORDER, ORDER)),
    (deque[int], deque([1, 2])),
    (Order | None, None),
    (Order | None, ORDER),
    (int | str | list[Order], [ORDER]),
    (Literal["a", 1], 1),
    (Annotated[int, msgspec.Meta(ge=0)], 3),
    (Any, {"a": [1, 2.5, None, "x", True]}),
    (Model, Model(when=NOW, amount=Decimal("2.5"), blob=b"abc")),
    (Strict, Strict(when=NOW)),
    (list[Strict], [Strict(when=NOW)]),
    (dict[str, Model], {"a": Model(when=NOW)}),
    (Model | None, None),
    (Model | int, 3),
    (Model | int, Model(when=NOW)),
    (Approved | Rejected, Rejected("me")),
    (list[Approved | Rejected], [Approved("a"), Rejected("b")]),
    (dict[str, Approved | Rejected | None], {"a": None, "b": Rejected("b")}),
    (Order | dict[str, int], {"a": 1}),
    (Order | dict[str, int], ORDER),
]


@pytest.mark.parametrize(("annotation", "value"), EXAMPLES, ids=lambda x: str(x)[:40])
def test_values_come_back_with_their_types(annotation: Any, value: Any) -> None:
    signature = Signature(function(annotation))
    args, kwargs = signature.decode_arguments(signature.encode_arguments((value,), {}))
    assert (args, kwargs) == ((value,), {})
    assert type(args[0]) is type(value)
    args, kwargs = signature.decode_arguments(signature.encode_arguments((value,), {"other": value}))
    assert (*args, *kwargs.values()) == (value, value)
    data = signature.encode_result(value)
    result = signature.decode_result(data)
    assert result == value
    assert type(result) is type(value)
    assert signature.settle_result(value) == (data, value)
    assert reader(annotation)(to_json(value)) == value


def test_without_annotation_it_is_plain_json() -> None:
    signature = signature_of(lambda value: value)
    assert signature.decode_arguments(signature.encode_arguments(((1, {"a"}),), {})) == (([1, ["a"]],), {})
    assert signature.decode_result(signature.encode_result(Line("a", Decimal("1")))) == {"sku": "a", "price": "1"}
    assert signature.settle_result((1, 2)) == (b"[1,2]", [1, 2])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(value=JSON)
def test_json_data_round_trips(value: Any) -> None:
    signature = signature_of(lambda value: value)
    data, result = signature.settle_result(value)
    assert result == value
    assert signature.decode_result(data) == value
    assert signature.decode_arguments(signature.encode_arguments((value,), {})) == ((value,), {})


# NaN and other things JSON cannot say.


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (math.nan, r"nan at \$,"),
        ([1, {"a": math.inf}], r"inf at \$\[1\]\.a,"),
        (Point(1, -math.inf), r"-inf at \$\[1\],"),
        ({"x": Item("a"), "y": (None, math.nan)}, r"\$\.y\[1\]"),
    ],
)
def test_nan_is_refused_with_its_place(value: Any, place: str) -> None:
    signature = signature_of(lambda value: value)
    for write in (
        signature.encode_result,
        signature.settle_result,
        lambda value: signature.encode_arguments((value,), {}),
    ):
        with pytest.raises(NotSerializable, match=place):
            write(value)


def test_what_has_no_json_form_is_named() -> None:
    def step(first: int, order: Any) -> Any: ...

    signature = Signature(step, name="charge")
    with pytest.raises(NotSerializable, match=r"'order' of charge .* at \$\.a\[1\] is .*values\.Odd"):
        signature.encode_arguments((1, {"a": [1, Odd()]}), {})
    with pytest.raises(NotSerializable, match="'order' of charge"):
        signature.encode_arguments((1,), {"order": Breaks()})
    with pytest.raises(NotSerializable, match=r"the result of charge .*complex"):
        signature.encode_result(1j)
    with pytest.raises(NotSerializable, match=r"\$\.placed is"):
        signature.encode_result(Order(uuid.UUID(int=1), [], Odd()))  # type: ignore[arg-type]
    with pytest.raises(NotSerializable):
        signature.encode_result("\ud800")
    with pytest.raises(NotSerializable):
        signature.settle_result("\ud800")
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(NotSerializable, match="contains itself"):
        signature.encode_result(endless)


def test_a_call_that_was_not_awaited_is_named_and_no_argument_either() -> None:
    async def look_up() -> str:
        return "Ada"

    def greet(name: str, client: Any = None) -> str:
        return name

    class Client:
        def __init__(self) -> None:
            self.answer = call  # its own business

    signature = Signature(greet)
    call = look_up()
    try:
        for forgotten in (call, [1, call], {"who": (call,)}):
            with pytest.raises(NotSerializable, match=r"'name' of .*greet holds the call of an async .*write `await`"):
                signature.encode_input((forgotten,), {})
            with pytest.raises(NotSerializable, match=r"the result of .*greet holds the call of an async function"):
                signature.encode_result(forgotten)
        assert b"Client" in signature.encode_input(("Ada", Client()), {})[0]
    finally:
        call.close()


# What would come back as something else.

PASSWORD = pydantic.SecretStr("hunter2")
LOGIN = Login(user="ada", password=PASSWORD)
SECRETS: list[tuple[Any, Any, str]] = [
    (pydantic.SecretStr, PASSWORD, r"\$ is a pydantic.types.SecretStr"),
    (Login, LOGIN, r"\$\.password is a pydantic.types.SecretStr"),
    (Login, Login(user="a", password=pydantic.SecretStr(""), pin=pydantic.SecretBytes(b"1")), r"\$\.pin is .*Bytes"),
    (Team, Team(logins=[LOGIN]), r"\$\.logins\[0\]\.password is"),
    (list[Login], [LOGIN], r"\$\[0\]\.password is"),
    (dict[str, Login], {"a": LOGIN}, r"\$\.a\.password is"),
    (Any, {"a": (LOGIN,)}, r"\$\.a\[0\]\.password is"),
    (Any, [PASSWORD], r"\$\[0\] is"),
    (Account, Account(PASSWORD), r"\$\.token is"),
]
LOSSES: list[tuple[Any, Any, str]] = [
    (Shape, Circle("c", 2.0), r"\$ is a .*Circle that comes back as a .*Shape without radius.*Shape \| Circle"),
    (Shape, Square("s"), r"\$ is a .*Square that comes back as a .*Shape, because"),
    (list[Shape], [Shape("a"), Circle("c")], r"\$\[1\] is a .*Circle"),
    (dict[str, list[Shape]], {"a": [Circle("c")]}, r"\$\.a\[0\] is a .*Circle"),
    (set[Mark], {SpecialMark(1)}, r"\$\[0\] is a .*SpecialMark that comes back as a .*Mark without special"),
    (Model, SubModel(when=NOW, more=3), r"\$ is a .*SubModel .* without more"),
    (Team, Team.model_construct(boss=SubModel(when=NOW)), r"\$\.boss is a .*SubModel"),
    (Page[Shape], Page([Circle("c")]), r"\$\.items\[0\] is a .*Circle"),
    (Address, {"street": "s", "floor": 3}, r"\$\.floor is a value that the annotation \(TypedDict\) has no field for"),
    (Shape, {"name": "s", "colour": "red"}, r"\$\.colour is a value that the annotation \(.*Shape\) has no field"),
    (Excluding, Excluding(left_out=3), r"\$\.left_out is a int that comes back as another value"),
    (dict[str, int], {1: 1, "1": 2}, r"\$ is a mapping of which two keys are the same"),
    (float, 2**53 + 1, r"\$ is a int that comes back as another value"),
]


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize(("annotation", "value", "place"), SECRETS + LOSSES, ids=lambda x: str(x)[:40])
def test_what_would_come_back_as_something_else_is_refused(annotation: Any, value: Any, place: str) -> None:
    signature = Signature(function(annotation), name="charge")
    for write, what in [
        (lambda: signature.encode_arguments((value,), {}), "argument 'value'"),
        (lambda: signature.settle_input((value,), {}), "argument 'value'"),
        (lambda: signature.settle_input((), {"value": value}), "argument 'value'"),
        (lambda: signature.encode_result(value), "the result"),
        (lambda: signature.settle_result(value), "the result"),
    ]:
        with pytest.raises(NotSerializable, match=rf"{what} of charge does not survive being stored: at {place}") as no:
            write()  # type: ignore[no-untyped-call]
        assert "hunter2" not in str(no.value)


@pytest.mark.parametrize(
    ("annotation", "value", "copy"),
    [
        (list[int], (1, 2), [1, 2]),
        (list[int], {1}, [1]),
        (set[int], [1, 1], {1}),
        (float, 3, 3.0),
        (Decimal, 0.1, Decimal("0.1")),
        (uuid.UUID, str(uuid.UUID(int=1)), uuid.UUID(int=1)),
        (datetime, "2026-05-04T03:02:01.000007Z", NOW),
        (Shape, {"name": "s"}, Shape("s")),
        (Cat | Dog, {"type": "Dog", "name": "rex"}, Dog("rex")),
        (Model, {"when": NOW}, Model(when=NOW)),
        (dict[str, object], {"a": (1, {2: None})}, {"a": [1, {"2": None}]}),
        (list[object], [Line("a", Decimal("1")), "x"], [{"sku": "a", "price": "1"}, "x"]),
        (str | dict[str, object] | None, {"a": 1}, {"a": 1}),
        (deque[object], deque([1, (2,)]), deque([1, [2]])),
        (list[Any], [Line("a", Decimal("1")), (1,), {1: 2}], [{"sku": "a", "price": "1"}, [1], {"1": 2}]),
        (Shape | Circle, Circle("c", 2.0), Circle("c", 2.0)),
        (str, Mood.GOOD, "good"),
        (Path, "/tmp/x", Path("/tmp/x")),
        (dict[str, Any], {"note": "**********"}, {"note": "**********"}),
        (Revealing, Revealing(token=PASSWORD), Revealing(token=PASSWORD)),
        (Login, Login(user="a", password=pydantic.SecretStr("")), Login(user="a", password=pydantic.SecretStr(""))),
    ],
    ids=lambda x: str(x)[:40],
)
def test_what_the_annotation_makes_of_a_value_is_meant(annotation: Any, value: Any, copy: Any) -> None:
    signature = Signature(function(annotation))
    assert signature.settle_input((value,), {})[2] == (copy,)
    assert signature.decode_arguments(signature.encode_arguments((value,), {})) == ((copy,), {})
    assert signature.settle_result(value)[1] == copy
    signature.encode_result(value)


def test_secrets_are_found_in_values_that_contain_themselves() -> None:
    endless: list[Any] = []
    endless += [endless, endless]
    signature = Signature(function(Any), name="charge")
    assert signature.settle_input((endless,), {})[1] == 0  # recorded by its repr, and passed as it is
    endless.append({"a": LOGIN})
    with pytest.raises(NotSerializable, match=r"\$\[2\]\.a\.password is a pydantic.types.SecretStr"):
        signature.settle_input((endless,), {})


def test_what_cannot_be_compared_is_not_refused() -> None:
    private = Excluding(kept=1)
    private._private = 7
    not_a_number = Decimal("NaN")
    for annotation, value in [
        (Incomparable, Incomparable(1, (1, 2))),
        (Excluding, private),
        (Decimal, not_a_number),
        (list[Decimal], [not_a_number]),
    ]:
        signature = Signature(function(annotation))
        signature.settle_input((value,), {})
        signature.encode_result(value)


def test_a_single_value_is_no_list_of_one() -> None:
    def many(items: list[int]) -> None: ...
    def named(*, counts: dict[str, int]) -> None: ...
    def optional(items: list[int] | None = None) -> None: ...

    for signature, args, kwargs in [
        (Signature(many, name="f"), (5,), {}),
        (Signature(optional, name="f"), (5,), {}),
        (Signature(named, name="f"), (), {"counts": 5}),
    ]:
        for write in (signature.encode_arguments, signature.settle_input):
            with pytest.raises(InvalidRequest, match=r"argument '\w+' of f cannot be read as .*\[.*got `int`"):
                write(args, kwargs)  # type: ignore[operator]
        signature.encode_arguments(([5],) if args else (), {} if args else {"counts": {"counts": 5}})


def test_members_of_a_union_that_look_alike_are_refused_when_they_matter() -> None:
    def choose(value: Left | Right) -> Left | Right: ...

    signature = signature_of(choose)
    assert signature.decode_result(signature.encode_result(Left(1))) == Left(1)
    with pytest.raises(NotSerializable, match="look alike"):
        signature.encode_result(Right(1))
    with pytest.raises(NotSerializable, match=r"'value' .*look alike"):
        signature.encode_arguments((Right(1),), {})
