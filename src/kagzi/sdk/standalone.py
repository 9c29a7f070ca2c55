"""Standalone steps: `await charge.options(id="order-42").start(order)` is a run that consists of one step.

They are runs of one workflow that every app with steps has. What it is given is the name of the step and its arguments
as plain data, so that a worker needs to know the step alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kagzi.sdk.payload import decode

if TYPE_CHECKING:
    from kagzi.sdk.definitions import Step

logger = logging.getLogger("kagzi.workflow")

STANDALONE: Final = "kagzi.step"
TAG: Final = "step"  # by which runs of a step are found
_FIRST_WAIT: Final = 5.0
_LONGEST_WAIT: Final = 300.0


def plain_arguments(step: Step[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns a call as plain data. Wrong arguments raise here, before anything is written."""
    return decode(step.signature.with_codec(None).encode_arguments(args, kwargs))


def one_step(find: Callable[[str], Step[Any, Any] | None]) -> Callable[..., Any]:
    """Runs one step, as the function of the workflow."""

    async def run(step: str, arguments: Any) -> Any:
        wait = _FIRST_WAIT
        while (found := find(step)) is None:
            # Code that is being deployed: another worker may have the step, or this one soon.
            logger.warning("there is no step %s in this worker; looking again in %g s, in any worker", step, wait)
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT)
        plain = found.signature.with_codec(None)
        args, kwargs = plain.decode_arguments(msgspec.json.encode(arguments))
        return decode(plain.encode_result(await found(*args, **kwargs)))

    return run
