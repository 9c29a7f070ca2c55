"""Steps that run in processes: known by where their function is, so that a process can import it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from kagzi.errors import InvalidRequest

if TYPE_CHECKING:
    from kagzi.sdk.definitions.step import Step


class Reference(Struct, frozen=True):
    """A step of a module: its function, and its name, since a function may be several steps."""

    module: str
    qualname: str
    step: str


_steps: dict[Reference, Step[Any, Any]] = {}  # of the modules imported in this process


def reference_of(fn: Callable[..., Any], step: str) -> Reference:
    """Returns where a process finds this function; InvalidRequest if it cannot."""
    module, qualname = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if inspect.ismethod(fn):
        raise _refusal(step, "is a method, whose object is in this process only; make it a function of a module")
    if not isinstance(module, str) or not isinstance(qualname, str) or not inspect.isroutine(fn):
        raise _refusal(step, "has no name to import it by; make it a function of a module")
    if "<lambda>" in qualname:
        raise _refusal(step, "is a lambda, which has no name to import it by; make it a function of a module")
    if "<locals>" in qualname:
        raise _refusal(step, f"is defined inside of {qualname.partition('.<locals>')[0]}(); define it in its module")
    if module == "__main__":
        raise _refusal(
            step,
            "is defined in the program that was started, which processes do not import; put it into a module, or start "
            "it with `kagzi worker FILE.py`",
        )
    return Reference(module, qualname, step)


def register(reference: Reference, step: Step[Any, Any]) -> None:
    _steps[reference] = step


def find_step(reference: Reference) -> Step[Any, Any]:
    """Returns, in a process, the step of this reference, whose module is imported."""
    try:
        importlib.import_module(reference.module)
    except ImportError as error:
        raise _refusal(reference.step, f"cannot be imported: {error}") from error
    step = _steps.get(reference)
    if step is None:
        raise _refusal(
            reference.step,
            f"is not there when {reference.module} is imported anew: @app.step must be applied while it is imported",
        )
    return step


def check_importable(references: Iterable[Reference]) -> None:
    """Refuses, when a worker starts, steps of modules that its processes could not find."""
    for reference in references:
        try:
            found = importlib.util.find_spec(reference.module) is not None
        except (ImportError, ValueError):
            found = False
        if not found:
            raise _refusal(reference.step, f"cannot be imported: there is no module {reference.module} on sys.path")


def _refusal(step: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"the step {step} is to run in a process of its own, and {why}")
