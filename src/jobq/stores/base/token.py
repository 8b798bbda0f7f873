"""The token that identifies this process to a jq-server.

It is JQ_TOKEN, or else in the file that JQ_TOKEN_FILE names. The file is read again for each new
stream, so a token that is replaced in time is used without a restart.
"""

from __future__ import annotations

import base64
import os

import msgspec

from jobq.errors import ConfigError


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
