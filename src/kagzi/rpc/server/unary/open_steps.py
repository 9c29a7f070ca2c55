"""The steps that workers in the field are at, as far as this server has heard.

Nothing is lost with it: whoever does not know lets a run be parked at once, and steps beside the one that failed are
executed again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from kagzi.rpc.server.unary.rules import Beside

_MOST_RUNS: Final = 50_000
_MOST_STEPS: Final = 1000  # of one run


class OpenSteps:
    def __init__(self) -> None:
        self._runs: OrderedDict[str, _Run] = OrderedDict()  # by handle, those heard of last at the end

    def begin(self, handle: str) -> _Run:
        """Notes that a run was handed out."""
        run = self._runs.get(handle)
        if run is None:
            run = self._runs[handle] = _Run()
            if len(self._runs) > _MOST_RUNS:
                self._runs.popitem(last=False)
        else:
            self._runs.move_to_end(handle)
        return run

    def add(self, handle: str, identity: str, attempt: int) -> None:
        run = self.begin(handle)
        if len(run.steps) < _MOST_STEPS:
            run.steps.add((identity, attempt))

    def discard(self, handle: str, identity: str, attempt: int) -> None:
        run = self._runs.get(handle)
        if run is not None:
            run.steps.discard((identity, attempt))
            if run.waiting and not run.steps:
                self.forget(handle)  # parked

    def forget(self, handle: str) -> None:
        """Forgets a run that was let go of."""
        self._runs.pop(handle, None)

    def wait(self, handle: str) -> None:
        """Notes that the run is to be parked."""
        run = self._runs.get(handle)
        if run is not None:
            run.waiting = True

    def beside(self, handle: str, identity: str = "", attempt: int = 0) -> Beside:
        run = self._runs.get(handle)
        if run is None:
            return Beside()
        return Beside(frozenset(run.steps - {(identity, attempt)}), run.waiting, known=True)


class _Run:
    __slots__ = ("steps", "waiting")

    def __init__(self) -> None:
        self.steps: set[tuple[str, int]] = set()
        self.waiting = False
