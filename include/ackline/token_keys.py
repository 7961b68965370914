"""The keys that sign the tokens of records in flight: `ackline.token_keys` in the extra of the Kafka connection. Pure.

The first key signs, and all of them verify. To change the key, put a new one in front, and remove the old one once no
record in flight has a token of it.
"""

import json
from collections.abc import Mapping
from typing import Any

from ackline.errors import ConfigError

TOKEN_KEYS = "ackline.token_keys"
"""The extra of the Kafka connection that holds the keys."""
_SAFE_LENGTH = 16
"""In characters. The holder of a token can try keys on it without a trace, and may so guess a shorter key."""

Keys = tuple[bytes, ...]


def token_keys_of(connection: Mapping[str, Any], name: str | None) -> Keys:
    """Returns the keys in the extra of the Kafka connection `name`: a list of texts, or one text. A connection that is
    written as a URI holds the list as JSON.

    Raises ConfigError if the extra has none, or one that is no text or empty. The message quotes nothing of them.
    """
    extra = connection.get(TOKEN_KEYS)
    keys = _listed(extra) if isinstance(extra, str) else extra if isinstance(extra, list) else []
    if not keys or not all(isinstance(key, str) and key for key in keys):
        problem = f"has no `{TOKEN_KEYS}`"
        if extra is not None:
            problem = f"has `{TOKEN_KEYS}` that are no texts"
        raise ConfigError(
            f"the extra of the Kafka connection {name or '(none)'} {problem}: set it to a list of random texts, "
            f"such as `openssl rand -hex 32` prints. The first one signs the tokens of records in flight, and all of "
            f"them verify tokens",
            key="ack_topic",
        )
    return tuple(key.encode() for key in keys)


def warning_of_keys(keys: Keys) -> str | None:
    """Returns a warning if keys are so short that they may be guessed; None if none is. It quotes nothing of them."""
    short = sum(len(key) < _SAFE_LENGTH for key in keys)
    if not short:
        return None
    return (
        f"{TOKEN_KEYS}: {short} of {len(keys)} keys {'has' if short == 1 else 'have'} fewer than {_SAFE_LENGTH} "
        f"characters; the holder of a token may guess such a key, and sign answers for other records. Put a longer one "
        f"in front"
    )


def _listed(text: str) -> list[Any]:
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    return content if isinstance(content, list) else [text]
