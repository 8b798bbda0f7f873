"""Store URLs: options that several stores have, refused schemes, and the process's token."""

from __future__ import annotations

import base64
import os

import msgspec

from jobq.core.values.printable import redacted_url as shown
from jobq.errors import ConfigError

_reasons: dict[str, str] = {}


def refuse(scheme: str, reason: str) -> None:
    """Refuse to open stores of this scheme from now on."""
    _reasons[scheme] = reason


def refusal(scheme: str) -> str | None:
    """Why stores of this scheme cannot be opened here. None if they can."""
    return _reasons.get(scheme)


# Parts of store URLs that several stores have: options, ports and times.


def options_of(url: str, query: str) -> dict[str, str]:
    """The options of a URL. Nobody could tell which of two values counts, so that is an error."""
    from urllib.parse import parse_qsl  # few stores have options, and it takes 3 ms to import

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


# The token that identifies this process to a jq-server.
#
# It is JQ_TOKEN, or else in the file that JQ_TOKEN_FILE names. The file is read again for each new
# stream, so a token that is replaced in time is used without a restart.


def token() -> str | None:
    """The token. None if there is none. ConfigError if its file cannot be read."""
    if given := os.environ.get("JQ_TOKEN", "").strip():
        return _checked(given, "JQ_TOKEN")
    path = os.environ.get("JQ_TOKEN_FILE")
    if not path:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            found = file.read().strip()
    except (OSError, ValueError) as e:
        raise ConfigError(f"JQ_TOKEN_FILE: cannot read the token from {path!r}: {e}") from None
    if not found:
        raise ConfigError(f"JQ_TOKEN_FILE: {path!r} is empty")
    return _checked(found, "JQ_TOKEN_FILE")


def _checked(found: str, source: str) -> str:
    if not (found.isascii() and found.isprintable() and " " not in found):
        raise ConfigError(
            f"{source}: the token contains spaces or characters that no token has; "
            "it must be one line"
        )
    return found


def claimed_tenant() -> str | None:
    """The claim `tenant` of the token. None if there is no token, or no such claim in it.

    Nothing is verified here: the server does that.
    """
    parts = (token() or "").split(".")
    if len(parts) != 3:
        return None
    try:
        text = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        claims = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None
    tenant = claims.get("tenant") if isinstance(claims, dict) else None
    return tenant if isinstance(tenant, str) else None
