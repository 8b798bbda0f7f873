"""Texts that are safe to print: control characters are escaped, URLs have no passwords.

A job's arguments, errors and log lines come from anywhere. Printed as they are, a line break could
forge a log line, and an escape sequence (ESC, or a C1 character such as U+009B) could control the
operator's terminal.
"""

from __future__ import annotations

import re

# C0, DEL, C1, line and paragraph separators, marks that reorder text, the byte order mark, and
# lone surrogates.
_HARMFUL = (
    "\x00-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
)
_IN_A_LINE = re.compile(f"[{_HARMFUL}]")
_IN_LINES = re.compile(f"(?![\n\t])[{_HARMFUL}]")
_NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def one_line(text: str) -> str:
    """The text on one line, with every control character escaped."""
    return text if text.isprintable() else _IN_A_LINE.sub(_escape, text)


def lines(text: str) -> str:
    """The text with its line breaks (`\\n`) and tabs, and every other control character escaped."""
    return _IN_LINES.sub(_escape, text)


def json_text(encoded: str) -> str:
    """Encoded JSON, with the control characters escaped that JSON allows in strings.

    It decodes to the same value.
    """
    return (
        encoded
        if encoded.isprintable()
        else _IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", encoded)
    )


def storable(text: str) -> str:
    """The text with the characters escaped that a store cannot keep.

    PostgreSQL has no text with the character 0, and a lone surrogate has no bytes in UTF-8. A
    program's output may contain both."""
    return text if text.isprintable() else _NOT_STORABLE.sub(_escape, text)


def is_harmless(text: str) -> bool:
    """Whether the text can be printed as it is, including line breaks and tabs."""
    return _IN_LINES.search(text) is None


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    if character in _ESCAPES:
        return _ESCAPES[character]
    return f"\\x{ord(character):02x}" if character <= "\xff" else f"\\u{ord(character):04x}"


# URLs without their passwords. jobq prints, logs or raises a URL only after redacting it here.

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
