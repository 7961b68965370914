"""Which row groups of a data file may hold a number, by Parquet's Bloom filters.

Arrow writes these filters and does not read them. DuckDB reads them, but not through the file systems and logins that
the tables have here. A filter is an array of blocks of eight words. The hash of a number chooses a block, and a bit in
each of its words; a number that was written has set all eight bits. So a filter may allow a number that is not there,
and never rules out one that is.

A filter has no checksum, as the pages have. Therefore one of the bits may be missing, which is all that a changed byte
does, and a block of zeros, such as of a hole in the file, rules out nothing.
"""

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ackline.delta.folder import Folder

_BLOCK, _WORDS = 32, "<u4"
_SALT = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], dtype=_WORDS
)
"""The factors by which Parquet derives the bits of the eight words from a hash."""
_PRIMES = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
"""The constants of XXH64."""
_MASK = 2**64 - 1


def groups_with(storage: Folder, path: str, column: str, number: int, others: Collection[str]) -> list[int]:
    """Returns the row groups of a data file that may hold `number` in the int64 column `column`, or a value in one of
    the columns `others`. Raises what Arrow raises for a file that can't be read."""
    with storage.filesystem.open_input_file(path) as stream:
        footer = pq.read_metadata(stream)
        places = {name: place for place, name in enumerate(footer.schema.names) if name in (column, *others)}
        found = []
        for group in range(footer.num_row_groups):
            chunks = {name: footer.row_group(group).column(place) for name, place in places.items()}
            filtered = {name: chunk for name, chunk in chunks.items() if _has_values(chunk)}
            if any(name != column or _allows(stream, chunk, number) for name, chunk in filtered.items()):
                found.append(group)
        return found


def _has_values(chunk: pq.ColumnChunkMetaData) -> bool:
    stats = chunk.statistics
    return stats is None or not stats.has_null_count or stats.null_count < chunk.num_values


def _allows(stream: pa.NativeFile, chunk: pq.ColumnChunkMetaData, number: int) -> bool:
    """Returns whether the filter of a column chunk allows `number`; True if it has none, or if this version of pyarrow
    does not say where it is."""
    start, length = (getattr(chunk, f"bloom_filter_{name}", None) for name in ("offset", "length"))
    if start is None or length is None:
        return True
    # A header of fewer than _BLOCK bytes, then whole blocks.
    blocks = length // _BLOCK
    hashed = _xxh64(number)
    stream.seek(start + length % _BLOCK + ((hashed >> 32) * blocks >> 32) * _BLOCK)
    words = np.frombuffer(stream.read(_BLOCK), _WORDS)
    bits = np.uint32(1) << (np.uint32(hashed & 0xFFFFFFFF) * _SALT >> np.uint32(27))
    return not words.any() or int(np.count_nonzero(words & bits)) >= len(_SALT) - 1


def _xxh64(number: int) -> int:
    """Returns the XXH64 of an int64 with seed 0, which is how Parquet hashes it."""
    one, two, three, four, five = _PRIMES
    mixed = _rotated((number & _MASK) * two & _MASK, 31) * one & _MASK
    hashed = (_rotated((five + 8) ^ mixed, 27) * one + four) & _MASK
    hashed = (hashed ^ hashed >> 33) * two & _MASK
    hashed = (hashed ^ hashed >> 29) * three & _MASK
    return hashed ^ hashed >> 32


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK
