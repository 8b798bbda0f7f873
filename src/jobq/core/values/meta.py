"""meta: a small map of strings that travels with a job, its children and its dead-letter copy.

It is for data that belongs to a job and is not an argument of its handler: a trace, a request
id, a user. None means no meta, so that a job without it stores nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jobq.core.values.checks import Refusal, check_short_name, shown
from jobq.errors import ConfigError, InvalidJob

Meta = dict[str, str]

MAX_BYTES = 4096
"""Bytes of all names and values, as UTF-8.

Meta is stored with every job and sent with every lease.
"""
MAX_NAME = 64
"""Characters of a name."""
MAX_EVENT_NAMES = 16
"""Names that a queue writes into its events. Every event repeats them."""


def check_meta(value: object) -> Meta | None:
    """A plain copy of a map of strings, or None if it is empty.

    InvalidJob names what is wrong with it.
    """
    if not isinstance(value, Mapping):
        raise InvalidJob(f"meta={shown(value)} is not a map of strings")
    plain: Meta = {}
    for name, text in value.items():
        key = check_short_name(name, "meta name", MAX_NAME)
        if not isinstance(text, str):
            raise InvalidJob(f"meta[{key!r}]={shown(text)} is not a string")
        plain[key] = str.__str__(text)  # a plain str, also of a subclass
    return _bounded(plain, "meta") if plain else None


def inherited(parent: Meta | None, own: Meta | None) -> Meta | None:
    """The meta of a child: its parent's, with its own on top.

    InvalidJob if both together are too large.
    """
    if parent is None or own is None:
        return own or parent
    return _bounded({**parent, **own}, "meta (with what the child inherits from its parent)")


def check_event_names(value: object, *, error: Refusal = ConfigError) -> tuple[str, ...]:
    """The names of meta that a queue writes into its events."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise error(f"event_meta={shown(value)} is not a list of names")
    names = tuple(
        dict.fromkeys(
            check_short_name(name, "event_meta name", MAX_NAME, error=error) for name in value
        )
    )
    if len(names) > MAX_EVENT_NAMES:
        raise error(
            f"event_meta has {len(names)} names, more than the {MAX_EVENT_NAMES} allowed: "
            "every event repeats them"
        )
    return names


def event_meta(meta: Meta | None, names: Sequence[str]) -> Meta | None:
    """The part of a job's meta that its events show: the names that the queue allows.

    None if there is none.
    """
    if meta is None:
        return None
    return {name: meta[name] for name in names if name in meta} or None


def _bounded(meta: Meta, option: str) -> Meta:
    size = 0
    for name, text in meta.items():
        try:
            size += len(name.encode()) + len(text.encode())
        except UnicodeEncodeError:
            raise InvalidJob(
                f"{option}[{name!r}]={shown(text)} is not valid text: it cannot be encoded as UTF-8"
            ) from None
    if size > MAX_BYTES:
        raise InvalidJob(
            f"{option} takes {size:,} bytes, more than the {MAX_BYTES:,} allowed: "
            "pass a reference instead"
        )
    return meta
