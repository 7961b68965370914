"""Hashes the keys of a batch of records, in a Python worker.

The JVM does not hash them, although it is faster: the secret would have to be part of an expression, and Spark shows
expressions in plans, in its page and in the event log.
"""

import pyarrow as pa

from ackline.key_hash import KeyHash


def hashes_of_keys(keys: pa.Array, hashed: KeyHash) -> pa.Array:
    """Returns the hash of each key, null for a record without one. Hashes each different key of the batch once."""
    distinct = keys.dictionary_encode()
    hashes = [hashed(key) for key in distinct.dictionary.to_pylist()]
    return pa.array(hashes, pa.string()).take(distinct.indices)
