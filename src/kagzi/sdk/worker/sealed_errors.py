"""Seals errors on their way to the engine, if the app has a codec."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from kagzi.api.operations import Operation
from kagzi.core.failure import Failure, check_failure
from kagzi.core.step import Step
from kagzi.sdk.payload import Codec, decode


class SealedErrors:
    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def sealed(self, operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
        """Returns operations as they are stored."""
        return tuple([self._seal(each) for each in operations])

    def unsealed(self, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        """Returns rows of steps and children as the workflow reads them. CannotDecode with a wrong key."""
        return tuple([step if step.error is None else replace(step, error=self._unseal(step.error)) for step in steps])

    def _seal(self, operation: Operation) -> Operation:
        error: bytes | None = getattr(operation, "error", None)
        if error is None:
            return operation
        failure = Failure.decode(error)
        try:
            sealed = failure.seal(self._codec.encode).encode()
            check_failure(sealed, "the error")
        except Exception as problem:  # better no error than one that everybody can read
            hidden = f"(hidden: the codec of the app raised {type(problem).__name__})"
            sealed = Failure(failure.type, hidden, failure.kind, failure.non_retryable, failure.bases).encode()
        return replace(operation, error=sealed)

    def _unseal(self, error: bytes) -> bytes:
        failure = Failure.decode(error)
        return failure.unseal(self._read).encode() if failure.sealed else error

    def _read(self, data: bytes) -> Any:
        return decode(self._codec.decode(data))
