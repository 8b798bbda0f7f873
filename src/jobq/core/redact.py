"""URLs without their passwords. jobq prints, logs or raises a URL only after redacting it here."""

from __future__ import annotations

import re

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
# Options of a URL whose values are secrets: sasl.password, ssl.key.pem, sasl.jaas.config, token, …
_WORDS = r"pass|pwd|secret|token|credential|jaas|\.pem|oauthbearer\.config"
_SECRET = re.compile(rf"(?i)([?&;][^=&;\s]*(?:{_WORDS})[^=&;\s]*=)[^&;]*")
_HIDDEN = "***"
# host:port,host:port/path: what comes before the options without user and password.
_HOSTS = re.compile(r"(?:[^:/@\[\]]*|\[[^\]]*\])(?::\d+)?(?:,[^:/@]*(?::\d+)?)*(?:/[^@]*)?")


def redacted_url(url: str) -> str:
    """The URL with its password, and the values of options that look like secrets, replaced by
    `***`.

    Everything up to the last @ counts as user and password, because a password may contain any
    character, even one that should be escaped. The exception is an @ in the options of a URL that
    clearly begins with a host.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    hosts, _, options = rest.partition("?")
    # A password of digits with a ? in it looks like a port with options, but no option has an @ in
    # its name (see `split_credentials`).
    plain = _HOSTS.fullmatch(hosts) and "@" not in options.partition("=")[0]
    credentials, at, hosts = ("", "", rest) if plain else rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    hidden = f":{_HIDDEN}" if colon else ""
    return _SECRET.sub(rf"\1{_HIDDEN}", f"{scheme}://{user}{hidden}{at}{hosts}")


def redacted(text: str) -> str:
    """A text with every URL in it redacted."""
    return _URL.sub(lambda found: redacted_url(found[0]), text) if "://" in text else text


def split_credentials(url: str) -> tuple[str, str, str]:
    """The scheme, the credentials and the rest of a URL.

    A password may contain characters that break other parsers.
    """
    scheme, _, rest = url.partition("://")
    hosts, separator, options = rest.partition("?")
    if "@" not in hosts and "@" in options.partition("=")[0]:
        hosts, separator, options = rest, "", ""
    credentials, _, hosts = hosts.rpartition("@")
    return scheme, credentials, f"{hosts}{separator}{options}"
