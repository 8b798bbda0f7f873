"""Parts of store URLs that several stores have: options, ports and times."""

from __future__ import annotations

from urllib.parse import parse_qsl

from jobq.core.redact import redacted_url as shown
from jobq.errors import ConfigError


def options_of(url: str, query: str) -> dict[str, str]:
    """The options of a URL. Nobody could tell which of two values counts, so that is an error."""
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in given:
            raise ConfigError(f"{shown(url)!r} has the option {name!r} twice: write it once")
        given[name] = value
    return given


def port_of(url: str, text: str) -> int:
    """The number of a port."""
    # The system would cut a larger number to 16 bits and connect to another port.
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise ConfigError(f"{shown(url)!r} has {text!r} for its port: use a number from 1 to 65535")
    return int(text)


def seconds_of(url: str, option: str, text: str) -> float:
    """A number of seconds."""
    try:
        value = float(text)
        if not 0 < value < 3600:
            raise ValueError(text)
    except ValueError:
        raise ConfigError(
            f"{shown(url)!r} has {text!r} for {option}: use a number of seconds, up to an hour"
        ) from None
    return value
