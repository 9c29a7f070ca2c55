"""Turns a function's arguments and result into bytes and back."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, NoReturn
from weakref import WeakKeyDictionary
from zlib import crc32

from kagzi.core.canonical import variety_of, with_sets_in_order
from kagzi.core.lineage import PayloadContext
from kagzi.core.survival import STARS
from kagzi.core.values import UNREADABLE, never_rebuilt, read_plain, show_type, to_json
from kagzi.errors import InvalidRequest, NotSerializable
from kagzi.sdk.annotations import annotations_of, context_class, parameters_of, types_of
from kagzi.sdk.parameters import PLAIN, CallError, Parameters, make_reader, readable
from kagzi.sdk.payload import (
    Codec,
    given,
    reason_of,
    refuse,
    refuse_changed,
    refuse_nan,
    refuse_secrets,
    refuse_unawaited,
    safe_repr,
)

_REPR_CHARACTERS = 2_000
_WRITTEN = (str, int, float)  # subclasses of these are written as they are, and would have to be read again
_NOTHING: frozenset[type[Any]] = frozenset({type(None)})


class Signature:
    """Turns one function's arguments and result into bytes and back; built once per function.

    Annotations are resolved at the first use, when everything the module defines is there; those that are plainly wrong
    are refused by `look`, before. Whatever is encoded is decoded again by them, and refused if it does not come back as
    it was.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        codec: Codec | None = None,
        localns: Mapping[str, Any] | None = None,
        passes_objects: bool = True,
    ) -> None:
        """`passes_objects`: arguments that JSON cannot hold are given to the function as they are, as those of steps
        are."""
        self._fn = fn
        self._passes_objects = passes_objects
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
        self._steady = self._may_hold_sets = self._result_may_hold_sets = False

    @property
    def context_class(self) -> Callable[[str, str], Any] | None:
        """The Context, if that is what the first parameter is: passed in at each call and never stored."""
        if not self._ready:
            self.resolve()
        return self._context_class

    @property
    def parameters(self) -> Parameters:
        """What callers give: all parameters but a Context."""
        self.resolve()
        return self._parameters

    def with_codec(self, codec: Codec | None) -> Signature:
        """Returns a copy of this signature with a layer around its payloads, or without one."""
        self.resolve()
        other = copy(self)
        other._codec = codec
        return other

    def look(self) -> None:
        """Refuses annotations whose values cannot be read again, as far as they can be resolved now: before something
        is done whose result could not be kept."""
        if self._ready:
            return  # resolving has looked
        types = types_of(self._fn, self.name, self._localns, early=True)
        self._refuse_unreadable(parameters_of(self._fn), types)

    def _refuse_unreadable(self, parameters: Sequence[inspect.Parameter], types: Mapping[str, Any]) -> None:
        if parameters and context_class(types.get(parameters[0].name)) is not None:
            parameters = parameters[1:]
        for name in (*[parameter.name for parameter in parameters], "return"):
            annotation = types.get(name, Any)
            readable(annotation, self.name)
            try:
                cls = never_rebuilt(annotation)
            except (NameError, TypeError):
                continue  # a class whose own annotations cannot be resolved yet
            given_as_it_is = self._passes_objects and name != "return" and not issubclass(cls or object, _WRITTEN)
            if cls is not None and not given_as_it_is:
                what = "its result" if name == "return" else f"argument {name!r}"
                raise InvalidRequest(
                    f"{self.name}: {what} is annotated {show_type(annotation)}, and no {show_type(cls)} can be made of "
                    f"the JSON that is stored. Use plain data, a dataclass, a msgspec.Struct, a pydantic model, or "
                    f"`object` for whatever JSON says"
                )

    # Arguments.

    def encode_arguments(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], context: PayloadContext | None = None
    ) -> bytes:
        """Returns a call as bytes; `context` is for the codec, if there is one. TypeError if it does not fit the
        function, NotSerializable for a value that JSON cannot hold or would change, InvalidRequest for one that does
        not fit its annotation."""
        data, _ = self._checked_arguments(args, kwargs)
        return data if self._codec is None else self._codec.encode(data, given(context))

    def _checked_arguments(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[bytes, tuple[tuple[Any, ...], Mapping[str, Any]]]:
        """Returns a call as JSON, and what that is read as."""
        data = self._write_arguments(args, kwargs)
        copied: tuple[tuple[Any, ...], Mapping[str, Any]] = args, kwargs
        if kwargs or tuple(map(type, args)) != self._plain_arguments:
            given_back = self._parameters.decode_written(data)
            self._parameters.refuse_changed(args, kwargs, *given_back)
            copied = given_back
        return data, copied

    def encode_input_strictly(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[bytes, int]:
        """Returns a call as JSON that no codec has sealed yet, as `encode_arguments` checks it, and its hash as
        `settle_input` gives it."""
        data, copied = self._checked_arguments(args, kwargs)
        return data, self._hash(data, *copied)

    def canonical_arguments(self, data: bytes, context: PayloadContext | None = None) -> bytes:
        """Returns stored arguments in the form in which calls are compared: two that do the same have one form."""
        return self.parameters.canonical(*self.decode_arguments(data, context))

    def canonical_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Returns a call in the form in which calls are compared; what `encode_arguments` refuses is refused."""
        _, copied = self._checked_arguments(args, kwargs)
        return self._parameters.canonical(*copied)

    def _hash(self, data: bytes, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        """Returns what calls are compared by, never 0: a hash of the canonical form of what was read of this JSON."""
        if not self._steady:
            try:
                data = self._parameters.canonical(args, kwargs)
            except Exception:
                pass  # classes of the user's that are written in one way only
        return crc32(data) or 1

    def _write_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        try:
            form = (
                args if not kwargs and self._low <= len(args) <= self._high else self.parameters.form_of(args, kwargs)
            )
            data = to_json(with_sets_in_order(form) if self._may_hold_sets else form)
        except CallError as error:
            raise TypeError(str(error)) from None
        except Exception as error:
            self._refuse_arguments(args, kwargs, error)
        if b"null" in data:
            for what, value in self.parameters.described(args, kwargs):
                refuse_nan(value, what)
        if STARS in data:
            for what, value in self.parameters.described(args, kwargs):
                refuse_secrets(value, what)
        return data

    def decode_arguments(
        self, data: bytes, context: PayloadContext | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns typed copies of the arguments. TypeError for wrong or missing ones, InvalidRequest for bad ones."""
        if self._codec is not None:
            data = self._codec.decode(data, given(context))
        if self._read_exact is not None and data[:1] != b"{":
            try:
                return self._read_exact(data), {}
            except UNREADABLE:
                pass  # perhaps in one of the other forms
        return self.parameters.decode_any_form(data)

    def encode_input(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[bytes, bool]:
        """Returns a call as JSON that no codec has sealed yet, and whether it can be decoded. A value that cannot be
        encoded is recorded by its repr, unless it should be awaited; then the body gets the arguments as they are.
        """
        try:
            data = self._write_arguments(args, kwargs)
        except NotSerializable:
            for what, value in self.parameters.described(args, kwargs):
                refuse_unawaited(value, what)
                refuse_secrets(value, what)
            shown = [safe_repr(arg) for arg in args]
            shown += [f"{key}={safe_repr(value)}" for key, value in kwargs.items()]
            return to_json(f"({', '.join(shown)})"[:_REPR_CHARACTERS]), False
        return data, True

    def settle_input(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bytes, int, tuple[Any, ...], dict[str, Any]]:
        """Returns what `encode_input` writes, a hash to compare calls by, and what `copy_input` makes of it; cheap for
        plain values. The hash is 0 if and only if the arguments cannot be decoded."""
        if not kwargs and tuple(map(type, args)) == self._plain_arguments:
            try:
                data = to_json(args)
            except Exception:
                pass  # said below, in better words
            else:
                return data, (crc32(data) or 1) if self._steady else self._hash(data, args, kwargs), args, kwargs
        data, readable = self.encode_input(args, kwargs)
        if not readable:
            return data, 0, args, kwargs
        given, given_by_name = args, kwargs
        args, kwargs = self._parameters.decode_written(data)
        self._parameters.refuse_changed(given, given_by_name, args, kwargs)
        return data, self._hash(data, args, kwargs), args, kwargs

    def copy_input(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Reads what `encode_input` wrote, if it said that this can be decoded."""
        return self._parameters.decode_written(data)

    @property
    def seal(self) -> Callable[[bytes, PayloadContext], bytes] | None:
        """Returns the function that makes of JSON what is stored; None if the JSON itself is stored."""
        return None if self._codec is None else self._codec.encode

    # Results.

    def encode_result(self, value: Any, context: PayloadContext | None = None) -> bytes:
        if not self._ready:
            self.resolve()
        if type(value) in self._plain_results and self._codec is None:
            return self.settle_result(value)[0]  # it comes back as it is
        data = self._write_result(value)
        if self._typed_result:
            refuse_changed(value, self._read_typed(data), self.result_words)
        return data if self._codec is None else self._codec.encode(data, given(context))

    def _write_result(self, value: Any) -> bytes:
        try:
            data = to_json(with_sets_in_order(value) if self._result_may_hold_sets else value)
        except Exception as error:
            refuse(value, self.result_words, error)
        if b"null" in data and value is not None:
            refuse_nan(value, self.result_words)
        if STARS in data:
            refuse_secrets(value, self.result_words)
        return data

    def decode_result(self, data: bytes, context: PayloadContext | None = None) -> Any:
        if not self._ready:
            self.resolve()
        return self._read_typed(data if self._codec is None else self._codec.decode(data, given(context)))

    def _read_typed(self, data: bytes) -> Any:
        try:
            return self._read_result(data)
        except UNREADABLE as error:
            raise InvalidRequest(
                f"{self.result_words} cannot be read as {show_type(self._result_type)}: {reason_of(error, data)}"
            ) from None

    def copy_result(self, data: bytes) -> Any:
        """Reads what `settle_result` wrote, if no codec has sealed it."""
        if not self._ready:
            self.resolve()
        return self._read_typed(data)

    def settle_result(self, value: Any, context: PayloadContext | None = None) -> tuple[bytes, Any]:
        """Returns what `encode_result` does and what `decode_result` makes of it, in one step; cheap for plain
        values."""
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
        return (data if self._codec is None else self._codec.encode(data, given(context))), copy

    # Inside.

    def resolve(self) -> None:
        """Reads the annotations now instead of at the first call."""
        if self._ready:
            return
        parameters = list(parameters_of(self._fn))
        types = types_of(self._fn, self.name, self._localns)
        self._refuse_unreadable(parameters, types)
        self._context_class = context_class(types.get(parameters[0].name)) if parameters else None
        if self._context_class is not None:
            parameters = parameters[1:]
        # By annotation, and now: a type that cannot be read should fail before anything is written.
        self._parameters = Parameters(self.name, parameters, types)
        self._result_type = result = types.get("return", Any)
        self._read_result = make_reader(result, self.name)
        self._typed_result = self._read_result is not read_plain
        if result is Any:
            self._plain_results = PLAIN
        elif result is None or result is type(None):
            self._plain_results = _NOTHING
        elif isinstance(result, type) and result in PLAIN:
            self._plain_results = frozenset({result})
        self._result_may_hold_sets = variety_of([result]).holds_sets

        self._low, self._high = self._parameters.low, self._parameters.high
        self._read_exact, self._plain_arguments = self._parameters.read_exact, self._parameters.plain
        self._steady, self._may_hold_sets = self._parameters.steady, self._parameters.may_hold_sets
        # Held no longer, so that signatures may be kept for functions that come and go.
        del self._fn, self._localns
        self._ready = True

    def _refuse_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception) -> NoReturn:
        if isinstance(error, InvalidRequest):
            raise error
        for what, value in self.parameters.described(args, kwargs):
            try:
                to_json(value)
            except Exception as inner:
                refuse(value, what, inner)
        refuse(args, f"the arguments of {self.name}", error)


_BY_CODE: dict[Any, tuple[types.CodeType, dict[str, Any], Signature]] = {}
_BY_FUNCTION: WeakKeyDictionary[Any, Signature] = WeakKeyDictionary()
_MOST_CODES = 10_000


def signature_of(fn: Callable[..., Any]) -> Signature:
    """Returns the Signature of a function passed to `run_step`.

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
