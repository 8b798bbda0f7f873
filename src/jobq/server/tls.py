"""Certificates: the server's, read again when files change, and clients' with their rights."""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import grpc
import msgspec
from cryptography import x509
from cryptography.x509.oid import NameOID

from jobq.access.principal import SCOPES, ClientGrant, Principal, Scope
from jobq.core.values.checks import check_tenant
from jobq.core.values.printable import one_line
from jobq.errors import ConfigError, Unauthenticated
from jobq.server.files import read_file

log = logging.getLogger("jobq.server")

_CHECK_S = 1.0
"""Seconds between two looks at the files. Each new connection asks, and a busy server has many."""


class TlsFiles(NamedTuple):
    """The files of a server's certificate. With `client_ca`, clients need a certificate too."""

    cert: Path
    key: Path
    client_ca: Path | None = None


class Certificates:
    """The certificate in use. New connections use new files; a bad file changes nothing."""

    def __init__(self, files: TlsFiles) -> None:
        """Read and check the files. ConfigError says what is wrong."""
        self.files = files
        self._stamp = _stamp(files)
        self._checked_at = time.monotonic()
        self._current = _read(files)

    def credentials(self) -> grpc.ServerCredentials:
        """What a port is opened with."""
        return grpc.dynamic_ssl_server_credentials(
            self._current,
            self._fetch,  # type: ignore[arg-type] # None is allowed: nothing has changed
            require_client_authentication=self.files.client_ca is not None,
        )

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC for each new connection, in a thread of gRPC's. None: nothing changed."""
        now = time.monotonic()
        if now - self._checked_at < _CHECK_S:
            return None
        self._checked_at = now
        return self.reload()

    def reload(self) -> grpc.ServerCertificateConfiguration | None:
        """Read the files if they have changed. None if nothing changed, or the files are bad."""
        stamp = _stamp(self.files)
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            self._current = _read(self.files)
        except ConfigError as e:
            log.error("the new certificate is not used, and the old one stays in use: %s", e)
            return None
        log.info("new connections use the new certificate of %s", self.files.cert)
        return self._current


def describe(files: TlsFiles) -> str:
    """Who the certificate is for, and until when. ConfigError if it cannot be used."""
    _read(files)
    found = x509.load_pem_x509_certificate(files.cert.read_bytes())
    until = found.not_valid_after_utc
    return f"{found.subject.rfc4514_string() or 'no subject'}, valid until {until:%Y-%m-%d}"


def _read(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    cert, key = read_file(files.cert), read_file(files.key)
    ca = None if files.client_ca is None else read_file(files.client_ca)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(files.cert, files.key, password=_no_password)
    except ssl.SSLError as e:
        raise ConfigError(
            f"{files.key} is not the key of the certificate {files.cert}, or one of them is not "
            f"PEM: {e.reason or e}"
        ) from None
    _check_dates(files.cert, cert)
    if ca is not None:
        try:
            context.load_verify_locations(cadata=ca.decode("ascii"))
        except (ssl.SSLError, UnicodeDecodeError) as e:
            raise ConfigError(
                f"{files.client_ca} has no certificate of an authority: {e}"
            ) from None
    return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=ca)


def _check_dates(path: Path, data: bytes) -> None:
    found = x509.load_pem_x509_certificate(data)
    now = datetime.now(UTC)
    if now > found.not_valid_after_utc:
        raise ConfigError(f"the certificate {path} expired on {found.not_valid_after_utc:%Y-%m-%d}")
    if now < found.not_valid_before_utc:
        raise ConfigError(
            f"the certificate {path} is not valid before {found.not_valid_before_utc:%Y-%m-%d}"
        )


def _no_password() -> str:
    raise ConfigError("the key is encrypted: jq-server needs a key without a password")


def _stamp(files: TlsFiles) -> tuple[tuple[int, int, int] | None, ...]:
    """Which version of the files is there. A file that is being replaced may be missing."""
    found: list[tuple[int, int, int] | None] = []
    for path in files:
        try:
            stat = None if path is None else os.stat(path)
        except OSError:
            stat = None
        found.append(None if stat is None else (stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return tuple(found)


# Who has a client certificate: the names in it, and what the configuration grants to them.
#
# TLS has verified the certificate before a call arrives. A certificate proves one of its names: a
# URI among its alternative names, such as `spiffe://example.org/worker`, or the common name of its
# subject. A name that the configuration does not list may do nothing.

_MAX_CACHED = 10_000
"""Certificates that are remembered. Reading one takes about 0.1 ms."""


class Clients:
    """The clients that the configuration lists, by the name in their certificate."""

    def __init__(
        self, grants: Mapping[str, ClientGrant], *, clock: Callable[[], float] = time.time
    ) -> None:
        """ConfigError names the client whose grant is wrong."""
        self._granted = {name: _principal(name, grant) for name, grant in grants.items()}
        self._clock = clock
        self._known: dict[bytes, Principal] = {}

    def __len__(self) -> int:
        return len(self._granted)

    def principal(self, certificate: bytes | None) -> Principal:
        """Who has this certificate, in PEM. Unauthenticated says why it is not accepted."""
        if certificate is None:
            raise Unauthenticated("this server needs a client certificate, and the call has none")
        found = self._known.get(certificate)
        if found is None:
            found = self._read(certificate)
            if len(self._known) >= _MAX_CACHED:
                del self._known[next(iter(self._known))]  # the oldest
            self._known[certificate] = found
        if found.expires_s is not None and self._clock() >= found.expires_s:
            raise Unauthenticated("the certificate has expired: connect again with a new one")
        return found

    def _read(self, certificate: bytes) -> Principal:
        try:
            read = x509.load_pem_x509_certificate(certificate)
            names = list(dict.fromkeys(_names(read)))
        except Exception as e:  # a certificate is a stranger's text: what it causes is a refusal
            raise Unauthenticated(f"the certificate cannot be read: {type(e).__name__}") from None
        listed = [name for name in names if name in self._granted]
        if not listed:
            shown = ", ".join(one_line(name)[:128] for name in names) or "without a name"
            raise Unauthenticated(
                f"grpc.tls.clients does not list this certificate ({shown}): list its common name "
                "or a URI of it"
            )
        if len(listed) > 1:
            raise Unauthenticated(
                f"grpc.tls.clients lists several names of this certificate ({', '.join(listed)}), "
                "so what it may do is not clear: list one of them"
            )
        expires_s = read.not_valid_after_utc.timestamp()
        return msgspec.structs.replace(self._granted[listed[0]], expires_s=expires_s)


def _names(certificate: x509.Certificate) -> Iterable[str]:
    """The names that a certificate proves.

    A name with a colon is a URI, and is only read from the alternative names: an authority that
    checks URIs may sign any common name. A URI without a colon is relative, and names nobody: it
    could be somebody's common name."""
    try:
        others = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = others.get_values_for_type(x509.UniformResourceIdentifier)
        yield from (uri for uri in uris if ":" in uri)
    except x509.ExtensionNotFound:
        pass
    for attribute in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME):
        if isinstance(attribute.value, str) and ":" not in attribute.value:
            yield attribute.value


def _principal(name: str, grant: ClientGrant) -> Principal:
    where = f"grpc.tls.clients.{name}"
    unknown = [scope for scope in grant.scopes if scope not in SCOPES]
    if unknown or not grant.scopes:
        has = f"has the scope {unknown[0]!r}" if unknown else "has no scopes"
        raise ConfigError(f"{where} {has}: use some of {', '.join(sorted(SCOPES))}")
    scopes: frozenset[Scope] = frozenset(scope for scope in SCOPES if scope in grant.scopes)
    if grant.tenant is not None:
        check_tenant(grant.tenant, error=ConfigError)
    elif "admin" not in scopes:
        raise ConfigError(
            f"{where} has no tenant: only a client with the scope admin may do without"
        )
    return Principal(subject=name, tenant=grant.tenant, scopes=scopes, by="certificate")
