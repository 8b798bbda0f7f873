"""Keys, tokens and certificates for tests of a server."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

SECRET = b"a secret of the tests, long enough for SHA-256"
ISSUER, AUDIENCE = "https://issuer.example", "jobq"


def claims(**changed: Any) -> dict[str, Any]:
    """The claims of a good token. None removes one."""
    now = time.time()
    found = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "ann",
        "iat": int(now),
        "exp": int(now) + 86_400,  # some are made when tests are collected
        "tenant": "acme",
        "scope": "produce work read",
        **changed,
    }
    return {name: value for name, value in found.items() if value is not None}


def token(
    key: Any = SECRET, algorithm: str = "HS256", kid: str | None = None, **changed: Any
) -> str:
    """A signed token."""
    headers = None if kid is None else {"kid": kid}
    return jwt.encode(claims(**changed), key, algorithm=algorithm, headers=headers)


class Authority(NamedTuple):
    """A certificate authority of a test."""

    key: ec.EllipticCurvePrivateKey
    cert: x509.Certificate

    @classmethod
    def make(cls, name: str = "test authority") -> Authority:
        """A new authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        cert = (
            _builder(subject, subject, key.public_key(), days=30)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(key, cert)

    def write(self, path: Path) -> Path:
        """Write the authority's certificate."""
        path.write_bytes(self.cert.public_bytes(serialization.Encoding.PEM))
        return path

    def issue(
        self,
        folder: Path,
        name: str,
        *,
        days: int = 30,
        replace: bool = False,
        subject: str | None = None,
        uris: Sequence[str] = (),
    ) -> tuple[Path, Path]:
        """Write a certificate for 127.0.0.1 and its key. `days` < 0: it has expired.

        `subject` is its common name, if that is not `name`."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            *map(x509.UniformResourceIdentifier, uris),
        ]
        cert = (
            _builder(_name(subject or name), self.cert.subject, key.public_key(), days=days)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        certs, keys = folder / f"{name}.crt", folder / f"{name}.key"
        assert replace or not certs.exists()
        certs.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        keys.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return certs, keys


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, *, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    begins = now - timedelta(days=60)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(now + timedelta(days=days))
    )
