"""The log of commands: readable on a terminal, a JSON document a line everywhere else.

Only `kagzi …` commands call `configure`. A program that uses Kagzi as a library keeps whatever logging it has: Kagzi
then only logs to the loggers below `kagzi`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal, TextIO

import msgspec

from kagzi import tracing
from kagzi.core.instant import to_datetime
from kagzi.core.printable import printable, printable_json
from kagzi.errors import InvalidRequest
from kagzi.ports.requests import current_request
from kagzi.sdk.context import current

# What a record may say of the run or the call it is about, besides its message.
FIELDS: Final = (
    "namespace",
    "workflow",
    "run_id",
    "step_id",
    "attempt",
    "worker_id",
    "trace_id",
    "span_id",
    "request_id",
    "peer",
)
_NOTHING: Final = "-"  # of a field about which there is nothing to say
# Too talkative below a warning for anybody who did not ask for them.
_OTHERS: Final = ("asyncio", "grpc", "uvicorn.access")
_COLOURS: Final = {
    logging.DEBUG: "2",
    logging.INFO: "32",
    logging.WARNING: "33",
    logging.ERROR: "31",
    logging.CRITICAL: "31",
}


def configure(
    format: Literal["auto", "pretty", "json"],
    level: Literal["debug", "info", "warning", "error"],
    stream: TextIO | None = None,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Sends everything at this level or above to a stream, standard error by default."""
    stream = stream or sys.stderr
    pretty = format == "pretty" or (format == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PrettyFormatter(colour=wants_colour(stream, environ)) if pretty else JsonFormatter())
    handler.addFilter(Correlated())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    number = getattr(logging, level.upper())
    root.setLevel(number)
    for name in _OTHERS:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


def wants_colour(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether to use colours, as is usual: by NO_COLOR, then FORCE_COLOR, then whether somebody is looking."""
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    if environ.get("CLICOLOR") == "0" or environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


class Correlated(logging.Filter):
    """Notes in each record which run and step, which trace and which call it was logged in, also where users' own code
    logged it. What the record says of that itself stays. Where there is nothing to note it is "-", so that a format may
    name any of FIELDS, as in `%(run_id)s`."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "run_id"):
            _name_run(record)
        if not hasattr(record, "trace_id") and (ids := tracing.ids()) is not None:
            record.trace_id, record.span_id = ids
        if not hasattr(record, "request_id") and (request := current_request()) is not None:
            record.request_id = request
        for field in FIELDS:
            if not hasattr(record, field):
                setattr(record, field, _NOTHING)
        return True


def _name_run(record: logging.LogRecord) -> None:
    try:
        info = current()
    except InvalidRequest:
        return
    record.namespace, record.run_id, record.workflow = info.namespace, info.run_id, info.workflow
    if info.step_id is not None:
        record.step_id, record.attempt = info.step_id, info.attempt


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": _moment(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _text(record.getMessage()),
        }
        line |= _fields(record)
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = {
                "type": record.exc_info[0].__name__,
                "message": _text(str(record.exc_info[1])),
                "stack": _text(self.formatException(record.exc_info)),
            }
        return printable_json(msgspec.json.encode(line).decode())


class PrettyFormatter(logging.Formatter):
    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        at = _moment(record).astimezone().strftime("%H:%M:%S")
        level = self._paint(f"{record.levelname.lower():7}", _COLOURS.get(record.levelno, "0"))
        name = self._paint(printable(record.name), "2")
        message = printable(record.getMessage())
        shown = {key: printable(str(value)) for key, value in _fields(record).items()}
        fields = "".join(f" {key}={value}" for key, value in shown.items() if value not in message)
        line = f"{at} {level} {name}: {message}{self._paint(fields, '2') if fields else ''}"
        if record.exc_info and record.exc_info[0] is not None:
            line += "\n" + printable(self.formatException(record.exc_info))
        return line

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text


def _moment(record: logging.LogRecord) -> datetime:
    return to_datetime(int(record.created * 1_000_000))


def _fields(record: logging.LogRecord) -> dict[str, object]:
    found = {name: getattr(record, name, None) for name in FIELDS}
    return {
        name: value if isinstance(value, int) else _text(str(value))
        for name, value in found.items()
        if value not in (None, _NOTHING)
    }


def _text(text: str) -> str:
    """Returns text that can be written: half a surrogate pair is no reason to lose a line."""
    return text.encode("utf-8", "backslashreplace").decode()
