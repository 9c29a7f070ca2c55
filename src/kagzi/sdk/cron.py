"""`kagzi.Cron`: a schedule that stands in code, beside the workflow it starts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kagzi.core.cron import check_zone, parse_times
from kagzi.core.declaration import Declaration
from kagzi.core.duration import Duration, parse_duration
from kagzi.core.instant import Span
from kagzi.core.limits import check_name, is_run_id
from kagzi.core.options import names_its_options
from kagzi.core.schedule import DEFAULT_CATCHUP, LONGEST_JITTER, check_catchup, check_overlap
from kagzi.errors import InvalidRequest


class Cron:
    """When a workflow is started by the clock: `@app.workflow(schedule=Cron("0 9 * * MON-FRI", tz="Asia/Kolkata"))`.

    The schedule is made, or changed, when a worker of the app starts. `name` is what people call it, by default that of
    the workflow; `args` and `kwargs` are the arguments of each run. `catchup` is how many missed firings are made up
    for, the newest ones; `overlap` what happens while the run before is live: allow, skip, cancel_previous or buffer.
    Runs begin up to `jitter` later than they fire.
    """

    @names_its_options
    def __init__(
        self,
        cron: str,
        *,
        tz: str = "UTC",
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        catchup: int = DEFAULT_CATCHUP,
        overlap: str = "allow",
        jitter: Duration = 0,
    ) -> None:
        parse_times(cron, check_zone(tz), "cron")
        if isinstance(args, str | bytes) or not isinstance(args, Sequence):
            raise InvalidRequest(f"args must be a list or tuple of arguments, not {args!r:.100}")
        if name is not None and is_run_id(check_name(name, "name")):
            raise InvalidRequest(
                f"name: {name} looks like the id of a schedule; choose one that people can tell from it"
            )
        self.cron = cron
        self.tz = tz
        self.name = name
        self.args = tuple(args)
        self.kwargs = dict(kwargs or {})
        self.catchup = check_catchup(catchup, "catchup")
        self.overlap = check_overlap(overlap)
        self.jitter = jitter_of(jitter)

    def __repr__(self) -> str:
        return f"Cron({self.cron!r}, tz={self.tz!r})"


def jitter_of(value: Duration) -> Span:
    span = parse_duration(value, "jitter")
    if span > LONGEST_JITTER:
        raise InvalidRequest(f"jitter must be at most 24 hours, not {value!r:.60}")
    return -(-span // 1000) * 1000  # to the millisecond, as the wire has it


def declaration(cron: Cron, name: str, arguments: bytes, input: bytes, options: Mapping[str, Any]) -> Declaration:
    """Returns what a worker says about it. `arguments` are the same in every process; `input` is what is stored, which
    a codec may write differently each time."""
    declared = Declaration(
        name=cron.name or name,
        cron_expr=cron.cron,
        timezone=cron.tz,
        input=arguments,
        max_catchup=cron.catchup,
        overlap=cron.overlap,
        jitter=cron.jitter,
        hash="-",
        **{name: value for name, value in options.items() if name in Declaration.__struct_fields__},
    )
    digest = hashlib.blake2b(msgspec.json.encode(declared, order="deterministic"), digest_size=16).hexdigest()
    return msgspec.structs.replace(declared, input=input, hash=digest)
