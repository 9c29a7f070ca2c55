"""The parameters of a function: how a call of it is written, and read again by their annotations.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from kagzi.core.canonical import canonical_json, canonical_or_none, variety_of
from kagzi.core.survival import survives
from kagzi.core.values import UNREADABLE, decode_other, read_plain, reader, show_type, supported
from kagzi.errors import InvalidRequest
from kagzi.sdk.payload import SEALED, is_sealed, reason_of, refuse_changed

logger = logging.getLogger("kagzi")

_EMPTY = inspect.Parameter.empty
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
PLAIN: frozenset[type[Any]] = frozenset({int, str, bool, type(None)})  # JSON changes no value of these


class CallError(Exception):
    """The function cannot be called like this."""


class Parameters:
    """What a function takes of its callers, each parameter with its annotation."""

    def __init__(self, name: str, parameters: Sequence[inspect.Parameter], types: Mapping[str, Any]) -> None:
        self._name = name
        self._types = types
        self._signature = inspect.Signature(parameters)
        self._by_name = {parameter.name: parameter for parameter in parameters}
        positional = [p for p in parameters if p.kind in _BY_POSITION]
        self._positional = tuple([p.name for p in positional])
        self._rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        self._keywords = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self._by_keyword = frozenset([p.name for p in named])
        needed = [p for p in positional if p.default is _EMPTY]
        needed_keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is _EMPTY]
        self._needed = frozenset([p.name for p in needed + needed_keywords])
        # So many arguments, all by position, are a call; no number is one if others must be given by name.
        self.low, self.high = 1, 0
        if not needed_keywords:
            self.low = len(needed)
            self.high = len(positional) if self._rest is None else sys.maxsize

        shapes = {p.name: readable(types.get(p.name, Any), name) for p in parameters}
        self._defaults: dict[str, bytes | None] = {}  # in canonical form
        self._readers = {each: make_reader(types.get(each, Any), name) for each in shapes}
        self._read_prefix: dict[int, Callable[[bytes], tuple[Any, ...]]] = {}
        self.read_exact: Callable[[bytes], tuple[Any, ...]] | None = None  # if all calls have one number of arguments
        self.plain: tuple[type[Any], ...] | None = None  # the classes of arguments that JSON does not change
        if self._rest is None and not needed_keywords:
            for count in range(len(needed), len(positional) + 1):
                shape = tuple([shapes[p.name] for p in positional[:count]])
                self._read_prefix[count] = msgspec.json.Decoder(
                    tuple[shape] if shape else tuple[()],  # type: ignore[valid-type]
                    dec_hook=decode_other,
                ).decode
            if len(self._read_prefix) == 1:
                self.read_exact = self._read_prefix[len(needed)]
            if all([types.get(p.name) in PLAIN for p in positional]):
                self.plain = tuple([types[p.name] for p in positional])
        variety = variety_of([types.get(p.name, Any) for p in parameters])
        self.may_hold_sets, self._reads_sets = variety.holds_sets, variety.reads_sets
        # Each call is written in one way only, whatever its values were made like.
        self.steady = variety.steady and all([p.default is _EMPTY for p in parameters])
        self._without_defaults = next(
            (at for at, p in enumerate(parameters) if p.default is not _EMPTY or p.kind not in _BY_POSITION),
            len(parameters),
        )

    def takes_only(self, annotation: Any) -> bool:
        """Tells whether one parameter must be given, and has this annotation."""
        needed = [name for name in self._by_name if name in self._needed]
        return len(needed) == 1 and needed[0] in self._positional and self._types.get(needed[0]) is annotation

    def typed(self) -> tuple[tuple[inspect.Parameter, Any], ...]:
        """Returns each parameter with its annotation."""
        return tuple([(each, self._types.get(name, Any)) for name, each in self._by_name.items()])

    # Calls.

    def form_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Returns what to write for this call: a tuple if all of it can be given by position, else a dict by name."""
        if not kwargs and self.low <= len(args) <= self.high:
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
                return {name: arguments[name] for name in self._by_name if name in arguments}
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise CallError(f"{self._name}() {error}") from None
        if not kwargs:
            return args
        arguments = dict(bound.arguments)
        if self._keywords is not None:
            for key, value in arguments.pop(self._keywords, {}).items():
                if key in self._by_name:
                    raise CallError(
                        f"{self._name}() got the keyword {key!r} beside a positional-only parameter; "
                        "both cannot be stored"
                    )
                arguments[key] = value
        return arguments

    def with_defaults(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments of a call by their names, with defaults. The call was checked before."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    def canonical(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Returns the form in which calls are compared, of a call as it was read: without what is as its default says.

        So two calls that do the same have one form, and a call that was recorded keeps its form when the function gets
        another parameter with a default.
        """
        if not kwargs and len(args) <= self._without_defaults:
            return canonical_json(args, has_sets=self._reads_sets)
        given = {
            name: value
            for name, value in self._signature.bind(*args, **kwargs).arguments.items()
            if (default := self._canonical_default(name)) is None
            or canonical_json(value, has_sets=self._reads_sets) != default
        }
        prefix = self._positional[: len(given)]
        by_position = all(map(given.__contains__, prefix)) and len(prefix) == len(given)
        form = [given[name] for name in prefix] if by_position else given
        return canonical_json(form, has_sets=self._reads_sets)

    def _canonical_default(self, name: str) -> bytes | None:
        if name not in self._defaults:
            default = self._by_name[name].default
            if default is _EMPTY:
                self._defaults[name] = None
            else:
                try:  # as it would be read: 1 is 1.0 where a float is meant
                    default = self._readers[name](canonical_json(default))
                except Exception:
                    pass  # a default that stands for something else, such as a marker of the user's
                self._defaults[name] = canonical_or_none(default)
        return self._defaults[name]

    def described(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yields each argument of a call with words for it, as errors have them."""
        for index, value in enumerate(args):
            if index < len(self._positional):
                yield f"argument {self._positional[index]!r} of {self._name}", value
            else:
                yield f"argument {index + 1} of {self._name}", value
        for key, value in kwargs.items():
            yield f"argument {key!r} of {self._name}", value

    def refuse_changed(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], copied: tuple[Any, ...], copied_by_name: dict[str, Any]
    ) -> None:
        """Refuses a call of which a copy, made by way of JSON, is another one."""
        if survives(args, copied) and survives(kwargs, copied_by_name):
            return
        copies = self._signature.bind(*copied, **copied_by_name).arguments
        for name, value in self._signature.bind(*args, **kwargs).arguments.items():
            if self._readers[name] is not read_plain:
                refuse_changed(value, copies[name], f"argument {name!r} of {self._name}")

    # Reading.

    def decode_written(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Reads what `form_of` wrote, in its two forms only: as a bare value, the `[5]` of a call with 5 would
        be a list."""
        if data[:1] == b"{":
            return self._decode_object(data)
        if self.read_exact is not None:
            try:
                return self.read_exact(data), {}
            except UNREADABLE:
                pass  # again below, to name the argument
        return self._decode_array(data)

    def decode_any_form(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Reads what other languages write, too: `null` for nothing, and the bare value of a single parameter."""
        first = data.lstrip()[:1]
        single = next(iter(self._by_name.values())) if len(self._by_name) == 1 else None
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
                InvalidRequest(f"the arguments of {self._name} cannot be read: {SEALED}")
                if is_sealed(data)
                else TypeError(f"{self._name}() takes a JSON array of arguments or an object by name")
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
        for parameter in self._by_name.values():
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
        if not given and not more and len(args) + len(kwargs) == len(self._by_name):
            return tuple(args), kwargs  # every parameter and nothing else: no need to bind
        args.extend([self._read(self._rest or "", raw) for raw in more])
        for key, raw in given.items():
            kwargs[key] = self._read(self._keywords, raw) if self._keywords is not None else None
        return self._checked(tuple(args), kwargs)

    def _checked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._name}() {error}") from None
        return args, kwargs

    def _raw(self, data: bytes, shape: Any) -> Any:
        try:
            return msgspec.json.decode(data, type=shape)
        except UNREADABLE as error:
            raise InvalidRequest(f"the arguments of {self._name} cannot be read: {reason_of(error, data)}") from None

    def _read(self, name: str, raw: msgspec.Raw) -> Any:
        try:
            return self._readers[name](bytes(raw))
        except UNREADABLE as error:
            raise self._unreadable(name, error) from None

    def _unreadable(self, name: str, error: BaseException) -> InvalidRequest:
        annotation = show_type(self._types.get(name, Any))
        return InvalidRequest(f"argument {name!r} of {self._name} cannot be read as {annotation}: {reason_of(error)}")


def readable(annotation: Any, function: str) -> Any:
    """Returns what msgspec reads such values as. Raises InvalidRequest for what cannot be read at all."""
    try:
        shape = supported(annotation)
        msgspec.json.Decoder(shape)
    except NameError:
        return Any  # a class whose own annotations cannot be resolved; make_reader has told
    except TypeError as error:
        raise InvalidRequest(f"{function}: {show_type(annotation)} cannot be read from JSON: {error}") from None
    return shape


def make_reader(annotation: Any, function: str) -> Callable[[bytes], Any]:
    try:
        if annotation is not Any:
            msgspec.json.Decoder(supported(annotation))
    except NameError as error:
        logger.warning(
            "%s of %s is read as plain JSON data, because its fields cannot be resolved (%s)",
            show_type(annotation),
            function,
            error,
        )
        return read_plain
    except TypeError:
        pass
    try:
        return reader(annotation)
    except InvalidRequest as error:
        raise InvalidRequest(f"{function}: {error}") from None
