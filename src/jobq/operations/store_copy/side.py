"""One of the two stores of a copy."""

from __future__ import annotations

from jobq.client.patient import patient
from jobq.stores.base import Store


class Side:
    """A store, each of whose calls may take `timeout_s` seconds, and who makes the calls."""

    def __init__(self, store: Store, *, timeout_s: float = 10.0, actor: str | None = None) -> None:
        late = (
            f"{store.url} did not reply within {timeout_s:g} s; "
            "run the same command again to continue the copy"
        )
        self.store = patient(store, timeout_s, late)
        self.actor = actor
