"""What callers get wrong: a typed error that names the field, and nothing is written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from kagzi import (
    Conflict,
    InvalidRequest,
    Kagzi,
    KagziError,
    NotFound,
    NotSerializable,
    PayloadTooLarge,
    Retry,
    Workflow,
)
from kagzi.api.operations import Started, StartRun
from kagzi.codecs import Chain, Compress, Encrypt

NOWHERE = "00000000-0000-7000-8000-000000000000"
NAN, INFINITY = float("nan"), float("inf")
BAD_LENGTHS: list[Any] = [-1, NAN, "soon", []]


class Shop:
    def __init__(self, url: str) -> None:
        self.app = app = Kagzi(url)

        @app.workflow
        async def checkout(order: int, note: str = "") -> int:
            return order

        self.checkout: Workflow[..., int] = checkout


@pytest.fixture
async def shop(home: str) -> AsyncIterator[Shop]:
    """An open app, in which nothing may have been written when the test is over."""
    shop = Shop(home)
    async with shop.app:
        yield shop
        assert (await shop.app.runs()).items == ()


def options(**options: Any) -> Callable[[Shop], Any]:
    return lambda shop: shop.checkout.options(**options).start(1)


def runs(**filters: Any) -> Callable[[Shop], Any]:
    return lambda shop: shop.app.runs(**filters)


def name_of(field: str) -> list[tuple[Callable[[Shop], Any], str]]:
    bad = ["", "a\0b", "\ud800", "n" * 256, 5, b"x"]
    return [(options(**{field: value}), field) for value in bad]


BAD_STARTS: list[tuple[Callable[[Shop], Any], str]] = [
    *name_of("id"),
    *name_of("queue"),
    *name_of("version"),
    *name_of("namespace"),
    (options(delay=-1), "delay -1 is negative"),
    (options(delay="-5m"), "negative"),
    (options(delay=NAN), "delay nan"),
    (options(delay=INFINITY), "delay inf"),
    (options(delay=True), "delay True"),
    (options(delay="soon"), 'text such as "250ms"'),
    (options(delay="5 fortnights"), "unknown unit 'fortnights'"),
    (options(delay=1e300), "1000 years"),
    (options(delay=[1]), "delay"),
    (options(timeout=0), "longer than 0"),
    (options(timeout="0s"), "longer than 0"),
    (options(timeout=-1), "negative"),
    (options(start_at=datetime(2030, 1, 1)), "time zone"),
    (options(start_at="tomorrow"), "time zone"),
    (options(start_at=datetime(1, 1, 1, tzinfo=UTC)), "1970"),
    (options(delay="5m", start_at=datetime(2030, 1, 1, tzinfo=UTC)), "delay and start_at"),
    (options(deadline=datetime(2030, 1, 1)), "time zone"),
    (options(deadline=1_900_000_000), "time zone"),
    (options(priority=10_000), "from 0 to 1000"),
    (options(priority=-1), "from 0 to 1000"),
    (options(priority=1.5), "priority"),
    (options(priority=True), "priority"),
    (options(retry=3), "Retry(attempts=3)"),
    (options(on_conflict="explode"), "on_conflict"),
    (lambda shop: shop.checkout.start("not a number"), "argument 'order'"),
]


@pytest.mark.parametrize("number", range(len(BAD_STARTS)))
async def test_a_start_that_cannot_be(number: int) -> None:
    shop = Shop("memory://")
    async with shop.app:
        await check_refusal(shop, *BAD_STARTS[number])
        assert (await shop.app.runs()).items == ()


async def test_bad_starts_leave_nothing_in_a_database(shop: Shop) -> None:
    for start, word in BAD_STARTS:
        await check_refusal(shop, start, word)


async def check_refusal(shop: Shop, call: Callable[[Shop], Any], word: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await call(shop)
    assert word in str(caught.value)
    assert caught.value.code == "INVALID_ARGUMENT"


async def test_the_wrong_number_of_arguments(shop: Shop) -> None:
    for arguments in ((), (1, "x", 2)):
        with pytest.raises(TypeError, match=r"checkout\(\)"):
            await shop.checkout.start(*arguments)
    with pytest.raises(TypeError, match="unexpected keyword argument 'color'"):
        await shop.checkout.start(1, color="red")
    with pytest.raises(TypeError, match=r"has no option 'colour'\. There are: id, queue"):
        shop.checkout.options(colour="red")  # type: ignore[call-arg]


async def test_arguments_that_json_cannot_hold(home: str) -> None:
    app = Kagzi(home)

    @app.workflow
    async def take(value: Any) -> None: ...

    async with app:
        for value in (object(), NAN, INFINITY, "\ud800", {1: object()}, lambda: None):
            with pytest.raises(NotSerializable, match="argument 'value' of take"):
                await take.start(value)
        assert (await app.runs()).items == ()


async def test_an_argument_that_contains_itself(shop: Shop) -> None:
    knot: list[Any] = []
    knot.append(knot)
    with pytest.raises(KagziError):
        await shop.checkout.start(knot)


async def test_an_oversize_argument(shop: Shop) -> None:
    with pytest.raises(PayloadTooLarge, match=r"input of checkout is 3,145,73\d bytes; at most 2,097,152"):
        await shop.checkout.start(1, "x" * (3 << 20))


BAD_LISTINGS = [
    (runs(page_size=0), "between 1 and 100"),
    (runs(page_size=-1), "between 1 and 100"),
    (runs(page_size=101), "between 1 and 100"),
    (runs(page_size=2**31), "between 1 and 100"),
    (runs(page_size="20"), "whole number"),
    (runs(page_size=2.5), "whole number"),
    (runs(page_size=True), "whole number"),
    (runs(page_token="forged"), "page token"),
    (runs(page_token="A" * 5000), "page token"),
    (runs(page_token="\0\ud800"), "page token"),
    (runs(page_token=7), "page token"),
    (runs(status="EXPLODED"), "COMPLETED"),
    (runs(workflow="a\0b"), "NUL"),
    (runs(workflow=5), "text"),
    (runs(workflow="\ud800"), "workflow type contains half a surrogate"),
    (runs(queue=""), "empty"),
    (runs(queue=5), "task queue must be text"),
    (lambda shop: shop.app.handle("nope").get(), "UUID"),
    (lambda shop: shop.app.handle("nope").result(), "UUID"),
    (lambda shop: shop.app.handle("nope").steps(), "UUID"),
    (lambda shop: shop.app.handle("' OR 1=1 --").get(), "UUID"),
    (lambda shop: shop.app.handle(NOWHERE + "\0").get(), "UUID"),
    (lambda shop: shop.app.handle(5).get(), "run id must be"),
    (lambda shop: shop.app.handle(5).steps(), "run id must be"),
    (lambda shop: shop.app.handle("\ud800").get(), "run id"),
    (lambda shop: shop.app.handle(NOWHERE).result(timeout=-1), "negative"),
    (lambda shop: shop.app.handle(NOWHERE).result(timeout=NAN), "nan"),
    (lambda shop: shop.app.find("a\0b"), "NUL"),
    (lambda shop: shop.app.find("\ud800"), "surrogate"),
]


@pytest.mark.parametrize("number", range(len(BAD_LISTINGS)))
async def test_a_question_that_cannot_be(number: int) -> None:
    shop = Shop("memory://")
    async with shop.app:
        await check_refusal(shop, *BAD_LISTINGS[number])


async def test_bad_questions_do_not_reach_a_database(shop: Shop) -> None:
    for look, word in BAD_LISTINGS:
        await check_refusal(shop, look, word)


async def test_runs_that_do_not_exist(shop: Shop) -> None:
    for look in (shop.app.handle(NOWHERE).get, shop.app.handle(NOWHERE).result, shop.app.handle(NOWHERE).steps):
        with pytest.raises(NotFound, match=NOWHERE):
            await look()
    with pytest.raises(NotFound, match="'order-1'"):
        await shop.app.find("order-1")


async def test_a_token_of_another_listing(home: str) -> None:
    shop = Shop(home)
    async with shop.app:
        for _ in range(3):
            await shop.checkout.start(1)
        token = (await shop.app.runs(page_size=1)).next
        assert token is not None
        assert len((await shop.app.runs(page_size=1, page_token=token)).items) == 1
        with pytest.raises(InvalidRequest, match="does not belong to this listing"):
            await shop.app.runs(page_size=1, page_token=token, status="FAILED")
        changed = token[:-1] + ("A" if token[-1] != "A" else "B")
        with pytest.raises(InvalidRequest, match="page token"):
            await shop.app.runs(page_size=1, page_token=changed)


async def test_an_id_that_is_taken(home: str) -> None:
    shop = Shop(home)
    async with shop.app:
        first = await shop.checkout.options(id="order-1").start(1)
        same = await shop.checkout.options(id="order-1").start(1)
        assert (same.id, same.already_exists) == (first.id, True)
        with pytest.raises(Conflict, match="order-1"):
            await shop.checkout.options(id="order-1").start(2)
        with pytest.raises(Conflict, match="order-1"):
            await shop.checkout.options(id="order-1", on_conflict="fail").start(1)
        assert len((await shop.app.runs()).items) == 1


async def test_starts_by_one_id_with_equal_input_are_one_run(home: str) -> None:
    for codec in (None, Chain(Compress(above=0), Encrypt({"1": bytes(32)}, current="1"))):
        app = Kagzi(home, codec=codec)

        @app.workflow
        async def order(names: set[str], rate: float = 1, by: dict[str, float] | None = None) -> None: ...

        async with app:
            for kind, same in (("plain", order), ("again", order.options(on_conflict="return"))):
                same = same.options(id=f"{kind} {codec is None}")
                run = await same.start({"a", "b", "c"}, by={"x": 1, "y": 2})
                again = [
                    await same.start({"c", "b", "a"}, 1, {"y": 2, "x": 1}),
                    await same.start({"c", "b", "a"}, by={"y": 2.0, "x": 1.0}, rate=1.0),
                ]
                assert [(each.id, each.already_exists) for each in again] == [(run.id, True)] * 2
                for other in ((set("abcd"),), (set("abc"), 2, {"x": 1, "y": 2}), (set("abc"), 1, {"x": 1})):
                    with pytest.raises(Conflict, match="another type or input"):
                        await same.start(*other)


async def test_starts_by_one_id_from_other_languages_are_compared_as_json(home: str) -> None:
    app = Kagzi(home)
    async with app:

        async def start(input: bytes, id: str = "order-1") -> Started:
            return await app.engine.workflows.start(
                StartRun(
                    namespace="default",
                    run_id=app._ids.run_id(),
                    workflow_type="order",
                    task_queue="default",
                    version="1",
                    input=input,
                    external_id=id,
                )
            )

        first = await start(b'[{"a": 1, "b": [2, {"x": 0, "y": 1}]}]')
        again = await start(b'[{"b":[2.0,{"y":1,"x":0}],"a":1e0}]')
        assert (again.run_id, again.already_exists) == (first.run_id, True)
        for other in (b'[{"a":1,"b":[{"x":0,"y":1},2]}]', b'[{"a":true,"b":[2,{"x":0,"y":1}]}]', b"\x03", b"[["):
            with pytest.raises(Conflict):
                await start(other)


# Definitions and policies: before any database is there.


def define(kind: str, **settings: Any) -> Callable[[Kagzi], Any]:
    async def function() -> None: ...

    def make(app: Kagzi) -> Any:
        return (app.step if kind == "step" else app.workflow)(**settings)(function)

    return make


@pytest.mark.parametrize(
    ("make", "word"),
    [
        *((define(kind, name=name), f"{kind} name") for kind in ("step", "workflow") for name in ("", "a\0b", 5)),
        *((define(kind, name="\ud800"), "surrogate") for kind in ("step", "workflow")),
        *((define(kind, name="n" * 256), "255") for kind in ("step", "workflow")),
        *((define(kind, timeout=0), "longer than 0") for kind in ("step", "workflow")),
        *((define(kind, timeout=value), "timeout") for kind in ("step", "workflow") for value in BAD_LENGTHS),
        *((define(kind, retry=value), "retry") for kind in ("step", "workflow") for value in (3, "twice")),
        (define("workflow", version=2), "version"),
        (define("workflow", queue="a\0"), "queue"),
        (lambda app: app.step(lambda: 1), "lambda"),
        (lambda app: app.step("charge"), "name='charge'"),
        (lambda app: app.step(5), "function"),
        (lambda app: app.step(app.step(name="twice")(print)), "one decorator is enough"),
    ],
)
def test_a_definition_that_cannot_be(make: Callable[[Kagzi], Any], word: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make(Kagzi("memory://"))
    assert word in str(caught.value)


def test_names_that_are_taken() -> None:
    app = Kagzi("memory://")
    for kind in ("step", "workflow"):
        define(kind, name="same")(app)
        with pytest.raises(InvalidRequest, match=rf"{kind} 'same'.* already .*test_bad_input\.py:\d+.*another name"):
            define(kind, name="same")(app)
    define("workflow", name="same", version="2")(app)


@pytest.mark.parametrize(
    ("policy", "word"),
    [
        ({"attempts": 0}, "attempts"),
        ({"attempts": -2}, "attempts"),
        ({"attempts": 1.5}, "attempts"),
        ({"attempts": True}, "attempts"),
        ({"first": -1}, "first"),
        ({"first": NAN}, "first"),
        ({"first": "2m", "cap": "1m"}, "longer than cap"),
        ({"cap": INFINITY}, "cap"),
        ({"factor": 0}, "factor"),
        ({"factor": -1}, "factor"),
        ({"factor": NAN}, "factor"),
        ({"factor": INFINITY}, "factor"),
        ({"factor": "2"}, "factor"),
        ({"jitter": 2}, "jitter"),
        ({"jitter": NAN}, "jitter"),
        ({"give_up_on": 5}, "give_up_on"),
        ({"retry_on": (int,)}, "retry_on"),
        ({"when": 5}, "when"),
    ],
)
def test_a_policy_that_cannot_be(policy: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Retry(**policy)
    assert word in str(caught.value)


# Opening and workers.


async def test_an_app_that_is_not_open(home: str) -> None:
    shop = Shop(home)
    for attempt in (lambda: shop.checkout.start(1), shop.app.runs, lambda: shop.app.find("x")):
        with pytest.raises(InvalidRequest, match="async with app"):
            await attempt()
    with pytest.raises(InvalidRequest, match="async with app"):
        shop.app.handle(NOWHERE)
    with pytest.raises(InvalidRequest, match="async with app"):
        async with shop.app.worker():
            pass


async def test_an_app_that_is_opened_twice(home: str) -> None:
    shop = Shop(home)
    async with shop.app:
        with pytest.raises(InvalidRequest, match="open already"):
            await shop.app.open()
        await shop.checkout.start(1)  # and it still works
    await shop.app.close()  # closing twice is fine
    async with shop.app:
        assert len((await shop.app.runs()).items) == 1


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"queues": "default"}, "queues=['default']"),
        ({"queues": []}, "at least one queue"),
        ({"queues": 5}, "list of names"),
        ({"queues": [5]}, "queue must be text"),
        ({"queues": ["a\0"]}, "NUL"),
        ({"queues": ["\ud800"]}, "surrogate"),
        ({"queues": [""]}, "empty"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": -5}, "concurrency"),
        ({"concurrency": "5"}, "concurrency"),
        ({"concurrency": NAN}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"concurrency": 10**6}, "concurrency"),
        ({"threads": 0}, "threads"),
        ({"threads": 1.5}, "threads"),
        ({"grace": -1}, "grace"),
        ({"grace": "a while"}, "grace"),
    ],
)
async def test_a_worker_that_cannot_be(settings: dict[str, Any], word: str) -> None:
    shop = Shop("memory://")
    async with shop.app:
        with pytest.raises(InvalidRequest) as caught:
            async with shop.app.worker(**settings):
                pass
        assert word in str(caught.value)
    with pytest.raises(InvalidRequest) as caught:
        shop.app.run_worker(**settings)
    assert word in str(caught.value)


@pytest.mark.parametrize("processes", [0, 257, True, "all", 2])
def test_worker_processes_that_cannot_be(processes: Any) -> None:
    """Two of them on memory:// would each have runs of their own."""
    with pytest.raises(InvalidRequest, match="processes"):
        Shop("memory://").app.run_worker(processes=processes)


async def test_a_worker_without_workflows(home: str) -> None:
    app = Kagzi(home)
    async with app:
        with pytest.raises(InvalidRequest, match=r"@app\.workflow"):
            async with app.worker():
                pass
    with pytest.raises(InvalidRequest, match=r"@app\.workflow"):
        app.run_worker()
