"""Errors about options that do not exist: which there are, and which one was perhaps meant."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

# What the same thing is called elsewhere. The first name counts that the function has.
_SYNONYMS: Final[dict[str, tuple[str, ...]]] = {
    "retry": ("attempts", "max_attempts", "max_retries", "retries", "retry_policy", "tries"),
    "attempts": ("max_attempts", "max_retries", "maximum_attempts", "retries", "tries"),
    "first": ("backoff", "delay", "initial_interval", "interval"),
    "factor": ("backoff_coefficient", "multiplier"),
    "cap": ("max_delay", "max_interval", "maximum_interval"),
    "retry_on": ("exceptions", "retryable"),
    "give_up_on": ("non_retryable", "non_retryable_error_types"),
    "timeout": ("execution_timeout", "run_timeout", "start_to_close_timeout", "time_limit", "timeout_seconds", "ttl"),
    "queue": ("queue_name", "task_queue"),
    "queues": ("queue", "queue_name", "task_queue"),
    "id": ("external_id", "idempotency_key", "job_id", "key", "run_id", "workflow_id"),
    "key": ("api_key", "id", "idempotency_key", "token"),
    "delay": ("countdown", "start_delay", "wait"),
    "start_at": ("at", "eta", "run_at", "scheduled_at", "when"),
    "name": ("title", "type"),
    "version": ("build_id", "revision"),
    "concurrency": ("concurrency_limit", "max_concurrency", "max_concurrent", "slots", "workers"),
    "threads": ("max_workers", "pool_size"),
    "schedule": ("cron", "every"),
    "url": ("database", "database_url", "db", "dsn", "host"),
    "rate": ("rate_limit", "throttle"),
    "limit": ("concurrency", "max_concurrency"),
}
_NOT_YET: Final = frozenset(
    {
        "debounce",
        "on_failure",
        "on_success",
    }
)
# What another function does, and this one cannot.
_ELSEWHERE: Final = {
    ("worker", "processes"): "it is a block of your program, which is one process; app.run_worker(processes=4) and "
    "`kagzi worker --processes 4` have it",
}


def names_its_options(function: F) -> F:
    """Makes a function that is called with an unknown keyword raise an error that names the known ones."""
    parameters = inspect.signature(function).parameters.values()
    # What comes first and has no default is what the function is about, not an option.
    options = [one.name for one in parameters if one.default is not one.empty and one.kind is not one.POSITIONAL_ONLY]
    known = {one.name for one in parameters if one.kind is not one.POSITIONAL_ONLY}
    what = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
            for given in kwargs:
                if given not in known:
                    _refuse(what, given, options)
            raise

    return cast("F", called)


def _refuse(what: str, given: str, options: list[str]) -> NoReturn:
    meant = _meant(given, options)
    if (what, given) in _ELSEWHERE:
        advice = f": {_ELSEWHERE[what, given]}."
    elif meant is not None:
        advice = f"; did you mean {meant}?"
    elif given in _NOT_YET:
        advice = '; docs/not-yet.md, "What Kagzi does not do (yet)", says what to do instead.'
    else:
        advice = "."
    raise TypeError(f"{what}() has no option {given!r}{advice} There are: {', '.join(options)}") from None


def _meant(given: str, options: list[str]) -> str | None:
    for option in options:
        if given in _SYNONYMS.get(option, ()):
            return option
    close = difflib.get_close_matches(given.casefold(), options, n=1, cutoff=0.7)
    return close[0] if close else None
