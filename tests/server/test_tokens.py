"""Which tokens a server accepts, and what they allow."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from jobq.errors import ConfigError, Unauthenticated
from jobq.server.config import ServerSettings
from jobq.server.context import Proof, ServerContext
from jobq.server.tokens import (
    JwksSource,
    KeySet,
    TokenRules,
    Tokens,
    parse_jwks,
    public_key,
    secret_key,
)
from jobq.stores import open_store
from tests.server.kit import AUDIENCE, ISSUER, SECRET, claims, token

RULES = TokenRules(issuer=ISSUER, audience=AUDIENCE)
PRIVATE = rsa.generate_private_key(65537, 2048)
PUBLIC_PEM = PRIVATE.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)
NONE = frozenset[str]()


def by_secret(**rules: Any) -> Tokens:
    found = TokenRules(**{"issuer": ISSUER, "audience": AUDIENCE, **rules})
    return Tokens(KeySet([secret_key(SECRET, NONE)]), found)


def jwk(key: rsa.RSAPrivateKey, kid: str, **more: str) -> dict[str, Any]:
    found = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**found, "kid": kid, "use": "sig", **more}


def test_a_good_token_says_who_sends_it() -> None:
    found = by_secret().principal(token())
    assert (found.subject, found.tenant) == ("ann", "acme")
    assert found.scopes == {"produce", "work", "read"}


def test_scopes_may_be_a_list_and_have_a_prefix_and_unknown_ones_are_left_out() -> None:
    found = by_secret().principal(token(scope=["jobq:read", "openid", "jobq:admin"]))
    assert found.scopes == {"read", "admin"}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "expired": ({"exp": int(time.time()) - 60}, "expired"),
    "not yet valid": ({"nbf": int(time.time()) + 86_400}, "not valid yet"),
    "without expiry": ({"exp": None}, "exp"),
    "with an expiry that is no time": ({"exp": "soon"}, "not a time"),
    "with an infinite expiry": ({"exp": 1e300}, "not a time"),
    "of another issuer": ({"iss": "https://other.example"}, "issuer"),
    "without issuer": ({"iss": None}, "iss"),
    "for another audience": ({"aud": "billing"}, "not for this server"),
    "without audience": ({"aud": None}, "not for this server"),
    "without tenant": ({"tenant": None}, "names no tenant"),
    "with a tenant that is no name": ({"tenant": 7}, "tenant"),
    "with a tenant with a colon": ({"tenant": "a:b"}, "colon"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_token_is_refused(kind: str) -> None:
    changed, message = WRONG[kind]
    with pytest.raises(Unauthenticated, match=message):
        by_secret().principal(token(**changed))


@pytest.mark.parametrize("text", [None, "", "x", "a.b.c", "ü.ü.ü", "x" * 20_000])
def test_what_is_no_token_is_refused(text: str | None) -> None:
    with pytest.raises(Unauthenticated):
        by_secret().principal(text)


def test_a_token_that_is_not_signed_is_refused() -> None:
    unsigned = jwt.encode(claims(), "", algorithm="none")
    for tokens in (by_secret(), Tokens(KeySet(), RULES)):
        with pytest.raises(Unauthenticated, match="does not accept"):
            tokens.principal(unsigned)


def test_a_public_key_is_never_taken_for_a_shared_secret(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(PUBLIC_PEM)
    tokens = Tokens(KeySet([public_key(path, NONE)]), RULES)
    assert tokens.principal(token(PRIVATE, "RS256")).tenant == "acme"
    # PyJWT refuses to sign with the text of a public key, so the token is put together by hand.
    head, body, _ = token(b"x" * 64, "HS256").split(".")
    import base64
    import hashlib
    import hmac

    signed = hmac.digest(PUBLIC_PEM, f"{head}.{body}".encode(), hashlib.sha256)
    forged = f"{head}.{body}.{base64.urlsafe_b64encode(signed).rstrip(b'=').decode()}"
    with pytest.raises(Unauthenticated, match="HS256"):
        tokens.principal(forged)


def test_an_algorithm_that_is_not_allowed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(PUBLIC_PEM)
    tokens = Tokens(KeySet([public_key(path, frozenset({"PS256"}))]), RULES)
    with pytest.raises(Unauthenticated, match="RS256"):
        tokens.principal(token(PRIVATE, "RS256"))


def test_a_secret_verifies_only_hashes_that_it_is_long_enough_for() -> None:
    with pytest.raises(ConfigError, match="needs at least 64"):
        secret_key(SECRET, frozenset({"HS256", "HS512"}))
    with pytest.raises(Unauthenticated, match="HS512"):
        by_secret().principal(token(SECRET * 2, "HS512"))


def test_a_weak_public_key_is_refused(tmp_path: Path) -> None:
    weak = rsa.generate_private_key(65537, 1024)
    path = tmp_path / "weak.pem"
    path.write_bytes(
        weak.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    with pytest.raises(ConfigError, match="too weak"):
        public_key(path, NONE)
    with pytest.raises(ConfigError, match="no key"):
        parse_jwks(json.dumps({"keys": [jwk(weak, "1")]}).encode(), NONE, secrets=False)


def test_a_wrong_signature_is_refused() -> None:
    with pytest.raises(Unauthenticated, match="signature"):
        by_secret().principal(token(b"another secret that is long enough, too"))


def test_a_private_key_is_refused_as_the_key_of_a_server(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(
        PRIVATE.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    with pytest.raises(ConfigError, match="private key"):
        public_key(path, NONE)


def test_an_admin_without_tenant_is_of_every_tenant() -> None:
    assert by_secret().principal(token(tenant=None, scope="admin")).tenant is None


def test_tokens_without_tenant_may_have_a_default() -> None:
    assert by_secret(default_tenant="main").principal(token(tenant=None)).tenant == "main"


def test_a_remembered_token_still_expires() -> None:
    now = time.time()
    tokens = Tokens(KeySet([secret_key(SECRET, NONE)]), RULES, clock=lambda: now)
    text = token(exp=int(now) + 10)
    assert tokens.principal(text) is tokens.principal(text)
    now += 39
    assert tokens.principal(text).tenant == "acme"
    now += 2
    with pytest.raises(Unauthenticated, match="expired"):
        tokens.principal(text)


async def test_a_guarded_store_stops_working_when_its_token_expires() -> None:
    async with open_store("memory://expiring") as store:
        context = ServerContext(store, ServerSettings(), authenticator=by_secret(leeway_s=0))
        guarded = context.guarded_by(Proof(token(exp=int(time.time()) + 100)))
        await guarded.queues()
        guarded._clock = lambda: time.time() + 101
        with pytest.raises(Unauthenticated, match="expired"):
            await guarded.queues()


def test_a_downloaded_key_set_has_no_secrets() -> None:
    secret = {"kty": "oct", "k": "c2VjcmV0" * 6, "kid": "1"}
    with pytest.raises(ConfigError, match="no key"):
        parse_jwks(json.dumps({"keys": [secret]}).encode(), NONE, secrets=False)


def test_keys_for_encryption_and_of_unknown_kinds_are_left_out() -> None:
    good = jwk(PRIVATE, "1")
    others = [{**jwk(PRIVATE, "2"), "use": "enc"}, {"kty": "XYZ"}, {"kty": "RSA", "n": "!"}, 7]
    found = parse_jwks(json.dumps({"keys": [*others, good]}).encode(), NONE, secrets=False)
    assert [key.id for key in found] == ["1"]


async def test_a_rotated_key_is_found_and_a_removed_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [jwk(PRIVATE, "old")]}))
    now = 0.0
    source = JwksSource(path, NONE, clock=lambda: now)
    await source.load()
    tokens = Tokens(source.keys, RULES, source=source)
    old = token(PRIVATE, "RS256", kid="old")
    assert tokens.principal(old).tenant == "acme"

    other = rsa.generate_private_key(65537, 2048)
    path.write_text(json.dumps({"keys": [jwk(other, "new")]}))
    new = token(other, "RS256", kid="new")
    async with open_store("memory://rotated") as store:
        context = ServerContext(store, ServerSettings(), authenticator=tokens)
        with pytest.raises(Unauthenticated):
            context.guarded_by(Proof(new))
        assert not await tokens.look_for_key(), "the set was read only seconds ago"
        now += 60
        assert await tokens.look_for_key()
        assert context.guarded_by(Proof(new)).principal.tenant == "acme"
        with pytest.raises(Unauthenticated):
            context.guarded_by(Proof(old))


async def test_a_key_set_that_cannot_be_read_keeps_the_old_keys(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [jwk(PRIVATE, "1")]}))
    source = JwksSource(path, NONE)
    await source.load()
    tokens = Tokens(source.keys, RULES, source=source)
    for text in ("{", "[]", '{"keys": []}', "x" * 10):
        path.write_text(text)
        await source.refresh()
    path.unlink()
    await source.refresh()
    assert source.failures == 5
    assert tokens.principal(token(PRIVATE, "RS256", kid="1")).tenant == "acme"


def test_a_key_of_another_curve_does_not_verify() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    found = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    keys = parse_jwks(json.dumps({"keys": [{**found, "kid": "1"}]}).encode(), NONE, secrets=False)
    tokens = Tokens(KeySet(keys), RULES)
    assert tokens.principal(token(key, "ES256", kid="1")).tenant == "acme"
    other = ec.generate_private_key(ec.SECP256R1())
    with pytest.raises(Unauthenticated, match="signature"):
        tokens.principal(token(other, "ES256", kid="1"))
