"""Signing in by token, by the host's own auth and by nothing; cookies, CSRF and headers."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

import jobq.web
from jobq.access.principal import SCOPES, Principal
from jobq.core.records.jobs import QueueName
from jobq.core.records.states import State
from jobq.errors import ConfigError
from jobq.server.tokens import Key, KeySet, TokenRules, Tokens, secret_key
from jobq.stores.base import Store
from jobq.web.sessions import CSRF, SESSION, Signer
from jobq.web.signing_in import Attempts, TooManyAttempts
from jobq.web.tokens import TokenFile
from tests.server.kit import AUDIENCE, ISSUER, SECRET, token
from tests.web.conftest import Make
from tests.web.kit import Browser

ALICE, BOB = "a-token-of-alice-0123456789", "a-token-of-bob-0123456789"
MAIL = {"tenant": "acme", "queue": "mail"}
ADMIN = Principal(subject="ann", tenant=None, scopes=SCOPES)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    digest = hashlib.sha256(BOB.encode()).hexdigest()
    path.write_text(f"# people\n{ALICE} alice admin\nsha256:{digest} bob read,produce acme\n")
    path.chmod(0o600)
    return path


async def _sign_in(browser: Browser, token: str, **more: str) -> int:
    reply = await browser.http.post("/sign-in", data={"token": token, **more})
    return reply.status_code


# ── by token ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_visitor_is_sent_to_the_sign_in_page_and_back(
    memory: Store, browse: Make, tokens: Path
) -> None:
    browser = browse(memory, sign_in=TokenFile(tokens))
    reply = await browser.get("/queue", **MAIL)
    assert reply.status_code == 303
    assert reply.headers["location"] == "/sign-in?next=%2Fqueue%3Ftenant%3Dacme%26queue%3Dmail"
    assert (await browser.get(reply.headers["location"])).status_code == 200
    assert (await browser.get("/api/v1/overview")).status_code == 401
    assert (await browser.get("/live")).status_code == 401
    back = "/queue?tenant=acme&queue=mail"
    done = await browser.http.post("/sign-in", data={"token": ALICE, "next": back})
    assert (done.status_code, done.headers["location"]) == (303, back)
    assert (await browser.get(back)).status_code == 200


async def test_signing_in_leads_to_no_other_site(memory: Store, browse: Make, tokens: Path) -> None:
    browser = browse(memory, sign_in=TokenFile(tokens))
    for target in (
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
    ):
        done = await browser.http.post("/sign-in", data={"token": ALICE, "next": target})
        assert done.headers["location"] == "/", target


async def test_a_wrong_token_signs_nobody_in(memory: Store, browse: Make, tokens: Path) -> None:
    browser = browse(memory, sign_in=TokenFile(tokens))
    for wrong in ("", "x", ALICE + "x", "é" * 20, "x" * 100_000):
        assert await _sign_in(browser, wrong) == 401
    assert SESSION not in browser.http.cookies
    assert (await browser.get("/api/v1/overview")).status_code == 401


async def test_a_session_has_the_scopes_and_the_tenant_of_its_token(
    memory: Store, browse: Make, tokens: Path
) -> None:
    browser = browse(memory, sign_in=TokenFile(tokens))
    assert await _sign_in(browser, BOB) == 303
    session = await browser.read("session")
    assert (session["subject"], session["tenant"]) == ("bob", "acme")
    assert session["scopes"] == ["produce", "read"]
    assert (await browser.post("queue/pause", **MAIL)).status_code == 403
    await browser.act("job.promote", **MAIL, id="later")
    events = (await memory.read_events(QueueName("acme", "mail"), after="0")).events
    assert events[-1].actor == "bob (dashboard)"
    assert (await browser.get("/queue", tenant="other", queue="mail")).status_code == 404


async def test_a_removed_token_ends_its_session(memory: Store, browse: Make, tokens: Path) -> None:
    browser = browse(memory, sign_in=TokenFile(tokens))
    await _sign_in(browser, ALICE)
    assert (await browser.get("/api/v1/overview")).status_code == 200
    tokens.write_text(f"{BOB} bob read\n")
    assert (await browser.get("/api/v1/overview")).status_code == 401


async def test_a_session_of_other_tokens_with_the_same_secret_is_worth_nothing(
    memory: Store, browse: Make, tokens: Path
) -> None:
    secret = "one secret of all"
    rules = TokenRules(issuer=ISSUER, audience=AUDIENCE)
    by_key = Tokens(KeySet([secret_key(SECRET, frozenset())]), rules)
    signer = Signer(secret)
    for sign_in, session in (
        (TokenFile(tokens), signer.begin(ADMIN)),
        (by_key, signer.begin(ADMIN, "0" * 64)),
    ):
        browser = browse(memory, sign_in=sign_in, secret=secret)
        browser.http.cookies.set(SESSION, signer.cookie(session))
        assert (await browser.get("/api/v1/session")).status_code == 401


async def test_signing_out_ends_the_session_also_for_a_copy_of_its_cookie(
    memory: Store, browse: Make, tokens: Path
) -> None:
    browser = browse(memory, sign_in=TokenFile(tokens))
    await _sign_in(browser, ALICE)
    copied = browser.http.cookies[SESSION]
    refused = await browser.http.post("/sign-out")
    assert refused.status_code == 403  # without a CSRF token
    token = await browser.csrf_token()
    assert (await browser.http.post("/sign-out", data={"csrf_token": token})).status_code == 303
    browser.http.cookies.clear()
    browser.http.cookies.set(SESSION, copied)
    assert (await browser.get("/api/v1/overview")).status_code == 401


async def test_a_changed_cookie_is_worth_nothing(memory: Store, browse: Make, tokens: Path) -> None:
    browser = browse(memory, sign_in=TokenFile(tokens))
    await _sign_in(browser, BOB)
    good = browser.http.cookies[SESSION]
    foreign = Signer().cookie(Signer().begin(ADMIN))
    for wrong in (good[:-1], good[1:], "x" + good, foreign, ".", "a.b", "é.x", "x" * 5_000):
        browser.http.cookies.clear()
        reply = await browser.http.get(
            "/api/v1/overview", headers=[(b"Cookie", f"{SESSION}={wrong}".encode())]
        )
        assert reply.status_code == 401, wrong[:40]


def test_a_session_ends_with_its_token_or_after_half_a_day() -> None:
    now = 1_000_000.0
    signer = Signer("a secret of all of us", clock=lambda: now)
    long = signer.cookie(signer.begin(ADMIN))
    short = signer.cookie(
        signer.begin(Principal(subject="x", tenant="acme", scopes=SCOPES, expires_s=now + 60))
    )
    assert signer.session(long)
    assert signer.session(short)
    now += 61
    assert signer.session(short) is None
    now += 12 * 3600
    assert signer.session(long) is None


def test_processes_with_one_secret_accept_each_others_sessions() -> None:
    cookie = Signer("one secret of all").cookie(Signer("one secret of all").begin(ADMIN))
    found = Signer("one secret of all").session(cookie)
    assert found is not None
    assert found.principal == ADMIN
    assert Signer("another secret of all").session(cookie) is None
    assert Signer().session(cookie) is None


@pytest.mark.parametrize("secret", ["", "s", "fifteen letters"])
def test_a_secret_that_can_be_guessed_is_refused(secret: str) -> None:
    with pytest.raises(ConfigError, match="at least 16"):
        jobq.web.app("memory://", sign_in=lambda request: ADMIN, secret=secret)


async def test_a_script_uses_the_api_with_a_bearer_token(
    memory: Store, browse: Make, tokens: Path
) -> None:
    sign_in = TokenFile(tokens)
    good = browse(memory, sign_in=sign_in, headers={"Authorization": f"Bearer {ALICE}"})
    reply = await good.http.post("/api/v1/queue/pause", json=MAIL)
    assert reply.status_code == 200, "a bearer token needs no CSRF token"
    wrong = browse(memory, sign_in=sign_in, headers={"Authorization": "Bearer wrong"})
    assert (await wrong.get("/api/v1/overview")).status_code == 401
    basic = browse(memory, sign_in=sign_in, headers={"Authorization": "Basic eDp5"})
    assert (await basic.get("/api/v1/overview")).status_code == 401


async def test_people_sign_in_with_the_tokens_of_a_jq_server(memory: Store, browse: Make) -> None:
    rules = TokenRules(issuer=ISSUER, audience=AUDIENCE)
    sign_in = Tokens(KeySet([secret_key(SECRET, frozenset())]), rules)
    browser = browse(memory, sign_in=sign_in)
    assert await _sign_in(browser, token(aud="another")) == 401
    assert await _sign_in(browser, token(scope="read")) == 303
    session = await browser.read("session")
    assert (session["subject"], session["tenant"], session["scopes"]) == ("ann", "acme", ["read"])


def _signing(kind: str) -> tuple[Any, Key]:
    """What signs a token, and the key that verifies it."""
    if kind == "HS256":
        secret = os.urandom(32)
        return secret, secret_key(secret, frozenset())
    private: Any = {
        "RS256": lambda: rsa.generate_private_key(65537, 2048),
        "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
        "EdDSA": ed25519.Ed25519PrivateKey.generate,
    }[kind]()
    return private, Key("first", private.public_key(), frozenset({kind}))


KINDS = ["HS256", "RS256", "ES256", "EdDSA"]
DOORS = ("/", "/jobs", "/live", "/payload", "/api/v1/overview", "/api/v1/session")


async def _is_let_in(browser: Browser) -> bool:
    found = set()
    for path in DOORS:
        if path == "/live":
            query = {**MAIL, "id": "done"}  # ends at once
        else:
            query = {**MAIL, "id": "done", "part": "result"} if path == "/payload" else {}
        found.add((await browser.get(path, **query)).status_code == 200)
    reply = await browser.http.post("/api/v1/queue/pause", json=MAIL)
    found.add(reply.status_code == 403)  # it lacks the CSRF token; 401: nobody has signed in
    assert len(found) == 1, found
    return found.pop()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_session_ends_with_the_key_of_its_token(
    memory: Store, browse: Make, kind: str, restarted: bool
) -> None:
    """Whatever becomes of the key: only the same key keeps the session, also after a restart with
    the same secret for cookies."""
    signing, key = _signing(kind)
    others = {each: _signing(each)[1] for each in KINDS}
    same_name = _signing(kind)[1]._replace(id=key.id)
    rules = TokenRules(issuer=ISSUER, audience=AUDIENCE)
    given = token(signing, kind, kid=key.id, scope="admin", tenant=None)
    for keys, stays in (
        ([key], True),
        ([others["ES256"], key], True),
        ([key._replace(id="another name")], True),
        ([], False),
        ([same_name], False),
        (list(others.values()), False),
    ):
        accepted = KeySet([key])
        browser = browse(memory, sign_in=Tokens(accepted, rules), secret="one secret for all")
        assert await _sign_in(browser, given) == 303
        assert await _is_let_in(browser)
        if restarted:
            cookies = browser.http.cookies
            browser = browse(
                memory, sign_in=Tokens(KeySet(keys), rules), secret="one secret for all"
            )
            browser.http.cookies = cookies
        else:
            accepted.replace(keys)
        assert await _is_let_in(browser) is stays, keys


def test_a_cookie_does_not_help_to_guess_the_key_of_its_token() -> None:
    one, two = Signer("a secret of the cookies"), Signer("another secret of the cookies")
    assert one.fingerprint(SECRET) == Signer("a secret of the cookies").fingerprint(SECRET)
    assert one.fingerprint(SECRET) != two.fingerprint(SECRET)
    cookie = one.cookie(one.begin(ADMIN, key=SECRET))
    for digest in (SECRET.hex(), hashlib.sha256(SECRET).hexdigest()):
        assert digest[:32] not in base64.urlsafe_b64decode(cookie.partition(".")[0]).decode()


async def test_wrong_tokens_are_throttled(memory: Store, browse: Make, tokens: Path) -> None:
    browser = browse(memory, sign_in=TokenFile(tokens))
    for _ in range(Attempts.PER_ADDRESS):
        assert await _sign_in(browser, "wrong") == 401
    reply = await browser.http.post("/sign-in", data={"token": ALICE})
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "60")
    script = await browser.http.get(
        "/api/v1/overview", headers={"Authorization": f"Bearer {ALICE}"}
    )
    assert script.status_code == 429


def test_the_throttle_ends_after_a_minute_and_counts_all_addresses_together() -> None:
    now = 0.0
    attempts = Attempts(clock=lambda: now)
    for _ in range(Attempts.PER_ADDRESS):
        attempts.failed("1.2.3.4")
    with pytest.raises(TooManyAttempts):
        attempts.check("1.2.3.4")
    attempts.check("1.2.3.5")
    now = 61
    attempts.check("1.2.3.4")
    for n in range(Attempts.IN_ALL):
        attempts.failed(str(n))
    with pytest.raises(TooManyAttempts):
        attempts.check("somebody else")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("short alice admin\n", "at least 16 characters"),
        (f"{ALICE} alice\n", "write TOKEN NAME SCOPES"),
        (f"{ALICE} alice everything\n", "'everything' is not a scope"),
        (f"{ALICE} alice admin a:b\n", "colon"),
        ("sha256:abc alice admin\n", "64 hex digits"),
    ],
)
def test_a_wrong_file_of_tokens_is_refused_without_showing_them(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        TokenFile(path)
    assert words in str(caught.value)
    assert ALICE not in str(caught.value)
    with pytest.raises(ConfigError):
        TokenFile(tmp_path / "none")


# ── by the host's own auth, or by nothing ─────────────────────────────────────────────────────────


async def test_the_host_application_says_who_makes_a_request(memory: Store, browse: Make) -> None:
    async def staff(request: object) -> Principal | None:
        name = request.headers.get("x-user")  # type: ignore[attr-defined]
        return Principal(subject=name, tenant="acme", scopes=SCOPES) if name else None

    nobody = browse(memory, sign_in=staff)
    assert (await nobody.get("/")).status_code == 401
    assert (await nobody.get("/sign-in")).status_code == 303  # there is no such page
    browser = browse(memory, sign_in=staff, headers={"X-User": "eve"})
    await browser.act("queue.pause", **MAIL)
    events = (await memory.read_events(QueueName("acme", "mail"), after="0")).events
    assert events[-1].actor == "eve (dashboard)"


async def test_without_sign_in_only_this_machine_is_served(memory: Store, browse: Make) -> None:
    assert (await browse(memory).get("/")).status_code == 200
    elsewhere: tuple[dict[str, Any], ...] = (
        {"client": "10.0.0.7"},
        {"base": "http://evil.example"},  # DNS that leads to 127.0.0.1
        {"headers": {"X-Forwarded-For": "10.0.0.7"}},
        {"headers": {"Forwarded": "for=10.0.0.7"}},
    )
    for options in elsewhere:
        reply = await browse(memory, **options).get("/")
        assert reply.status_code == 403, options
        assert "sign_in" in reply.text


def test_a_sign_in_that_is_neither_tokens_nor_a_function_is_refused(browse: Make) -> None:
    with pytest.raises(ConfigError, match="neither a TokenFile nor a function"):
        browse("memory://", sign_in="alice")


# ── other sites ───────────────────────────────────────────────────────────────────────────────────


FOREIGN: tuple[dict[str, str], ...] = (
    {},
    {"X-CSRF-Token": "wrong"},
    {"X-CSRF-Token": ""},
    {"X-CSRF-Token": "é"},
    {"X-CSRF-Token": "right", "Origin": "https://evil.example"},
    {"X-CSRF-Token": "right", "Origin": "null"},
    {"X-CSRF-Token": "right", "Sec-Fetch-Site": "cross-site"},
    {"X-CSRF-Token": "right", "Sec-Fetch-Site": "same-site"},
)


async def test_a_request_that_may_be_another_sites_is_refused(memory: Store, browse: Make) -> None:
    browser = browse(memory)
    right = await browser.csrf_token()
    for headers in FOREIGN:
        sent = [
            (name.encode(), (right if value == "right" else value).encode())
            for name, value in headers.items()
        ]
        reply = await browser.http.post("/api/v1/queue/pause", json=MAIL, headers=sent)
        assert reply.status_code == 403, headers
    assert not (await memory.stats(QueueName("acme", "mail"))).paused


async def test_a_request_without_the_cookie_of_its_token_is_refused(
    memory: Store, browse: Make
) -> None:
    browser = browse(memory)
    token = await browser.csrf_token()
    browser.http.cookies.clear()
    reply = await browser.http.post(
        "/api/v1/queue/pause", json=MAIL, headers={"X-CSRF-Token": token}
    )
    assert reply.status_code == 403


async def test_a_token_of_one_person_is_not_good_for_another(memory: Store, browse: Make) -> None:
    who = ADMIN
    browser = browse(memory, sign_in=lambda request: who)
    token = await browser.csrf_token()
    who = Principal(subject="bob", tenant=None, scopes=SCOPES)
    reply = await browser.http.post(
        "/api/v1/queue/pause", json=MAIL, headers={"X-CSRF-Token": token}
    )
    assert reply.status_code == 403


async def test_signing_in_from_a_page_of_another_site_is_refused(
    memory: Store, browse: Make, tokens: Path
) -> None:
    browser = browse(memory, sign_in=TokenFile(tokens))
    reply = await browser.http.post(
        "/sign-in", data={"token": ALICE}, headers={"Origin": "https://evil.example"}
    )
    assert reply.status_code == 403
    assert SESSION not in browser.http.cookies


async def test_a_form_works_without_javascript(memory: Store, browse: Make) -> None:
    browser = browse(memory)
    token = await browser.csrf_token()
    form = {**MAIL, "delayed": "on", "csrf_token": token, "next": "/queue?tenant=acme&queue=mail"}
    reply = await browser.http.post("/api/v1/queue/clear", data=form)
    assert (reply.status_code, reply.headers["location"]) == (303, form["next"])
    assert (await memory.stats(QueueName("acme", "mail"))).counts[State.CANCELLED] == 5


# ── cookies and headers ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_cookies_are_for_this_application_only(
    memory: Store, browse: Make, tokens: Path, scheme: str
) -> None:
    browser = browse(
        memory, sign_in=TokenFile(tokens), base=f"{scheme}://jobs.example", root_path="/ui"
    )
    reply = await browser.http.post("/ui/sign-in", data={"token": ALICE})
    session = reply.headers["set-cookie"]
    page = await browser.get("/ui/")
    csrf = page.headers["set-cookie"]
    for name, cookie in ((SESSION, session), (CSRF, csrf)):
        parts = [part.strip().lower() for part in cookie.split(";")]
        assert cookie.startswith(f"{name}=")
        assert "httponly" in parts
        assert "samesite=lax" in parts
        assert "path=/ui" in parts
        assert ("secure" in parts) is (scheme == "https")
    assert "max-age=" in session.lower()


async def test_every_response_forbids_what_is_not_the_dashboards_own(
    memory: Store, browse: Make, tokens: Path
) -> None:
    browser = browse(memory)
    guarded = browse(memory, sign_in=TokenFile(tokens))
    replies = [
        await browser.get("/"),
        await browser.get("/nothing"),
        await browser.get("/api/v1/overview"),
        await browser.get("/static/site.css"),
        await browser.http.post("/api/v1/queue/pause", json=MAIL),
        await guarded.get("/"),
        await guarded.get("/sign-in"),
    ]
    for reply in replies:
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert reply.headers["x-frame-options"] == "DENY"
        assert reply.headers["x-content-type-options"] == "nosniff"
        expected = "no-cache" if "/static/" in str(reply.url) else "no-store"
        assert reply.headers["cache-control"] == expected


async def test_static_files_are_only_those_of_the_dashboard(memory: Store, browse: Make) -> None:
    browser = browse(memory)
    for path in (
        "/static/../site.py",
        "/static/%2e%2e/site.py",
        "/static/..%2fsite.py",
        "/static/",
    ):
        assert (await browser.get(path)).status_code == 404


async def test_a_request_that_is_too_large_is_refused(memory: Store, browse: Make) -> None:
    browser = browse(memory)
    body = {**MAIL, "id": "later", "arguments": "x" * 5_000_000}
    assert (await browser.post("job/update", **body)).status_code == 413
    html = await browser.http.post(
        "/api/v1/queue/pause", content=b"<x/>", headers={"Content-Type": "text/xml"}
    )
    assert html.status_code == 400
