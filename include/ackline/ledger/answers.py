"""Records in flight: the tokens with which they are answered from outside, and what an answer means. Pure.

The holder of a token may answer for one attempt at one record. A token holds what a reader needs to find the record,
and an HMAC-SHA256 over that, the id of the ledger and the id of the topic. So no token can be made without the key, and
a token of another ledger or of a topic that was created again does not verify. The same attempt of the same turn always
has the same token: a repeated replay hands out no second one.

The keys are `ackline.token_keys` in the extra of the Kafka connection. The first key signs, and all of them verify. To
change the key, put a new one in front, and remove the old one once no record in flight has a token of it.

An answer is a record whose key is a token and whose value is `ack`, `fail [reason]` or `renew DURATION`. It counts
unless a stored settlement has ended its attempt. Any client with write access to the ack topic can write any bytes:
settle counts an invalid answer and ignores it.
"""

import base64
import binascii
import hmac
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from ackline.errors import ConfigError
from ackline.ledger.backoff import parse_duration
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import AnswerKind
from ackline.ledger.turns import TurnId

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
    keys: Any = extra
    if isinstance(extra, str):
        with suppress(ValueError):
            keys = json.loads(extra)
        keys = keys if isinstance(keys, list) else [extra]
    if not isinstance(keys, list) or not keys or not all(isinstance(key, str) and key for key in keys):
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


_VERSION = 1
_MAC_BYTES = 32
_ALPHABET = re.compile(r"[A-Za-z0-9_-]{40,2000}")


class Token(NamedTuple):
    """What a token holds in clear: the attempt at a record that it is of. `mac` proves it."""

    turn: TurnId
    tp: TopicPartition
    offset: int
    attempt: int
    mac: bytes

    @property
    def text(self) -> str:
        """The token as it is written: letters, digits, `_` and `-`, a letter first."""
        content = _body(self.turn, self.tp, self.offset, self.attempt) + self.mac
        return base64.urlsafe_b64encode(content).decode().rstrip("=")

    def is_signed(self, keys: Keys, ledger: str, topic_id: str) -> bool:
        """Returns whether one of the keys has signed this token in this ledger, for a topic with this id."""
        signed = _signed(ledger, topic_id, _body(self.turn, self.tp, self.offset, self.attempt))
        # compare_digest takes the same time wherever the bytes differ, so its time reveals nothing of the right value.
        return any(hmac.compare_digest(_mac(key, signed), self.mac) for key in keys)


def parse_token(text: str) -> Token | None:
    """Returns the token that a text holds; None if it holds none. Its signature is not verified: see `is_signed`."""
    if not _ALPHABET.fullmatch(text):
        return None
    try:
        content = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        version, pipeline, lane, epoch, n, topic, partition, offset, attempt = json.loads(content[:-_MAC_BYTES])
    except (binascii.Error, ValueError, TypeError, RecursionError):
        return None
    names, numbers = (pipeline, lane, topic), (version, epoch, n, partition, offset, attempt)
    if not all(type(name) is str for name in names) or not all(type(number) is int for number in numbers):
        return None
    token = Token(
        TurnId(pipeline, lane, epoch, n), TopicPartition(topic, partition), offset, attempt, content[-_MAC_BYTES:]
    )
    # Reject other encodings of the same token: base64 and JSON each have several texts for the same values.
    return token if version == _VERSION and token.text == text else None


@dataclass(frozen=True, slots=True)
class TokenSigner:
    """Makes the tokens of one turn. It holds a secret: never show it."""

    key: bytes = field(repr=False)
    ledger: str
    turn: TurnId
    topic_ids: Mapping[TopicPartition, str]
    """The topic id of each partition of the turn. A parked one may have that of an older topic of the name."""

    def token(self, topic: str, partition: int, offset: int, attempt: int) -> str:
        """Returns the token of an attempt of the turn."""
        tp = TopicPartition(topic, partition)
        signed = _signed(self.ledger, self.topic_ids[tp], _body(self.turn, tp, offset, attempt))
        return Token(self.turn, tp, offset, attempt, _mac(self.key, signed)).text


def _body(turn: TurnId, tp: TopicPartition, offset: int, attempt: int) -> bytes:
    return json.dumps([_VERSION, *turn, *tp, offset, attempt], separators=(",", ":")).encode()


def _signed(ledger: str, topic_id: str, body: bytes) -> bytes:
    # As JSON, no two different lists of values are the same bytes.
    return json.dumps([ledger, topic_id, body.decode()]).encode()


def _mac(key: bytes, signed: bytes) -> bytes:
    return hmac.digest(key, signed, "sha256")


SKIPPED_IN_TREE = "acked from outside, but a step has skipped a tuple of the record"
"""The message of a record whose answer is `ack` and whose own tree was skipped: the worse of both counts."""


class Applied(StrEnum):
    """What an answer that counts, or the lack of one, does to an attempt in flight."""

    ACKED = "acked"
    FAILED = "failed"
    RENEWED = "renewed"
    TIMED_OUT = "timed_out"


class Ignored(StrEnum):
    """Why an answer is ignored."""

    FOREIGN = "foreign"
    """Its token is of another pipeline, lane or topic."""
    MALFORMED = "malformed"
    """Its key is no token, or its value is no answer."""
    UNSIGNED = "unsigned"
    """No key has signed its token for this ledger and topic."""
    STALE = "stale"
    """A stored settlement has ended the attempt, or the attempt was never in flight."""
    REPEATED = "repeated"
    """Another answer has ended the attempt in the same turn."""


class Answer(NamedTuple):
    """The parsed value of an answer. `reason` is set for `fail`, `renewal` for `renew`."""

    kind: AnswerKind
    reason: str = ""
    renewal: timedelta = timedelta()


def parse_answer(value: bytes | str | None) -> Answer | None:
    """Returns the answer that a value holds; None if it holds none."""
    try:
        text = value.decode() if isinstance(value, bytes) else value or ""
    except UnicodeDecodeError:
        return None
    word, _, rest = text.strip().partition(" ")
    rest = rest.strip()
    if word == AnswerKind.ACK and not rest:
        return Answer(AnswerKind.ACK)
    if word == AnswerKind.FAIL:
        return Answer(AnswerKind.FAIL, rest)
    if word == AnswerKind.RENEW:
        try:
            renewal = parse_duration(rest)
        except ValueError:
            return None
        return Answer(AnswerKind.RENEW, "", renewal) if renewal > timedelta() else None
    return None


def counts_text(counts: Mapping[str, int]) -> str:
    """Returns the counts in words, such as `3 acked, 1 timed out; ignored: 2 stale`; empty without any."""
    applied = [f"{counts[word]:,} {word.value.replace('_', ' ')}" for word in Applied if counts.get(word)]
    ignored = [f"{counts[word]:,} {word.value}" for word in Ignored if counts.get(word)]
    texts = [", ".join(applied), f"ignored: {', '.join(ignored)}" if ignored else ""]
    return "; ".join(filter(None, texts))
