"""The keys that a pipeline file may have, and the nearest of them to a key that it may not have. Pure."""

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, get_args

from pydantic import BaseModel

_SIMILAR = 0.6
"""The least likeness, from 0 to 1, of a key in the same block. It is that of difflib's `get_close_matches`."""
_SIMILAR_ELSEWHERE = 0.8
"""The least likeness of a key in another block: such a key is in the wrong place as well."""
_NEARER = 0.1
"""How much less like the unknown key a key of the same block may be, to come before one of another block."""


def nearest_key(model: type[BaseModel], key_path: Sequence[str | int]) -> str | None:
    """Returns the known key that is most like the unknown key at `key_path`; None if none is like it.

    A key of the same block is returned without its block, and a key of another block with it, such as `kafka.topics`.
    """
    *block, unknown = key_path
    here = [part for part in block if not isinstance(part, int)]
    best, nearest = 0.0, None
    for known in known_keys(model):
        likeness = SequenceMatcher(None, str(unknown).lower().replace("-", "_"), known[-1]).ratio()
        in_block = list(known[:-1]) == here
        rank = likeness + in_block * _NEARER
        if likeness >= (_SIMILAR if in_block else _SIMILAR_ELSEWHERE) and rank > best:
            best, nearest = rank, known[-1] if in_block else ".".join(known)
    return nearest


def known_keys(model: type[BaseModel], block: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields each key of a block and of the blocks in it, as the keys that lead to it. Positions in lists are left
    out, and so are keys that the user chooses."""
    for name, field in model.model_fields.items():
        key = (*block, field.alias or name)
        yield key
        for inner in _models_in(field.annotation):
            yield from known_keys(inner, key)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
