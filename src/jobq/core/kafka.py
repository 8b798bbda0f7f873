"""Kafka's credentials.

They come from the environment, so that no URL, process list or log contains them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from jobq.errors import ConfigError

_WITHOUT_PASSWORD = ("GSSAPI", "OAUTHBEARER")


class Sasl(NamedTuple):
    """How to log in to Kafka. GSSAPI and OAUTHBEARER use neither username nor password."""

    mechanism: str
    username: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return f"<Sasl {self.mechanism} as {self.username!r}>"


def sasl(environment: Mapping[str, str]) -> Sasl | None:
    """The credentials in the environment, or None if none are set.

    JQ_KAFKA_SASL_MECHANISM (default PLAIN), JQ_KAFKA_SASL_USERNAME and JQ_KAFKA_SASL_PASSWORD.
    """
    mechanism, username, password = (
        environment.get(f"JQ_KAFKA_SASL_{name}") for name in ("MECHANISM", "USERNAME", "PASSWORD")
    )
    if not (mechanism or username or password):
        return None
    if mechanism in _WITHOUT_PASSWORD:
        return Sasl(mechanism)
    if not username or not password:
        missing = "PASSWORD" if username else "USERNAME"
        raise ConfigError(
            f"JQ_KAFKA_SASL_{missing} is not set: "
            "Kafka's credentials need both a username and a password"
        )
    return Sasl(mechanism or "PLAIN", username, password)
