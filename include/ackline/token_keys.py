"""The keys that sign the tokens of records in flight: `ackline.token_keys` in the extra of the Kafka connection. Pure.

The first key signs, and all of them verify. To change the key, put a new one in front, and remove the old one once no
record in flight has a token of it.
"""

from collections.abc import Mapping
from typing import Any

from ackline.errors import ConfigError

TOKEN_KEYS = "ackline.token_keys"
"""The extra of the Kafka connection that holds the keys."""
_LEAST = 16

Keys = tuple[bytes, ...]


def token_keys_of(connection: Mapping[str, Any], name: str | None) -> Keys:
    """Returns the keys in the extra of the Kafka connection `name`: a list of texts, or one text.

    Raises ConfigError if the extra has none, or one of fewer than 16 characters. The message quotes nothing of them.
    """
    extra = connection.get(TOKEN_KEYS)
    keys = [extra] if isinstance(extra, str) else extra if isinstance(extra, list) else []
    if not keys or not all(isinstance(key, str) and len(key) >= _LEAST for key in keys):
        problem = f"has no `{TOKEN_KEYS}`"
        if extra is not None:
            problem = f"has `{TOKEN_KEYS}` that are no texts of {_LEAST} characters"
        raise ConfigError(
            f"the extra of the Kafka connection {name or '(none)'} {problem}: set it to a list of random texts of at "
            f"least {_LEAST} characters. The first one signs the tokens of records in flight, and all verify them",
            key="ack_topic",
        )
    return tuple(key.encode() for key in keys)
