"""One trace from the client that starts a run to the bodies of its steps, by OpenTelemetry.

    start checkout            PRODUCER   the client, in whatever span it is in
    └─ StartWorkflow          SERVER     the server, if there is one and it is traced
       └─ run checkout        CONSUMER   one for each time a worker takes the run up: again after a crash or a sleep
          └─ step charge      INTERNAL   one for each attempt whose body runs here; none for what is replayed

The context travels with the run, in the database, in the form of W3C: `traceparent`, and after a space `tracestate` if
there is one. It goes along even through processes that do not trace.

Kagzi uses the tracer provider that the program has set up for itself, and imports nothing of OpenTelemetry before the
program has. Without one `tracer()` is None, and that is all there is to ask on the way of a run.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kagzi.version import __version__

if TYPE_CHECKING:
    from opentelemetry.context import Context as SpanContext
    from opentelemetry.trace import Span, SpanKind, Tracer, TracerProvider

T = TypeVar("T")

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

# Version, trace id, span id, flags. Later versions may add to it, and must begin alike.
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?")
_STATE = re.compile(r"[ -~]{1,512}")
_LONGEST: Final = 700

_provider: TracerProvider | None = None


def use(provider: TracerProvider | None) -> None:
    """Traces with this provider rather than with the global one of OpenTelemetry; None: with that again.

    Apps, workers and servers ask when they are opened.
    """
    global _provider
    _provider = provider


def tracer() -> Tracer | None:
    """Returns the tracer of Kagzi, or None if traces are not wanted."""
    provider = _provider
    if provider is None:
        trace: Any = sys.modules.get("opentelemetry.trace")
        if trace is None:
            return None  # then nobody has set up a provider either
        provider = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
            return None
    return provider.get_tracer("kagzi", __version__)


# The context as text.


def well_formed(context: str | None) -> str | None:
    """Returns the context if it is one: what comes from outside is ignored when it is malformed, as W3C asks for."""
    if not context or len(context) > _LONGEST:
        return None
    parent, _, state = context.partition(" ")
    if _PARENT.fullmatch(parent) is None:
        return None
    return context if _STATE.fullmatch(state) else parent


def from_headers(headers: Mapping[str, str] | Iterable[tuple[str, Any]] | None) -> str | None:
    """Returns the context that the headers of an HTTP request, or the metadata of a call, carry. Names are in lower
    case."""
    if not headers:
        return None
    parent = state = ""
    for name, value in headers.items() if isinstance(headers, Mapping) else headers:
        if name == TRACEPARENT and isinstance(value, str):
            parent = value
        elif name == TRACESTATE and isinstance(value, str):
            state = value
    return well_formed(f"{parent} {state}" if state else parent)


def context_of(span: Span) -> str | None:
    """Returns what to hand on, so that others continue this span."""
    context = span.get_span_context()
    if not context.is_valid:
        return None
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    state = context.trace_state.to_header()
    return well_formed(f"{parent} {state}" if state else parent)


def current() -> str | None:
    """Returns the context of the span that this code runs in."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    return None if trace is None else context_of(trace.get_current_span())


def ids() -> tuple[str, str] | None:
    """Returns trace id and span id of the span that this code runs in, for logs."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    return (f"{context.trace_id:032x}", f"{context.span_id:016x}") if context.is_valid else None


def _parent(context: str | None) -> SpanContext:
    """Without a context it is a trace of its own, whatever span this process happens to be in."""
    from opentelemetry.context import Context as Nothing
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, set_span_in_context

    if context is None:
        return Nothing()
    parent, _, state = context.partition(" ")
    _, trace_id, span_id, flags = parent.split("-")[:4]
    remote = SpanContext(
        int(trace_id, 16),
        int(span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(flags, 16)),
        trace_state=TraceState.from_header([state]) if state else None,
    )
    return set_span_in_context(NonRecordingSpan(remote))


# Spans.


@contextmanager
def starting(tracer: Tracer, workflow: str, attributes: Mapping[str, str]) -> Iterator[Span]:
    """Surrounds the start of a run, within whatever span its starter is in."""
    from opentelemetry.trace import SpanKind

    given = {"kagzi.workflow": workflow, **attributes}
    with tracer.start_as_current_span(f"start {workflow}", kind=SpanKind.PRODUCER, attributes=given) as span:
        yield span


@contextmanager
def serving(tracer: Tracer, name: str, context: str | None) -> Iterator[Span]:
    """Surrounds the answer to a call, as part of its caller's trace."""
    from opentelemetry.trace import SpanKind

    with tracer.start_as_current_span(name, _parent(context), kind=SpanKind.SERVER) as span:
        yield span


class RunSpan:
    """The span of one execution of a run, from a claim until the worker lets go. The run's steps are its children."""

    def __init__(self, tracer: Tracer, workflow: str, context: str | None, attributes: Mapping[str, str | int]) -> None:
        from opentelemetry.trace import SpanKind

        self._tracer = tracer
        self._workflow = workflow
        self._span = self._start(f"run {workflow}", SpanKind.CONSUMER, attributes, _parent(context))
        self._inside = self._context(self._span)
        self._steps: dict[object, Span] = {}

    @property
    def trace_id(self) -> str:
        return f"{self._span.get_span_context().trace_id:032x}"

    def inside(self, call: Callable[..., T], *args: Any) -> T:
        """Makes a call within the span."""
        return copy_context().run(_within, self._inside, call, args)

    def begin_step(self, step: object, name: str, attributes: Mapping[str, str | int], body: Context) -> None:
        """Begins the span of an attempt, whose body will run in this context."""
        from opentelemetry.trace import SpanKind

        span = self._start(
            f"step {name}", SpanKind.INTERNAL, {"kagzi.workflow": self._workflow, **attributes}, self._inside
        )
        self._steps[step] = span
        body.run(_enter, self._context(span))

    def end_step(self, step: object, status: str, error: BaseException | None = None) -> None:
        span = self._steps.pop(step, None)
        if span is not None:
            span.set_attribute("kagzi.status", status)
            if error is not None:
                span.record_exception(error)
                _fail(span, f"{type(error).__name__}: {error}")
            span.end()

    def end(self, status: str, error: str | None = None) -> None:
        """Ends the span, because the worker lets go of the run. Bodies that do not end although they were told to lose
        their span here."""
        for step in list(self._steps):
            self.end_step(step, "abandoned")
        self._span.set_attribute("kagzi.status", status)
        if error is not None:
            _fail(self._span, error)
        self._span.end()

    def _start(self, name: str, kind: SpanKind, attributes: Mapping[str, str | int], parent: SpanContext) -> Span:
        return self._tracer.start_span(name, parent, kind=kind, attributes=attributes)

    @staticmethod
    def _context(span: Span) -> SpanContext:
        from opentelemetry.trace import set_span_in_context

        return set_span_in_context(span)


def _fail(span: Span, description: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, description[:1000]))


def _enter(context: SpanContext) -> None:
    from opentelemetry.context import attach

    attach(context)


def _within(context: SpanContext, call: Callable[..., T], args: tuple[Any, ...]) -> T:
    _enter(context)
    return call(*args)
