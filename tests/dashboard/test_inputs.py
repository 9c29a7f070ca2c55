"""Forms made of what a workflow takes, without scripts."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

import kagzi
from kagzi import Kagzi, RunStatus
from kagzi.codecs import Encrypt
from kagzi.core.versions import WorkflowInterface
from kagzi.core.worker import WorkflowType
from kagzi.engine.local import LocalEngine
from tests.dashboard.support import Browser, Page, dashboard
from tests.dashboard.test_pages import start, until
from tests.engine.support import new_registration
from tests.http.support import engine_on


class Size(enum.Enum):
    SMALL = "S"
    LARGE = "XL"


@dataclass
class Address:
    street: str


def make_shop(url: str, codec: Encrypt | None = None) -> Kagzi:
    app = Kagzi(url, codec=codec)

    @app.workflow
    async def sell(
        order: str,
        to: Address,
        count: Annotated[int, msgspec.Meta(ge=1, description="how many")] = 1,
        size: Size = Size.SMALL,
        gift: bool = False,
        note: str | None = None,
    ) -> list[Any]:
        """Sell something."""
        return [order, to.street, count, size.value, gift, note]

    return app


def tag(page: Page, name: str) -> dict[str, str]:
    (found,) = [given for _, given in page.tags if given.get("name") == name]
    return found


async def output(engine: LocalEngine, page: Page) -> object:
    run_id = page.links["Start a copy …"].partition("like=")[2]
    await until(engine, run_id, RunStatus.COMPLETED, RunStatus.FAILED)
    run = await engine.workflows.get("default", run_id)
    assert run.output is not None, run.error
    return msgspec.json.decode(run.output)


async def test_a_run_is_started_and_copied_by_fields(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'kagzi.db'}"
    app = make_shop(url)
    async with (
        app,
        app.worker(queues=("till",)),
        engine_on(url) as engine,
        dashboard(engine) as port,
        Browser(port.url) as browser,
    ):
        asked = await browser.open((await browser.open("/start")).links["sellSell something."])
        form = asked.form("/start")
        assert form.fields["queue"] == "till"  # where its worker takes it
        assert form.fields["arg.size"] == form.fields["arg.count"] == ""  # the default, whatever that will be
        assert "required" in tag(asked, "arg.order")
        assert "required" not in tag(asked, "arg.note")
        count = tag(asked, "arg.count")
        assert (count["type"], count["min"], count["step"]) == ("number", "1", "1")
        assert "how many · integer, at least 1; default: 1" in asked.text
        assert "default: false" in asked.text
        assert "JSON object Address: street" in asked.text
        bad = {"arg.to": "{street}", "arg.count": "0", "arg.size": '"M"'}
        refused = await browser.send(form, **bad, code=400)
        for name, said in (
            ("arg.order", "order is missing: text"),
            ("arg.to", "to is not JSON"),
            ("arg.count", "count must be integer, at least 1"),
            ("arg.size", "size must be one of"),
        ):
            assert tag(refused, name)["aria-invalid"] == "true"
            assert f'id="wrong-{name}">{said}' in refused.html.replace("&#34;", '"')
        assert refused.form("/start").fields["arg.count"] == "0"  # what was written stays
        good = {"arg.order": '7"', "arg.to": '{"street": "Main"}', "arg.count": "2", "arg.gift": "true"}
        started = await browser.send(refused.form("/start"), **(good | {"arg.size": ""}))
        assert await output(engine, started) == ['7"', "Main", 2, "S", True, None]

        copy = await browser.open(started.links["Start a copy …"])
        assert copy.form("/start").fields["arg.order"] == '7"'
        assert copy.form("/start").fields["arg.gift"] == "true"
        second = await browser.send(copy.form("/start"), **{"arg.size": '"XL"'})
        assert await output(engine, second) == ['7"', "Main", 2, "XL", True, None]
        forked = await browser.open(second.links["Fork …"])
        refused = await browser.send(forked.form("/fork"), **{"arg.count": "many", "arg.to": "[-1]"}, code=400)
        assert "count must be integer" in refused.text
        assert "to must be a JSON object Address: street, not '[-1]'" in refused.text
        third = await browser.send(refused.form("/fork"), **{"arg.count": "3", "arg.to": '{"street": "Main"}'})
        assert await output(engine, third) == ['7"', "Main", 3, "XL", True, None]

        as_json = await browser.open(copy.links["Write the input as JSON instead"])
        assert '"Main"' in as_json.form("/start").fields["input"]
        assert "Fill in fields instead" in as_json.links
        odd = await start(engine, "sell", b"[null, 1, 2, 3, 4, 5, 6, 7]", version="1")
        shown = await browser.open(f"/start?like={odd}")
        assert "does not fit into fields" in shown.text
        assert "null" in shown.form("/start").fields["input"]


async def test_whatever_a_schema_says_is_text_and_does_no_harm(quick: Browser, memory: LocalEngine) -> None:
    evil = '<script>alert(1)</script>"'
    schemas = {
        "odd": {"properties": {evil: {"enum": [evil, 1]}, "loop": {"$ref": "#/$defs/loop"}, "n": 7}, "required": 3},
        "none": {"properties": []},
    }
    schemas["odd"]["$defs"] = {"loop": {"anyOf": [{"$ref": "#/$defs/loop"}]}}  # type: ignore[index]
    await memory.workers.register(
        new_registration(
            types=tuple(WorkflowType(name, "1") for name in schemas),
            interfaces=tuple(
                WorkflowInterface(
                    workflow_type=name, version="1", summary=evil, input_schema=msgspec.json.encode(schema).decode()
                )
                for name, schema in schemas.items()
            ),
        )
    )
    asked = await quick.open("/start", workflow="odd")
    assert "<script>alert" not in asked.html
    assert f"arg.{evil}" in asked.form("/start").fields
    sent = await quick.send(asked.form("/start"), **{f"arg.{evil}": "1", "arg.n": "[]"})
    assert "The run was started." in sent.text
    assert "input" in (await quick.open("/start", workflow="none")).form("/start").fields


async def test_forms_write_what_the_codec_of_the_app_reads(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'kagzi.db'}"
    codec = Encrypt({"1": bytes(32)}, current="1")
    app = make_shop(url, codec)

    @app.workflow
    async def ask(what: str) -> str:
        return what + await kagzi.wait_signal("answer", str)

    async def ended(page: Page) -> Any:
        """Returns what a run comes to, as the app reads it."""
        return await app.handle(page.links["Start a copy …"].partition("like=")[2]).result(timeout=30)

    async with app, app.worker(), engine_on(url) as engine:
        async with dashboard(engine, codec=codec) as port, Browser(port.url) as browser:
            form = (await browser.open("/start", workflow="sell")).form("/start")
            started = await browser.send(form, **{"arg.order": "1", "arg.to": '{"street": "Main"}'})
            assert (await ended(started))[1] == "Main"
            twice = await browser.send(form, **{"arg.order": "1", "arg.to": '{"street": "Main"}'})
            assert twice.links["Start a copy …"] == started.links["Start a copy …"]
            run_id = started.links["Start a copy …"].partition("like=")[2]
            copy = await browser.open(started.links["Start a copy …"])
            assert "Main" in copy.form("/start").fields["arg.to"]
            asked = (await browser.open(started.links["Fork …"])).form("/fork")
            forked = await browser.send(asked)
            assert "the other one stays as it is" in forked.text
            assert (await ended(forked))[1] == "Main"
            given = {"arg.to": '{"street": "Mainstream"}', "fresh": app._ids.run_id()}
            changed = await browser.send(asked, **given)
            assert (await ended(changed))[1] == "Mainstream"
            twice = await browser.send(asked, **given)
            assert twice.links["Start a copy …"] == changed.links["Start a copy …"]

            form = (await browser.open("/start", workflow="ask")).form("/start")
            waiting = await browser.send(form, **{"arg.what": "Main or"})
            signal = (await browser.open(waiting.links["Send signal"])).form("/signal")
            sent = await browser.send(signal, name="answer", value='" Mainland"')
            assert await ended(waiting) == "Main or Mainland"
            assert (
                "Mainland" in (await browser.open(sent.links["Start a copy …"].replace("/start?like=", "/runs/"))).text
            )

            form = (await browser.open("/new-schedule")).form("/new-schedule")
            given = {"name": "nightly", "workflow": "ask", "cron": "@daily", "tz": "UTC", "queue": "default"}
            made = await browser.send(form, **given, input='["Main schedule"]')
            edited = (await browser.open(made.links["Change"])).form("/edit")
            assert "Main schedule" in edited.fields["input"]
            await browser.send(edited, input='["Mainly scheduled"]')
            run = await (await app.schedules.get("nightly")).trigger()
            await run.signal("answer", ", as the Main")
            assert await run.result(timeout=30) == "Mainly scheduled, as the Main"
        stored = b"".join([file.read_bytes() for file in tmp_path.iterdir() if file.is_file()])
        assert b"nightly" in stored
        assert b"Main" not in stored
        async with dashboard(engine) as port, Browser(port.url) as browser:
            copy = await browser.open("/start", like=run_id)
            assert "encoded by a codec of the app, which this page cannot read" in copy.text
            asked = (await browser.open(f"/runs/{run_id}/fork")).text
            assert "left empty it stays as it is" in asked
