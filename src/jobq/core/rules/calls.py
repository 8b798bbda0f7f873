"""The parameters of a function: whether a call fits them, and how a payload is decoded for them.

Both classes are made once per function and used for every job, so they prepare all they can.
"""

from __future__ import annotations

import collections.abc
import datetime
import decimal
import functools
import inspect
import sys
import types
import typing
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from jobq.core.records.jobs import Input
from jobq.core.rules.flows import convert_beside_failures, fill, mentions_failure
from jobq.core.rules.options import BY_NAME
from jobq.core.values.checks import did_you_mean, shown
from jobq.core.values.codec import Args, Codec, Kwargs, NotHere, convert
from jobq.errors import (
    ConfigError,
    InvalidJob,
    JobqError,
    UndecodableArguments,
    UnfitArguments,
)

_KINDS = inspect.Parameter
_Converter = Callable[[Any], Any]
_POSITIONAL = (_KINDS.POSITIONAL_ONLY, _KINDS.POSITIONAL_OR_KEYWORD)


def signature_of(fn: Callable[..., Any]) -> inspect.Signature:
    """The parameters that a caller of `fn` gives.

    A decorator that takes `*args, **kwargs` has the parameters of the function that it wraps. A
    decorator with parameters of its own, or with a `__signature__`, has those.
    """
    if hasattr(fn, "__wrapped__"):
        try:
            own = inspect.signature(fn, follow_wrapped=False)
        except ValueError:  # written in C, such as functools.cache
            return inspect.signature(fn)
        kinds = {p.kind for p in own.parameters.values()}
        if not kinds or kinds - {_KINDS.VAR_POSITIONAL, _KINDS.VAR_KEYWORD}:
            return own
    return inspect.signature(fn)


class CallShape:
    """What a call must look like to fit a function."""

    __slots__ = ("_allowed", "_defaults", "_names", "_needed", "_simple", "name", "signature")

    def __init__(self, fn: Callable[..., Any], name: str | None = None) -> None:
        self.name = name or getattr(fn, "__name__", "task")
        self.signature = signature_of(fn)
        parameters = list(self.signature.parameters.values())
        positional = [p for p in parameters if p.kind in _POSITIONAL]
        keyword = [p for p in parameters if p.kind is _KINDS.KEYWORD_ONLY]
        # Simple: neither *args nor **kwargs.
        self._simple = len(positional) + len(keyword) == len(parameters)
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._names = tuple(p.name for p in positional)
        # Indexed by the number of positional arguments: names that must, or may, follow as
        # keywords.
        rests = [positional[n:] + keyword for n in range(len(positional) + 1)]
        self._needed = tuple(
            frozenset(p.name for p in rest if p.default is p.empty) for rest in rests
        )
        self._allowed = tuple(
            frozenset(p.name for p in rest if p.kind is not _KINDS.POSITIONAL_ONLY)
            for rest in rests
        )

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names a call may use for its arguments."""
        return tuple(p.name for p in self.signature.parameters.values())

    @property
    def positional(self) -> tuple[str, ...]:
        """The names of the parameters that positional arguments are for, in order."""
        return self._names

    def check(self, args: Args, kwargs: Mapping[str, Any]) -> None:
        """Raise InvalidJob, naming the argument, if the call does not fit."""
        given = len(args)
        if given < len(self._needed):
            if not kwargs:
                if not self._needed[given]:
                    return
            elif self._needed[given] <= kwargs.keys() <= self._allowed[given]:
                return
        self._check_slowly(args, kwargs)

    def bound(self, args: Args, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by parameter name, with defaults. InvalidJob if the call does not fit."""
        if not self._simple:
            return dict(self._check_slowly(args, kwargs))
        self.check(args, kwargs)
        return {**self._defaults, **dict(zip(self._names, args, strict=False)), **kwargs}

    def named(self, args: Args, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a part of a call by parameter name. InvalidJob if no call has them."""
        try:
            return dict(self.signature.bind_partial(*args, **kwargs).arguments)
        except TypeError as error:
            raise InvalidJob(
                f"{self.name}{self.signature}: {self._unknown(kwargs) or error}"
            ) from None

    def bound_partly(self, args: Args, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Like `bound`, but arguments without a default may be missing."""
        return {**self._defaults, **self.named(args, kwargs)}

    def argument(self, name: str, args: Args, kwargs: Mapping[str, Any]) -> Any:
        """The value of one parameter in a call that fits. Faster than `bound`."""
        if name in kwargs:
            return kwargs[name]
        if name in self._names and (index := self._names.index(name)) < len(args):
            return args[index]
        return self.bound(args, kwargs)[name]

    def check_parameter(self, name: str, option: str) -> str:
        """Raise InvalidJob if the function has no such parameter.

        For options that name one (`key`, `Unique`).
        """
        if name not in self.signature.parameters:
            raise InvalidJob(
                f"{option}={shown(name)}: {self.name}{self.signature} "
                f"has no such parameter{did_you_mean(name, self.parameters)}"
            )
        return name

    def _check_slowly(self, args: Args, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidJob(
                f"{self.name}{self.signature}: {self._unknown(kwargs) or error}"
            ) from None
        bound.apply_defaults()
        return bound.arguments

    def _unknown(self, kwargs: Mapping[str, Any]) -> str | None:
        """The message about an argument that the function does not have.

        `bind` would name the missing argument instead of the misspelled one.
        """
        if any(p.kind is _KINDS.VAR_KEYWORD for p in self.signature.parameters.values()):
            return None
        strange = [name for name in kwargs if name not in self.signature.parameters]
        if not strange:
            return None
        name = next((name for name in strange if name in BY_NAME), strange[0])
        if name in BY_NAME:
            return (
                f"got an unexpected keyword argument {name!r}; {name} is an option: "
                f"{self.name}.options({name}=…).enqueue(…)"
            )
        return f"got an unexpected keyword argument {name!r}{did_you_mean(name, self.parameters)}"


# ── decoding by annotation ────────────────────────────────────────────────────────────────────────

# Names that annotations often use and that people import only under TYPE_CHECKING.
_FAMILIAR: dict[str, Any] = {
    **{name: getattr(typing, name) for name in typing.__all__},
    **{name: getattr(collections.abc, name) for name in collections.abc.__all__},
    "typing": typing,
    "collections": collections,
    "datetime": datetime.datetime,
    "date": datetime.date,
    "timedelta": datetime.timedelta,
    "time": datetime.time,
    "UUID": uuid.UUID,
    "Decimal": decimal.Decimal,
}

_PLAIN_TYPES = frozenset(
    {Any, object, str, int, float, bool, list, dict, None, type(None), inspect.Parameter.empty}
)
_PLAIN_LISTS = (
    list,
    collections.abc.Sequence,
    collections.abc.Collection,
    collections.abc.Iterable,
)
_PLAIN_DICTS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


_KINDS_OF_JSON = frozenset({str, int, float, bool, list, dict})
_NUMBERS = frozenset({int, float, bool})


def wrong_kinds(annotation: Any) -> frozenset[type]:
    """The kinds of JSON that no value of a plain annotation has: str for an int, int for a list.

    So much is checked before a handler is called. A number may be any number, and None may be
    anything that an annotation has left out.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return frozenset.intersection(*map(wrong_kinds, arguments))
    if origin is typing.Literal:
        return frozenset.intersection(*(wrong_kinds(type(choice)) for choice in arguments))
    if (origin or annotation) in _PLAIN_LISTS:
        kinds = (list, str, dict)  # a string is a sequence, and a dict can be iterated over
        return _KINDS_OF_JSON.difference(k for k in kinds if issubclass(k, origin or annotation))
    if (origin or annotation) in _PLAIN_DICTS:
        return _KINDS_OF_JSON - {dict}
    if annotation in _NUMBERS:
        return _KINDS_OF_JSON - _NUMBERS
    if annotation in (str, None, type(None)):
        return _KINDS_OF_JSON - {annotation}
    return frozenset()


def names_of(fn: types.FunctionType) -> dict[str, Any]:
    """The names that annotations of a function may use."""
    return {**_FAMILIAR, **fn.__globals__, **inspect.getclosurevars(fn).nonlocals}


def is_plain(annotation: Any) -> bool:
    """Whether JSON decodes to this annotation without conversion, as for int and list[str].

    Of such values only the outermost kind is checked (`wrong_kinds`). Checking each item of a list
    would cost more than running a typical job, and mypy checks the calls.
    """
    if isinstance(annotation, (type, types.NoneType)) or annotation is Any:
        return (
            annotation in _PLAIN_TYPES or annotation in _PLAIN_LISTS or annotation in _PLAIN_DICTS
        )
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in _PLAIN_LISTS:
        return all(map(is_plain, arguments))
    if origin in _PLAIN_DICTS:
        return arguments[0] in (str, Any) and is_plain(arguments[1])
    if origin in (typing.Union, types.UnionType):
        return all(map(is_plain, arguments))
    if origin is typing.Literal:
        return all(
            isinstance(choice, (str, int, type(None))) and type(choice) in _PLAIN_TYPES
            for choice in arguments
        )
    return isinstance(annotation, typing.TypeVar)


def undecoded(error: Exception) -> UnfitArguments | UndecodableArguments:
    """The error of a run whose arguments, or the results among them, could not be decoded."""
    if isinstance(error, NotHere):
        return UnfitArguments(str(error))
    return UndecodableArguments(
        str(error) if isinstance(error, JobqError) else f"{type(error).__name__}: {error}"
    )


def decoded(payload: bytes, codec: Codec, inputs: Sequence[Input]) -> tuple[list[Any], Kwargs]:
    """The arguments of a job in plain values.

    UndecodableArguments if no worker can decode them, and UnfitArguments if this one cannot,
    because it lacks a codec or a key.
    """
    try:
        args, kwargs = codec.decode_call(payload)
        return fill(args, kwargs, inputs) if inputs else (args, kwargs)
    except Exception as error:  # a codec of the user's may raise anything
        raise undecoded(error) from error


class ArgumentDecoder:
    """Decodes payloads into the arguments of one function.

    It converts only the parameters whose annotations need it. It looks annotations up at first use,
    or when `resolve` is called, because by then all classes of the module are defined. `localns`
    holds names that are local to a function.
    """

    __slots__ = (
        "_extra",
        "_fn",
        "_keywords",
        "_localns",
        "_plain",
        "_positional",
        "_ready",
        "_rest",
        "_takes",
        "annotations",
        "name",
        "returns",
    )

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str | None = None,
        *,
        localns: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name or getattr(fn, "__name__", "task")
        self.returns: Any = Any
        """The annotation of the result; Any if there is none."""
        self.annotations: Mapping[str, Any] = {}
        """The annotations, once resolved."""
        self._fn = fn
        self._localns = dict(localns or {})
        self._ready = False
        self._takes: CallShape | None = None
        # Of plain parameters: the index, the name as a keyword, the wrong kinds, what is expected.
        self._plain: tuple[tuple[int, str | None, frozenset[type], str], ...] = ()
        self._positional: tuple[tuple[int, str, _Converter], ...] = ()
        self._keywords: tuple[tuple[str, _Converter], ...] = ()
        # For *args: the index of its first argument, its name, its converter.
        self._rest: tuple[int, str, _Converter] | None = None
        # For **kwargs: the names of the other parameters, its converter.
        self._extra: tuple[frozenset[str], _Converter] | None = None

    def decode(
        self, payload: bytes, codec: Codec, inputs: Sequence[Input] = ()
    ) -> tuple[Args, Kwargs]:
        """The arguments of one job. UnfitArguments names the parameter that does not fit.

        `inputs` (of the lease) replace references to the results of other jobs. Bytes that are no
        arguments raise UndecodableArguments.
        """
        if not self._ready:
            self.resolve()
        args, kwargs = decoded(payload, codec, inputs)
        assert self._takes is not None
        try:
            self._takes.check(args, kwargs)
        except InvalidJob as error:
            raise UnfitArguments(str(error)) from None
        for index, name, wrong, expected in self._plain:
            if index < len(args):
                value = args[index]
            elif name in kwargs:
                value = kwargs[name]
            else:
                continue
            if type(value) in wrong:
                raise UnfitArguments(f"{expected}, not {type(value).__name__}")
        if self._positional or self._keywords or self._rest or self._extra:
            self.convert(args, kwargs)
        return args, kwargs

    def convert(self, args: list[Any], kwargs: Kwargs) -> None:
        """Convert decoded arguments in place, where annotations need it."""
        if not self._ready:
            self.resolve()
        for index, name, converter in self._positional:
            if index < len(args):
                args[index] = self._convert(args[index], name, converter)
        for name, converter in self._keywords:
            if name in kwargs:
                kwargs[name] = self._convert(kwargs[name], name, converter)
        if self._rest is not None:
            start, name, converter = self._rest
            args[start:] = [self._convert(value, f"*{name}", converter) for value in args[start:]]
        if self._extra is not None:
            others, converter = self._extra
            for name in kwargs.keys() - others:
                kwargs[name] = self._convert(kwargs[name], name, converter)

    def resolve(self) -> None:
        """Look up the annotations.

        ConfigError names an annotation that cannot be found, or one that no value can be decoded
        to.
        """
        parameters = list(signature_of(self._fn).parameters.values())
        hints = self._hints({"return", *(p.name for p in parameters)})
        needing = {
            p.name: self._converter(p.name, hints[p.name])
            for p in parameters
            if not is_plain(hints.get(p.name, Any))
        }
        positional = [p.name for p in parameters if p.kind in _POSITIONAL]
        self._takes = CallShape(self._fn, self.name)
        self._plain = tuple(
            (
                sys.maxsize if p.kind is _KINDS.KEYWORD_ONLY else n,
                None if p.kind is _KINDS.POSITIONAL_ONLY else p.name,
                wrong,
                self.expected(p.name, hints[p.name]),
            )
            for n, p in enumerate(parameters)
            if p.name in hints
            and p.name not in needing
            and p.kind not in (_KINDS.VAR_POSITIONAL, _KINDS.VAR_KEYWORD)
            and (wrong := wrong_kinds(hints[p.name]))
        )
        self._positional = tuple(
            (n, name, needing[name]) for n, name in enumerate(positional) if name in needing
        )
        self._keywords = tuple(
            (p.name, needing[p.name])
            for p in parameters
            if p.name in needing and p.kind in (_KINDS.POSITIONAL_OR_KEYWORD, _KINDS.KEYWORD_ONLY)
        )
        for p in parameters:
            if p.name in needing and p.kind is _KINDS.VAR_POSITIONAL:
                self._rest = (len(positional), p.name, needing[p.name])
            elif p.name in needing and p.kind is _KINDS.VAR_KEYWORD:
                self._extra = (
                    frozenset(q.name for q in parameters if q.kind is not _KINDS.POSITIONAL_ONLY),
                    needing[p.name],
                )
        self.annotations = hints
        self.returns = hints.get("return", Any)
        self._ready = True

    def expected(self, name: str, annotation: Any) -> str:
        """The beginning of a message about an argument of the wrong kind."""
        kind = annotation.__name__ if isinstance(annotation, type) else annotation
        return f"argument {name} of {self.name}: expected {kind}"

    def _hints(self, needed: Collection[str]) -> dict[str, Any]:
        fn = inspect.unwrap(self._fn)
        if not inspect.isfunction(fn):  # a callable object or a builtin has no annotations
            return {}
        names = names_of(fn)
        return {
            name: self._look_up(name, annotation, names)
            for name, annotation in inspect.get_annotations(fn).items()
            if name in needed
        }

    def _look_up(self, name: str, annotation: Any, names: Mapping[str, Any]) -> Any:
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            return typing.get_type_hints(holder, dict(names), self._localns, include_extras=True)[
                name
            ]
        except Exception as error:
            if name == "return":  # the result is then decoded to plain values
                return Any
            raise ConfigError(
                f"task {self.name}: the annotation {shown(annotation)} of parameter {name} cannot "
                f"be resolved ({error}): import the name at run time, not only under "
                "TYPE_CHECKING, or use Any"
            ) from error

    def _converter(self, name: str, annotation: Any) -> _Converter:
        if mentions_failure(annotation):
            return lambda value: convert_beside_failures(value, annotation)
        try:
            msgspec.json.Decoder(annotation)
        except TypeError as error:
            raise ConfigError(
                f"task {self.name}: no argument can be decoded to the annotation of parameter "
                f"{name}: {error}"
            ) from error
        return lambda value: convert(value, annotation)

    def _convert(self, value: Any, name: str, converter: _Converter) -> Any:
        try:
            return converter(value)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise UnfitArguments(f"argument {name} of {self.name}: {error}") from error


# The annotation of what a function returns. The results of steps are decoded by it.

_looked_up: WeakKeyDictionary[types.FunctionType, Any] = WeakKeyDictionary()
"""A look-up takes up to 150 µs, longer than many a step."""


def returns_of(fn: Callable[..., Any]) -> Any:
    """The annotation of what a function returns, or of what its coroutine returns.

    Any if there is none, if it cannot be looked up, or if no conversion is needed.
    """
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    if inspect.ismethod(fn):
        fn = fn.__func__
    if not inspect.isfunction(fn):  # a callable object or a builtin
        return Any
    try:
        return _looked_up[fn]
    except KeyError:
        found = _looked_up[fn] = _look_up(fn)
        return found


def _look_up(fn: types.FunctionType) -> Any:
    annotations = inspect.get_annotations(fn)
    if "return" not in annotations:
        return Any
    holder = types.SimpleNamespace(__annotations__={"return": annotations["return"]})
    try:
        found = typing.get_type_hints(holder, names_of(fn), include_extras=True)["return"]
    except Exception:  # a name that this module cannot see: the result is decoded to plain values
        return Any
    if typing.get_origin(found) in (Awaitable, Coroutine) and typing.get_args(found):
        found = typing.get_args(found)[-1]
    return Any if is_plain(found) else found
