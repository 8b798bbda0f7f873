"""The layout of a store on Valkey: one key says how its jobs are written.

Every new connection reads the key, and so does a handle that has to load the function library
again. A release that changes the meaning of stored data deletes the older library: handles of the
older release then find out that the layout is not theirs before they can write again.
"""

from __future__ import annotations

import msgspec

from jobq.core.rules.layout import Layout, refuse_newer
from jobq.core.version import __version__
from jobq.errors import CorruptStore
from jobq.stores.valkey.connection import Reply

LATEST = 2
"""The layout that this code writes. 1 is that of jobq 0.1, which wrote no key."""
OLDEST = 2
"""The oldest layout whose code can work on a store of layout LATEST. Raise it when older libraries
would misread what this one writes; keep it when this one only adds fields and keys."""

STAMP = msgspec.json.encode(Layout(layout=LATEST, oldest=OLDEST, release=__version__))
"""What the key of a new store holds."""

_decode = msgspec.json.Decoder(Layout).decode


def parse_layout(store: str, stored: Reply) -> Layout:
    """The value of the key, which is there."""
    try:
        return _decode(stored)
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as e:
        raise CorruptStore(f"{store} does not say which layout its jobs have: {e}") from e


def check_layout(store: str, stored: Reply) -> None:
    """Raise ConfigError if a newer jobq gave the store a layout that this code would damage."""
    if stored is not None:
        refuse_newer(store, parse_layout(store, stored), LATEST)
