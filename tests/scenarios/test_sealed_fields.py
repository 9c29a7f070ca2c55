"""An app with a codec that encrypts: no dump of its database shows what it was given, and everything comes back.

What is moved to another place in the database is refused, with words that say what happened.
"""

from __future__ import annotations

import asyncio
import base64
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

import kagzi
from kagzi import CannotDecode, Conflict, Cron, Debounce, FailedRun, Kagzi, PayloadContext, Retry, WorkflowFailed
from kagzi.cli.decoding import decoded_value
from kagzi.codecs import Chain, Compress, Encrypt
from kagzi.core.failure import Failure
from kagzi.core.lineage import lineage_of
from kagzi.sdk.histories import export_history
from kagzi.sdk.replaying import replay
from tests.scenarios import process_vault
from tests.scenarios.conftest import ON_POSTGRES, Place

KEY = bytes(range(32))
HOUR = timedelta(hours=1)


class Declined(Exception):
    def __init__(self, card: str) -> None:
        super().__init__(f"{card} was declined")
        self.card = card


class Shop:
    """Workflows that write into every field that a payload can stand in. The secrets of a test are its own."""

    def __init__(self, url: str, codec: kagzi.Codec, namespace: str | None = None) -> None:
        self.app = app = Kagzi(url, codec=codec, namespace=namespace)
        self.handled: list[tuple[Any, str, str]] = []
        self.broken = True

        @app.step(retry=Retry.none)
        async def echo(text: str) -> str:
            kagzi.progress(0.5, f"{text} in a step")
            return text + " echoed"

        @app.step(retry=Retry.none)
        async def decline(card: str) -> None:
            try:
                raise ValueError(f"{card} as a cause")
            except ValueError as error:
                raise Declined(card) from error

        @app.step(retry=Retry.none)
        async def fragile(text: str) -> str:
            if self.broken:
                raise Declined(text)
            return text + " at last"

        @app.workflow
        async def told(text: str) -> list[str]:
            kagzi.set_value("stage", f"{text} as a value")
            kagzi.progress(0.1, f"{text} on its way")
            return [await echo(text), await kagzi.wait_signal("go", str), await kagzi.wait_signal("go", str)]

        @app.workflow
        async def caught(text: str) -> str:
            try:
                await decline(text)
            except Declined as error:
                await kagzi.sleep(0.001)
                kagzi.progress(0.9, f"{text} nearly there")
                return f"{error.card} / {error.__cause__}"
            return "paid"

        @app.workflow
        async def fails(text: str) -> str:
            return await fragile(await echo(text))

        @app.workflow
        async def parent(text: str) -> list[str]:
            child = await told.spawn(text + " to a child")
            await child.signal("go", text + " as a signal to a child")
            await child.signal("go", text + " once more")
            answer = await child.result()
            try:
                await declined.run(text + " to another")
            except WorkflowFailed as error:
                return [*answer, str(error.__cause__)]
            return []

        @app.workflow
        async def declined(text: str) -> None:
            await decline(text)

        @app.workflow
        async def anew(text: str, left: int = 2) -> str:
            if left:
                anew.continue_as_new(text + " anew", left - 1)
            await fragile(text)
            return await echo(text)

        @app.workflow
        async def notify(failed: FailedRun) -> str:
            self.handled.append((failed.input, failed.failure.message, str(failed.failure.cause)))
            return await echo(failed.failure.message)

        @app.workflow
        async def begins_anew(failed: FailedRun, left: int = 1) -> str:
            said = await below.run(failed.failure.message)
            if left:
                begins_anew.continue_as_new(failed, left - 1)
            return f"{said} {failed.input}"

        @app.workflow
        async def below(text: str) -> str:
            return text

        @app.workflow(on_failure=begins_anew)
        async def handled_anew(text: str) -> None:
            await decline(text)

        @app.workflow(on_failure=notify)
        async def handled(text: str) -> None:
            await decline(text)

        @app.workflow(retry=Retry(attempts=2, first=0.01))
        async def tried(text: str) -> str:
            first = await echo(text)
            if self.broken:
                self.broken = False
                raise Declined(text)
            return first

        @app.workflow(debounce=Debounce("200ms", most="1s", key="who"))
        async def joined(who: str, text: str) -> str:
            return await echo(text)

        @app.workflow(schedule=Cron("0 9 * * *", args=["declared-9999"]))
        async def nightly(text: str) -> str:
            return await echo(text)

        self.told, self.caught, self.fails, self.parent, self.anew = told, caught, fails, parent, anew
        self.handles, self.tried, self.joined, self.nightly, self.echo = handled, tried, joined, nightly, echo
        self.declined, self.handled_anew, self.begins_anew, self.below = declined, handled_anew, begins_anew, below


Field = Callable[[Shop, str], Awaitable[None]]


async def done_again(run: Any, answer: Any) -> None:
    for _ in range(2):
        run = await run.rerun()
        assert await run.result(timeout=30) == answer
    run = await run.fork()
    assert await run.result(timeout=30) == answer


async def told(shop: Shop, secret: str) -> None:
    run = await shop.told.options(id="told").start(secret)
    await run.signal("go", secret + " by handle")
    await shop.app.signal("told", "go", secret + " by id")
    answer = [secret + " echoed", secret + " by handle", secret + " by id"]
    assert await run.result(timeout=30) == answer
    assert (await shop.told.options(id="told").start(secret)).already_exists
    record, steps = await run.get(), await run.steps()
    assert (record.input, record.output) == ([secret], answer)
    assert (steps[0].input, [step.output for step in steps if step.output is not None]) == ([secret], answer)
    assert [signal.value for signal in await run.signals()] == answer[1:]
    assert (await run.value("stage"), await run.values()) == (secret + " as a value", {"stage": secret + " as a value"})
    progress = await run.progress()
    assert progress is not None
    assert progress.message == secret + " in a step"


async def started_by_a_signal(shop: Shop, secret: str) -> None:
    def signal(text: str) -> Any:
        return shop.told.options(id="cart", signal=kagzi.Signal("go", secret + text))

    run = await signal(" first").start(secret)
    assert (await signal(" second").start("not looked at")).id == run.id
    assert await run.result(timeout=30) == [secret + " echoed", secret + " first", secret + " second"]
    fork = await run.fork("echo")  # takes what was sent by the id that it has not
    assert (await fork.result(timeout=30))[1:] == [secret + " first", secret + " second"]
    assert (await (await fork.fork("echo")).result(timeout=30))[1:] == [secret + " first", secret + " second"]


async def caught(shop: Shop, secret: str) -> None:
    run = await shop.caught.start(secret)
    assert await run.result(timeout=30) == f"{secret} / {secret} as a cause"
    progress = await run.progress()
    assert progress is not None
    assert progress.message == secret + " nearly there"
    error = (await run.steps())[0].error
    assert error is not None
    assert (error.message, error.attributes) == (f"{secret} was declined", {"card": secret})
    assert error.cause is not None
    assert error.cause.message == secret + " as a cause"


async def failed_and_done_again(shop: Shop, secret: str) -> None:
    shop.broken = True
    run = await shop.fails.options(id="again").start(secret)
    for retries in range(3):
        with pytest.raises(WorkflowFailed, match=secret):
            await run.result(timeout=30)
        assert f"{secret} echoed was declined" in str((await run.get()).error)
        if retries < 2:
            run = await run.retry()
    shop.broken = False
    last: Any = await shop.app.find("again", shop.fails)
    for _ in range(2):
        done = secret + " echoed at last"
        last = await last.rerun()
        assert await last.result(timeout=30) == done
        last = await last.fork("fragile")
        assert await last.result(timeout=30) == done
        assert (await last.get()).input == [secret]
        assert [step.output for step in await last.steps()] == [secret + " echoed", done]
    new = await last.fork(input=(secret + " changed",))
    assert await new.result(timeout=30) == secret + " changed echoed at last"
    assert (await (await new.rerun()).get()).input == [secret + " changed"]


async def children(shop: Shop, secret: str) -> None:
    run = await shop.parent.start(secret)
    answer = [f"{secret} to a child echoed", f"{secret} as a signal to a child", f"{secret} once more"]
    answer.append(f"{secret} to another was declined")
    assert await run.result(timeout=30) == answer
    steps = {step.name: step for step in await run.steps()}
    assert (steps["told"].input, steps["told"].output) == ([secret + " to a child"], answer[:3])
    assert answer[3] in str(steps["declined"].error)
    assert await (await run.fork("declined")).result(timeout=30) == answer
    child = shop.app.handle(steps["told"].child_run_id or "", shop.told)
    assert (await child.get()).input == [secret + " to a child"]


async def begun_anew(shop: Shop, secret: str) -> None:
    shop.broken = True
    run = await shop.anew.options(id="anew").start(secret)
    with pytest.raises(WorkflowFailed, match=secret):
        await run.result(timeout=30)
    shop.broken = False
    run = await run.retry()
    assert await run.result(timeout=30) == secret + " anew anew echoed"
    assert (await shop.anew.options(id="anew").start(secret)).already_exists  # as it was given first
    with pytest.raises(Conflict):
        await shop.anew.options(id="anew").start(secret + " anew anew", 0)
    await done_again(run, secret + " anew anew echoed")


async def a_failure_that_is_handled(shop: Shop, secret: str) -> None:
    run = await shop.handles.start(secret)
    with pytest.raises(WorkflowFailed, match=secret):
        await run.result(timeout=30)
    handler = None
    while handler is None:
        await asyncio.sleep(0.02)
        handler = next((each for each in (await shop.app.runs(workflow="notify")).items), None)
    handle: Any = shop.app.handle(handler.run_id)
    for _ in range(3):
        assert await handle.result(timeout=30) == f"{secret} was declined echoed"
        assert (await handle.get()).input[0]["run_id"] == run.id  # the engine has written it
        handle = await handle.rerun()
    await handle.result(timeout=30)
    assert set(map(str, shop.handled)) == {
        str(([secret], f"{secret} was declined", f"ValueError: {secret} as a cause"))
    }


async def a_handler_that_begins_anew(shop: Shop, secret: str) -> None:
    run = await shop.handled_anew.start(secret)
    with pytest.raises(WorkflowFailed, match=secret):
        await run.result(timeout=30)
    found: list[Any] = []
    while not found:
        await asyncio.sleep(0.02)
        found = list((await shop.app.runs(workflow="begins_anew")).items)
    handle: Any = shop.app.handle(found[0].run_id, shop.begins_anew)
    given: Any = None
    assert shop.app.codec is not None
    for _ in range(2):
        assert await handle.result(timeout=30) == f"{secret} was declined ['{secret}']"
        given = (await handle.get()).input
        assert (given[0]["run_id"], given[1]) == (run.id, 0)
        stored = await shop.app.engine.workflows.get(shop.app.namespace, handle.id)
        for value in await shop.app.engine.workflows.values(shop.app.namespace, handle.id):
            decoded_value(value, shop.app.codec, lineage_of(stored))  # what `kagzi runs show --app` does
        handle = await handle.rerun()
    forked = await handle.fork(input=(given[0], 0))
    assert await forked.result(timeout=30) == f"{secret} was declined ['{secret}']"
    assert (await forked.get()).input == [given[0], 0]
    child: Any = shop.app.handle((await shop.app.runs(workflow="below")).items[0].run_id, shop.below)
    for _ in range(2):
        assert await child.result(timeout=30) == secret + " was declined"
        assert (await child.get()).input == [secret + " was declined"]
        child = await child.rerun()
    await child.result(timeout=30)


async def tried_again(shop: Shop, secret: str) -> None:
    shop.broken = True
    run = await shop.tried.start(secret)
    assert await run.result(timeout=30) == secret + " echoed"
    assert [step.output for step in await run.steps() if step.output] == [secret + " echoed"] * len(await run.steps())


async def joined(shop: Shop, secret: str) -> None:
    run = await shop.joined.start("ada", secret + " not this")
    again = await shop.joined.start("ada", secret)
    assert again.id == run.id
    assert await run.result(timeout=30) == secret + " echoed"
    assert (await run.get()).input == ["ada", secret]
    await done_again(run, secret + " echoed")


async def schedules(shop: Shop, secret: str) -> None:
    made = await shop.app.schedules.create('a "quoted" näme', shop.nightly, secret, cron="0 9 * * *")
    assert (await made.info()).input == [secret]
    run: Any = await made.trigger()
    assert await run.result(timeout=30) == secret + " echoed"
    assert (await run.get()).input == [secret]
    await done_again(run, secret + " echoed")
    await made.update(workflow=shop.nightly, args=(secret + " changed",))
    assert [each.input for each in (await shop.app.schedules.list()).items if each.id == made.id] == [
        [secret + " changed"]
    ]
    past = datetime.now(UTC) - timedelta(days=2)
    await made.backfill(past, past + timedelta(days=1))
    fired = [each for each in (await made.runs()).items if each.run_id != run.id and each.origin is None]
    assert await shop.app.handle(fired[0].run_id).result(timeout=30) == secret + " changed echoed"
    declared = await shop.app.schedules.get("nightly")
    assert (await declared.info()).input == ["declared-9999"]
    assert await (await declared.trigger()).result(timeout=30) == "declared-9999 echoed"


async def a_step_of_its_own(shop: Shop, secret: str) -> None:
    run = await shop.echo.options(id="step").start(secret)
    assert await run.result(timeout=30) == secret + " echoed"


async def exported(shop: Shop, secret: str) -> None:
    run = await (await shop.parent.start(secret)).result(timeout=30)
    assert run
    for record in (await shop.app.runs(workflow="parent")).items:
        found = await shop.app.engine.workflows.get(shop.app.namespace, record.run_id)
        history = await export_history(shop.app.engine, found)
        assert secret.encode() not in history.to_json()
        assert replay(history.to_json(), shop.app).events > 2
    forked = await (await shop.told.options(id="for export").start(secret)).fork()
    for name in ("a", "b"):
        await forked.signal("go", secret + name)
    await forked.result(timeout=30)
    found = await shop.app.engine.workflows.get(shop.app.namespace, forked.id)
    assert replay((await export_history(shop.app.engine, found)).to_json(), shop.app).events > 2


FIELDS: list[Field] = [
    told,
    started_by_a_signal,
    caught,
    failed_and_done_again,
    children,
    begun_anew,
    a_failure_that_is_handled,
    a_handler_that_begins_anew,
    tried_again,
    joined,
    schedules,
    a_step_of_its_own,
    exported,
]


def encrypt(**options: Any) -> Encrypt:
    return Encrypt({"1": KEY}, current="1", **options)


async def dump(url: str) -> bytes:
    """Returns everything that a database holds, in the ways in which it may be written."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
            tables = [name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
            rows = [row for name in tables for row in database.execute(f'SELECT * FROM "{name}"')]
    else:
        connection = await asyncpg.connect(url)
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'kagzi'")
        rows = [tuple(row) for (name,) in tables for row in await connection.fetch(f"SELECT * FROM kagzi.{name}")]
        await connection.close()
    parts = [part if isinstance(part, bytes) else str(part).encode() for row in rows for part in row]
    return b"\n".join(parts)


def traces(secret: str) -> list[bytes]:
    """Returns how a secret may show: as it is, in hex, and in base64 wherever it begins there."""
    data = secret.encode()
    inner = [base64.b64encode(b"x" * shift + data)[4 if shift else 0 : -4] for shift in range(3)]
    return [data, data.hex().encode(), *inner]


@pytest.fixture(params=["sqlite", ON_POSTGRES, "sqlite-grpc"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, str]]:
    place = Place(request.param, request)
    async with place.url() as url:
        yield url, place._url


async def test_no_dump_shows_what_was_given_and_everything_comes_back(place: tuple[str, str]) -> None:
    home, database = place
    shop = Shop(home, Chain(Compress(), encrypt()))
    secrets = {each.__name__: f"4111-{number:04}-{each.__name__[:4]}" for number, each in enumerate(FIELDS)}
    async with shop.app, shop.app.worker():
        for field in FIELDS:
            await field(shop, secrets[field.__name__])
        stored = await dump(database)
    assert b"told" in stored
    for name, secret in [*secrets.items(), ("declared", "declared-9999")]:
        assert [trace for trace in traces(secret) if trace in stored] == [], name


async def test_a_body_in_a_process_of_its_own_needs_no_codec(sqlite_file: Any) -> None:
    process_vault.app.url = f"sqlite:///{sqlite_file}"
    async with process_vault.app as app, app.worker(step_processes=1):
        run = await process_vault.book.start("4111-boxed")
        assert await run.result(timeout=60) == "4111-boxed rendered"
        (step,) = await run.steps()
        progress = await run.progress()
        assert progress is not None
        assert (step.input, step.output, progress.message) == (
            ["4111-boxed"],
            "4111-boxed rendered",
            "4111-boxed in a process",
        )
        assert b"4111-boxed" not in await dump(process_vault.app.url)


async def test_a_codec_is_told_what_it_encodes(sqlite_file: Any) -> None:
    """The same of both sides: a payload is read as what it was written as."""
    written: dict[bytes, PayloadContext] = {}
    wrong: list[tuple[PayloadContext, PayloadContext]] = []

    class Noting:
        number = 0

        def encode(self, data: bytes, context: PayloadContext) -> bytes:
            Noting.number += 1
            stored = b"\xff%d " % Noting.number + data
            written[stored] = context
            return stored

        def decode(self, data: bytes, context: PayloadContext) -> bytes:
            was = written[data]
            if (was.kind, was.namespace, was.name) != (context.kind, context.namespace, context.name) or not (
                context.accepts(was.run_id)
            ):
                wrong.append((was, context))
            return data.partition(b" ")[2]

    shop = Shop(f"sqlite:///{sqlite_file}", Noting(), namespace="vault")
    async with shop.app, shop.app.worker():
        for field in FIELDS:
            if field is not exported:  # its secret is only turned round
                await field(shop, f"4111-{field.__name__}")
    assert wrong == []
    kinds = {context.kind.value for context in written.values()}
    assert kinds == {"input", "output", "error", "step input", "step output", "step error", "signal", "value"}
    assert {context.namespace for context in written.values()} == {"vault"}
    assert {"echo", "go", "stage"} <= {context.name for context in written.values()}


async def test_errors_that_the_codec_refuses_are_hidden_and_can_be_read(place: tuple[str, str]) -> None:
    home, database = place

    class Moody:
        def __init__(self) -> None:
            self.inner = encrypt()

        def encode(self, data: bytes, context: PayloadContext) -> bytes:
            if "error" in context.kind.value:
                raise RuntimeError("no errors today")
            return self.inner.encode(data, context)

        def decode(self, data: bytes, context: PayloadContext) -> bytes:
            return self.inner.decode(data, context)

    shop = Shop(home, Moody())
    async with shop.app, shop.app.worker():
        run = await shop.declined.start("4111-refused")
        with pytest.raises(WorkflowFailed, match=r"Declined: \(hidden: the codec of the app raised RuntimeError\)"):
            await run.result(timeout=30)
        errors = [str(step.error) for step in await run.steps()] + [str((await run.get()).error)]
        assert all("(hidden: the codec" in each for each in errors)
        stored = await dump(database)
    assert [trace for trace in traces("4111-refused") if trace in stored] == []


# What somebody does who can write into the database.


class Thief:
    """Moves payloads in an SQLite file."""

    def __init__(self, path: Any) -> None:
        self.path = path

    def do(self, sql: str, *values: Any) -> None:
        with closing(sqlite3.connect(self.path, timeout=30)) as database, database:
            # Finished runs are held by triggers, which whoever has the file can take away.
            for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
                database.execute(f"DROP TRIGGER {name}")
            changed = database.execute(sql, values).rowcount
        assert changed, sql

    def swap(self, table: str, column: str, one: str, other: str) -> None:
        """`one` and `other` are conditions for a row."""
        with closing(sqlite3.connect(self.path)) as database:
            (first,) = database.execute(f"SELECT {column} FROM {table} WHERE {one}").fetchone()
            (second,) = database.execute(f"SELECT {column} FROM {table} WHERE {other}").fetchone()
        assert first != second
        for condition, value in ((one, second), (other, first)):
            self.do(f"UPDATE {table} SET {column} = ? WHERE {condition}", value)


MOVED = "somebody has moved it in the database"


async def test_what_was_moved_in_the_database_is_refused(sqlite_file: Any) -> None:
    url, thief = f"sqlite:///{sqlite_file}", Thief(sqlite_file)
    shop, other = Shop(url, encrypt()), Shop(url, encrypt(), namespace="other")
    async with shop.app, other.app, shop.app.worker(), other.app.worker():
        runs = []
        for at, home in enumerate((shop, shop, other)):
            run: Any = await home.told.options(id=f"t{at}").start(f"secret {at}")
            await run.signal("go", f"signal {at}")
            await run.signal("go", f"another {at}")
            await run.result(timeout=30)
            runs.append(run)
        one, two, three = [f"run_id = '{run.id}'" for run in runs]
        echo, go = " AND step_id = 'echo'", " AND step_id = '@@go'"

        async def value(run: Any) -> Any:
            return await run.value("stage")

        async def input(run: Any) -> Any:
            return (await run.get()).input

        async def output(run: Any) -> Any:
            return (await run.get()).output

        async def result(run: Any) -> Any:
            return await run.result(timeout=30)

        async def echoed(run: Any) -> Any:
            (step,) = [step for step in await run.steps() if step.name == "echo"]
            return step.input, step.output

        async def signals(run: Any) -> Any:
            return await run.signals()

        async def went(run: Any) -> Any:
            return [step.output for step in await run.steps() if step.name == "go"]

        moves: list[tuple[str, str, str, str, list[Callable[[Any], Awaitable[Any]]]]] = [
            ("workflow_runs", "input", one, two, [input]),
            ("workflow_runs", "output", one, two, [output, result]),
            ("workflow_runs", "input", one, three, [input]),
            ("workflow_runs", "output", two, three, [result]),
            ("step_runs", "input", one + echo, two + echo, [echoed]),
            ("step_runs", "output", one + echo, two + echo, [echoed]),
            ("step_runs", "output", one + echo, one + go, [echoed, went]),
            ("step_runs", "output", one + go, two + go, [went]),
            ("run_values", "value", one + " AND name = 'stage'", two + " AND name = 'stage'", [value]),
            ("signals", "value", one + " AND seq = 1", two + " AND seq = 1", [signals]),
        ]
        for table, column, first, second, reads in moves:
            thief.swap(table, column, first, second)
            for read in reads:
                for run in runs:
                    if run.id in first + second:
                        with pytest.raises(CannotDecode, match=MOVED):
                            await read(run)
            thief.swap(table, column, first, second)
        # Within one run: the input in the place of the output.
        thief.do(f"UPDATE workflow_runs SET output = input WHERE {one}")
        with pytest.raises(CannotDecode, match=rf"encrypted as the input of {runs[0].id} stands in .* the output of"):
            await result(runs[0])
        # Only the namespace differs: a whole run in another one.
        thief.do(f"UPDATE workflow_runs SET namespace = 'default' WHERE {three}")
        with pytest.raises(CannotDecode, match="in namespace default was changed or put there from another place"):
            await result(shop.app.handle(runs[2].id, shop.told))
        # Only the name of the step, or of the value, differs.
        thief.do(f"UPDATE step_runs SET step_id = 'pay' WHERE {two + echo}")
        with pytest.raises(CannotDecode, match=r"the step input of pay of .* was changed or put there"):
            _ = [step.input for step in await runs[1].steps()]
        thief.do(f"UPDATE run_values SET name = 'other' WHERE {two} AND name = 'stage'")
        with pytest.raises(CannotDecode, match=r"the value of other of .* was changed or put there"):
            await runs[1].value("other")


async def test_a_worker_fails_runs_whose_payloads_were_moved(sqlite_file: Any) -> None:
    thief = Thief(sqlite_file)
    shop = Shop(f"sqlite:///{sqlite_file}", encrypt())
    async with shop.app:
        one, two = [await shop.nightly.start(f"secret {at}") for at in range(2)]
        thief.swap("workflow_runs", "input", f"run_id = '{one.id}'", f"run_id = '{two.id}'")
        asked: Any = await shop.told.start("secret 2")
        both: Any = await shop.told.start("secret 3")
        for run in (asked, both):
            await run.signal("go", f"to {run.id}")
        thief.swap("signals", "value", f"run_id = '{asked.id}'", f"run_id = '{both.id}'")
        made = await shop.app.schedules.create("a", shop.nightly, "secret 4", cron="0 9 * * *")
        second = await shop.app.schedules.create("b", shop.nightly, "secret 5", cron="0 9 * * *")
        thief.swap("workflow_runs", "input", f"run_id = '{made.id}'", f"run_id = '{second.id}'")
        fired: Any = await made.trigger()
        # Plain, as the engine writes the input of a failure handler: of something else nobody believes it.
        forged = await shop.nightly.start("secret 6")
        thief.do("UPDATE workflow_runs SET input = ?, handles_run_id = ? WHERE run_id = ?", b'["x"]', one.id, forged.id)
        thief.do(
            "INSERT INTO run_values (namespace, run_id, name, value, at, seq) "
            "SELECT namespace, ?, '@failed_input', input, created_at, 0 FROM workflow_runs WHERE run_id = ?",
            forged.id,
            one.id,
        )
        async with shop.app.worker():
            with pytest.raises(WorkflowFailed, match="is not encrypted"):
                await forged.result(timeout=30)
            for run in (one, two, asked, both, fired):
                with pytest.raises(WorkflowFailed, match=MOVED):
                    await run.result(timeout=30)
            await second.delete()
        with pytest.raises(CannotDecode, match="of schedule:b stands in the place of the input of schedule:a"):
            await made.info()


FORGED = [
    Failure.of("shop.Declined", "forged"),
    Failure.of("kagzi.errors.WorkflowFailed", "the run failed", attributes={"forged": 1}),
    Failure("shop.Declined", "forged", args=("forged",)),
    Failure("builtins.ValueError", "(hidden: the codec of the app raised X) forged"),
    Failure("builtins.ValueError", cause=Failure("builtins.ValueError", "forged")),
]


async def test_errors_that_nobody_has_sealed_are_refused_as_plain_inputs_are(sqlite_file: Any) -> None:
    thief = Thief(sqlite_file)
    shop = Shop(f"sqlite:///{sqlite_file}", encrypt())
    lenient = Shop(f"sqlite:///{sqlite_file}", encrypt(plain=True))
    async with shop.app, lenient.app:
        async with shop.app.worker():
            run = await shop.declined.start("4111")
            with pytest.raises(WorkflowFailed, match="4111 was declined"):
                await run.result(timeout=30)
            child = await shop.parent.start("4111")
            await child.result(timeout=30)
        for forged in FORGED:
            thief.do("UPDATE workflow_runs SET error = ? WHERE run_id = ?", forged.encode(), run.id)
            thief.do("UPDATE step_runs SET error = ? WHERE run_id = ? AND error IS NOT NULL", forged.encode(), run.id)
            with pytest.raises(
                WorkflowFailed, match=r"cannot be read here: the error of .* is not encrypted"
            ) as raised:
                await run.result(timeout=30)
            assert "forged" not in str(raised.value)
            assert isinstance(raised.value.__cause__, CannotDecode)
            record, (step,) = await run.get(), await run.steps()
            for error in (record.error, step.error):
                assert error is not None
                assert ("forged" in str(error), error.type) == (False, "kagzi.errors.CannotDecode")
            read = await lenient.app.handle(run.id).get()  # what was there before it was encrypted
            assert read.error == Failure.decode(forged.encode())
        # What the engine says is no secret of the app, and the worker believes it.
        thief.do("UPDATE step_runs SET error = ? WHERE run_id = ? AND error IS NOT NULL", FORGED[0].encode(), child.id)
        again = await child.fork()
        thief.do("UPDATE workflow_runs SET started_at = NULL WHERE run_id = ?", again.id)
        terminated = await shop.told.start("waits")
        await terminated.terminate("in the way")
        with pytest.raises(kagzi.WorkflowCancelled, match="in the way"):
            await terminated.result(timeout=30)
