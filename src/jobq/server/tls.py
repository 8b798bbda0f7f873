"""Certificates of a server: read from files, checked, and read again when the files change."""

from __future__ import annotations

import logging
import os
import ssl
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import grpc
from cryptography import x509

from jobq.errors import ConfigError
from jobq.server.files import read

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
    cert, key = read(files.cert), read(files.key)
    ca = None if files.client_ca is None else read(files.client_ca)
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
