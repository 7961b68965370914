"""The keyed hash of a record's key, by which the audit table finds a record without holding its key. Pure.

It is the HMAC-SHA256 of the key's raw bytes, cut to 128 bits and written in 32 hexadecimal digits. So two keys of a
billion share a hash with a probability of about 1 in 10^21. Without the secret a reader of the table can't test which
key a hash is of, however few keys there are.
"""

import hmac
from collections.abc import Callable, Mapping
from typing import Any

from ackline.errors import ConfigError

SECRET = "ackline.key_hash_secret"
"""The extra of the Kafka connection that holds the secret."""
PREFIX = "ackline."
"""What the names of Ackline's own extras begin with. Kafka's clients refuse them."""
_DIGITS = 32
_LEAST = 16

KeyHash = Callable[[bytes], str]


def key_hash(secret: bytes) -> KeyHash:
    """Returns the function that hashes a key under this secret."""
    keyed = hmac.new(secret, digestmod="sha256")

    def hashed(key: bytes) -> str:
        copy = keyed.copy()  # the secret is hashed once, which halves the time a key takes
        copy.update(key)
        return copy.hexdigest()[:_DIGITS]

    return hashed


def secret_of(connection: Mapping[str, Any], name: str | None) -> bytes:
    """Returns the secret in the extra of the Kafka connection `name`.

    Raises ConfigError if the extra has none, or one of fewer than 16 characters. The message quotes nothing of it.
    """
    secret = connection.get(SECRET)
    if not isinstance(secret, str) or len(secret) < _LEAST:
        problem = f"has no `{SECRET}`" if secret is None else f"has a `{SECRET}` that is no text of {_LEAST} characters"
        raise ConfigError(
            f"the extra of the Kafka connection {name or '(none)'} {problem}: set it to a random text of at least "
            f"{_LEAST} characters, and keep it: under another secret the same key has another hash",
            key="audit.key_hash",
        )
    return secret.encode()


def without_own_settings(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the properties of a connection without Ackline's own, which hold secrets that no Kafka client needs."""
    return {name: value for name, value in properties.items() if not name.startswith(PREFIX)}
