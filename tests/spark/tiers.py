"""What records become in each tier: the same on real Spark as in tasks in one process."""

import hashlib
import hmac

SECRET = b"a secret of the tests"
KEYS = [b"4711", b"4712", None, b"", b"4711", b"\xff\x00"]
KEY_WORDS = [b"acked", b"failed", b"acked", b"skipped", None, b"acked"]


def hash_of(key: bytes | None) -> int | None:
    digest = hmac.new(SECRET, key or b"", hashlib.sha256).digest()
    return None if key is None else int.from_bytes(digest[:8], "big", signed=True)


OUTCOME_WORDS = [b"acked", b"failed", b"skipped", b"dead", None, b"nonsense"]
EXPECTED: list[tuple[int, str, str | None]] = [
    (0, "acked", None), (1, "failed", None), (2, "skipped", "Skip"), (3, "failed", "Dead"), (4, "skipped", "Tombstone"),
]  # fmt: skip
