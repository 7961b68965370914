"""What a user reads when a pipeline file is refused: file, line, key, what is wrong with it, and what to do. Pure.

What to write instead of a value that pydantic refuses: one sentence for each kind of its errors. Pure.

pydantic's own messages describe Python types and never reach a user. A message quotes no value, which may be a secret;
a word that is not among the words of its key is the exception.

The keys that a pipeline file may have, and the nearest of them to a key that it may not have. Pure.

What a user reads when a pipeline file is refused: file, line, key, what is wrong with it, and what to do.

pydantic checks the file. This module turns its errors into one `ConfigError` with a line for each problem.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel
from pydantic_core import ErrorDetails, PydanticCustomError

from ackline.errors import ConfigError
from ackline.pipeline import yaml_file
from ackline.pipeline.field_types import ADVICE_BY_PATTERN, MAPPING

_EXPECTED = {
    "kafka": "a mapping, e.g. {connection: kafka_default, group_id: orders-replay, topics: [orders]}",
    "kafka.group_id": "the name of a consumer group, e.g. orders-replay",
    "kafka.topics": "a list of names, e.g. [orders]",
    "kafka.partitions": "a mapping of topics to lists of numbers, e.g. {orders: [0, 1]}",
    "kafka.properties": "a mapping of properties to values, e.g. {fetch.min.bytes: 1}",
    "decode": "a mapping, e.g. {value: json}",
    "streams": "a list of mappings, e.g. [{name: paid, topics: [payments], handler: handlers.shop:paid}]",
    "steps": "a list of mappings, e.g. [{name: price, handler: handlers.shop:price, input: source}]",
    "retry": "a mapping, e.g. {period: 1m, max_retries: 5}",
    "retry.by_error": "a mapping of error classes to numbers or `never`, e.g. {KeyError: never}",
    "breaker": "a mapping, e.g. {failure_ratio: 0.5, min_records: 100}",
    "breaker.failure_ratio": "a ratio from 0 to 1, e.g. 0.5",
    "max_offset_behind": "a mapping, e.g. {offsets: 1000000, policy: skip}",
    "spark": "a mapping, e.g. {driver_memory: 2g}",
    "spark.archives": "a list of texts, e.g. [deps.tar.gz]",
    "spark.conf": "a mapping of properties to values, e.g. {spark.cores.max: 4}",
    "ack_topic": "the name of a topic, e.g. orders.acks",
    "in_flight": "a mapping, e.g. {timeout: 30s, max: 10000}",
    "schedule": "a cron expression in quotes, e.g. '*/10 * * * *'",
    "name": "a name, e.g. orders",
    "handler": "module:name, e.g. handlers.orders:handle",
}
"""What each key takes, where the kind of its value alone is not enough."""

_QUOTES = "put a number, a date, or a word such as yes or no in quotes"
_WHOLE_NUMBER = "a whole number in digits, e.g. 1000"
_NUMBER = "a number, e.g. 2 or 0.5"
_TIME = "a time with its zone, e.g. 2026-01-31T12:00:00Z"
_DURATION = "a duration with its unit, e.g. 30s or 5m"
_MAPPING = "a mapping of keys to values"

_KINDS = {
    "string": "text",
    "int": _WHOLE_NUMBER,
    "float": _NUMBER,
    "bool": "true or false",
    "list": "a list, e.g. [a, b]",
    "dict": _MAPPING,
    "mapping": _MAPPING,
    "model": _MAPPING,
    "datetime": _TIME,
    "time": _DURATION,
}
"""What to write, by the first word of the names of pydantic's errors: `int_type`, `int_parsing` …"""

_LIMITS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "greater_than": lambda limits: f"a number above {limits['gt']:,.15g}",
    "greater_than_equal": lambda limits: f"{limits['ge']:,.15g} or more",
    "less_than": lambda limits: f"a number below {limits['lt']:,.15g}",
    "less_than_equal": lambda limits: f"{limits['le']:,.15g} or less",
    "finite_number": lambda _: "a finite number",
    "too_short": lambda limits: f"at least {_counted(limits['min_length'], 'item')}",
    "too_long": lambda limits: f"at most {_counted(limits['max_length'], 'item')}",
    "string_too_short": lambda limits: f"at least {_counted(limits['min_length'], 'character')}",
    "string_too_long": lambda limits: f"at most {_counted(limits['max_length'], 'character')}",
}
"""What to write, by the name of an error about a limit and what the limit is."""

_OTHER = "not valid; docs/settings.md lists what this key takes"


def advice_for(key: str, kind: str, context: Mapping[str, Any], value: object) -> str:
    """Returns what to write at `key` instead of `value`.

    `kind` and `context` are the `type` and the `ctx` of pydantic's error. A kind without a sentence of its own gets
    one that names the page of settings.
    """
    if kind in _LIMITS:
        return f"not valid; write {_LIMITS[kind](context)}"
    if kind == "literal_error":
        shown = f", not {value!r}" if isinstance(value, (str, int, float)) else ""
        return f"write {context['expected'].replace(chr(39), '')}{shown}"
    if kind == "string_pattern_mismatch" and context["pattern"] in ADVICE_BY_PATTERN:
        return f"not valid; {ADVICE_BY_PATTERN[context['pattern']]}"
    if kind == "invalid_key":
        return f"a key is text; {_QUOTES}"
    expected = expected_at(key) or _KINDS.get(kind.partition("_")[0])
    if expected is None or kind == "string_pattern_mismatch":
        return _OTHER
    quotes = f"; {_QUOTES}" if kind == "string_type" and not isinstance(value, (list, dict)) else ""
    return f"not valid; write {expected}{quotes}"


def expected_at(key: str) -> str | None:
    """Returns what a key takes, with an example; None if the kind of its value alone is enough."""
    return _EXPECTED.get(key)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


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


_MAX_PROBLEMS = 20
"""How many problems of one file a message names. The rest are counted."""

RENAMED_KEYS = {
    "isolation": "this key is now called `handler_isolation`; rename it (`kafka.isolation` keeps its name)",
}
"""Keys of earlier versions, each with what to write instead."""

DEAD_LETTER_ADVICE = "write `dead_letter: {topic: NAME}`, or `dead_letter: none` to keep no copy in Kafka"

OUR_KINDS = frozenset({"value_error", "error_at", "dead_letter", "retry_override", "schema_registry"})
"""The names of pydantic's errors whose text a validator of this package has written."""

KeyPath = tuple[str | int, ...]
"""The keys, and positions in lists, that lead from the top of a pipeline file to a value."""


def error_at(key_path: KeyPath, reason: str) -> PydanticCustomError:
    """Returns an error that a validator raises about another key than the one that it checks."""
    return PydanticCustomError("error_at", "{reason}", {"reason": reason, "key_path": key_path})


def refusal(
    path: Path, node: yaml.Node | None, problems: Sequence[ErrorDetails], model: type[BaseModel]
) -> ConfigError:
    """Returns the error for a pipeline file that is not valid; its `key` is that of the first problem.

    `node` is what `yaml_file.read` returned for the file, `problems` are pydantic's, and `model` holds the keys that
    the file may have.
    """
    keys = [_key(problem) for problem in problems]
    lines = [
        f"{path}:{yaml_file.line_of(node, _key_path(problem))}: {key}: {_reason(key, problem, model)}"
        for key, problem in zip(keys, problems[:_MAX_PROBLEMS], strict=False)
    ]
    if len(problems) > _MAX_PROBLEMS:
        lines.append(f"{path}: and {len(problems) - _MAX_PROBLEMS} more problems")
    return ConfigError("\n".join(lines), file=path, key=keys[0])


def _key_path(problem: Mapping[str, Any]) -> KeyPath:
    key_path: KeyPath = problem.get("ctx", {}).get("key_path") or problem["loc"]
    return tuple(part for part in key_path if part not in ("[key]", MAPPING))  # pydantic's own marks, not keys


def _key(problem: Mapping[str, Any]) -> str:
    return ".".join(str(part) for part in _key_path(problem)) or "(whole file)"


def _reason(key: str, problem: Mapping[str, Any], model: type[BaseModel]) -> str:
    kind, message = problem["type"], problem["msg"]
    if kind in OUR_KINDS:  # the text is that of a validator of this package
        return str(message.removeprefix("Value error, "))
    if kind == "extra_forbidden":
        return RENAMED_KEYS.get(key) or _unknown_key(problem, model)
    if kind == "missing":
        advice = f"write {expected}" if (expected := expected_at(key)) else "add this key"
        return f"missing; {DEAD_LETTER_ADVICE if key == 'dead_letter' else advice}"
    return advice_for(key, kind, problem.get("ctx", {}), problem["input"])


def _unknown_key(problem: Mapping[str, Any], model: type[BaseModel]) -> str:
    nearest = nearest_key(model, _key_path(problem))
    return f"unknown key; did you mean `{nearest}`?" if nearest else "unknown key; check its spelling and indentation"
