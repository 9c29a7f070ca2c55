"""Children: runs that workflows start, at every home."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import kagzi
from kagzi import Conflict, InvalidRequest, Kagzi, RunStatus, StepKind, StepStatus, WorkflowCancelled, WorkflowFailed
from kagzi.sdk.histories import export_history
from kagzi.testing import replay, run_virtually
from tests.scenarios.conftest import Stage


class Press:
    """Workflows that render pages in runs of their own."""

    def __init__(self) -> None:
        self.app = app = Kagzi("memory://")
        self.printed: list[int] = []
        self.cleaned: list[str] = []
        self.replays = 0
        printed, cleaned = self.printed, self.cleaned

        @app.step
        async def put(page: int) -> int:
            printed.append(page)
            return page * 10

        @app.step
        async def clean(what: str) -> None:
            cleaned.append(what)

        @app.workflow
        async def render(page: int) -> int:
            if page < 0:
                raise ValueError(f"no page {page}")
            return await put(page)

        @app.workflow
        async def patient(name: str) -> str:
            try:
                return await kagzi.wait_signal("go", str)
            except asyncio.CancelledError:
                await clean(name)
                raise

        @app.workflow
        async def book(pages: int) -> list[int]:
            self.replays += 1
            return await asyncio.gather(*(render.run(page) for page in range(pages)))

        @app.workflow
        async def awaiting(name: str) -> str:
            child = await patient.options(id=f"{name}-child").spawn(name)
            return await child.result()

        @app.workflow
        async def leaving(policy: str) -> str:
            child = await patient.options(on_parent_end=policy).spawn(policy)  # type: ignore[arg-type]
            return child.id

        @app.workflow
        def plain(page: int) -> list[int]:
            child: Any = render.spawn(page)
            second: Any = render.run(page + 1)
            return [child.result(), second]

        self.render, self.patient, self.book = render, patient, book
        self.awaiting, self.leaving, self.plain = awaiting, leaving, plain


@pytest.fixture
def press() -> Press:
    return Press()


async def until(run: Any, status: RunStatus) -> None:
    async with asyncio.timeout(60):
        while await run.status() is not status:
            await asyncio.sleep(0.01)


async def ended(run: Any) -> RunStatus:
    with pytest.raises(WorkflowFailed):
        await run.result(timeout=60)
    return (await run.get()).status


def test_children_are_runs_of_their_own(press: Press, stage: Stage) -> None:
    async def main() -> None:
        run = await press.book.options(queue="default").start(3)
        assert await run.result(timeout=60) == [0, 10, 20]
        children = (await press.app.runs(parent=run.id)).items
        assert {child.workflow for child in children} == {"render"}
        assert {(child.parent_run_id, child.on_parent_end) for child in children} == {(run.id, "cancel")}
        steps = [step for step in await run.steps() if step.kind is StepKind.CHILD_WORKFLOW]
        assert {step.step_id for step in steps} == {"render", "render#2", "render#3"}
        assert {step.child_run_id for step in steps} == {child.run_id for child in children}
        assert sorted(press.printed) == [0, 1, 2]

    stage.run(press.app, main)


def test_a_child_and_a_step_begin_at_once_beside_a_timeout(press: Press) -> None:
    """The timeout has the run record when it began. That waits for something that goes along; the spawn must not."""

    @press.app.step
    async def beside() -> str:
        return "beside"

    @press.app.workflow
    async def hurried(with_step: bool) -> tuple[list[Any], float]:
        began = kagzi.now()
        async with asyncio.timeout(3600):
            results = await asyncio.gather(press.render.run(1), *([beside()] if with_step else []))
        return results, (kagzi.now() - began).total_seconds()

    async def main() -> None:
        for with_step, expected in ((False, [10]), (True, [10, "beside"])):
            results, seconds = await hurried.run(with_step)
            assert results == expected
            assert seconds < 0.1

    run_virtually(press.app, main)


def test_a_parked_parent_is_woken_by_its_child(press: Press, stage: Stage) -> None:
    async def main() -> None:
        run = await press.awaiting.start("a")
        await until(run, RunStatus.SLEEPING)
        child = await press.app.find("a-child")
        await child.signal("go", "done")
        assert await run.result(timeout=60) == "done"

    stage.run(press.app, main)


def test_def_workflows_have_children_too(press: Press, stage: Stage) -> None:
    async def main() -> None:
        assert await press.plain.run(1) == [10, 20]

    stage.run(press.app, main)


def test_a_failed_child_is_an_error_where_it_is_awaited(press: Press, stage: Stage) -> None:
    app, render = press.app, press.render

    @app.workflow
    async def careful() -> list[Any]:
        try:
            await render.run(-1)
        except WorkflowFailed as error:
            failure = error.failure
            assert failure is not None
            return [type(error).__name__, failure.message, bool(error.run_id)]
        return []

    @app.workflow
    async def careless() -> None:
        await render.run(-1)

    async def main() -> None:
        assert await careful.run() == ["WorkflowFailed", "no page -1", True]
        run = await careless.start()
        assert await ended(run) is RunStatus.FAILED

    stage.run(press.app, main)


def test_a_child_that_times_out_is_told_apart(press: Press, stage: Stage) -> None:
    app, patient = press.app, press.patient

    @app.workflow
    async def hurried() -> str:
        try:
            return await patient.options(timeout="1s").run("late")
        except kagzi.WorkflowTimedOut as error:
            return error.run_id

    async def main() -> None:
        run = await hurried.start()
        child = press.app.handle(await run.result(timeout=60))
        assert await child.status() is RunStatus.TIMED_OUT

    stage.run(press.app, main)


def test_cancelling_a_parent_cancels_the_child_it_waits_for(press: Press, stage: Stage) -> None:
    app, patient = press.app, press.patient

    @app.workflow
    async def structured() -> str:
        try:
            return await patient.options(id="inner").run("inner")
        finally:
            press.cleaned.append("outer")

    async def main() -> None:
        run = await structured.start()
        async with asyncio.timeout(60):
            while True:
                try:
                    child = await press.app.find("inner")
                    break
                except kagzi.NotFound:
                    await asyncio.sleep(0.01)
        await until(child, RunStatus.SLEEPING)
        await run.cancel()
        assert await ended(run) is RunStatus.CANCELLED
        assert await ended(child) is RunStatus.CANCELLED
        # The child had ended before its parent went on.
        assert press.cleaned.index("inner") < max(i for i, what in enumerate(press.cleaned) if what == "outer")

    stage.run(press.app, main)


@pytest.mark.parametrize(
    ("policy", "status", "cleaned"),
    [("cancel", RunStatus.CANCELLED, True), ("terminate", RunStatus.CANCELLED, False), ("abandon", None, False)],
)
def test_what_becomes_of_children_when_their_parent_ends(
    press: Press, stage: Stage, policy: str, status: RunStatus | None, cleaned: bool
) -> None:
    async def main() -> None:
        child = press.app.handle(await press.leaving.run(policy))
        if status is None:
            await until(child, RunStatus.SLEEPING)
            await child.signal("go", "later")
            assert await child.result(timeout=60) == "later"
        else:
            assert await ended(child) is status
        # One that nobody has begun has nothing to clean up.
        assert cleaned or not press.cleaned
        (parent,) = (await press.app.runs(workflow="leaving")).items
        shown = {step.child_run_id: step for step in await press.app.handle(parent.run_id).steps()}[child.id]
        record = await child.get()
        assert (shown.status.value, shown.output) == (record.status.value, record.output), (
            "also in a parent that is over"
        )
        assert shown.finished_at == record.finished_at

    stage.run(press.app, main)


def test_an_id_that_is_taken_is_told_by_the_result(press: Press, stage: Stage) -> None:
    app, render = press.app, press.render

    @app.workflow
    async def twice() -> list[Any]:
        first = await render.options(id="page-1").spawn(1)
        second = await render.options(id="page-1").spawn(2)
        try:
            await second.result()
        except Conflict as error:
            return [await first.result(), "page-1" in str(error)]
        return []

    async def main() -> None:
        assert await twice.run() == [10, True]

    stage.run(press.app, main)


def test_parents_tell_their_children(press: Press, stage: Stage) -> None:
    app, patient = press.app, press.patient

    @app.workflow
    async def telling() -> list[Any]:
        first = await patient.spawn("first")
        second = await patient.spawn("second")
        await first.signal("go", {"to": "sea"}["to"])
        told = await second.cancel()
        try:
            await second.result()
        except WorkflowCancelled:
            return [await first.result(), told, await second.cancel()]
        return []

    async def main() -> None:
        assert await telling.run() == ["sea", True, True]

    stage.run(press.app, main)


def test_a_result_may_be_waited_for_a_while(press: Press, stage: Stage) -> None:
    app, patient = press.app, press.patient

    @app.workflow
    async def impatient() -> list[Any]:
        child = await patient.spawn("slow")
        first = await child.result(timeout="2s", default="not yet")
        await child.signal("go", "now")
        return [first, await child.result(timeout="1m")]

    async def main() -> None:
        assert await impatient.run() == ["not yet", "now"]

    stage.run(press.app, main)


@pytest.mark.parametrize("stage", ["virtual", pytest.param("postgres-grpc", marks=pytest.mark.postgres)], indirect=True)
def test_a_family_of_many_generations(press: Press, stage: Stage) -> None:
    app = press.app

    @app.workflow
    async def down(levels: int) -> int:
        return 0 if levels == 0 else 1 + await down.run(levels - 1)

    @app.workflow
    async def endless(level: int) -> int:
        return await endless.run(level + 1)

    async def main() -> None:
        assert await down.run(100) == 100
        run = await endless.start(0)
        with pytest.raises(WorkflowFailed) as caught:
            await run.result(timeout=120)
        assert "101 levels deep" in str(caught.value)

    stage.run(press.app, main)


@pytest.mark.parametrize(
    "stage", ["virtual", "sqlite-grpc", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
def test_a_thousand_children_need_few_replays_of_their_parent(press: Press, stage: Stage) -> None:
    async def main() -> None:
        assert await press.book.run(1000) == [page * 10 for page in range(1000)]
        assert sorted(press.printed) == list(range(1000))
        assert press.replays <= 5

    stage.run(press.app, main)


def test_groups_name_their_children(press: Press) -> None:
    app, render = press.app, press.render

    @app.workflow
    async def grouped() -> list[Any]:
        both = await kagzi.parallel(render.run(1), render.options(key="two").run(2), name="both")
        return [*both, *await kagzi.map(render.run, [3, 4])]

    async def main() -> None:
        run = await grouped.start()
        assert await run.result(timeout=60) == [10, 20, 30, 40]
        ids = {step.step_id for step in await run.steps()}
        assert ids == {"both/render", "both/render[two]", "map/render", "map/render#2"}

    run_virtually(app, main)


def test_a_loser_of_a_race_is_cancelled_and_waited_for(press: Press) -> None:
    app, patient = press.app, press.patient

    @app.workflow
    async def raced() -> list[str]:
        first = await kagzi.race(patient.run("loser"), kagzi.wait_signal("go", str))
        return [first, *press.cleaned]

    async def main() -> None:
        run = await raced.start()
        await asyncio.sleep(5)
        await run.signal("go", "won")
        assert await run.result(timeout=60) == ["won", "loser"]

    run_virtually(app, main)


def test_a_child_that_ended_long_ago_and_is_gone_has_left_its_outcome(press: Press) -> None:
    app, render = press.app, press.render

    @app.workflow
    async def late() -> int:
        child = await render.spawn(7)
        await asyncio.sleep(40 * 24 * 3600)  # longer than finished runs are kept
        return await child.result()

    async def main() -> None:
        run = await late.start()
        await asyncio.sleep(39 * 24 * 3600)
        assert (await app.runs(parent=run.id)).items == ()
        assert await run.result() == 70
        (child,) = [step for step in await run.steps() if step.child_run_id is not None]
        assert child.status is StepStatus.COMPLETED

    run_virtually(app, main)


@pytest.mark.filterwarnings("ignore")
def test_a_forgotten_await_fails_the_run(press: Press) -> None:
    app, render = press.app, press.render

    @app.workflow
    async def forgetful() -> int:
        render.spawn(1)
        return await render.run(2)

    @app.workflow
    async def forgetting() -> None:
        render.run(1)

    async def main() -> None:
        for workflow, what in ((forgetful, "render.spawn"), (forgetting, "render.run")):
            with pytest.raises(WorkflowFailed, match=f"{what} was called at .* and never awaited"):
                await workflow.run()
        assert press.printed == []

    run_virtually(app, main)


def test_a_default_that_is_never_given_is_refused(press: Press) -> None:
    @press.app.workflow
    async def endless() -> int:
        child = await press.render.spawn(1)
        return await child.result(default=0)

    async def main() -> None:
        with pytest.raises(WorkflowFailed, match=r"has a default and no timeout.*test_children\.py:\d+"):
            await endless.run()

    run_virtually(press.app, main)


def test_bad_children_are_refused_before_anything_is_written(press: Press) -> None:
    app, render = press.app, press.render
    refused: list[tuple[str, str]] = []

    @app.workflow
    async def wrong() -> None:
        calls = [
            lambda: render.options(namespace="other").run(1),
            lambda: render.spawn("one"),  # type: ignore[arg-type]
            lambda: render.spawn(),  # type: ignore[call-arg]
            lambda: render.start(1),
        ]
        for call in calls:
            try:
                await call()
            except Exception as error:
                refused.append((type(error).__name__, str(error)))

    async def main() -> None:
        run = await wrong.start()
        await run.result()
        assert [name for name, _ in refused] == ["InvalidRequest", "InvalidRequest", "TypeError", "NonDeterminismError"]
        assert "await render.spawn(...)" in refused[3][1]
        assert await run.steps() == ()
        with pytest.raises(InvalidRequest, match=r"spawn\(\) is for workflows"):
            render.spawn(1)
        with pytest.raises(InvalidRequest, match="are for children"):
            await render.options(key="a").start(1)
        with pytest.raises(InvalidRequest, match='on_parent_end must be "cancel", "abandon" or "terminate"'):
            render.options(on_parent_end="x")  # type: ignore[arg-type]

    run_virtually(app, main)


def test_a_retried_parent_keeps_the_children_that_succeeded(press: Press, stage: Stage) -> None:
    app, render = press.app, press.render

    @app.workflow(retry=kagzi.Retry(attempts=2, first="1s"))
    async def flaky() -> list[int]:
        first = await render.run(1)
        child = await render.options(key="again").spawn(-1 if len(press.printed) < 2 else 2)
        second = await render.run(3)
        return [first, second, await child.result()]

    async def main() -> None:
        assert await flaky.run() == [10, 30, 20]
        assert sorted(press.printed) == [1, 2, 3]

    stage.run(press.app, main)


def test_a_retried_parent_tells_its_new_child_what_it_has_told_the_old_one() -> None:
    """The old one has failed since, so another one is spawned; nobody else would ever tell it."""
    app, failures = Kagzi("memory://"), list[str]()

    @app.workflow
    async def listener() -> str:
        word = await kagzi.wait_signal("go", str)
        if not failures:
            failures.append(word)
            raise ValueError("not the first time")
        return word

    @app.workflow(retry=kagzi.Retry(attempts=2, first="1s"))
    async def speaker() -> str:
        child = await listener.spawn()
        await child.signal("go", "now")
        return await child.result(timeout="1h", default="nobody has told me")

    async def main() -> None:
        assert await speaker.run() == "now"
        assert failures == ["now"]

    run_virtually(app, main)


def test_a_forked_parent_says_that_its_new_child_is_not_told_again(caplog: pytest.LogCaptureFixture) -> None:
    """Not that its code has changed: the id of the child is another one, and that is all."""
    app = Kagzi("memory://")

    @app.step
    async def note() -> None: ...

    @app.workflow
    async def listener() -> str:
        return await kagzi.wait_signal("go", str)

    @app.workflow
    async def speaker() -> str:
        child = await listener.spawn()
        await child.signal("go", "now")
        await note()
        return await child.result(timeout="1h", default="nobody has told me")

    async def main() -> None:
        run = await speaker.start()
        assert await run.result() == "now"
        fork = await run.fork(from_step="note")
        assert await fork.result() == "nobody has told me"
        history = await export_history(app.engine, await app.engine.workflows.get("default", fork.id))
        assert replay(history, app).status is RunStatus.COMPLETED

    run_virtually(app, main)
    told = [record.getMessage() for record in caplog.records if "listener" in record.getMessage()]
    assert told
    assert all("is not told again" in message and "other arguments" not in message for message in told)


def test_a_run_that_a_step_starts_says_which_attempt_did(press: Press, stage: Stage) -> None:
    app, render, tries = press.app, press.render, list[int]()

    @app.step(retry=kagzi.Retry(attempts=2, first="10ms"))
    async def send() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("not the first time")
        return (await render.start(5)).id

    @app.workflow
    async def sending() -> str:
        return await send()

    async def main() -> None:
        run = await sending.start()
        started = app.handle(await run.result(timeout=60), render)
        assert await started.result(timeout=60) == 50
        record = await started.get()
        assert (record.parent_run_id, record.parent_step_id, record.parent_attempt) == (run.id, "send", 2)
        assert record.on_parent_end == "none"
        assert [child.run_id for child in (await app.runs(parent=run.id)).items] == [started.id]
        assert (await run.get()).parent_run_id is None

    stage.run(app, main)
