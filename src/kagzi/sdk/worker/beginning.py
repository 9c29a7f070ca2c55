"""Begins runs: finds the workflow of a run, and makes the execution that drives it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol

from kagzi.api.workers import Claim
from kagzi.core.exceptions import failure_of
from kagzi.core.failure import Redact
from kagzi.core.lineage import PayloadContext, PayloadKind, lineage_of
from kagzi.core.retry import Retry
from kagzi.core.versions import WorkflowInterface
from kagzi.core.worker import WorkflowType
from kagzi.errors import CannotDecode, Unavailable
from kagzi.sdk.payload import Codec
from kagzi.sdk.replay.blocking_calls import watched_open
from kagzi.sdk.replay.execution import Execution
from kagzi.sdk.replay.loop import BlockingCalls
from kagzi.sdk.worker.attempt import Attempt
from kagzi.sdk.worker.sealed_errors import SealedErrors

logger = logging.getLogger("kagzi.worker")

DEFAULT_STEP_RETRY: Final = Retry()


class Definition(Protocol):
    """A workflow as the worker needs it."""

    @property
    def retry(self) -> Retry | None: ...

    @property
    def codec(self) -> Codec | None: ...

    @property
    def redact(self) -> Redact | None: ...

    def begin(self, input: bytes, execution: Execution, failed_input: bytes | None = None) -> Coroutine[Any, Any, Any]:
        """Calls the workflow function with the decoded input; `failed_input` is what came with the claim."""
        ...

    def encode_result(self, value: Any, context: PayloadContext | None = None) -> bytes: ...


class Registry(Protocol):
    """The workflows of an app, as the worker needs them."""

    def find_workflow(self, name: str, version: str) -> Definition | None: ...

    def workflow_types(self) -> tuple[WorkflowType, ...]: ...

    def workflow_interfaces(self) -> tuple[WorkflowInterface, ...]: ...


def begin_run(
    attempt: Attempt, registry: Registry, *, payload_limit: int, strict: bool, blocking_calls: BlockingCalls
) -> None:
    claim = attempt.claim
    definition = registry.find_workflow(claim.workflow_type, claim.version)
    if definition is None:
        # Claims are filtered by type and version, so this is a run somebody else can serve.
        logger.warning(
            "run %s is of %s %s, unknown here",
            claim.run_id,
            claim.workflow_type,
            claim.version,
            extra=attempt.about(),
        )
        attempt.hand_back()
        return
    codec = definition.codec
    history = claim.history
    if codec is not None:
        attempt.errors = errors = SealedErrors(codec, lineage_of(claim))
        try:
            history = errors.unsealed(history)
        except CannotDecode as error:
            attempt.fail(failure_of(error))
            return
    execution = Execution(
        attempt,
        claim,
        history=history,
        default_retry=_retry_of(claim, definition) or DEFAULT_STEP_RETRY,
        payload_limit=payload_limit,
        strict=strict,
        redact=definition.redact,
    )
    loop = execution.loop
    loop.blocking_calls = blocking_calls
    if blocking_calls == "warn":  # where it is an error, an audit hook sees it
        loop.watched_open = watched_open
    # A handler that has begun anew was given its input by itself, and not by the engine.
    failed_input = None if claim.incarnation else claim.failed_input
    try:
        coroutine = definition.begin(claim.input, execution, failed_input)
    except Unavailable:  # of what keeps large payloads
        raise
    except Exception as error:
        attempt.fail(failure_of(error, redact=definition.redact))
        return
    encode_result: Callable[[Any], bytes] = definition.encode_result
    if codec is not None:
        encode_result = partial(definition.encode_result, context=lineage_of(claim).of(PayloadKind.OUTPUT))
    attempt.begin(execution, coroutine, encode_result)


def run_retry(claim: Claim, registry: Registry) -> Retry | None:
    """Returns the run's own policy: what was said at its start, else at its definition."""
    return _retry_of(claim, registry.find_workflow(claim.workflow_type, claim.version))


def _retry_of(claim: Claim, definition: Definition | None) -> Retry | None:
    if claim.retry_policy is not None:
        return Retry.decode(claim.retry_policy)
    return None if definition is None else definition.retry
