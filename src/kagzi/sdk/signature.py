"""How a function's arguments and result become bytes and come back.

Arguments are stored as a JSON array where they can all be given by position, else as a JSON object by
parameter name, so that one call has one form, however it was written: the same id with the same input is the
same run. Defaults that were not given are left out, so a new default applies to old runs too. Reading takes
both forms, because runs are also started from SQL and from other languages; for a function of one parameter
also the bare value.
"""

from __future__ import annotations

import inspect
import logging
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any, NoReturn
from weakref import WeakKeyDictionary
from zlib import crc32

import msgspec

from kagzi.core.survival import STARS, survives
from kagzi.core.values import UNREADABLE, decode_other, read_plain, reader, show_type, supported, to_json
from kagzi.errors import InvalidRequest, NotSerializable
from kagzi.sdk.annotations import annotations_of, context_class, parameters_of, types_of
from kagzi.sdk.payload import (
    SEALED,
    Codec,
    is_sealed,
    reason_of,
    refuse,
    refuse_changed,
    refuse_nan,
    refuse_secrets,
    refuse_unawaited,
    safe_repr,
)

logger = logging.getLogger("kagzi")

_REPR_CHARACTERS = 2_000
_EMPTY = inspect.Parameter.empty
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_PLAIN: frozenset[type[Any]] = frozenset({int, str, bool, type(None)})
_NOTHING: frozenset[type[Any]] = frozenset({type(None)})


class Signature:
    """How one function's arguments and result become bytes and come back; built once per function.

    Annotations are resolved at the first use, when everything the module defines is there. Whatever is encoded is
    decoded again by them, and refused if it does not come back as it was.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        codec: Codec | None = None,
        localns: Mapping[str, Any] | None = None,
    ) -> None:
        self._fn = fn
        self.name = name or getattr(fn, "__qualname__", None) or repr(fn)
        self.result_words = f"the result of {self.name}"  # in errors
        self._codec = codec
        self._localns = localns
        self._ready = False
        # Nothing fits these bounds: the first call goes the slow way, which resolves the annotations.
        self._low, self._high = 1, 0
        self._read_exact: Callable[[bytes], tuple[Any, ...]] | None = None
        self._plain_arguments: tuple[type[Any], ...] | None = None  # their classes, if JSON changes none of them
        self._read_result: Callable[[bytes], Any] = read_plain
        self._plain_results: frozenset[type[Any]] = frozenset()

    @property
    def context_class(self) -> Callable[[str, str], Any] | None:
        """The Context, if that is what the first parameter is: passed in at each call and never stored."""
        if not self._ready:
            self.resolve()
        return self._context_class

    def takes_only(self, annotation: Any) -> bool:
        """Whether the function has one parameter that must be given, and that one has this annotation."""
        self.resolve()
        needed = [name for name in self._parameters if name in self._needed]
        return len(needed) == 1 and needed[0] in self._positional and self._types.get(needed[0]) is annotation

    def with_codec(self, codec: Codec | None) -> Signature:
        """Returns a copy of this signature with a layer around its payloads, or without one."""
        self.resolve()
        other = copy(self)
        other._codec = codec
        return other

    # Arguments.

    def encode_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The call as bytes. TypeError if it does not fit the function, NotSerializable for a value that JSON cannot
        hold or would change, InvalidRequest for one that does not fit its annotation."""
        data = self._checked_arguments(args, kwargs)
        return data if self._codec is None else self._codec.encode(data)

    def _checked_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        data = self._write_arguments(args, kwargs)
        if kwargs or tuple(map(type, args)) != self._plain_arguments:
            self._refuse_changed_arguments(args, kwargs, *self._decode_written(data))
        return data

    def encode_input_strictly(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[bytes, int]:
        """`encode_arguments`, with a hash of the JSON as `encode_input` gives it."""
        data = self._checked_arguments(args, kwargs)
        return (data if self._codec is None else self._codec.encode(data)), crc32(data) or 1

    def _write_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        try:
            if not kwargs and self._low <= len(args) <= self._high:
                data = to_json(args)
            else:
                data = to_json(self._bind(args, kwargs))
        except _CallError as error:
            raise TypeError(str(error)) from None
        except Exception as error:
            self._refuse_arguments(args, kwargs, error)
        if b"null" in data:
            for what, value in self._named(args, kwargs):
                refuse_nan(value, what)
        if STARS in data:
            for what, value in self._named(args, kwargs):
                refuse_secrets(value, what)
        return data

    def decode_arguments(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Typed copies of the arguments. TypeError for wrong or missing ones, InvalidRequest for bad ones."""
        if self._codec is not None:
            data = self._codec.decode(data)
        if self._read_exact is not None and data[:1] != b"{":
            try:
                return self._read_exact(data), {}
            except UNREADABLE:
                pass  # perhaps in one of the other forms
        return self._decode_any_form(data)

    def _decode_written(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Reads what `_write_arguments` wrote, in its two forms only: as a bare value, the `[5]` of a call with 5 would
        be a list."""
        if data[:1] == b"{":
            return self._decode_object(data)
        if self._read_exact is not None:
            try:
                return self._read_exact(data), {}
            except UNREADABLE:
                pass  # again below, to name the argument
        return self._decode_array(data)

    def encode_input(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[bytes, int]:
        """Like `encode_arguments`, but as JSON that is not sealed yet, and what cannot be encoded is recorded by its
        repr, unless it should be awaited.

        With the JSON comes its hash; a codec may give other bytes every time. It is 0 if and only if the arguments
        cannot be decoded; then the body gets them as they are.
        """
        try:
            data = self._write_arguments(args, kwargs)
        except NotSerializable:
            for what, value in self._named(args, kwargs):
                refuse_unawaited(value, what)
                refuse_secrets(value, what)
            shown = [safe_repr(arg) for arg in args]
            shown += [f"{key}={safe_repr(value)}" for key, value in kwargs.items()]
            return to_json(f"({', '.join(shown)})"[:_REPR_CHARACTERS]), 0
        return data, crc32(data) or 1

    def settle_input(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bytes, int, tuple[Any, ...], dict[str, Any]]:
        """`encode_input` and what `copy_input` makes of it, in one step; cheap for plain values."""
        if not kwargs and tuple(map(type, args)) == self._plain_arguments:
            try:
                data = to_json(args)
            except Exception:
                pass  # said below, in better words
            else:
                return data, crc32(data) or 1, args, kwargs
        data, input_hash = self.encode_input(args, kwargs)
        if input_hash:
            given, given_by_name = args, kwargs
            args, kwargs = self._decode_written(data)
            self._refuse_changed_arguments(given, given_by_name, args, kwargs)
        return data, input_hash, args, kwargs

    def copy_input(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Reads what `encode_input` wrote, if its hash is not 0."""
        return self._decode_written(data)

    def decode_input(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Reads what `encode_input` wrote, once it was sealed."""
        return self._decode_written(data if self._codec is None else self._codec.decode(data))

    @property
    def seal(self) -> Callable[[bytes], bytes] | None:
        """What makes of JSON what is stored; None if that is the JSON itself."""
        return None if self._codec is None else self._codec.encode

    # Results.

    def encode_result(self, value: Any) -> bytes:
        if not self._ready:
            self.resolve()
        if type(value) in self._plain_results and self._codec is None:
            return self.settle_result(value)[0]  # it comes back as it is
        data = self._write_result(value)
        if self._typed_result:
            refuse_changed(value, self._read_typed(data), self.result_words)
        return data if self._codec is None else self._codec.encode(data)

    def _write_result(self, value: Any) -> bytes:
        try:
            data = to_json(value)
        except Exception as error:
            refuse(value, self.result_words, error)
        if b"null" in data and value is not None:
            refuse_nan(value, self.result_words)
        if STARS in data:
            refuse_secrets(value, self.result_words)
        return data

    def decode_result(self, data: bytes) -> Any:
        if not self._ready:
            self.resolve()
        return self._read_typed(data if self._codec is None else self._codec.decode(data))

    def _read_typed(self, data: bytes) -> Any:
        try:
            return self._read_result(data)
        except UNREADABLE as error:
            raise InvalidRequest(
                f"{self.result_words} cannot be read as {show_type(self._result_type)}: {reason_of(error, data)}"
            ) from None

    def settle_result(self, value: Any) -> tuple[bytes, Any]:
        """`encode_result` and what `decode_result` makes of it, in one step; cheap for plain values."""
        if not self._ready:
            self.resolve()
        if type(value) in self._plain_results and self._codec is None:
            try:
                return to_json(value), value
            except UnicodeEncodeError as error:
                refuse(value, self.result_words, error)
        data = self._write_result(value)
        copy = self._read_typed(data)
        if self._typed_result:
            refuse_changed(value, copy, self.result_words)
        return (data if self._codec is None else self._codec.encode(data)), copy

    # Inside.

    def resolve(self) -> None:
        """Read the annotations now instead of at the first call."""
        if self._ready:
            return
        parameters = list(parameters_of(self._fn))
        hints = types_of(self._fn, self.name, self._localns)
        result = hints.get("return", Any)
        self._context_class = context_class(hints.get(parameters[0].name)) if parameters else None
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
        shapes = {p.name: self._readable(hints.get(p.name, Any)) for p in parameters}
        self._readers = {name: self._make_reader(hints.get(name, Any)) for name in shapes}
        self._read_prefix: dict[int, Callable[[bytes], tuple[Any, ...]]] = {}
        if self._rest is None and not needed_keywords:
            for count in range(len(needed), len(positional) + 1):
                shape = tuple([shapes[p.name] for p in positional[:count]])
                self._read_prefix[count] = msgspec.json.Decoder(
                    tuple[shape] if shape else tuple[()],  # type: ignore[valid-type]
                    dec_hook=decode_other,
                ).decode
            if len(self._read_prefix) == 1:
                self._read_exact = self._read_prefix[len(needed)]
            if all([hints.get(p.name) in _PLAIN for p in positional]):
                self._plain_arguments = tuple([hints[p.name] for p in positional])
        self._types = hints

        self._result_type = result
        self._read_result = self._make_reader(result)
        self._typed_result = self._read_result is not read_plain
        if result is Any:
            self._plain_results = _PLAIN
        elif result is None or result is type(None):
            self._plain_results = _NOTHING
        elif isinstance(result, type) and result in _PLAIN:
            self._plain_results = frozenset({result})
        self._readable(result)

        if not needed_keywords:
            self._low = len(needed)
            self._high = len(positional) if self._rest is None else sys.maxsize
        # Held no longer, so that signatures may be kept for functions that come and go.
        del self._fn, self._localns
        self._ready = True

    def _readable(self, annotation: Any) -> Any:
        try:
            shape = supported(annotation)
            msgspec.json.Decoder(shape)
        except NameError:
            return Any  # a class whose own annotations cannot be resolved; _make_reader has told
        except TypeError as error:
            raise InvalidRequest(f"{self.name}: {show_type(annotation)} cannot be read from JSON: {error}") from None
        return shape

    def _make_reader(self, annotation: Any) -> Callable[[bytes], Any]:
        try:
            if annotation is not Any:
                msgspec.json.Decoder(supported(annotation))
        except NameError as error:
            logger.warning(
                "%s of %s is read as plain JSON data, because its fields cannot be resolved (%s)",
                show_type(annotation),
                self.name,
                error,
            )
            return read_plain
        except TypeError:
            pass
        try:
            return reader(annotation)
        except InvalidRequest as error:
            raise InvalidRequest(f"{self.name}: {error}") from None

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The names of what callers give."""
        self.resolve()
        return tuple(self._signature.parameters)

    def typed_parameters(self) -> tuple[tuple[inspect.Parameter, Any], ...]:
        """What callers give, each with its annotation."""
        self.resolve()
        return tuple([(each, self._types.get(name, Any)) for name, each in self._parameters.items()])

    def named_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by their names, with defaults. The call was checked before."""
        self.resolve()
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

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
                to_json(value)
            except Exception as inner:
                refuse(value, what, inner)
        refuse(args, f"the arguments of {self.name}", error)

    def _refuse_changed_arguments(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], copied: tuple[Any, ...], copied_by_name: dict[str, Any]
    ) -> None:
        if survives(args, copied) and survives(kwargs, copied_by_name):
            return
        copies = self._signature.bind(*copied, **copied_by_name).arguments
        for name, value in self._signature.bind(*args, **kwargs).arguments.items():
            if self._readers[name] is not read_plain:
                refuse_changed(value, copies[name], f"argument {name!r} of {self.name}")

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
            problem = (
                InvalidRequest(f"the arguments of {self.name} cannot be read: {SEALED}")
                if is_sealed(data)
                else TypeError(f"{self.name}() takes a JSON array of arguments or an object by name")
            )
        except (TypeError, InvalidRequest) as error:
            problem = error
        if bare and single is not None:
            try:
                value = self._readers[single.name](data)
            except UNREADABLE as error:
                if data.strip() == b"null":
                    return self._checked((), {})  # nothing was given
                if first not in (b"[", b"{") and not is_sealed(data):
                    problem = self._unreadable(single.name, error)
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
            except UNREADABLE:
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
        except UNREADABLE as error:
            raise InvalidRequest(f"the arguments of {self.name} cannot be read: {reason_of(error, data)}") from None

    def _read(self, name: str, raw: msgspec.Raw) -> Any:
        try:
            return self._readers[name](bytes(raw))
        except UNREADABLE as error:
            raise self._unreadable(name, error) from None

    def _unreadable(self, name: str, error: BaseException) -> InvalidRequest:
        annotation = show_type(self._types.get(name, Any))
        return InvalidRequest(f"argument {name!r} of {self.name} cannot be read as {annotation}: {reason_of(error)}")


class _CallError(Exception):
    """The function cannot be called like this."""


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
    annotations = annotations_of(fn)
    if any([isinstance(annotation, str) for annotation in annotations.values()]):
        known = _BY_FUNCTION.get(fn)
        if known is None:
            known = _BY_FUNCTION[fn] = Signature(fn)
            known.resolve()
        return known
    key = (
        id(code),
        inspect.ismethod(fn),  # its first parameter is taken
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
