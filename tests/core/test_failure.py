from __future__ import annotations

import asyncio
import json
import re
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kagzi.core.error_kind import ErrorKind
from kagzi.core.exceptions import exception_of, failure_of
from kagzi.core.failure import (
    DEPTH,
    MEMBERS,
    MESSAGE_CHARACTERS,
    NESTING,
    TOTAL_CHARACTERS,
    Failure,
    check_failure,
)
from kagzi.errors import (
    InvalidRequest,
    NonDeterminismError,
    NonRetryable,
    NotSerializable,
    RetryAfter,
    StepFailed,
    StepTimeout,
    Unavailable,
    WorkflowFailed,
)
from tests.sdk.values import Colour, Line, Model, Order, Person


def stored(exc: BaseException) -> Failure:
    return Failure.decode(failure_of(exc).encode())


def rebuilt(exc: BaseException) -> Exception:
    return exception_of(stored(exc))


class ApiError(Exception):
    def __init__(self, message: str, status: int, response: object = None) -> None:
        super().__init__(message)
        self.status = status
        self.response = response


class Declined(NonRetryable):
    kind = ErrorKind.VALIDATION


@dataclass
class Refused(Exception):
    code: str
    amount: int


class Slotted(Exception):
    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


class WithNew(Exception):
    def __new__(cls, *args: Any) -> WithNew:
        assert not cls.forbidden
        return super().__new__(cls, *args)

    def __init__(self, *args: Any) -> None:
        assert not self.forbidden
        super().__init__(*args)

    forbidden = False


class Outer:
    class Inner(ValueError):
        pass


@pytest.mark.parametrize(
    "exc",
    [
        ValueError("x"),
        KeyError("key"),
        KeyError(("a", 1)[0]),
        ZeroDivisionError(),
        FileNotFoundError(2, "No such file", "orders.csv"),
        ConnectionResetError(104, "reset"),
        UnicodeDecodeError("utf-8", b"\xff\xfe", 0, 1, "invalid start byte"),
        ImportError("no module", name="shop"),
        StepTimeout("slow"),
        Outer.Inner("nested class"),
        Refused("do_not_honour", 3),
        RetryAfter("busy", "30s"),
        json.JSONDecodeError("bad", "{", 1),
    ],
    ids=lambda exc: type(exc).__name__,
)
def test_common_exceptions_come_back_as_they_were(exc: Exception) -> None:
    again = rebuilt(exc)
    assert type(again) is type(exc)
    assert str(again) == str(exc)
    assert again.args == exc.args


def test_attributes_survive_without_the_constructor() -> None:
    error = ApiError("teapot", 418, response=object())
    error.add_note("while brewing")
    again = rebuilt(error)
    assert isinstance(again, ApiError)
    assert (str(again), again.status, again.__notes__) == ("teapot", 418, ["while brewing"])
    assert not hasattr(again, "response")  # an object has no JSON form; see below
    slotted = rebuilt(Slotted(7))
    assert isinstance(slotted, Slotted)
    assert slotted.code == 7
    os_error = rebuilt(FileNotFoundError(2, "gone", "a", None, "b"))
    assert isinstance(os_error, FileNotFoundError)
    assert (os_error.errno, os_error.filename, os_error.filename2) == (2, "a", "b")


VALUES: list[Any] = [
    Decimal("9.90"),
    datetime(2026, 5, 4, 3, 2, 1, 7, tzinfo=UTC),
    date(2026, 5, 4),
    time(3, 2),
    timedelta(days=3, microseconds=1),
    uuid.UUID(int=7),
    b"\xff\0",
    Path("/tmp/x"),
    1 << 80,
    (1, "a"),
    {1, 2},
    frozenset({"a"}),
    Colour.BLUE,
    {"a": [Decimal("1"), (b"x",)], "b": {"c": {Decimal("2")}}},
    {"$decimal": "no decimal"},
    {"$dict": {"$bytes": "!"}},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_come_back_in_arguments_and_attributes_without_annotations(value: Any) -> None:
    error = ValueError("x", value)
    error.value = value  # type: ignore[attr-defined]
    slotted = rebuilt(Slotted(value))
    again = rebuilt(error)
    assert (again.args[1], again.value, slotted.code) == (value, value, value)  # type: ignore[attr-defined]
    assert type(again.value) is type(value)  # type: ignore[attr-defined]
    group = ExceptionGroup("g", [error])
    group.value = value  # type: ignore[attr-defined]
    assert rebuilt(group).value == value  # type: ignore[attr-defined]


class CardDeclined(Exception):
    limits: dict[int, Decimal]

    def __init__(
        self, order: Order, *, person: Person | None = None, model: Model | None = None, tags: Any = ()
    ) -> None:
        super().__init__(f"declined: {order.id}")
        self.order = order
        self._person = person
        self.model = model
        self.tags = tags
        self.limits = {7: Decimal("1.5")}


ORDER = Order(uuid.UUID(int=7), [Line("a", Decimal("1.10"))], datetime(2026, 5, 4, tzinfo=UTC), Colour.BLUE)


def test_annotations_of_the_class_and_its_constructor_say_what_attributes_are() -> None:
    person, model = Person("ada", date(1815, 12, 10)), Model(when=ORDER.placed)
    again = rebuilt(CardDeclined(ORDER, person=person, model=model, tags=Line("b", Decimal(2))))
    assert isinstance(again, CardDeclined)
    assert str(again) == f"declined: {ORDER.id}"
    assert (again.order, again._person, again.model) == (ORDER, person, model)
    assert again.limits == {7: Decimal("1.5")}
    assert again.tags == {"sku": "b", "price": "2"}  # no annotation says what it is
    twice = rebuilt(again)
    assert isinstance(twice, CardDeclined)
    assert (twice.order, twice.limits) == (ORDER, again.limits)


@dataclass
class BigOrder(Order):
    size: int = 0


def test_an_attribute_that_cannot_be_stored_says_so_when_it_is_asked_for() -> None:
    error = ApiError("teapot", 418, response=object())
    error.loop = error  # type: ignore[attr-defined]
    error.limit = float("inf")  # type: ignore[attr-defined]
    error.token = pydantic.SecretStr("hunter2")  # type: ignore[attr-defined]
    error.large = "x" * 1_000_000  # type: ignore[attr-defined]
    again = rebuilt(error)
    assert again.status == 418  # type: ignore[attr-defined]
    for name, why in [
        ("response", "a object"),
        ("loop", "ApiError"),
        ("limit", "inf, and JSON has no such number"),
        ("token", "a pydantic.types.SecretStr with a secret in it"),
        ("large", "a builtins.str of 1,000,00. bytes"),
    ]:
        with pytest.raises(AttributeError) as caught:
            getattr(again, name)
        failure = stored(caught.value)
        assert re.search(
            f"no attribute '{name}'. The step raised it with one, .*{why}, which cannot be stored", str(failure)
        )
        assert str(exception_of(failure)) == failure.message
    assert b"hunter2" not in failure_of(error).encode()
    with pytest.raises(AttributeError) as caught:
        _ = again.other  # type: ignore[attr-defined]
    assert stored(caught.value).message == "'ApiError' object has no attribute 'other'"
    big = stored(CardDeclined(BigOrder(ORDER.id, [], ORDER.placed, size=3)))
    assert big.lost is not None
    assert "BigOrder that comes back as a tests.sdk.values.Order without size" in big.lost["order"]


def test_no_class_is_made_because_stored_data_names_it() -> None:
    for data in (
        {"$enum": ["tests.sdk.values.Order", "id"]},
        {"$enum": ["os", "path"]},
        {"$enum": ["tests.sdk.values.Colour", "GREEN"]},
        {"$order": {}},
        {"$decimal": "x"},
        {"$int": "9" * 5000},
        {"$set": [[1]]},
    ):
        again = exception_of(Failure("builtins.ValueError", "x", args=(data,), attributes={"value": data}))
        assert (again.args, again.value) == ((data,), data)  # type: ignore[attr-defined]


def test_no_constructor_of_the_user_runs_when_rebuilding(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = stored(WithNew("x"))
    monkeypatch.setattr(WithNew, "forbidden", True)
    assert isinstance(exception_of(failure), WithNew)


def test_the_first_rebuilding_equals_the_second() -> None:
    first = rebuilt(ApiError("a", 1))
    again = stored(first)
    second = exception_of(again)
    assert type(first) is type(second)
    assert str(first) == str(second)
    assert isinstance(first, ApiError)
    assert isinstance(second, ApiError)
    assert first.status == second.status


def test_causes_are_kept_and_suppressed_contexts_are_not() -> None:
    def explicit() -> None:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner

    def implicit() -> None:
        try:
            raise KeyError("inner")
        except KeyError:
            raise ValueError("outer")  # noqa: B904

    def suppressed() -> None:
        try:
            raise KeyError("inner")
        except KeyError:
            raise ValueError("outer") from None

    causes = []
    for body in (explicit, implicit, suppressed):
        with pytest.raises(ValueError, match="outer") as caught:
            body()
        causes.append(type(rebuilt(caught.value).__cause__))
    assert causes == [KeyError, KeyError, type(None)]


def test_cyclic_and_endless_causes_end() -> None:
    a, b = ValueError("a"), ValueError("b")
    a.__cause__, b.__cause__ = b, a
    assert [link.message for link in stored(a).chain()] == ["a", "b"]
    error = ValueError("0")
    for n in range(1, 1000):
        outer = ValueError(str(n))
        outer.__cause__ = error
        error = outer
    assert len(list(stored(error).chain())) == DEPTH + 1


def test_groups_come_back_as_groups() -> None:
    group = ExceptionGroup("many", [ValueError("1"), ExceptionGroup("inner", [ApiError("2", 2)])])
    again = rebuilt(group)
    assert isinstance(again, ExceptionGroup)
    assert again.message == "many"
    values, rest = again.split(ValueError)
    assert values is not None
    assert rest is not None
    assert isinstance(rest.exceptions[0], ExceptionGroup)
    assert isinstance(rest.exceptions[0].exceptions[0], ApiError)
    huge = ExceptionGroup("huge", [ValueError(str(n)) for n in range(10_000)])
    assert len(stored(huge).members) == MEMBERS


def test_what_is_no_exception_comes_back_as_one() -> None:
    for error in (
        asyncio.CancelledError("c"),
        KeyboardInterrupt(),
        SystemExit(3),
        GeneratorExit(),
        StopIteration(1),
    ):
        again = rebuilt(error)
        assert type(again) is StepFailed
        assert again.failure is not None
        assert again.failure.type.endswith(type(error).__name__)
    group = rebuilt(BaseExceptionGroup("g", [KeyboardInterrupt(), ValueError("v")]))
    assert type(group) is ExceptionGroup
    assert [type(member) for member in group.exceptions] == [StepFailed, ValueError]


def test_classes_are_looked_up_and_never_imported() -> None:
    assert "xmlrpc.client" not in sys.modules
    again = exception_of(Failure("xmlrpc.client.Fault", "boom"))
    assert type(again) is StepFailed
    assert str(again) == "xmlrpc.client.Fault: boom"
    assert "xmlrpc.client" not in sys.modules
    for name in ("builtins.print", "os.system", "builtins.object", "", ".", "a..b", "kagzi", "builtins."):
        assert type(exception_of(Failure(name, "x"))) is StepFailed


def test_looking_up_a_class_runs_nobodys_code(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lively(type):
        @property
        def Trap(cls) -> type[Exception]:
            raise AssertionError("a property of a class was asked")

    class Holder(metaclass=Lively):
        pass

    class LivelyModule(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"a module was asked for {name}")

    class NoModule:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"an object was asked for {name}")

        @property
        def __class__(self) -> Any:
            raise AssertionError("an object was asked for its class")

        @__class__.setter
        def __class__(self, value: Any) -> None: ...

    lazy = ModuleType("lazy_shop")
    lazy.__getattr__ = NoModule().__getattr__  # type: ignore[method-assign, attr-defined]
    lazy.Holder = Holder  # type: ignore[attr-defined]
    lazy.client = NoModule()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lazy_shop", lazy)
    monkeypatch.setitem(sys.modules, "lively_shop", LivelyModule("lively_shop"))
    monkeypatch.setitem(sys.modules, "no_shop", NoModule())  # type: ignore[arg-type]
    for name in (
        "lazy_shop.Declined",
        "lazy_shop.Holder.Trap",
        "lazy_shop.client",
        "lazy_shop.client.Declined",
        "lively_shop.Declined",
        "no_shop.Declined",
    ):
        assert type(exception_of(Failure(name, "x"))) is StepFailed
        assert Failure.of(name, "x").bases == ()


def test_failures_stored_before_there_were_bounds_are_readable() -> None:
    for count in (5_000, 100_000):  # how many are too many to decode depends on the interpreter
        many = b'{"type":"builtins.ValueError","cause":' * count + b"null" + b"}" * count
        assert isinstance(exception_of(Failure.decode(many)), StepFailed if count > 5_000 else StepFailed | ValueError)
        assert len(Failure.decode(many).message) <= MESSAGE_CHARACTERS
        assert len(list(Failure.decode(many).chain())) <= NESTING
    some = b'{"type":"builtins.ValueError","message":"m","cause":' * 300 + b"null" + b"}" * 300
    assert len(list(Failure.decode(some).chain())) == NESTING
    assert isinstance(exception_of(Failure.decode(some)), ValueError)
    values = b'{"type":"builtins.ValueError","message":"m","attributes":{"x":' + b"[" * 300 + b"]" * 300 + b"}}"
    assert Failure.decode(values) == Failure("builtins.ValueError", "m")


def test_an_error_that_passes_from_run_to_run_does_not_grow_without_end() -> None:
    failure = stored(ApiError("m" * MESSAGE_CHARACTERS, 500))
    for number in range(100):
        failure = stored(WorkflowFailed("w" * MESSAGE_CHARACTERS, run_id=str(number), failure=failure))
    assert len(failure.encode()) < 2 * TOTAL_CHARACTERS
    assert len(list(failure.chain())) <= DEPTH + 1
    check_failure(failure.encode(), "error")


def test_an_unknown_error_that_leaves_the_workflow_keeps_its_story() -> None:
    again = exception_of(Failure("shop.Gone", "boom", traceback="  File shop.py"))
    run = stored(again)
    assert run.type == "kagzi.errors.StepFailed"
    assert run.cause is not None
    assert run.cause.type == "shop.Gone"
    once_more = exception_of(run)
    assert isinstance(once_more, StepFailed)
    assert once_more.failure is not None
    assert once_more.failure.type == "shop.Gone"


def test_the_traceback_of_the_step_goes_along() -> None:
    def body() -> None:
        raise ValueError("deep inside")

    with pytest.raises(ValueError, match="deep") as caught:
        body()
    failure = stored(caught.value)
    assert "in test_the_traceback_of_the_step_goes_along.<locals>.body" in failure.traceback
    assert 'raise ValueError("deep inside")' in failure.traceback
    with pytest.raises(ValueError, match="deep") as caught:
        raise exception_of(failure)
    assert ".<locals>.body" in stored(caught.value).traceback


def pass_through(name: str, fn: Any) -> None:
    """Call a function from a module of this name."""
    space: dict[str, Any] = {"__name__": name, "fn": fn}
    exec("def engine(): fn()", space)
    space["engine"]()


def raised_in(fn: Callable[[], None]) -> Failure:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        fn()
    return stored(caught.value)


def functions(failure: Failure) -> list[str]:
    """Of which functions its traceback speaks."""
    return [line.rpartition(", in ")[2] for line in failure.traceback.splitlines() if line.startswith("  File ")]


def test_frames_of_the_engine_are_left_out_unless_the_error_is_its_own() -> None:
    def body() -> None:
        raise ValueError("deep inside")

    assert "engine" not in functions(raised_in(lambda: pass_through("kagzi.sdk.worker.bodies", body)))
    assert "engine" in functions(raised_in(lambda: pass_through("shop.engine", body)))
    assert "engine" in functions(raised_in(lambda: pass_through("kagzi.sdk.worker.bodies", "not callable")))
    space: dict[str, Any] = {"__name__": "kagzi.sdk.replay.loop", "error": NonDeterminismError("explained")}
    exec("def refuse(): raise error", space)
    assert functions(raised_in(lambda: pass_through("shop", space["refuse"])))[-1] == "engine"


class Odd(Exception):
    pass


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__

    def __getattribute__(self, name: str) -> Any:
        if name in ("kind", "args"):
            raise RuntimeError("no")
        return super().__getattribute__(name)


def test_recording_never_fails() -> None:
    assert "failed" in stored(Hostile("x")).message
    assert isinstance(rebuilt(Hostile("x")), Hostile)
    error = ValueError("x\0y\ud800" * 1_000_000)
    error.loop = error  # type: ignore[attr-defined]
    error.big = ["x" * 1000] * 1000  # type: ignore[attr-defined]
    error.nan = float("nan")  # type: ignore[attr-defined]
    nested: list[Any] = []
    nested.append(nested)
    error.nested = nested  # type: ignore[attr-defined]
    data = failure_of(error).encode()
    assert len(data) < 40_000
    assert b"\\u0000" not in data
    message = Failure.decode(data).message
    assert message.startswith("x\\0y\\ud800x")
    Odd.__qualname__ = "Odd\ud800"
    assert "Odd" in stored(Odd("x")).type


def test_everything_together_is_bounded() -> None:
    def explode(depth: int) -> None:
        if depth:
            explode(depth - 1)
        raise ValueError("m" * 100_000)

    members = []
    for _ in range(200):
        try:
            explode(200)
        except ValueError as error:
            error.text = "t" * 10_000  # type: ignore[attr-defined]
            members.append(error)
    data = failure_of(ExceptionGroup("g" * 100_000, members)).encode()
    assert len(data) < 2 * TOTAL_CHARACTERS


def test_redaction_reaches_every_link_and_fails_closed() -> None:
    secret = ValueError("card 4242")
    outer = RuntimeError("wrapped: card 4242")
    outer.__cause__ = secret

    def redact(failure: Failure) -> Failure:
        return msgspec.structs.replace(failure, message="***", args=("***",), attributes=None)

    failure = failure_of(outer, redact=redact)
    assert b"4242" not in failure.encode()
    assert str(exception_of(failure)) == "***"

    def broken(failure: Failure) -> Failure:
        raise KeyError(failure.message)

    hidden = failure_of(outer, redact=broken)
    assert b"4242" not in hidden.encode()
    assert hidden.type == "builtins.RuntimeError"


def test_kinds() -> None:
    assert stored(ConnectionRefusedError()).kind is ErrorKind.NETWORK
    assert stored(TimeoutError()).kind is ErrorKind.TIMEOUT
    assert stored(StepTimeout("t")).kind is ErrorKind.TIMEOUT
    assert stored(Unavailable("u")).kind is ErrorKind.UNAVAILABLE
    assert stored(NotSerializable("n")).non_retryable
    assert stored(InvalidRequest("n")).kind is ErrorKind.BAD_REQUEST
    assert stored(Declined("d")).kind is ErrorKind.VALIDATION
    assert stored(Declined("d")).non_retryable
    plain = stored(FileNotFoundError())
    assert (plain.kind, plain.non_retryable) == (ErrorKind.UNKNOWN, False)
    said = ValueError("x")
    said.kind = "not_found"  # type: ignore[attr-defined]
    assert stored(said).non_retryable
    said.kind = "nonsense"  # type: ignore[attr-defined]
    assert stored(said).kind is ErrorKind.UNKNOWN


def test_matching_by_class_and_by_name() -> None:
    failure = stored(Outer.Inner("x"))
    assert failure.is_a(ValueError)
    assert failure.is_a("ValueError")
    assert failure.is_a("builtins.Exception")
    assert failure.is_a(Outer.Inner)
    assert failure.is_a(f"{__name__}.Outer.Inner")
    assert not failure.is_a(KeyError)
    assert not failure.is_a("Inner")


def test_failures_made_by_the_engine() -> None:
    timeout = Failure.of(StepTimeout, "ran too long")
    assert timeout.kind is ErrorKind.TIMEOUT
    again = exception_of(Failure.decode(timeout.encode()))
    assert isinstance(again, StepTimeout)
    assert isinstance(again, TimeoutError)
    assert str(again) == "ran too long"
    assert Failure.of("kagzi.errors.NonRetryable", "poison").non_retryable
    assert Failure.of("other.language.Error", "x", ErrorKind.NOT_FOUND).non_retryable
    assert not Failure.of("other.language.Error", "x").non_retryable


def test_retry_after_keeps_its_delay() -> None:
    assert stored(RetryAfter("x", timedelta(seconds=90))).attributes == {"delay": 90.0}
    assert stored(RetryAfter("x", "1m")).attributes == {"delay": "1m"}


def test_a_failed_workflow_as_an_error_of_a_step() -> None:
    inner = Failure.of("shop.Gone", "boom")
    again = rebuilt(WorkflowFailed("run failed", run_id="r1", failure=inner))
    assert isinstance(again, WorkflowFailed)
    assert again.run_id == "r1"
    assert again.failure is not None
    assert again.failure.type == "shop.Gone"


@pytest.mark.parametrize("data", [b"", b"null", b"boom", b"{}", b'{"type":3}', b"\xff", b'{"type":"x","kind":"?"}'])
def test_errors_stored_by_hand_are_readable(data: bytes) -> None:
    assert isinstance(exception_of(Failure.decode(data)), Exception)


@given(data=st.binary())
def test_any_bytes_become_an_exception(data: bytes) -> None:
    assert isinstance(exception_of(Failure.decode(data)), Exception)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
)


@given(
    args=st.lists(PLAIN), state=st.dictionaries(st.text(), PLAIN), cls=st.sampled_from([ValueError, ApiError, OSError])
)
def test_any_exception_is_stored_and_stays_the_same(
    args: list[Any], state: dict[str, Any], cls: type[Exception]
) -> None:
    error = cls.__new__(cls, *args)
    error.args = tuple(args)
    error.__dict__.update(state)
    failure = failure_of(error)
    check_failure(failure.encode(), "error")  # what we make passes what we ask
    again = Failure.decode(failure.encode())
    assert again == failure
    first, second = exception_of(failure), exception_of(again)
    assert type(first) is type(second)
    assert first.args == second.args
    assert str(first) == str(second)
