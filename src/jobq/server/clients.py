"""Who has a client certificate: the names in it, and what the configuration grants to them.

TLS has verified the certificate before a call arrives. A certificate proves one of its names: a URI
among its alternative names, such as `spiffe://example.org/worker`, or the common name of its
subject. A name that the configuration does not list may do nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

import msgspec
from cryptography import x509
from cryptography.x509.oid import NameOID

from jobq.access.principal import SCOPES, ClientGrant, Principal, Scope
from jobq.core.checks import check_tenant
from jobq.core.printable import one_line
from jobq.errors import ConfigError, Unauthenticated

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
