"""Requests, read: query parameters and JSON bodies become records, or a problem that names the field."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from enum import StrEnum
from functools import cache
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta, Raw, Struct
from starlette.requests import ClientDisconnect, Request

from kagzi.core.laid_out import check_json
from kagzi.core.limits import NAME_CHARACTERS, check_id, check_name, check_text
from kagzi.core.repeated_keys import repeated_key
from kagzi.errors import InvalidRequest, PayloadTooLarge
from kagzi.http.apart import apart
from kagzi.http.limits import FORM_FIELDS, QUERY_PARAMETERS
from kagzi.http.problems import BadField, Refused, naming

T = TypeVar("T", bound=Struct)

_AS_IT_IS: Final = ("identity", "")  # codings
_PATH: Final = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")
_UNKNOWN: Final = re.compile(r"unknown field `([^`]*)`")
_MISSING: Final = re.compile(r"missing required field `([^`]*)`")
# Whole pairs and other escapes are passed over, so that what is found is half of one.
_HALF_A_PAIR: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)


def read_path(request: Request) -> dict[str, str]:
    """Returns the ids and names in the address."""
    read: dict[str, str] = {}
    for field, value in request.path_params.items():
        with naming(field):
            read[field] = check_id(value, field) if field == "worker_id" else check_name(value, field)
    return read


def read_query(request: Request, kind: type[T], *, blanks: bool = True) -> T:
    """`blanks`: whether a field without a value counts. A form of a page sends all of its fields. Lists are fields
    given several times."""
    raw: bytes = request.scope.get("query_string", b"")
    try:
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            encoding="utf-8",
            errors="strict",
            max_num_fields=QUERY_PARAMETERS,
        )
    except ValueError:
        raise InvalidRequest("the query is not readable: text must be UTF-8, percent-encoded") from None
    given: dict[str, Any] = {}
    several = _several(kind)
    for name, value in pairs:
        check_field(value, name)
        if name in several:
            given.setdefault(name, []).append(value)
        elif name in given:
            raise BadField(name, f"{name[:100]} is given twice")
        elif value or blanks:
            given[name] = value
    query = _convert(lambda: msgspec.convert(given, kind, strict=False), kind)
    for name, value in given.items():
        # The word `null` is text like any other here; taken for nothing it would widen what was asked for.
        if getattr(query, name) is None:
            choices = _choices(kind, name)
            raise BadField(name, f"{name}: Invalid value {value!r:.60}; there are {', '.join(choices)}")
    return query


def named_namespace(request: Request) -> str | None:
    """Returns the namespace that a query names, before anything else of it is looked at."""
    values = request.query_params.getlist("namespace")
    return values[0] if values else None


async def read_body(request: Request, kind: type[T], limit: int) -> T:
    check_content_type(request)
    data = await _receive(request, limit)
    return await apart(len(data), _read_document, data, kind)


def _read_document(data: bytes, kind: type[T]) -> T:
    try:
        data.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("the body is not UTF-8") from None
    try:
        body = _convert(lambda: msgspec.json.decode(data or b"{}", type=kind), kind)
        check_keys(data or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(_not_json(data, error)) from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
    check_fields(body)
    return body


async def read_form(
    request: Request, kind: type[T], limit: int, token: str, check: Callable[[str], None], *, packed: bool = True
) -> T:
    """Returns what a form of a page says, after `check` has seen the token it carries under this name. Fields without a
    value count as absent; lists are fields given several times, a mapping `arg` is fields named `arg.KEY`. `packed`:
    whether the body may be compressed."""
    kind_given, _, _ = request.headers.get("content-type", "").partition(";")
    if kind_given.strip().lower() != "application/x-www-form-urlencoded":
        raise Refused(415, "UNSUPPORTED_MEDIA_TYPE", "this address takes forms of its own pages only")
    if not packed and is_packed(request):
        raise Refused(
            415, "UNSUPPORTED_MEDIA_TYPE", "this form must not be compressed: send it without content-encoding"
        )
    data = await _receive(request, limit)
    return await apart(len(data), _read_fields, data, kind, token, check)


def _read_fields(data: bytes, kind: type[T], token: str, check: Callable[[str], None]) -> T:
    try:
        pairs = parse_qsl(
            data.decode("ascii"),
            keep_blank_values=True,
            encoding="utf-8",
            errors="strict",
            max_num_fields=FORM_FIELDS,
        )
    except ValueError:
        raise InvalidRequest("the form is not readable: text must be UTF-8, percent-encoded") from None
    # Nothing is told of a form that is not one of ours.
    check(next((value for name, value in pairs if name == token), ""))
    given: dict[str, Any] = {}
    several, mappings = _several(kind), _mappings(kind)
    for name, value in pairs:
        check_field(value, name)
        if name == token:
            continue
        if name in several:
            given.setdefault(name, []).append(value)
        elif name in given:
            raise BadField(name, f"{name[:100]} is given twice")
        elif not value:
            continue
        elif (split := name.partition("."))[0] in mappings and split[1]:
            entries = given.setdefault(split[0], {})
            if split[2] in entries:
                raise BadField(name, f"{name[:100]} is given twice")
            entries[split[2]] = value
        else:
            given[name] = value
    return _convert(lambda: msgspec.convert(given, kind, strict=False), kind)


def check_keys(data: bytes) -> None:
    """Refuses objects with a key given twice, those within the input included."""
    if (key := repeated_key(data)) is not None:
        raise BadField(key[:NAME_CHARACTERS], f"{key[:100]} is given twice")


def check_content_type(request: Request) -> None:
    """Only JSON: no form of a web page can send that without asking first, and we never say yes."""
    given = request.headers.get("content-type", "")
    kind, _, parameters = given.partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if kind.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise Refused(415, "UNSUPPORTED_MEDIA_TYPE", "the body must be JSON: send content-type: application/json")


def is_packed(request: Request) -> bool:
    """Returns whether the body becomes larger when it is read."""
    return _coding(request) not in _AS_IT_IS


def _coding(request: Request) -> str:
    return request.headers.get("content-encoding", "identity").strip().lower()


async def _receive(request: Request, limit: int) -> bytes:
    coding = _coding(request)
    if coding != "gzip" and coding not in _AS_IT_IS:
        raise Refused(
            415,
            "UNSUPPORTED_MEDIA_TYPE",
            "content-encoding must be gzip or absent",
            headers={"accept-encoding": "gzip"},
        )
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and (len(length) > 15 or int(length) > limit):
        raise _too_large(limit)
    unzip = zlib.decompressobj(wbits=31) if coding == "gzip" else None
    received = bytearray()
    try:
        async for chunk in request.stream():
            received += chunk if unzip is None else _inflate(unzip, chunk, limit + 1 - len(received))
            if len(received) > limit:
                raise _too_large(limit)
    except ClientDisconnect:
        raise InvalidRequest("the request broke off in the middle of its body") from None
    if unzip is not None and not (unzip.eof and not unzip.unused_data):
        raise InvalidRequest("the body is not readable gzip")
    return bytes(received)


def _inflate(unzip: zlib._Decompress, chunk: bytes, most: int) -> bytes:
    """Decompresses a part of a body, and never to more than may still come."""
    try:
        return unzip.decompress(chunk, max(1, most))
    except zlib.error:
        raise InvalidRequest("the body is not readable gzip") from None


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the body is larger than {limit:,} bytes; keep large data elsewhere and pass a reference")


def _convert(read: Callable[[], T], kind: type[T]) -> T:
    try:
        return read()
    except msgspec.ValidationError as error:
        text = str(error)
        where = _PATH.search(text)
        if unknown := _UNKNOWN.search(text):
            # What there is within a field, the OpenAPI document tells.
            known = "" if where else f"; there are {', '.join(kind.__struct_encode_fields__) or 'none'}"
            raise BadField(unknown[1], f"{unknown[1][:100]} is not known here{known}") from None
        field = where[1] if where else ""
        if missing := _MISSING.search(text):
            field = f"{field}.{missing[1]}".lstrip(".")
            raise BadField(field, f"{field} is missing") from None
        message = text[: where.start()] if where else text
        if choices := _choices(kind, field):
            message = f"{message}; there are {', '.join(choices)}"
        elif (bounds := _bounds(kind, field)) is not None:
            message = f"it takes a whole number from {bounds[0]:,} to {bounds[1]:,}, for example {bounds[0] or 1}"
        raise BadField(field, f"{field or 'the body'}: {message}") from None


def _not_json(data: bytes, error: Exception) -> str:
    """At the end of the body msgspec takes half a surrogate pair for a body that breaks off."""
    for found in _HALF_A_PAIR.finditer(data):
        if half := found[1]:
            return f"the body contains half a surrogate pair, {half.decode()}, which is not valid text"
    return f"the body is not valid JSON: {error}"


@cache
def _several(kind: type[Struct]) -> frozenset[str]:
    """Returns the fields that may be given more than once."""
    return frozenset(name for name, hint in get_type_hints(kind).items() if get_origin(hint) is tuple)


@cache
def _mappings(kind: type[Struct]) -> frozenset[str]:
    """Returns the fields that are mappings, whose parts have names of their own."""
    return frozenset(name for name, hint in get_type_hints(kind).items() if get_origin(hint) is dict)


def _bounds(kind: type[Struct], field: str) -> tuple[int, int] | None:
    """Returns the least and the most that a whole number may be, if the field is one that has both."""
    hint = get_type_hints(kind, include_extras=True).get(field)
    for part in (hint, *get_args(hint)):
        for meta in getattr(part, "__metadata__", ()):
            if isinstance(meta, Meta) and meta.multiple_of == 1 and meta.ge is not None and meta.le is not None:
                return int(meta.ge), int(meta.le)
    return None


def _choices(kind: type[Struct], field: str) -> list[str]:
    """Returns the values that the field may have, if they can be listed."""
    hint = get_type_hints(kind).get(field)
    enums = [part for part in (hint, *get_args(hint)) if isinstance(part, type) and issubclass(part, StrEnum)]
    return [member.value for enum in enums for member in enum]


def check_fields(record: Struct) -> None:
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if isinstance(value, str):
            check_field(value, name)
        elif isinstance(value, Struct):
            check_fields(value)


def check_field(value: str, name: str) -> None:
    with naming(name):
        check_text(name, "the name of a field")
        check_text(value, name)


async def read_json(raw: Raw, field: str) -> bytes:
    """Checks that a part of a body is JSON through and through, and returns it as it was sent."""
    data = bytes(raw)
    try:
        await apart(len(data), check_json, data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadField(field, f"{field} is not valid JSON: {error}") from None
    except RecursionError:
        raise BadField(field, f"{field} is nested too deeply") from None
    return data
