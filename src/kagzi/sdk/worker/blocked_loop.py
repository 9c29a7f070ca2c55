"""Says in the log what blocks a worker's event loop.

A body that computes or waits without `await`, or a workflow that goes on and on, keeps the loop to itself: nothing else
of the worker goes on, and signals wait, too. From inside the loop nobody can tell. So the thread that sends heartbeats
asks the loop for a sign of life again and again, and if none comes it looks at where the loop's thread stands.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from types import FrameType
from typing import Any, Final

from kagzi.sdk.replay import blocking_calls
from kagzi.sdk.replay.loop import WorkflowLoop
from kagzi.sdk.worker.bodies import Bodies

logger = logging.getLogger("kagzi.worker")

_LOOK_SECONDS: Final = 0.4
# So many looks without a sign, not so many seconds: after the whole process stood still the loop is late as well.
_LOOKS: Final = 4
_MOST_FRAMES: Final = 20


class LoopWatch:
    """Watches an event loop from another one, in another thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, thread: int, worker_id: str, look_seconds: float = _LOOK_SECONDS
    ) -> None:
        self._loop = loop
        self._thread = thread
        self._worker_id = worker_id
        self._look_seconds = look_seconds
        self._answered = 0

    async def run(self) -> None:
        """Watches until the loop is closed."""
        asked = 0
        while True:
            asked += 1
            try:
                self._loop.call_soon_threadsafe(self._answer, asked)
            except RuntimeError:
                return
            await self._see_answered(asked)

    def _answer(self, asked: int) -> None:
        self._answered = asked

    async def _see_answered(self, asked: int) -> None:
        began = asyncio.get_running_loop().time()
        looks = 0
        while True:
            await asyncio.sleep(self._look_seconds)
            if self._answered == asked:
                break
            looks += 1
            if looks == _LOOKS:
                self._tell(sys._current_frames().get(self._thread))
        if looks >= _LOOKS:
            seconds = asyncio.get_running_loop().time() - began
            logger.info("the event loop of worker %s goes on after %.1f s", self._worker_id, seconds)

    def _tell(self, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_filename == blocking_calls.__file__:
            frame = frame.f_back  # what the user has called, and not what watches the call
        culprit, about = _culprit(frame)
        logger.warning(
            "the event loop of worker %s is blocked by %s. Its other runs and steps wait for that, and so do signals. "
            "What computes or blocks for long belongs in a `def` step. It is here now:\n%s",
            self._worker_id,
            culprit,
            "".join(traceback.format_stack(frame)[-_MOST_FRAMES:]).rstrip(),
            extra={"worker_id": self._worker_id, **about},
        )


def _culprit(frame: FrameType | None) -> tuple[str, dict[str, Any]]:
    """Returns whose code runs, by the frames of ours that have called it."""
    while frame is not None:
        if frame.f_code is Bodies._run.__code__:
            attempt, call = frame.f_locals["attempt"], frame.f_locals["call"]
            return f"step {call.step_id} of run {attempt.run_id}", {**attempt.about(), "step_id": call.step_id}
        if frame.f_code is WorkflowLoop._run_ready.__code__:
            execution = frame.f_locals["self"].execution
            return f"workflow {execution.describe()}", {"run_id": execution.run_id, "workflow": execution.workflow}
        frame = frame.f_back
    return "something that is neither a step nor a workflow", {}
