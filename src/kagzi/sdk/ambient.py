"""The workflow that runs in this thread, if any.

The workflow loop carries its execution. That it is the running loop is what being inside a workflow means:
step bodies run on other loops and in other threads, so for them there is none.
"""

from __future__ import annotations

from asyncio import _get_running_loop
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from kagzi.core.lineage import PayloadContext
from kagzi.sdk.payload import Codec
from kagzi.sdk.replay.side_threads import refuse_beside_workflow

if TYPE_CHECKING:
    from kagzi.sdk.replay.execution import Execution


class CallCodec(Protocol):
    """Turns a function's arguments and result into bytes and back (`signature.Signature`)."""

    def settle_input(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bytes, int, tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments as JSON, a hash to compare them by, and what `copy_input` makes of the JSON. The hash
        is 0 if they were recorded by their repr and cannot be decoded again; then the arguments are those given."""
        ...

    def copy_input(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]: ...

    @property
    def seal(self) -> Callable[[bytes, PayloadContext], bytes] | None:
        """Returns the function that makes of JSON what is stored; None if the JSON itself is stored."""
        ...

    def settle_result(self, value: Any, context: PayloadContext | None = None) -> tuple[bytes, Any]:
        """Returns the result as bytes, and what `decode_result` makes of them. `context` is for the codec."""
        ...

    def decode_result(self, data: bytes, context: PayloadContext | None = None) -> Any: ...

    def copy_result(self, data: bytes) -> Any: ...

    def encode_input_strictly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes, int]:
        """Returns the arguments as JSON that can be decoded, and a hash to compare them by."""
        ...


def current(what: str = "a durable call") -> Execution | None:
    """Returns the execution whose workflow calls `what`; None outside of workflows. Refuses calls on threads that a
    workflow has started."""
    execution = getattr(_get_running_loop(), "execution", None)
    if execution is None:
        refuse_beside_workflow(what)
    return execution


# The payload codec of the app whose workflow is being executed, for steps that belong to no app (`run_step`).
_payload_codecs: WeakKeyDictionary[Execution, Codec] = WeakKeyDictionary()


def use_payload_codec(execution: Execution, codec: Codec) -> None:
    _payload_codecs[execution] = codec


def payload_codec(execution: Execution) -> Codec | None:
    return _payload_codecs.get(execution) if _payload_codecs else None
