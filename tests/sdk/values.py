"""Types of every kind that payloads may hold, and some that they may not."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Generic, Literal, NamedTuple, NotRequired, TypedDict, TypeVar

import attrs
import msgspec
import pydantic

from kagzi.core.lineage import new_input

CONTEXT = new_input("default", "a-run")  # what codecs are told where nothing else matters

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Mood(enum.StrEnum):
    GOOD = "good"


@dataclass
class Line:
    sku: str
    price: Decimal


@dataclass
class Order:
    id: uuid.UUID
    lines: list[Line]
    placed: datetime
    colour: Colour = Colour.RED
    blob: bytes = b""
    tags: set[str] = field(default_factory=set)
    parent: Order | None = None


class Address(TypedDict):
    street: str
    zip: NotRequired[int]


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Item(msgspec.Struct):
    name: str
    counts: tuple[int, ...] = ()


class Page(msgspec.Struct, Generic[T]):
    items: list[T]


class Cat(msgspec.Struct, tag=True):
    name: str


class Dog(msgspec.Struct, tag=True):
    name: str


@attrs.define
class Person:
    name: str
    born: date


class Model(pydantic.BaseModel):
    when: datetime
    amount: Decimal = Decimal(0)
    blob: bytes = b"x"


class Strict(pydantic.BaseModel, strict=True):
    when: datetime


@dataclass
class Approved:
    by: str
    outcome: Literal["approved"] = "approved"


@dataclass
class Rejected:
    by: str
    outcome: Literal["rejected"] = "rejected"


@dataclass
class Shape:
    name: str


@dataclass
class Circle(Shape):
    radius: float = 1.0


@dataclass(frozen=True)
class Mark:
    n: int


@dataclass(frozen=True)
class SpecialMark(Mark):
    special: bool = True


class Square(Shape):
    """Has no fields of its own."""


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr
    pin: pydantic.SecretBytes = pydantic.SecretBytes(b"")


class Team(pydantic.BaseModel):
    boss: Model | None = None
    logins: list[Login] = []


class SubModel(Model):
    more: int = 0


class Excluding(pydantic.BaseModel):
    kept: int = 0
    left_out: int = pydantic.Field(default=0, exclude=True)
    _private: int = pydantic.PrivateAttr(default=0)


class Revealing(pydantic.BaseModel):
    token: pydantic.SecretStr

    @pydantic.field_serializer("token", when_used="json")
    def reveal(self, token: pydantic.SecretStr) -> str:
        return token.get_secret_value()


@dataclass(eq=False)
class Incomparable:
    n: int
    items: Any = ()


@dataclass
class Account:
    token: pydantic.SecretStr


@dataclass
class Left:
    value: int


@dataclass
class Right:
    value: int


class Odd:
    pass


class Breaks:
    def __repr__(self) -> str:
        raise RuntimeError


def function(annotation: Any) -> Callable[..., Any]:
    def typed(value, *, other=None):  # type: ignore[no-untyped-def]
        """Its annotations are set below."""

    typed.__annotations__ = {"value": annotation, "other": annotation, "return": annotation}
    return typed
