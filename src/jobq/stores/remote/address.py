"""The parts of a URL: which servers, and how to reach them.

grpc://host[:port],…                          jq-servers on one store, tried one after the other
grpcs://host[:port],…?ca=&cert=&key=          the same over TLS

Options: ?timeout (seconds for a reply) · ca=path (certificates to trust, instead of the system's)
cert=path, key=path (the client's own, if the server asks for one)

The token is not part of the URL: see `token`.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from jobq.core.values.checks import did_you_mean
from jobq.core.values.printable import redacted_url as shown
from jobq.core.values.printable import split_credentials
from jobq.errors import ConfigError
from jobq.stores.base.urls import options_of, port_of, seconds_of

PORT = 50051
_PLAIN = ("timeout",)
_TLS = ("ca", "cert", "key")
_TIMEOUT_S = 10.0
"""Seconds until a call without a reply fails, by default."""


class Address(NamedTuple):
    """The parts of a URL. `targets` are in the form that gRPC resolves."""

    targets: tuple[str, ...]
    shown: str
    tls: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    timeout: float = _TIMEOUT_S


def parse(url: str) -> Address:
    """Parse a URL. ConfigError says what is wrong with it and what to write instead."""
    scheme, credentials, _ = split_credentials(url)
    tls = scheme.lower() == "grpcs"
    if credentials:
        raise ConfigError(
            f"{shown(url)!r} has a user or a password, but a jq-server expects a token: set "
            "JQ_TOKEN or JQ_TOKEN_FILE, and leave out what is before the '@'"
        )
    try:
        parts = urlsplit(url)
    except ValueError as e:
        raise ConfigError(f"{shown(url)!r} is not a URL: {e}") from None
    if parts.path.strip("/"):
        raise ConfigError(
            f"{shown(url)!r} has the path {parts.path!r}: a jq-server has one store, so write only "
            "hosts and ports"
        )
    options = options_of(url, parts.query)
    _check_options(url, options, tls=tls)
    return Address(
        targets=tuple(_target(url, host) for host in (parts.netloc or "localhost").split(",")),
        shown=shown(url),
        tls=tls,
        ca=options.get("ca"),
        cert=options.get("cert"),
        key=options.get("key"),
        timeout=seconds_of(url, "timeout", options.get("timeout", str(_TIMEOUT_S))),
    )


def _check_options(url: str, options: dict[str, str], *, tls: bool) -> None:
    for name in options:
        if "token" in name.lower():
            raise ConfigError(
                f"{shown(url)!r} has a token in it, which logs and process lists would show: set "
                "JQ_TOKEN or JQ_TOKEN_FILE instead"
            )
        if name in _TLS and not tls:
            raise ConfigError(f"{shown(url)!r} has the option {name!r}, which needs grpcs://")
        if name not in (*_PLAIN, *_TLS):
            known = (*_PLAIN, *_TLS) if tls else _PLAIN
            raise ConfigError(
                f"{shown(url)!r} has the unknown option {name!r}: the options are "
                f"{', '.join(known)}{did_you_mean(name, known)}"
            )
    if ("cert" in options) != ("key" in options):
        raise ConfigError(f"{shown(url)!r} needs both cert= and key=, or neither")


def _target(url: str, host: str) -> str:
    name, port = host, ""
    if host.startswith("["):
        name, _, port = host.partition("]")
        name, port = f"{name}]", port.lstrip(":")
    elif ":" in host:
        name, port = host.rsplit(":", 1)
    return f"dns:///{name or 'localhost'}:{port_of(url, port) if port else PORT}"
