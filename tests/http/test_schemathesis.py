"""The OpenAPI document and the server say the same: requests made from the document, good and bad ones, get the answers
that it promises."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from tests.campaigns import length
from tests.http.support import DOCUMENT, engine_on, serving

EXAMPLES = length(2, 20)
# Of these fields a request may break a rule though it fits the document: tokens (`page`, `after`) are made by
# servers, `id` stands alone in a query, the `first` delay of a retry is not longer than its `cap`, a `jitter` written
# as text has a longest value, `on_failure_queue` needs its handler, a default `version` must have been offered by a
# worker, not every text is a `cron` expression or the name of a `tz`, what fires `until` or at `next_fire_at` depends
# on it, the `runs` of a job are told by a filter or by `everything`, a fork goes on `from_step` of its run, a
# move ends in another version, a limit is of a queue or a workflow, with keys only of the latter, and `debounce` goes
# with none of the fields that give a run a name or a time of its own.
NO_SCHEMA_CAN_SAY = {"page", "id", "retry", "on_failure_queue", "version", "runs", "to_version"}
NO_SCHEMA_CAN_SAY |= {
    "debounce",
    "from_step",
    "from_step or version",
    "from_version",
    "after",
    "queue or workflow",
    "key_concurrency",
    "key_rate",
    "rate",
}
NO_SCHEMA_CAN_SAY |= {"jitter", "cron", "tz", "until", "next_fire_at"}
TOO_LARGE = {413, 414, 431}  # as a whole, whatever the fields are
OPERATIONS = sorted(
    operation["operationId"] for methods in DOCUMENT["paths"].values() for operation in methods.values()
)
OPERATIONS.remove("stream_events")  # it has no end
AHEAD = "(?=.*[1-9])"  # some digit of a duration is not 0


def without_looking_ahead(part: Any) -> Any:
    """Returns the document with no number of these durations beginning with 0: a text for a pattern that looks ahead is
    found by trying thousands, and takes longer than all requests of its operation."""
    if isinstance(part, list):
        return [without_looking_ahead(each) for each in part]
    if not isinstance(part, dict):
        return part
    made = {name: without_looking_ahead(each) for name, each in part.items()}
    pattern = made.get("pattern")
    if isinstance(pattern, str) and AHEAD in pattern:
        bare = pattern.replace(AHEAD, "")
        made["pattern"] = re.sub(r"\(\[0-9\]\{1,(\d+)\}", lambda n: f"([1-9][0-9]{{0,{int(n[1]) - 1}}}", bare)
    return made


SCHEMA = schemathesis.openapi.from_dict(without_looking_ahead(DOCUMENT))
SCHEMA.config.generation.update(modes=list(GenerationMode))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server in a thread of its own, since these tests are not part of an event loop."""
    loop = asyncio.new_event_loop()
    started, stop = threading.Event(), asyncio.Event()
    address: list[str] = []

    async def serve() -> None:
        async with engine_on("memory://") as engine, serving(engine) as port:
            address.append(port.url)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert started.wait(30)
        yield address[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


@pytest.mark.parametrize("name", OPERATIONS)
def test_answers_are_as_the_document_says(name: str, url: str) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def check(case: schemathesis.Case) -> None:
        response = case.call(base_url=url, timeout=60)
        excluded = []
        if response.status_code == 400 and response.json().get("field") in NO_SCHEMA_CAN_SAY:
            excluded = [positive_data_acceptance]
        elif response.status_code in TOO_LARGE:
            excluded = [positive_data_acceptance, negative_data_rejection]
        case.validate_response(response, excluded_checks=excluded)

    # As `@SCHEMA.parametrize()` does it, but when the operation is tested: to make its requests up takes as long as to
    # send them, and that would be done in every process of the suite that looks for tests.
    load_all_checks()
    [found] = SCHEMA.include(operation_id=name).get_all_operations()
    build_operation_test(
        config=SCHEMA.config, operation=found.ok(), test_func=check, given_kwargs={}, feedback=FeedbackSources()
    )()
