"""The parameters of a function and the types that its annotations name."""

from __future__ import annotations

import inspect
import logging
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

logger = logging.getLogger("kagzi")


def parameters_of(fn: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    try:
        if sys.version_info >= (3, 14):
            import annotationlib

            # By value would evaluate annotations here, and fail for names that only type checkers see.
            form = annotationlib.Format.FORWARDREF
            return tuple(inspect.signature(fn, annotation_format=form).parameters.values())
        return tuple(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        # A builtin without a signature: anything goes, untyped.
        return (
            inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),
            inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
        )


def annotations_of(fn: Any) -> dict[str, Any]:
    try:
        return dict(getattr(fn, "__annotations__", None) or {})
    except Exception:
        if sys.version_info >= (3, 14):
            import annotationlib

            return dict(annotationlib.get_annotations(fn, format=annotationlib.Format.STRING))
        raise


def types_of(
    fn: Callable[..., Any], name: str, localns: Mapping[str, Any] | None, *, early: bool = False
) -> dict[str, Any]:
    """Returns types by parameter, and that of the result as `return`.

    Annotations that cannot be resolved are Any, with a warning that names the function by `name`; when it is `early`,
    without one, because what they name may come to be.
    """
    fn = _annotated(fn)
    try:
        return typing.get_type_hints(fn, localns=dict(localns or {}) or None, include_extras=True)
    except Exception:
        return _types_one_by_one(fn, name, localns, early)


def _annotated(fn: Any) -> Any:
    """Returns the function that has the annotations of a callable."""
    fn = inspect.unwrap(fn)
    while not hasattr(fn, "__annotations__") and hasattr(fn, "func"):
        fn = fn.func  # functools.partial
    return fn if inspect.isroutine(fn) or isinstance(fn, type) else type(fn).__call__


def _types_one_by_one(fn: Any, name: str, localns: Mapping[str, Any] | None, early: bool) -> dict[str, Any]:
    namespace = _namespace(fn)
    namespace.update(localns or {})
    hints: dict[str, Any] = {}
    for key, annotation in annotations_of(fn).items():
        try:
            holder = types.SimpleNamespace(__annotations__={key: annotation})
            hints[key] = typing.get_type_hints(holder, namespace, namespace, include_extras=True)[key]
        except Exception as error:
            if annotation in ("Context", "kagzi.Context"):
                hints[key] = _ContextByName
                continue
            hints[key] = Any
            if early:
                continue
            what = "the result" if key == "return" else f"the parameter {key}"
            logger.warning(
                "%s of %s is read as plain JSON data, because its annotation %r cannot be resolved (%s)",
                what,
                name,
                annotation,
                error,
            )
    return hints


def _namespace(fn: Any) -> dict[str, Any]:
    """Returns the names that the code of a function sees."""
    names = dict(getattr(fn, "__globals__", {}))
    code = getattr(fn, "__code__", None)
    for name, cell in zip(getattr(code, "co_freevars", ()), getattr(fn, "__closure__", None) or (), strict=False):
        try:
            names[name] = cell.cell_contents
        except ValueError:
            pass  # not set yet
    return names


class _ContextByName:
    """Stands for an annotation `Context` that is imported for type checkers only."""


def context_class(annotation: Any) -> Callable[[str, str], Any] | None:
    # By name, because the class lives above this module. Only the exact class counts, so that a first
    # parameter typed Any or object stays an ordinary one.
    if annotation is _ContextByName:
        found: Callable[[str, str], Any] | None = getattr(sys.modules.get("kagzi"), "Context", None)
        return found
    if (
        isinstance(annotation, type)
        and annotation.__name__ == "Context"
        and annotation.__module__.partition(".")[0] == "kagzi"
    ):
        return annotation
    return None
