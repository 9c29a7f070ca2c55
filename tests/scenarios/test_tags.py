"""Tags: words of the starter's own on a run."""

from __future__ import annotations

from typing import Any

import pytest

from kagzi import InvalidRequest, Kagzi
from kagzi.api.operations import StartRun
from kagzi.core.tags import check_tags, read_tag


def make_app(url: str) -> tuple[Kagzi, Any, Any]:
    app = Kagzi(url)

    @app.workflow
    async def page(number: int) -> int:
        return number

    @app.workflow
    async def book(pages: int) -> int:
        for number in range(pages):
            await page.options(tags={"page": str(number)}).run(number)
        return pages

    return app, book, page


async def test_tags_are_kept_on_runs_their_children_schedules_and_repeats(home: str) -> None:
    app, book, page = make_app(home)
    async with app, app.worker():
        run = await book.options(tags={"batch": "7", "für": "日本 = 🧾"}).start(2)
        plain = await page.start(1)
        await run.result()
        await plain.result()
        record = await run.get()
        assert record.tags == {"batch": "7", "für": "日本 = 🧾"}
        assert (await plain.get()).tags == {}
        children = (await app.runs(parent=run.id)).items
        assert sorted(child.tags["page"] for child in children) == ["0", "1"]
        assert all(set(child.tags) == {"page"} for child in children)  # those of the parent are its own
        for again in (await run.retry(), await run.rerun()):
            assert (await again.get()).tags == record.tags
        nightly = await app.schedules.create("nightly", page.options(tags={"from": "clock"}), 3, cron="0 2 * * *")
        assert (await nightly.info()).tags == {"from": "clock"}
        fired = await nightly.trigger()
        assert (await fired.get()).tags == {"from": "clock"}
        with pytest.raises(InvalidRequest, match="tags has 11 tags"):
            page.options(tags={str(number): "x" for number in range(11)})


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        (["batch=7"], "tags must be names with values"),
        ({"batch": 7}, "tags: the value of 'batch' must be text, not int"),
        ({7: "batch"}, "the name of a tag in tags must be text"),
        ({"batch": ""}, "tags: the value of 'batch' must not be empty"),
        ({"": "7"}, "the name of a tag in tags must not be empty"),
        ({"a=b": "7"}, "tags: the name 'a=b' contains '='"),
        ({"n" * 101: "7"}, "101 characters; at most 100"),
        ({"batch": "v" * 101}, "tags: the value of 'batch' has 101 characters; at most 100"),
        ({"batch": "a\0b"}, "NUL"),
        ({str(number): "x" for number in range(11)}, "tags has 11 tags; a run has at most 10"),
    ],
)
def test_what_is_no_tag(tags: Any, message: str) -> None:
    _, book, _ = make_app("memory://")
    with pytest.raises(InvalidRequest, match=message):
        book.options(tags=tags)


def test_tags_at_their_limits() -> None:
    most = {f"{number}".ljust(100, "n"): "v" * 100 for number in range(10)}
    assert check_tags(most) == most
    assert read_tag("a=b=c") == ("a", "b=c")
    for text in ("batch", "=7", "batch=", 7):
        with pytest.raises(InvalidRequest, match="tag"):
            read_tag(text)


async def test_the_engine_refuses_what_another_client_says() -> None:
    app, _, page = make_app("memory://")
    async with app:
        run = await page.start(1)
        start = StartRun(
            namespace="default", run_id=run.id, workflow_type="page", task_queue="default", tags={"a=b": "c"}
        )
        with pytest.raises(InvalidRequest, match="tags: the name 'a=b'"):
            await app.engine.workflows.start(start)
