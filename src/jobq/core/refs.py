"""Arguments that are the results of other jobs: `flow.add(email, [p.ref for p in paid])`.

In a payload a reference is `{"$jobq.ref": [queue, id]}`, in any codec. The lease brings the
results, and the worker replaces the references before it converts arguments to their annotations.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jobq.core.codec import convert, get_codec
from jobq.core.records import Failure, Input
from jobq.errors import InvalidJob

REF_KEY = "$jobq.ref"


class Ref:
    """The result of a job of the same tenant, as an argument of another job in a flow.

    It has no value of its own: only a flow can use it.
    """

    __slots__ = ("id", "queue")

    def __init__(self, queue: str, id: str) -> None:
        self.queue = queue
        self.id = id

    def __repr__(self) -> str:
        return f"<result of job {self.id!r} in {self.queue!r}, for flows only>"


def extract_refs(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any], list[Ref]]:
    """The arguments as they are encoded, and the references that were found in them.

    References may be in lists, tuples and dicts, at any depth.
    """
    found: list[Ref] = []

    def swap(value: Any) -> Any:
        if isinstance(value, Ref):
            found.append(value)
            return {REF_KEY: [value.queue, value.id]}
        return value

    return _mapped(list(args), swap), _mapped(dict(kwargs), swap), found


def fill(
    args: list[Any], kwargs: dict[str, Any], inputs: Sequence[Input]
) -> tuple[list[Any], dict[str, Any]]:
    """Decoded arguments with results in place of references.

    A failed job's result is None (policy `ignore`) or its Failure (`continue`). A reference that
    has no input is left as it is.
    """
    by_job = {(given.job.queue.queue, given.job.id): given for given in inputs}

    def swap(value: Any) -> Any:
        if isinstance(value, dict) and len(value) == 1 and REF_KEY in value:
            given = by_job.get(tuple(value[REF_KEY]))
            return value if given is None else delivered(given)
        return value

    return _mapped(args, swap), _mapped(kwargs, swap)


def delivered(given: Input) -> Any:
    """The value that an input delivers, in plain values."""
    if given.failure is not None:
        return given.failure
    return None if given.result is None else get_codec(given.codec).decode(given.result)


def _mapped(value: Any, swap: Callable[[Any], Any]) -> Any:
    try:
        return _mapped_within(value, swap)
    except RecursionError:
        raise InvalidJob("the arguments are nested too deeply, or contain themselves") from None


def _mapped_within(value: Any, swap: Callable[[Any], Any]) -> Any:
    swapped = swap(value)
    if swapped is not value:
        return swapped
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return [_mapped_within(part, swap) for part in value]
    if isinstance(value, dict):
        return {key: _mapped_within(part, swap) for key, part in value.items()}
    return value


# ── annotations that mention Failure ──────────────────────────────────────────────────────────────


def mentions_failure(annotation: Any) -> bool:
    """Whether a value of this annotation may contain a Failure, as in `list[Receipt | Failure]`."""
    return annotation is Failure or any(map(mentions_failure, typing.get_args(annotation)))


def convert_beside_failures(value: Any, annotation: Any) -> Any:
    """Like `convert`, but Failures pass where the annotation allows them.

    msgspec itself allows them only beside a few types.
    """
    if isinstance(value, Failure):
        return convert(value, Failure if _allows_failure(annotation) else annotation)
    bare = without_failure(annotation)
    origin, arguments = typing.get_origin(bare), typing.get_args(bare)
    if isinstance(value, list) and origin in (list, Sequence) and mentions_failure(bare):
        return [convert_beside_failures(part, arguments[0]) for part in value]
    if isinstance(value, dict) and origin in (dict, Mapping) and mentions_failure(bare):
        return {
            convert(key, arguments[0]): convert_beside_failures(part, arguments[1])
            for key, part in value.items()
        }
    return convert(value, bare)


def without_failure(annotation: Any) -> Any:
    """A union without its Failure. Any other annotation is returned as it is."""
    if not _is_union(annotation):
        return annotation
    rest = tuple(part for part in typing.get_args(annotation) if part is not Failure)
    return typing.Union[rest]  # noqa: UP007 - computed, not written


def _allows_failure(annotation: Any) -> bool:
    return annotation is Failure or (
        _is_union(annotation) and Failure in typing.get_args(annotation)
    )


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)
