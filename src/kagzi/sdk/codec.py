"""Python values <-> JSON bytes, decoded by annotation.

Everything durable passes through here: the input of a run, the arguments and the result of a step. What comes
back is `decode(encode(value))` with the type the annotation names, on the first run as on every replay.
Without an annotation it is plain JSON data: a tuple comes back as a list, a dataclass as a dict.

Arguments are stored as a JSON array where they can all be given by position, else as a JSON object by
parameter name, so that one call has one form, however it was written: the same id with the same input is the
same run. Defaults that were not given are left out, so a new default applies to old runs too. Reading takes
both forms, because runs are also started from SQL and from other languages; for a function of one parameter
also the bare value.

What JSON cannot say is refused before anything is written: NaN and infinities (msgspec would write null),
objects of unknown classes, unions whose members look the same.
"""

from __future__ import annotations

import inspect
import logging
import math
import re
import sys
import types
import typing
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from pathlib import PurePath
from typing import Any, NoReturn, Protocol
from weakref import WeakKeyDictionary
from zlib import crc32

import msgspec

from kagzi.errors import InvalidRequest, NotSerializable

logger = logging.getLogger("kagzi")

_REPR_CHARACTERS = 2_000
_EMPTY = inspect.Parameter.empty
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_PLAIN: frozenset[type[Any]] = frozenset({int, str, bool, type(None)})
_NOTHING: frozenset[type[Any]] = frozenset({type(None)})
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class Codec(Protocol):
    """A layer around the JSON of every payload, for compression or encryption."""

    def encode(self, data: bytes) -> bytes: ...

    def decode(self, data: bytes) -> bytes: ...


# Values.


def encode(value: Any, what: str = "value") -> bytes:
    """JSON, or NotSerializable naming `what`, the path within it and the type that is the trouble."""
    try:
        data = _encode(value)
    except Exception as error:
        _refuse(value, what, error)
    if b"null" in data:
        _refuse_nan(value, what)
    return data


def decode(data: bytes, annotation: Any = Any, what: str = "value") -> Any:
    return decoder(annotation)(data, what)


def decoder(annotation: Any) -> Callable[[bytes, str], Any]:
    """A function that reads JSON bytes as this type, or raises InvalidRequest naming what it read."""
    read = _reader(annotation)

    def decode(data: bytes, what: str) -> Any:
        try:
            return read(data)
        except _UNREADABLE as error:
            shown = _show(annotation)
            raise InvalidRequest(f"{what} cannot be read as {shown}: {_reason(error)}") from None

    return decode


def _encode_other(value: Any) -> Any:
    """What msgspec does not know. Pydantic need not be imported: its models bring their serializer along."""
    cls = type(value)
    serializer = getattr(cls, "__pydantic_serializer__", None)
    if serializer is not None:
        return serializer.to_python(value, mode="json")
    for base in (str, int, float):  # subclasses such as numpy.float64
        if isinstance(value, base):
            return base(value)
    if isinstance(value, deque):
        return list(value)
    if isinstance(value, PurePath):
        return str(value)
    raise _Unknown(value)


class _Unknown(TypeError):
    def __init__(self, value: object) -> None:
        super().__init__(f"{_class_name(type(value))} has no JSON form")


def _decode_other(cls: Any, data: Any) -> Any:
    if isinstance(cls, _Union):
        return cls.pick(data)
    validator = getattr(cls, "__pydantic_validator__", None)
    if validator is not None:
        # As JSON and not as Python data: a strict model takes a date from text only there.
        return validator.validate_json(_encode(data))
    if (typing.get_origin(cls) or cls) is deque:
        (item,) = typing.get_args(cls) or (Any,)
        return deque(msgspec.convert(data, list[item], dec_hook=_decode_other))  # type: ignore[valid-type]
    if isinstance(cls, type) and issubclass(cls, PurePath):
        return cls(data)
    raise TypeError(f"a {_show(cls)} cannot be rebuilt from JSON")


_encode = msgspec.json.Encoder(enc_hook=_encode_other).encode
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, TypeError)


def _reader(annotation: Any) -> Callable[[bytes], Any]:
    if annotation is Any or annotation is _EMPTY or annotation is object:
        return _read_plain
    validator = getattr(annotation, "__pydantic_validator__", None)
    if validator is not None and isinstance(annotation, type):
        read: Callable[[bytes], Any] = validator.validate_json
        return read
    try:
        return msgspec.json.Decoder(_supported(annotation), dec_hook=_decode_other).decode
    except (TypeError, NameError) as error:
        raise InvalidRequest(
            f"the type {_show(annotation)} cannot be read from JSON: {error}. Use another annotation, or a "
            "tagged msgspec.Struct where a union is meant"
        ) from None


_read_plain = msgspec.json.Decoder().decode


# Unions. msgspec takes those it can tell apart by the JSON type or by a tag. For the others (two dataclasses,
# a pydantic model beside an int) a class stands in for the union, and its instances are made by trying the
# members.


class _Union(type):
    """The metaclass of stand-ins for unions."""

    members: tuple[Any, ...]

    def __instancecheck__(cls, instance: Any) -> bool:
        return True  # msgspec checks what the hook returns; `pick` has done so

    def pick(cls, data: Any) -> Any:
        """The first member that reads `data` and writes it again unchanged, else the first that reads it."""
        second: list[Any] = []
        for member in cls.members:
            try:
                value = msgspec.convert(data, member, dec_hook=_decode_other)
            except (msgspec.ValidationError, ValueError, TypeError):
                continue
            if _builtins(value) == data:
                return value
            second.append(value)
        if second:
            return second[0]
        raise ValueError(f"fits none of {', '.join(map(_show, cls.members))}")


def _supported(annotation: Any) -> Any:
    """The annotation with stand-ins for the unions that msgspec refuses."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if not args or origin is typing.Literal:
        return annotation
    if origin is typing.Annotated:
        inner = _supported(args[0])
        return annotation if inner is args[0] else typing.Annotated[(inner, *args[1:])]
    changed = tuple([_supported(arg) if not isinstance(arg, list) else arg for arg in args])
    if origin in (typing.Union, types.UnionType):
        try:
            msgspec.json.Decoder(annotation)
            return annotation
        except TypeError:
            return _Union("Union", (), {"members": changed})
    if all(new is old for new, old in zip(changed, args, strict=True)):
        return annotation
    try:
        return origin[changed]
    except TypeError:
        return annotation


def _has_stand_in(annotation: Any) -> bool:
    return isinstance(annotation, _Union) or any(map(_has_stand_in, typing.get_args(annotation)))


# What was wrong, for people.


def _builtins(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=_encode_other, str_keys=True)


def _refuse_nan(value: Any, what: str) -> None:
    for path, item in _walk(_builtins(value)):
        if isinstance(item, float) and not math.isfinite(item):
            raise NotSerializable(
                f"{what} holds {item} at {path}, and JSON has no such number; use None or a text instead"
            )


def _walk(value: Any, path: str = "$") -> Iterator[tuple[str, Any]]:
    yield path, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _walk(item, f"{path}[{index}]")


def _refuse(value: Any, what: str, error: Exception) -> NoReturn:
    if isinstance(error, RecursionError):
        raise NotSerializable(f"{what} is nested too deeply for JSON, or contains itself") from None
    path, culprit, reason = _culprit(value, "$", error)
    raise NotSerializable(
        f"{what} cannot be written as JSON: at {path} is {_safe_repr(culprit):.100} of type "
        f"{_class_name(type(culprit))} ({reason}). Use plain data, a dataclass or another type JSON can hold"
    ) from None


def _culprit(value: Any, path: str, error: Exception) -> tuple[str, Any, str]:
    """The innermost part of a value that cannot be encoded."""
    for step, item in _parts(value):
        try:
            _encode(item)
        except Exception as inner:
            return _culprit(item, path + step, inner)
    return path, value, str(error)[:200]


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield f".{_safe_repr(key)[:50]}" if not isinstance(key, str) else f".{key[:50]}", item
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, item in enumerate(value):
            yield f"[{index}]", item
    else:
        names: Any = getattr(type(value), "__struct_fields__", None) or getattr(value, "__dict__", ())
        for name in names:
            if hasattr(value, name):
                yield f".{name}", getattr(value, name)


def _safe_repr(value: object) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"<{_class_name(type(value))}>"
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    # Addresses would differ at every replay, and with them the hash of the input.
    return _ADDRESS.sub("", text)


def _class_name(cls: type[Any]) -> str:
    name = cls.__qualname__
    return name if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{name}"


def _show(annotation: Any) -> str:
    return _class_name(annotation) if type(annotation) is type else str(annotation)


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error)[:500]


# Functions.


class Signature:
    """How one function's arguments and result become bytes and come back; built once per function.

    Annotations are resolved at the first use, when everything the module defines is there. With `verify`,
    encoding arguments makes sure that they can be read again with their types.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        codec: Codec | None = None,
        localns: Mapping[str, Any] | None = None,
        verify: bool = False,
    ) -> None:
        self._fn = fn
        self._verify = verify
        self.name = name or getattr(fn, "__qualname__", None) or repr(fn)
        self._codec = codec
        self._localns = localns
        self._ready = False
        # Nothing fits these bounds: the first call goes the slow way, which resolves the annotations.
        self._low, self._high = 1, 0
        self._read_exact: Callable[[bytes], tuple[Any, ...]] | None = None
        self._read_result: Callable[[bytes], Any] = _read_plain
        self._plain_results: frozenset[type[Any]] = frozenset()
        self._check_result = False
        self._check_arguments = False

    @property
    def context_class(self) -> Callable[[str, str], Any] | None:
        """The Context, if that is what the first parameter is: passed in at each call and never stored."""
        if not self._ready:
            self.resolve()
        return self._context_class

    def with_codec(self, codec: Codec) -> Signature:
        """The same signature with a layer around its payloads."""
        self.resolve()
        other = copy(self)
        other._codec = codec
        return other

    @property
    def result_type(self) -> Any:
        self.resolve()
        return self._result_type

    # Arguments.

    def encode_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The call as bytes. TypeError if it does not fit the function, NotSerializable for a bad value."""
        data = self._write_arguments(args, kwargs)
        return data if self._codec is None else self._codec.encode(data)

    def _write_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        try:
            if not kwargs and self._low <= len(args) <= self._high:
                data = _encode(args)
            else:
                data = _encode(self._bind(args, kwargs))
        except _CallError as error:
            raise TypeError(str(error)) from None
        except Exception as error:
            self._refuse_arguments(args, kwargs, error)
        if b"null" in data:
            for what, value in self._named(args, kwargs):
                _refuse_nan(value, what)
        if self._check_arguments:
            self._refuse_confused_arguments(args, kwargs, data)
        elif self._verify:
            self._decode_plain(data)
        return data

    def decode_arguments(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Typed copies of the arguments. TypeError for wrong or missing ones, InvalidRequest for bad ones."""
        if self._codec is not None:
            data = self._codec.decode(data)
        return self._decode_plain(data)

    def _decode_plain(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._read_exact is not None and data[:1] != b"{":
            try:
                return self._read_exact(data), {}
            except _UNREADABLE:
                pass  # perhaps in one of the other forms
        return self._decode_any_form(data)

    def encode_input(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[bytes, int]:
        """Like `encode_arguments`, but what cannot be encoded is recorded by its repr.

        With the bytes comes a hash of their JSON, made before the codec, which may give other bytes every time. It is 0
        if and only if they cannot be decoded; then the body gets the arguments as they are.
        """
        try:
            data = self._write_arguments(args, kwargs)
        except NotSerializable:
            shown = [_safe_repr(arg) for arg in args]
            shown += [f"{key}={_safe_repr(value)}" for key, value in kwargs.items()]
            data = _encode(f"({', '.join(shown)})"[:_REPR_CHARACTERS])
            return (data if self._codec is None else self._codec.encode(data)), 0
        return (data if self._codec is None else self._codec.encode(data)), crc32(data) or 1

    def decode_input(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.decode_arguments(data)

    # Results.

    def encode_result(self, value: Any) -> bytes:
        if not self._ready:
            self.resolve()
        try:
            data = _encode(value)
        except Exception as error:
            _refuse(value, f"the result of {self.name}", error)
        if b"null" in data and value is not None:
            _refuse_nan(value, f"the result of {self.name}")
        if self._check_result:
            self._refuse_confusion(value, data)
        return data if self._codec is None else self._codec.encode(data)

    def decode_result(self, data: bytes) -> Any:
        if not self._ready:
            self.resolve()
        if self._codec is not None:
            data = self._codec.decode(data)
        try:
            return self._read_result(data)
        except _UNREADABLE as error:
            raise InvalidRequest(
                f"the result of {self.name} cannot be read as {_show(self._result_type)}: {_reason(error)}"
            ) from None

    def settle_result(self, value: Any) -> tuple[bytes, Any]:
        """`encode_result` and what `decode_result` makes of it, in one step; cheap for plain values."""
        if not self._ready:
            self.resolve()
        if type(value) in self._plain_results and self._codec is None:
            try:
                return _encode(value), value
            except UnicodeEncodeError as error:
                _refuse(value, f"the result of {self.name}", error)
        data = self.encode_result(value)
        return data, self.decode_result(data)

    # Inside.

    def resolve(self) -> None:
        """Read the annotations now instead of at the first call."""
        if self._ready:
            return
        parameters = list(_parameters(self._fn))
        types, result = self._types(parameters)
        self._context_class = _context_class(types.get(parameters[0].name)) if parameters else None
        if self._context_class is not None:
            parameters = parameters[1:]
        self._signature = inspect.Signature(parameters)
        self._parameters = {parameter.name: parameter for parameter in parameters}
        positional = [p for p in parameters if p.kind in _BY_POSITION]
        self._positional = tuple([p.name for p in positional])
        self._rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        self._keywords = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self._by_keyword = frozenset([p.name for p in named])
        needed = [p for p in positional if p.default is _EMPTY]
        needed_keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is _EMPTY]
        self._needed = frozenset([p.name for p in needed + needed_keywords])

        # By annotation, and now: a type that cannot be read should fail before anything is written.
        shapes = {p.name: self._readable(types.get(p.name, Any)) for p in parameters}
        self._readers = {name: self._make_reader(types.get(name, Any)) for name in shapes}
        self._read_prefix: dict[int, Callable[[bytes], tuple[Any, ...]]] = {}
        if self._rest is None and not needed_keywords:
            for count in range(len(needed), len(positional) + 1):
                shape = tuple([shapes[p.name] for p in positional[:count]])
                self._read_prefix[count] = msgspec.json.Decoder(
                    tuple[shape] if shape else tuple[()],  # type: ignore[valid-type]
                    dec_hook=_decode_other,
                ).decode
            if len(self._read_prefix) == 1:
                self._read_exact = self._read_prefix[len(needed)]
        self._check_arguments = any(map(_has_stand_in, shapes.values()))

        self._result_type = result
        self._read_result = self._make_reader(result)
        if result is Any:
            self._plain_results = _PLAIN
        elif result is None or result is type(None):
            self._plain_results = _NOTHING
        elif isinstance(result, type) and result in _PLAIN:
            self._plain_results = frozenset({result})
        self._check_result = _has_stand_in(self._readable(result))

        if not needed_keywords:
            self._low = len(needed)
            self._high = len(positional) if self._rest is None else sys.maxsize
        # Held no longer, so that signatures may be kept for functions that come and go.
        del self._fn, self._localns
        self._ready = True

    def _types(self, parameters: list[inspect.Parameter]) -> tuple[dict[str, Any], Any]:
        """The annotations as objects; those that cannot be resolved are Any, and somebody is told."""
        fn: Any = inspect.unwrap(self._fn)
        while not hasattr(fn, "__annotations__") and hasattr(fn, "func"):
            fn = fn.func  # functools.partial
        if not (inspect.isroutine(fn) or isinstance(fn, type)):
            fn = type(fn).__call__
        try:
            hints = typing.get_type_hints(fn, localns=dict(self._localns or {}) or None, include_extras=True)
        except Exception:
            hints = self._types_one_by_one(fn)
        names = [parameter.name for parameter in parameters]
        result = hints.get("return", Any)
        return {name: hints[name] for name in names if name in hints}, result

    def _types_one_by_one(self, fn: Any) -> dict[str, Any]:
        namespace = dict(getattr(fn, "__globals__", {}))
        for name, cell in zip(
            getattr(fn.__code__, "co_freevars", ()) if hasattr(fn, "__code__") else (),
            getattr(fn, "__closure__", None) or (),
            strict=False,
        ):
            try:
                namespace[name] = cell.cell_contents
            except ValueError:
                pass  # not set yet
        namespace.update(self._localns or {})
        hints: dict[str, Any] = {}
        for name, annotation in _annotations(fn).items():
            try:
                holder = types.SimpleNamespace(__annotations__={name: annotation})
                hints[name] = typing.get_type_hints(holder, namespace, namespace, include_extras=True)[name]
            except Exception as error:
                if annotation in ("Context", "kagzi.Context"):
                    hints[name] = _ContextByName
                    continue
                hints[name] = Any
                what = "the result" if name == "return" else f"the parameter {name}"
                logger.warning(
                    "%s of %s is read as plain JSON data, because its annotation %r cannot be resolved (%s)",
                    what,
                    self.name,
                    annotation,
                    error,
                )
        return hints

    def _readable(self, annotation: Any) -> Any:
        if annotation is _EMPTY:
            return Any
        try:
            supported = _supported(annotation)
            msgspec.json.Decoder(supported)
        except NameError:
            return Any  # a class whose own annotations cannot be resolved; _make_reader has told
        except TypeError as error:
            raise InvalidRequest(f"{self.name}: {_show(annotation)} cannot be read from JSON: {error}") from None
        return supported

    def _make_reader(self, annotation: Any) -> Callable[[bytes], Any]:
        try:
            if annotation is not _EMPTY and annotation is not Any:
                msgspec.json.Decoder(_supported(annotation))
        except NameError as error:
            logger.warning(
                "%s of %s is read as plain JSON data, because its fields cannot be resolved (%s)",
                _show(annotation),
                self.name,
                error,
            )
            return _read_plain
        except TypeError:
            pass
        try:
            return _reader(annotation)
        except InvalidRequest as error:
            raise InvalidRequest(f"{self.name}: {error}") from None

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What to write for this call: a tuple if all of it can be given by position, else a dict by name."""
        self.resolve()
        if not kwargs and self._low <= len(args) <= self._high:
            return args
        names = self._positional
        if self._rest is None and self._keywords is None and len(args) <= len(names):
            arguments = dict(zip(names, args, strict=False))
            if (
                kwargs.keys() <= self._by_keyword
                and not kwargs.keys() & arguments.keys()
                and self._needed <= arguments.keys() | kwargs.keys()
            ):
                arguments.update(kwargs)
                prefix = names[: len(arguments)]
                if all([name in arguments for name in prefix]) and len(prefix) == len(arguments):
                    return tuple([arguments[name] for name in prefix])
                return {name: arguments[name] for name in self._parameters if name in arguments}
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise _CallError(f"{self.name}() {error}") from None
        if not kwargs:
            return args
        arguments = dict(bound.arguments)
        if self._keywords is not None:
            for key, value in arguments.pop(self._keywords, {}).items():
                if key in self._parameters:
                    raise _CallError(
                        f"{self.name}() got the keyword {key!r} beside a positional-only parameter; "
                        "both cannot be stored"
                    )
                arguments[key] = value
        return arguments

    def _named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for index, value in enumerate(args):
            if index < len(self._positional):
                yield f"argument {self._positional[index]!r} of {self.name}", value
            else:
                yield f"argument {index + 1} of {self.name}", value
        for key, value in kwargs.items():
            yield f"argument {key!r} of {self.name}", value

    def _refuse_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception) -> NoReturn:
        if isinstance(error, InvalidRequest):
            raise error
        for what, value in self._named(args, kwargs):
            try:
                _encode(value)
            except Exception as inner:
                _refuse(value, what, inner)
        _refuse(args, f"the arguments of {self.name}", error)

    def _refuse_confusion(self, value: Any, data: bytes) -> None:
        try:
            same = _same(self._read_result(data), value)
        except _UNREADABLE:
            same = False
        if not same:
            raise NotSerializable(f"the result of {self.name} comes back from JSON as something else: {_LOOK_ALIKE}")

    def _refuse_confused_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], data: bytes) -> None:
        try:
            copied_args, copied_kwargs = self._decode_plain(data)
            copied = self._signature.bind(*copied_args, **copied_kwargs).arguments
        except (TypeError, InvalidRequest):
            copied = {}
        for name, value in self._signature.bind(*args, **kwargs).arguments.items():
            if name not in copied or not _same(copied[name], value):
                raise NotSerializable(
                    f"argument {name!r} of {self.name} comes back from JSON as something else: {_LOOK_ALIKE}"
                )

    def _decode_any_form(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self.resolve()
        first = data.lstrip()[:1]
        single = next(iter(self._parameters.values())) if len(self._parameters) == 1 else None
        bare = single is not None and single.kind in (*_BY_POSITION, inspect.Parameter.KEYWORD_ONLY)
        problem: Exception
        try:
            if first == b"[":
                return self._decode_array(data)
            if first == b"{":
                return self._decode_object(data)
            if data.strip() == b"null" and not bare:
                return self._checked((), {})
            problem = TypeError(f"{self.name}() takes a JSON array of arguments or an object by name")
        except (TypeError, InvalidRequest) as error:
            problem = error
        if bare and single is not None:
            try:
                value = self._readers[single.name](data)
            except _UNREADABLE as error:
                if data.strip() == b"null":
                    return self._checked((), {})  # nothing was given
                if first not in (b"[", b"{"):
                    problem = InvalidRequest(
                        f"argument {single.name!r} of {self.name} cannot be read: {_reason(error)}"
                    )
            else:
                if value is None and single.default is not _EMPTY:
                    return (), {}
                return ((value,), {}) if single.kind in _BY_POSITION else ((), {single.name: value})
        raise problem

    def _decode_array(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        items = self._raw(data, list[msgspec.Raw])
        read = self._read_prefix.get(len(items))
        if read is not None:
            try:
                return read(data), {}
            except _UNREADABLE:
                pass  # again below, to name the argument
        self._checked(tuple(items), {})
        names = self._positional
        rest = self._rest or ""
        args = [self._read(names[i] if i < len(names) else rest, raw) for i, raw in enumerate(items)]
        return tuple(args), {}

    def _decode_object(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given: dict[str, msgspec.Raw] = self._raw(data, dict[str, msgspec.Raw])
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        more = self._raw(bytes(given.pop(self._rest)), list[msgspec.Raw]) if self._rest in given else []
        for parameter in self._parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if parameter.name not in given:
                continue
            value = self._read(parameter.name, given.pop(parameter.name))
            # With *args every positional parameter before them has to be passed by position.
            if parameter.kind is parameter.POSITIONAL_ONLY or (more and parameter.kind in _BY_POSITION):
                args.append(value)
            else:
                kwargs[parameter.name] = value
        if not given and not more and len(args) + len(kwargs) == len(self._parameters):
            return tuple(args), kwargs  # every parameter and nothing else: no need to bind
        args.extend([self._read(self._rest or "", raw) for raw in more])
        for key, raw in given.items():
            kwargs[key] = self._read(self._keywords, raw) if self._keywords is not None else None
        return self._checked(tuple(args), kwargs)

    def _checked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}") from None
        return args, kwargs

    def _raw(self, data: bytes, shape: Any) -> Any:
        try:
            return msgspec.json.decode(data, type=shape)
        except _UNREADABLE as error:
            raise InvalidRequest(f"the arguments of {self.name} cannot be read: {_reason(error)}") from None

    def _read(self, name: str, raw: msgspec.Raw) -> Any:
        try:
            return self._readers[name](bytes(raw))
        except _UNREADABLE as error:
            reason = _reason(error)
            raise InvalidRequest(f"argument {name!r} of {self.name} cannot be read: {reason}") from None


_LOOK_ALIKE = (
    "the members of its union look alike. Give them a field that differs (a Literal), or make them "
    "msgspec.Struct classes with a tag"
)


def _same(again: Any, value: Any) -> bool:
    if type(again) is not type(value):
        return False
    # Equal, or at least of one class and content: a tuple in a field without a type comes back as a list.
    return bool(again == value) or (not isinstance(again, (list, tuple, dict)) and _encode(again) == _encode(value))


class _CallError(Exception):
    """The function cannot be called like this."""


class _ContextByName:
    """Stands for an annotation `Context` that is imported for type checkers only."""


def _context_class(annotation: Any) -> Callable[[str, str], Any] | None:
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


def _parameters(fn: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
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


def _annotations(fn: Any) -> dict[str, Any]:
    try:
        return dict(getattr(fn, "__annotations__", None) or {})
    except Exception:
        if sys.version_info >= (3, 14):
            import annotationlib

            return dict(annotationlib.get_annotations(fn, format=annotationlib.Format.STRING))
        raise


_BY_CODE: dict[Any, tuple[types.CodeType, dict[str, Any], Signature]] = {}
_BY_FUNCTION: WeakKeyDictionary[Any, Signature] = WeakKeyDictionary()
_MOST_CODES = 10_000


def signature_of(fn: Callable[..., Any]) -> Signature:
    """The Signature of a function passed to `run_step`.

    A lambda or inner function is made anew at every call; its signature is kept by its code then, as long as
    the annotations are the same objects.
    """
    code = getattr(fn, "__code__", None)
    if code is None:
        return Signature(fn)
    annotations = _annotations(fn)
    if any([isinstance(annotation, str) for annotation in annotations.values()]):
        known = _BY_FUNCTION.get(fn)
        if known is None:
            known = _BY_FUNCTION[fn] = Signature(fn)
            known.resolve()
        return known
    key = (
        id(code),
        len(getattr(fn, "__defaults__", None) or ()),
        tuple(getattr(fn, "__kwdefaults__", None) or ()),
    )
    found = _BY_CODE.get(key)
    if found is not None and found[1] == annotations:
        return found[2]
    made = Signature(fn)
    made.resolve()
    if len(_BY_CODE) >= _MOST_CODES:
        _BY_CODE.clear()  # somebody makes code at run time
    _BY_CODE[key] = (code, annotations, made)
    return made
