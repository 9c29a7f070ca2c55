"""Methods as steps and workflows: bound to an object that every process makes, and not otherwise."""

from __future__ import annotations

from typing import Any

import pytest

import kagzi
from kagzi import InvalidRequest, Kagzi
from tests.scenarios.conftest import Stage


class Shop:
    def __init__(self, currency: str) -> None:
        self.currency = currency

    def price(self, cents: int) -> str:
        return f"{cents} {self.currency}"

    async def charge(self, cents: int, times: int = 1) -> str:
        return f"charged {cents * times} {self.currency}"

    @staticmethod
    def pack(sku: str) -> str:
        return f"box with {sku}"

    @classmethod
    def name(cls, number: int) -> str:
        return f"{cls.__name__} {number}"


def test_bound_methods_are_steps_and_workflows(stage: Stage) -> None:
    app = Kagzi("memory://")
    shop = Shop("INR")
    price, charge = app.step(shop.price), app.step(timeout="5s")(shop.charge)
    other = app.step(name="other-price")(Shop("EUR").price)
    pack, name = app.step(Shop.pack), app.step(Shop.name)

    class Till:
        def __init__(self, greeting: str) -> None:
            self.greeting = greeting

        async def checkout(self, cents: int) -> list[str]:
            both = [await price(cents), await charge(cents, times=2), await other(1), await pack("pen"), await name(7)]
            inline = await kagzi.run_step("bound", shop.price, 5), await kagzi.run_step("function", Shop.price, shop, 6)
            await kagzi.sleep("1.1s")
            return [self.greeting, *both, *inline]

        def plain(self, cents: int) -> str:
            return price.call(cents)

    till = Till("hello")
    checkout, plain = app.workflow(till.checkout), app.workflow(till.plain)

    async def scenario() -> Any:
        return await checkout.run(10), await plain.run(11)

    story = ["hello", "10 INR", "charged 20 INR", "1 EUR", "box with pen", "Shop 7", "5 INR", "6 INR"]
    assert stage.run(app, scenario) == (story, "11 INR")


def test_methods_without_an_object_are_refused_where_they_are_decorated() -> None:
    app = Kagzi("memory://")
    for decorator, what in ((app.step, "step"), (app.workflow, "workflow"), (app.step(name="x"), "step")):
        with pytest.raises(InvalidRequest) as caught:

            class Bad:
                @decorator  # type: ignore[operator]
                def charge(self, cents: int) -> int:
                    return cents

        message = str(caught.value)
        assert "Bad.charge is a method" in message
        assert "test_methods.py:" in message
        assert f"app.{what}(the_object.charge)" in message
    with pytest.raises(InvalidRequest, match="is a method"):
        app.step(Shop.charge)


def test_static_methods_and_steps_kept_in_classes_are_fine() -> None:
    app = Kagzi("memory://")

    class Good:
        @staticmethod
        @app.step
        def inner(number: int) -> int:
            return number + 1

        @app.step
        @staticmethod
        def outer(number: int) -> int:
            return number + 2

        kept = app.step(name="kept")(len)

    assert (Good.inner(1), Good().outer(1), Good.kept("abc")) == (2, 3, 3)
