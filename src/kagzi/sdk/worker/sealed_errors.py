"""Seals errors on their way to the engine, if the app has a codec."""

from __future__ import annotations

from msgspec.structs import replace

from kagzi.api.operations import Operation
from kagzi.core.failure import HIDDEN, Failure, check_failure
from kagzi.core.lineage import Lineage, PayloadKind
from kagzi.core.step import Step
from kagzi.sdk.payload import Codec, Reader


class SealedErrors:
    def __init__(self, codec: Codec, lineage: Lineage) -> None:
        self._codec = codec
        self._lineage = lineage
        self._reader = Reader(codec)

    def sealed(self, operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
        """Returns operations as they are stored."""
        return tuple([self._seal(each) for each in operations])

    def unsealed(self, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        """Returns rows of steps and children as the workflow reads them. CannotDecode with a wrong key."""
        return tuple([step if step.error is None else replace(step, error=self._unseal(step)) for step in steps])

    def _seal(self, operation: Operation) -> Operation:
        error: bytes | None = getattr(operation, "error", None)
        if error is None:
            return operation
        failure = Failure.decode(error)
        step_id: str | None = getattr(operation, "step_id", None)
        kind = PayloadKind.ERROR if step_id is None else PayloadKind.STEP_ERROR
        context = self._lineage.of(kind, step_id or "")
        try:
            sealed = failure.seal(lambda data: self._codec.encode(data, context)).encode()
            check_failure(sealed, "the error")
        except Exception as problem:  # better no error than one that everybody can read
            hidden = HIDDEN.format(type(problem).__name__)
            sealed = Failure(failure.type, hidden, failure.kind, failure.non_retryable, failure.bases).encode()
        return replace(operation, error=sealed)

    def _unseal(self, step: Step) -> bytes:
        return self._reader.failure(step.error or b"", self._lineage.step_error(step)).encode()
