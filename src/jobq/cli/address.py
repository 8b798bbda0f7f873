"""Where a command line finds its jobs: the store of --url, or the jq-server of --server-addr.

`Address` holds what the command line and the environment say, and `url` is the store URL that
follows from it. A jq-server is a store as well, under grpc:// or grpcs://.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

import click

from jobq.errors import ConfigError

DEFAULT_PORT = 50051
"""The port of a server address that names none. It is also jq-server's default."""
DEFAULT_URL = "sqlite:///jobq.db"
"""The store when nothing is given: the same as for `Queue()`."""

TLS_OPTIONS = ("tls_ca", "tls_cert", "tls_key")
SERVER_ADDR_HELP = (
    "Address of a jq-server, e.g. queue.internal:50051; several separated by commas. "
    "Cannot be combined with --url."
)
TOKEN_FILE_HELP = (
    "File with the token for jq-server. It is read again when it changes. "
    "Default: the token in JQ_TOKEN."
)
TLS_HELP = {
    "tls_ca": "File with the CA certificates that jq-server's certificate is checked against. "
    "Any --tls option turns on TLS.",
    "tls_cert": "File with the client certificate, for a jq-server that asks for one (mTLS).",
    "tls_key": "File with the private key of --tls-cert.",
}


class WrongAddress(ConfigError):
    """The address does not lead to a store."""


class Address(NamedTuple):
    """What a command line says about where the jobs are. None: not given."""

    url: str | None = None
    server_addr: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    def given(self) -> str | None:
        """The store URL of --url or --server-addr; None if neither is given.

        WrongAddress if the options contradict each other."""
        if self.url is not None and self.server_addr is not None:
            raise WrongAddress("--url and --server-addr: give one of them")
        if self.server_addr is not None:
            return _server_url(self.server_addr, self._tls())
        if self.url is None:
            return None
        return self._with_tls(self.url)

    def from_environment(self) -> str | None:
        """The store URL of JQ_SERVER_ADDR, or else of JQ_URL; None if neither is set."""
        if server_addr := os.environ.get("JQ_SERVER_ADDR"):
            return _server_url(server_addr, self._tls(), "JQ_SERVER_ADDR")
        if url := os.environ.get("JQ_URL"):
            return self._with_tls(url)
        return None

    def _with_tls(self, url: str) -> str:
        """The URL with the TLS files as its options, if it is a server's."""
        scheme, _, rest = url.partition("://")
        if scheme in ("grpc", "grpcs"):
            # A worker process finds in JQ_URL what its supervisor has made of the same files.
            there = dict(parse_qsl(rest.partition("?")[2]))
            tls = {name: path for name, path in self._tls().items() if name not in there}
            return f"grpcs://{rest}{'&' if '?' in rest else '?'}{urlencode(tls)}" if tls else url
        if any(getattr(self, name) is not None for name in TLS_OPTIONS):
            raise WrongAddress(
                "--tls-ca, --tls-cert and --tls-key are for a jq-server: give its address with "
                "--server-addr"
            )
        return url

    def _tls(self) -> dict[str, str]:
        """The TLS files by their names in a URL. The command line overrides the environment."""
        found = {
            name.removeprefix("tls_"): value
            for name in TLS_OPTIONS
            if (value := getattr(self, name) or os.environ.get(f"JQ_{name.upper()}"))
        }
        if ("cert" in found) != ("key" in found):
            raise WrongAddress("--tls-cert and --tls-key belong together: give both or neither")
        return found


def overridden(given: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Options of a file, overridden by the environment as far as click does not do it.

    JQ_URL and JQ_SERVER_ADDR name one place, so each of them replaces both options.
    """
    options = dict(given)
    if "url" in options or "server_addr" in options:
        for name in ("server_addr", "url"):
            if value := environment.get(f"JQ_{name.upper()}"):
                options.pop("url", None)
                options.pop("server_addr", None)
                options[name] = value
                break
    for name in TLS_OPTIONS:
        if name in options and (value := environment.get(f"JQ_{name.upper()}")):
            options[name] = value
    if environment.get("JQ_TOKEN"):
        options.pop("token_file", None)
    return options


def use_token_file(path: str | None) -> None:
    """Use the token in this file for jq-server. The command line overrides JQ_TOKEN."""
    if path is not None:
        os.environ["JQ_TOKEN_FILE"] = path
        os.environ.pop("JQ_TOKEN", None)


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --server-addr, --token-file and the --tls options to a command that is not jq-ctl's."""
    for option in (
        *(
            click.option(
                f"--{name.replace('_', '-')}",
                metavar="FILE",
                allow_from_autoenv=False,  # `Address` reads the environment
                help=TLS_HELP[name],
            )
            for name in reversed(TLS_OPTIONS)
        ),
        click.option("--token-file", metavar="FILE", help=TOKEN_FILE_HELP),
        click.option(
            "--server-addr",
            metavar="HOST:PORT",
            # JQ_SERVER_ADDR is for queues that name no store, as JQ_URL is.
            allow_from_autoenv=False,
            help=SERVER_ADDR_HELP,
        ),
    ):
        command = option(command)
    return command


def _server_url(given: str, tls: dict[str, str], option: str = "--server-addr") -> str:
    """grpc:// or grpcs:// for a list of host:port."""
    if "://" in given:
        raise WrongAddress(f"{option} {given}: give host:port, or use --url {given}")
    hosts = [_host_and_port(part.strip(), f"{option} {given}") for part in given.split(",")]
    scheme, options = ("grpcs", f"?{urlencode(tls)}") if tls else ("grpc", "")
    return f"{scheme}://{','.join(hosts)}{options}"


def _host_and_port(part: str, given: str) -> str:
    host, colon, port = part.rpartition(":")
    if not colon or part.endswith("]"):  # a name without a port, or [::1]
        host, port = part, str(DEFAULT_PORT)
    bare_ipv6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    if not host or bare_ipv6 or not port.isdecimal() or not 0 < int(port) < 65536:
        raise WrongAddress(
            f"{given}: {part or 'an empty part'} is not host:port, "
            "e.g. queue.internal:50051 or [::1]:50051"
        )
    return f"{host}:{port}"
