"""Encrypted arguments and results: a codec with several keys. Needs `jobq[encryption]`.

    codec = Encrypted({"2026-03": os.environ["JOBQ_KEY"]})
    payments = Queue("payments", codec=codec)

What a job carries is encrypted before it leaves the process and decrypted in the worker: its
arguments, result, progress, saved values, steps and signals. Stores, the event log and jq-ctl see
the ciphertext only. Task names, ids, keys of keyed queues, `meta`, log lines and the texts of
errors are not encrypted.

Each value is encrypted with AES-256-GCM under a random nonce and carries the id of its key. It is
bound to its use: arguments to the name of their task, and every value to `context`. A value that
was changed, or moved to another task, is refused.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from jobq.core.values import checks
from jobq.core.values.checks import shown
from jobq.core.values.codec import Args, Codec, Kwargs, NotHere, get_codec
from jobq.errors import ConfigError, InvalidJob

__all__ = ["Encrypted", "new_key"]

_VERSION = 1
_CALL, _VALUE = 0, 1
"""What a value is: the arguments of a call, or anything else. Neither is accepted as the other."""
_KEY_BYTES = 32
_NONCE_BYTES = 12
"""A random nonce of 96 bits allows 2^32 values per key before a repeat becomes likely (1 in 2^32).
So a key serves four thousand million values: rotate it before that."""
_MAX_KEY_ID = 64
"""Characters. Every value repeats the id of its key."""

Key = str | bytes


def new_key() -> str:
    """A random key of 256 bits as text, for an environment variable or a secrets manager."""
    return base64.urlsafe_b64encode(os.urandom(_KEY_BYTES)).decode()


class Encrypted(Codec):
    """Encrypts what the codec `inner` encodes.

    `keys` has the keys by id. New values are encrypted with the key `primary`, by default the first
    one; all keys decrypt. A key is 32 random bytes, or those in base64 as `new_key()` makes them.

    `lock_key` makes unique locks: a lock is an HMAC of the arguments, so nobody can guess them from
    it. It is a key of its own, because locks must stay the same while `keys` are rotated. Unique
    jobs need it.

    `context` is part of what is authenticated, e.g. the name of an application or environment: a
    value of one is refused by the other. `name` is stored with every job. Codecs with different
    keys in one process need different names.
    """

    def __init__(
        self,
        keys: Mapping[str, Key],
        *,
        primary: str | None = None,
        lock_key: Key | None = None,
        inner: str | Codec = "json",
        context: str = "",
        name: str = "encrypted",
    ) -> None:
        if not isinstance(keys, Mapping) or not keys:
            raise ConfigError("keys= is empty: give at least one key by its id")
        self.name = checks.check_short_name(name, "name", _MAX_KEY_ID, error=ConfigError)
        self._keys = {
            _check_id(id): AESGCM(_key_bytes(key, f"keys[{id!r}]")) for id, key in keys.items()
        }
        chosen = next(iter(self._keys)) if primary is None else primary
        if chosen not in self._keys:
            raise ConfigError(
                f"primary={shown(chosen)} is not one of the keys: {', '.join(self._keys)}"
            )
        self._primary = chosen
        self._lock_key = None if lock_key is None else _key_bytes(lock_key, "lock_key")
        self._inner = get_codec(inner)
        if not isinstance(context, str):
            raise ConfigError(f"context={shown(context)} is not a string")
        self._context = _sized(context)

    def __repr__(self) -> str:
        return f"<Encrypted {self.name!r}, keys {', '.join(self._keys)}>"  # never the keys

    def encode(self, value: Any) -> bytes:
        """Encode a value with `inner` and encrypt it."""
        return self._seal(_VALUE, b"", self._inner.encode(value))

    def decode(self, data: bytes, annotation: Any = Any) -> Any:
        """Decrypt a value and decode it. InvalidJob if it was changed, or its key is not here."""
        return self._inner.decode(self._open(data, _VALUE, b""), annotation)

    def encode_call(self, args: Args, kwargs: Mapping[str, Any]) -> bytes:
        """Encrypt arguments without binding them to a task. `for_task` binds them."""
        return self._seal(_CALL, b"", self._inner.encode_call(args, kwargs))

    def decode_call(self, data: bytes) -> tuple[list[Any], Kwargs]:
        """Decrypt arguments that are not bound to a task."""
        return self._inner.decode_call(self._open(data, _CALL, b""))

    def digestible(self, value: Any) -> bytes:
        """The HMAC of a value. InvalidJob if there is no `lock_key`."""
        if self._lock_key is None:
            raise InvalidJob(
                "unique: no lock can be made of encrypted arguments without a key for it: "
                "give Encrypted(…, lock_key=…)"
            )
        return hmac.digest(self._lock_key, self._inner.digestible(value), "sha256")

    def for_task(self, name: str) -> Codec:
        """The codec of the arguments of one task."""
        return _OfTask(self, name)

    def _seal(self, kind: int, task: bytes, plain: bytes) -> bytes:
        id = self._primary.encode()
        header = bytes((_VERSION, kind, len(id))) + id
        nonce = os.urandom(_NONCE_BYTES)
        bound = header + self._context + task
        return header + nonce + self._keys[self._primary].encrypt(nonce, plain, bound)

    def _open(self, data: bytes, kind: int, task: bytes) -> bytes:
        if len(data) < 3 or data[0] != _VERSION or data[1] != kind:
            raise InvalidJob(f"{self.name}: the data is not what this codec has encrypted")
        end = 3 + data[2]
        id, nonce = data[3:end], data[end : end + _NONCE_BYTES]
        key = self._keys.get(id.decode(errors="replace"))
        if key is None:
            raise NotHere(
                f"{self.name}: the data is encrypted with the key "
                f"{shown(id.decode(errors='replace'))}, which is not known here; "
                f"known keys: {', '.join(self._keys)}"
            )
        bound = data[:end] + self._context + task
        try:
            return key.decrypt(nonce, data[end + _NONCE_BYTES :], bound)
        except (InvalidTag, ValueError):
            raise InvalidJob(
                f"{self.name}: the data was changed, or belongs to another task or context"
            ) from None


class _OfTask(Codec):
    """The codec of the arguments of one task. All other values are bound to no task."""

    def __init__(self, whole: Encrypted, task: str) -> None:
        self.name = whole.name
        self._whole = whole
        self._task = _sized(task)

    def encode(self, value: Any) -> bytes:
        """See `Encrypted.encode`."""
        return self._whole.encode(value)

    def decode(self, data: bytes, annotation: Any = Any) -> Any:
        """See `Encrypted.decode`."""
        return self._whole.decode(data, annotation)

    def encode_call(self, args: Args, kwargs: Mapping[str, Any]) -> bytes:
        """Encrypt arguments."""
        return self._whole._seal(_CALL, self._task, self._whole._inner.encode_call(args, kwargs))

    def decode_call(self, data: bytes) -> tuple[list[Any], Kwargs]:
        """Decrypt arguments. InvalidJob if they are those of another task."""
        return self._whole._inner.decode_call(self._whole._open(data, _CALL, self._task))

    def digestible(self, value: Any) -> bytes:
        """See `Encrypted.digestible`."""
        return self._whole.digestible(value)


def _sized(text: str) -> bytes:
    """A text with its length in front, so that two texts in a row have one reading."""
    data = text.encode()
    return len(data).to_bytes(4, "big") + data


def _check_id(value: object) -> str:
    id = checks.check_short_name(value, "key id", _MAX_KEY_ID, error=ConfigError)
    if not id.isascii():
        raise ConfigError(f"key id {shown(id)} has characters other than ASCII")
    return id


def _key_bytes(key: object, option: str) -> bytes:
    """The bytes of a key. The error shows no part of it."""
    try:
        data = base64.urlsafe_b64decode(key) if isinstance(key, str) else key
    except (binascii.Error, ValueError):
        data = b""
    if not isinstance(data, bytes) or len(data) != _KEY_BYTES:
        raise ConfigError(
            f"{option} is not a key: give {_KEY_BYTES} random bytes, or base64 text as "
            "jobq.encryption.new_key() makes it"
        )
    return data
