"""Values survive the way there and back; what cannot be encoded is refused with its place."""

from __future__ import annotations

import enum
import math
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobq.core.values.codec import JSON, MSGPACK, Codec, convert, get_codec
from jobq.errors import ConfigError, InvalidJob

BOTH = pytest.mark.parametrize("codec", [JSON, MSGPACK], ids=lambda codec: codec.name)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Item:
    sku: str
    count: int
    price: Decimal
    tags: frozenset[str]


class Order(msgspec.Struct):
    id: UUID
    at: datetime
    items: list[Item]
    colour: Colour
    blob: bytes


class Address(TypedDict):
    street: str
    number: int


class Point(NamedTuple):
    x: int
    y: int


class Customer(pydantic.BaseModel):
    name: str
    born: datetime
    score: float = 0.0


class Strict(pydantic.BaseModel, strict=True):
    at: datetime
    site: pydantic.HttpUrl
    blob: bytes
    full: str = pydantic.Field(alias="Full Name")


STRICT = Strict.model_validate_json(
    '{"at": "2030-01-01T00:00:00Z", "site": "https://x.org/", "blob": "hi", "Full Name": "A"}'
)

texts = st.text(max_size=20)
integers = st.integers(-(2**63), 2**64 - 1)
plain = st.recursive(
    st.none() | st.booleans() | integers | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)
moments = st.datetimes(
    min_value=datetime(1970, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC)
)
items = st.builds(
    Item,
    texts,
    integers,
    st.decimals(allow_nan=False, allow_infinity=False),
    st.frozensets(texts, max_size=3),
)
orders = st.builds(
    Order,
    st.uuids(),
    moments,
    st.lists(items, max_size=3),
    st.sampled_from(Colour),
    st.binary(max_size=20),
)


@BOTH
@given(plain)
def test_plain_values_come_back_equal(codec: Codec, value: Any) -> None:
    assert codec.decode(codec.encode(value)) == value


@BOTH
@given(st.lists(plain, max_size=3), st.dictionaries(texts, plain, max_size=3))
def test_a_call_comes_back_as_its_arguments(
    codec: Codec, args: list[Any], kwargs: dict[str, Any]
) -> None:
    assert codec.decode_call(codec.encode_call(args, kwargs)) == (args, kwargs)
    assert codec.decode(codec.encode_call(tuple(args), kwargs)) == [args, kwargs]


@BOTH
@given(orders)
def test_typed_values_come_back_by_annotation(codec: Codec, order: Order) -> None:
    assert codec.decode(codec.encode(order), Order) == order
    assert convert(codec.decode(codec.encode(order)), Order) == order


@BOTH
@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        ({"street": "Main", "number": 7}, Address),
        (Point(1, 2), Point),
        ({1: "a"}, dict[int, str]),
        ((1, "a"), tuple[int, str]),
        ({3}, set[int]),
        (timedelta(seconds=90), timedelta),
        (Colour.BLUE, Colour),
        (b"\x00\xff", bytes),
        (None, Item | None),
        (Customer(name="Ada", born=datetime(1815, 12, 10, tzinfo=UTC)), Customer),
        ([Customer(name="Ada", born=datetime(1815, 12, 10, tzinfo=UTC))], list[Customer]),
        (None, Customer | None),
        (STRICT, Strict),
        ({"a": [STRICT]}, dict[str, list[Strict]]),
    ],
)
def test_many_kinds_of_values_come_back_by_annotation(
    codec: Codec, value: Any, annotation: Any
) -> None:
    assert codec.decode(codec.encode(value), annotation) == value
    assert convert(codec.decode(codec.encode(value)), annotation) == value


@BOTH
@given(plain, st.sampled_from([math.nan, math.inf, -math.inf]))
def test_nan_and_infinity_are_refused_wherever_they_are(
    codec: Codec, around: Any, bad: float
) -> None:
    for value in (
        bad,
        [around, bad],
        {"a": around, "b": {"c": [bad]}},
        Item("x", 1, bad, frozenset()),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidJob, match="is not a finite number"):
            codec.encode(value)


@BOTH
@pytest.mark.parametrize(
    ("args", "kwargs", "place"),
    [
        ((object(),), {}, r"args\[0\]: a value of type object"),
        (
            (1, {"items": [1, 2, {"when": 1j}]}),
            {},
            r"args\[1\]\['items'\]\[2\]\['when'\]: a value of type complex",
        ),
        ((), {"when": [open]}, r"kwargs\['when'\]\[0\]: a value of type builtin_function"),
        (
            (Item("a", 1, Decimal(1), [lambda: 0]),),  # type: ignore[arg-type]
            {},
            r"args\[0\]\.tags\[0\]: a value of type function",
        ),
        (
            (),
            {"c": Customer.model_construct(name=object())},
            r"kwargs\['c'\]\.name: a value of type object",
        ),
        (
            (),
            {"c": Strict.model_construct(site=STRICT.site, blob=object())},
            r"kwargs\['c'\]\.blob: a value of type object",
        ),
        (("\ud800",), {}, r"args\[0\]: .*surrogates"),
        ((float("nan"),), {}, r"args\[0\]: nan"),
        ((), {"x": {"y": (1, float("inf"))}}, r"kwargs\['x'\]\['y'\]\[1\]: inf"),
        (
            (Customer(name="x", born=datetime(2000, 1, 1, tzinfo=UTC), score=math.nan),),
            {},
            r"args\[0\]\.score: nan",
        ),
    ],
)
def test_what_cannot_be_encoded_is_refused_with_its_place(
    codec: Codec, args: Any, kwargs: Any, place: str
) -> None:
    with pytest.raises(InvalidJob, match=place):
        codec.encode_call(args, kwargs)


@BOTH
def test_a_value_that_contains_itself_is_refused(codec: Codec) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidJob, match="refers to itself"):
        codec.encode(loop)


@BOTH
def test_a_value_nested_too_deeply_is_refused(codec: Codec) -> None:
    deep: Any = None
    for _ in range(20_000):
        deep = [deep]
    with pytest.raises(InvalidJob, match="nested too deeply"):
        codec.encode(deep)


def test_a_key_that_json_has_no_way_to_write_is_refused() -> None:
    with pytest.raises(InvalidJob, match=r"\['a'\]: the key \(1, 2\)"):
        JSON.encode({"a": {(1, 2): 3}})


def test_an_integer_too_large_for_messagepack_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidJob, match=r"args\[0\]\['n'\]"):
        MSGPACK.encode_call(({"n": 2**70},), {})


def test_none_costs_no_refusal() -> None:
    assert JSON.encode_call((None, "null"), {"x": [None]}) == b'[[null,"null"],{"x":[null]}]'


def test_bytes_that_look_like_a_nan_are_let_through() -> None:
    blob = b"\xcb\x7f\xf8\x00"
    assert MSGPACK.decode(MSGPACK.encode([blob])) == [blob]


@BOTH
@pytest.mark.parametrize("data", [b"", b"{", b"\xc1", b"[1]", b"\x91\x01", b"7"])
def test_a_payload_that_is_no_call_is_refused(codec: Codec, data: bytes) -> None:
    with pytest.raises(InvalidJob, match=r"the payload is not \[args, kwargs\]"):
        codec.decode_call(data)


def test_a_value_that_does_not_fit_its_annotation_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidJob, match=r"Expected `int`, got `str` - at `\$\[0\]\.number`"):
        JSON.decode(b'[{"street":"x","number":"y"}]', list[Address])
    with pytest.raises(InvalidJob, match="born"):
        JSON.decode(b'{"name":"x"}', Customer)


def test_an_annotation_that_nothing_can_be_made_into_says_so() -> None:
    class Handle:
        pass

    with pytest.raises(InvalidJob, match="Handle"):
        JSON.decode(b"{}", Handle)


class Reversed(Codec):
    """JSON backwards."""

    name = "reversed"

    def encode(self, value: Any) -> bytes:
        return JSON.encode(value)[::-1]

    def decode(self, data: bytes, annotation: Any = Any) -> Any:
        return JSON.decode(data[::-1])


def test_a_users_own_codec_is_found_by_its_name_once_it_was_given() -> None:
    codec = get_codec(Reversed())
    assert get_codec("reversed") is codec
    assert codec.decode_call(codec.encode_call((1,), {"a": "b"})) == ([1], {"a": "b"})
    with pytest.raises(InvalidJob, match="not \\[args, kwargs\\] in reversed"):
        codec.decode_call(b"7")


def test_an_unknown_codec_is_a_config_error() -> None:
    assert get_codec("json") is JSON
    assert get_codec("msgpack") is MSGPACK
    with pytest.raises(ConfigError, match="codec='pickle' is not known in this process"):
        get_codec("pickle")
    with pytest.raises(ConfigError, match="has no name"):
        get_codec(Codec())
    with pytest.raises(ConfigError, match="neither the name of a codec nor a Codec"):
        get_codec(7)  # type: ignore[arg-type]


def test_a_codec_may_not_take_the_name_of_one_that_is_built_in() -> None:
    class Fake(Reversed):
        name = "json"

    with pytest.raises(ConfigError, match="of a built-in codec"):
        get_codec(Fake())
    assert get_codec("json") is JSON


def test_pydantic_is_not_imported_for_those_who_do_not_use_it() -> None:
    code = (
        "import sys; from jobq.core.values.codec import JSON; JSON.encode([1, None]); "
        "sys.exit('pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_the_name_of_a_pair_names_the_codecs_of_arguments_and_of_results() -> None:
    pair = get_codec("msgpack+json")  # as a reader finds it in a job, without declaring it
    assert pair.encode_call((1,), {}) == MSGPACK.encode_call((1,), {})
    assert pair.decode_call(pair.encode_call((1,), {"a": 2})) == ([1], {"a": 2})
    assert (pair.encode({"a": 1}), pair.decode(b"[1]")) == (b'{"a":1}', [1])
    assert get_codec("msgpack+json") is pair
    with pytest.raises(ConfigError, match="is not known"):
        get_codec("json+unheard-of")
