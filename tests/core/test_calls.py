"""Calls are checked against the function, and payloads are decoded by its annotations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, TypedDict, TypeVar, Union

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobq.core.records.jobs import Failure
from jobq.core.rules.calls import ArgumentDecoder, CallShape, is_plain
from jobq.core.values.codec import JSON, MSGPACK, Codec
from jobq.errors import ConfigError, InvalidJob, UndecodableArguments, UnfitArguments

if TYPE_CHECKING:
    from collections.abc import MutableSequence
    from fractions import Fraction

T = TypeVar("T")


def charge(tenant: str, invoice: int, *, note: str = "", urgent: bool = False) -> None: ...


def only_places(a: int, b: int = 2, /) -> None: ...


def anything(first: int, *rest: int, flag: bool, **extra: int) -> None: ...


def nothing() -> None: ...


FUNCTIONS: list[Callable[..., Any]] = [charge, only_places, anything, nothing, lambda a, b=1: None]


# ── does a call fit ───────────────────────────────────────────────────────────────────────────────


@given(
    st.sampled_from(FUNCTIONS),
    st.lists(st.integers(), max_size=4),
    st.dictionaries(
        st.sampled_from(
            ["a", "b", "tenant", "invoice", "note", "urgent", "first", "flag", "other"]
        ),
        st.integers(),
    ),
)
def test_a_call_fits_when_python_says_so(
    fn: Callable[..., Any], args: list[int], kwargs: dict[str, int]
) -> None:
    shape = CallShape(fn)
    try:
        expected = inspect.signature(fn).bind(*args, **kwargs)
    except TypeError:
        with pytest.raises(InvalidJob):
            shape.check(args, kwargs)
        with pytest.raises(InvalidJob):
            shape.bound(args, kwargs)
        return
    shape.check(args, kwargs)
    expected.apply_defaults()
    assert shape.bound(args, kwargs) == dict(expected.arguments)
    for name in expected.arguments:
        if name not in ("rest", "extra"):
            assert shape.argument(name, args, kwargs) == expected.arguments[name]


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "missing a required argument: 'tenant'"),
        (("acme",), {}, "missing a required argument: 'invoice'"),
        (("acme", 1, 2), {}, "too many positional arguments"),
        (("acme",), {"tenant": "x", "invoice": 1}, "multiple values for argument 'tenant'"),
        (
            ("acme", 1),
            {"nite": "x"},
            r"unexpected keyword argument 'nite' \(did you mean 'note'\?\)",
        ),
        (
            ("acme",),
            {"invoise": 1},
            r"unexpected keyword argument 'invoise' \(did you mean 'invoice'\?\)",
        ),
        (
            ("acme", 1),
            {"delay": 5},
            r"delay is an option: charge\.options\(delay=…\)\.enqueue\(…\)",
        ),
    ],
)
def test_a_call_that_does_not_fit_is_refused_by_the_argument(
    args: Any, kwargs: Any, words: str
) -> None:
    with pytest.raises(InvalidJob, match=words):
        CallShape(charge).check(args, kwargs)


def test_an_option_that_names_a_parameter_must_name_one_there_is() -> None:
    shape = CallShape(charge)
    assert shape.check_parameter("tenant", "key") == "tenant"
    with pytest.raises(
        InvalidJob,
        match=r"key='tennant': charge.* has no such parameter \(did you mean 'tenant'\?\)",
    ):
        shape.check_parameter("tennant", "key")


# ── decoding ──────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Receipt:
    invoice: int
    cents: int = 0


class Event(msgspec.Struct):
    at: datetime


class Address(TypedDict):
    street: str


class Customer(pydantic.BaseModel):
    name: str


BOTH = pytest.mark.parametrize("codec", [JSON, MSGPACK], ids=lambda codec: codec.name)


@BOTH
def test_arguments_come_as_their_annotations_say(codec: Codec) -> None:
    def handler(
        r: Receipt,
        e: Event,
        a: Address,
        c: Customer,
        many: list[Receipt],
        n: int,
        *,
        maybe: Receipt | None = None,
    ) -> None: ...

    at = datetime(2030, 1, 1, tzinfo=UTC)
    given_args = (Receipt(1), Event(at), {"street": "Main"}, Customer(name="Ada"), [Receipt(2)], 5)
    payload = codec.encode_call(given_args, {"maybe": Receipt(3)})
    args, kwargs = ArgumentDecoder(handler).decode(payload, codec)
    assert tuple(args) == given_args
    assert kwargs == {"maybe": Receipt(3)}


@BOTH
def test_arguments_by_name_are_converted_too(codec: Codec) -> None:
    def handler(r: Receipt, *rest: Receipt, **extra: Receipt) -> None: ...

    decoder = ArgumentDecoder(handler)
    args, kwargs = decoder.decode(codec.encode_call((), {"r": Receipt(1), "x": Receipt(2)}), codec)
    assert (list(args), kwargs) == ([], {"r": Receipt(1), "x": Receipt(2)})
    args, kwargs = decoder.decode(
        codec.encode_call((Receipt(1), Receipt(2), Receipt(3)), {}), codec
    )
    assert list(args) == [Receipt(1), Receipt(2), Receipt(3)]


def test_an_argument_that_does_not_fit_is_refused_by_its_name() -> None:
    def handler(receipt: Receipt) -> None: ...

    with pytest.raises(
        InvalidJob, match=r"argument receipt of pay: Expected `int`, got `str` - at `\$\.invoice`"
    ):
        ArgumentDecoder(handler, "pay").decode(b'[[{"invoice":"x"}],{}]', JSON)


def test_a_model_that_refuses_a_value_is_a_refusal_of_the_argument() -> None:
    def handler(c: Customer) -> None: ...

    with pytest.raises(InvalidJob, match="argument c of handler"):
        ArgumentDecoder(handler).decode(b'[[{"name":7}],{}]', JSON)


def test_what_is_inside_plain_parameters_and_unannotated_ones_are_left_alone() -> None:
    def handler(a, b: float, c: list[dict[str, Any]], d: Optional[str] = None) -> None: ...  # type: ignore[no-untyped-def]  # noqa: UP045

    args, kwargs = ArgumentDecoder(handler).decode(b'[["x",3,["no dict"]],{"d":"e"}]', JSON)
    assert (args, kwargs) == (["x", 3, ["no dict"]], {"d": "e"})


KINDS: dict[str, Any] = {
    "str": "x",
    "int": 3,
    "float": 2.5,
    "bool": True,
    "list": [1],
    "dict": {"a": 1},
    "None": None,
}
FITTING: list[tuple[Any, set[str]]] = [
    (str, {"str"}),
    (int, {"int", "float", "bool"}),
    (float, {"int", "float", "bool"}),
    (bool, {"int", "float", "bool"}),
    (list, {"list"}),
    (list[int], {"list"}),
    (Sequence[str], {"list", "str"}),
    (Iterable[str], {"list", "str", "dict"}),
    (dict[str, int], {"dict"}),
    (Mapping[str, Any], {"dict"}),
    (int | None, {"int", "float", "bool"}),
    (str | list[str], {"str", "list"}),
    (Literal["a", 7], {"str", "int", "float", "bool"}),
    (Literal["a"], {"str"}),
    (None, set()),
    (Any, set(KINDS)),
    (object, set(KINDS)),
    (T, set(KINDS)),
]


@pytest.mark.parametrize("way", ["place", "keyword", "keyword only", "place only"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("annotation", "fitting"), FITTING)
def test_the_kind_of_a_plain_argument_is_checked(
    annotation: Any, fitting: set[str], kind: str, way: str
) -> None:
    """None fits everywhere: `n: int = None` is common."""

    def either(n) -> None: ...  # type: ignore[no-untyped-def]

    def named(*, n) -> None: ...  # type: ignore[no-untyped-def]

    def placed(n, /, **more) -> None: ...  # type: ignore[no-untyped-def]

    others: dict[str, Any] = {"keyword only": named, "place only": placed}
    handler = others.get(way, either)
    handler.__annotations__["n"] = annotation
    call = [[KINDS[kind]], {}] if way.startswith("place") else [[], {"n": KINDS[kind]}]
    payload = msgspec.json.encode(call)
    if kind in fitting | {"None"}:
        assert ArgumentDecoder(handler).decode(payload, JSON) == tuple(call)
    else:
        with pytest.raises(UnfitArguments, match=r"^argument n of .*: expected .*, not "):
            ArgumentDecoder(handler).decode(payload, JSON)


@pytest.mark.parametrize(
    "payload",
    [
        b"[[],{}]",
        b"[[1,2,3],{}]",
        b'[[1],{"c":2}]',
        b'[[1],{"a":2}]',
        b'[[],{"b":2}]',
        b'[["2"],{}]',
    ],
)
def test_arguments_that_do_not_fit_are_unfit(payload: bytes) -> None:
    def handler(a: int, b: int = 2) -> None: ...

    with pytest.raises(UnfitArguments, match="handler"):
        ArgumentDecoder(handler).decode(payload, JSON)


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"{}", b"[1,2]", b"\xff", b"[[1],{}]x"])
@pytest.mark.parametrize("codec", [JSON, MSGPACK])
def test_bytes_that_are_no_arguments_are_undecodable(payload: bytes, codec: Codec) -> None:
    def handler(a: int) -> None: ...

    with pytest.raises(UndecodableArguments):
        ArgumentDecoder(handler).decode(payload, codec)


@pytest.mark.parametrize(
    "annotation",
    [
        str,
        int,
        float,
        bool,
        None,
        Any,
        object,
        list,
        dict,
        list[int],
        dict[str, float],
        int | None,
        Union[int, str],  # noqa: UP007
        Sequence[str],
        Mapping[str, list[int]],
        Literal["a", "b"],
        T,
    ],
)
def test_what_a_codec_gives_already_needs_no_conversion(annotation: Any) -> None:
    assert is_plain(annotation)


@pytest.mark.parametrize(
    "annotation",
    [
        bytes,
        datetime,
        tuple,
        set,
        tuple[int, ...],
        dict[int, str],
        Receipt,
        list[Receipt],
        Receipt | None,
        Customer,
        Address,
        Annotated[int, msgspec.Meta(ge=0)],
        Literal[b"x"],
    ],
)
def test_everything_else_is_converted(annotation: Any) -> None:
    assert not is_plain(annotation)


def test_constraints_of_annotations_are_held() -> None:
    def handler(n: Annotated[int, msgspec.Meta(ge=0)]) -> None: ...

    with pytest.raises(InvalidJob, match="argument n of handler: Expected `int` >= 0"):
        ArgumentDecoder(handler).decode(b"[[-1],{}]", JSON)


def later(value: Later) -> Later:
    return value


@dataclass
class Later:
    x: int


def test_a_class_defined_after_the_function_is_found() -> None:
    decoder = ArgumentDecoder(later)
    args, _ = decoder.decode(b'[[{"x":1}],{}]', JSON)
    assert args == [Later(1)]
    assert decoder.returns is Later


def test_a_class_local_to_a_function_is_found_in_its_names() -> None:
    @dataclass
    class Local:
        x: int

    def handler(value: Local) -> None: ...

    args, _ = ArgumentDecoder(handler, localns=locals()).decode(b'[[{"x":1}],{}]', JSON)
    assert args == [Local(1)]


def test_an_annotation_that_cannot_be_looked_up_says_what_to_do() -> None:
    def handler(value: Fraction) -> None: ...

    with pytest.raises(
        ConfigError,
        match=r"annotation 'Fraction' of parameter value cannot be resolved.*TYPE_CHECKING",
    ):
        ArgumentDecoder(handler).resolve()


def test_common_names_imported_for_type_checkers_only_are_known() -> None:
    def handler(value: MutableSequence[int]) -> None: ...

    args, _ = ArgumentDecoder(handler).decode(b"[[[1]],{}]", JSON)
    assert args == [[1]]


def test_an_annotation_that_nothing_can_be_decoded_to_is_a_config_error() -> None:
    def handler(value: Receipt | Event | Later) -> None: ...

    with pytest.raises(
        ConfigError, match="no argument can be decoded to the annotation of parameter value"
    ):
        ArgumentDecoder(handler).resolve()


def test_the_result_of_an_unannotated_function_is_anything() -> None:
    decoder = ArgumentDecoder(lambda: None)
    decoder.resolve()
    assert decoder.returns is Any


def test_failures_may_be_beside_any_type_in_an_annotation() -> None:
    def handler(results: list[Event | Failure], one: list[int] | Failure) -> None: ...

    failure = Failure(reason="error", type="ValueError", message="x")
    args: list[Any] = [[{"at": "2030-01-01T00:00:00Z"}, failure], failure]
    ArgumentDecoder(handler).convert(args, {})
    assert args == [[Event(datetime(2030, 1, 1, tzinfo=UTC)), failure], failure]
