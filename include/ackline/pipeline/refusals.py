"""Reads a pipeline file strictly, and writes what a user reads if it is refused: file, line, key, problem, and advice.

pydantic checks the file. Its own messages describe Python types and never reach a user: this module turns its errors
into one `ConfigError` with a line for each problem. A message quotes no value and no line, which may be a secret or the
line with the password; a word that is not among the words of its key is the exception.
"""

import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel
from pydantic_core import ErrorDetails, PydanticCustomError

from ackline.errors import SETTINGS_PAGE, ConfigError, counted
from ackline.pipeline.field_types import ADVICE_BY_PATTERN, MAPPING, MAPPING_OR_WORD, WORD

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
    "tags": "a list of words, e.g. [shop, eu]",
    "owner": "the name of a team or a person, e.g. payments",
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
    "too_short": lambda limits: f"at least {counted(limits['min_length'], 'item')}",
    "too_long": lambda limits: f"at most {counted(limits['max_length'], 'item')}",
    "string_too_short": lambda limits: f"at least {counted(limits['min_length'], 'character')}",
    "string_too_long": lambda limits: f"at most {counted(limits['max_length'], 'character')}",
}
"""What to write, by the name of an error about a limit and what the limit is."""

_OTHER = f"not valid; {SETTINGS_PAGE} lists what this key takes"


def advice_for(key: str, kind: str, context: Mapping[str, Any], value: object) -> str:
    """Returns what to write at `key` instead of `value`.

    `kind` and `context` are the `type` and the `ctx` of pydantic's error. A kind without a sentence of its own gets
    one that names the page of settings.
    """
    if kind in _LIMITS:
        return f"not valid; write {_LIMITS[kind](context)}"
    if kind in ("literal_error", "enum"):
        shown = f", not {value!r}" if isinstance(value, (str, int, float)) else ""
        return f"write {context['expected'].replace(chr(39), '')}{shown}"
    if kind == "string_pattern_mismatch" and context["pattern"] in ADVICE_BY_PATTERN:
        return f"not valid; {ADVICE_BY_PATTERN[context['pattern']]}"
    if kind == "invalid_key":
        return f"a key is text; {_QUOTES}"
    expected = _EXPECTED.get(key) or _KINDS.get(kind.partition("_")[0])
    if expected is None or kind == "string_pattern_mismatch":
        return _OTHER
    quotes = f"; {_QUOTES}" if kind == "string_type" and not isinstance(value, (list, dict)) else ""
    return f"not valid; write {expected}{quotes}"


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

RENAMED_KEYS = {"isolation": "this key is now called `handler_isolation`; rename it (`kafka.isolation` keeps its name)"}
"""Keys of earlier versions, each with what to write instead."""

DEAD_LETTER_ADVICE = "write `dead_letter: {topic: NAME}`, or `dead_letter: none` to keep no copy in Kafka"

OUR_KINDS = frozenset({"value_error", "error_at", MAPPING_OR_WORD})
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

    `node` is what `read_yaml` returned for the file, `problems` are pydantic's, and `model` holds the keys that
    the file may have.
    """
    # A misspelt key is often the cause of one that is missing, so its hint comes first.
    problems = sorted(problems, key=lambda problem: problem["type"] != "extra_forbidden")
    keys = [".".join(map(str, _key_path(problem))) or "(whole file)" for problem in problems]
    lines = [
        f"{path}:{line_of(node, _key_path(problem))}: {key}: {_reason(key, problem, model)}"
        for key, problem in zip(keys, problems[:_MAX_PROBLEMS], strict=False)
    ]
    if len(problems) > _MAX_PROBLEMS:
        lines.append(f"{path}: and {len(problems) - _MAX_PROBLEMS} more problems")
    return ConfigError("\n".join(lines), file=path, key=keys[0])


def _key_path(problem: Mapping[str, Any]) -> KeyPath:
    key_path: KeyPath = problem.get("ctx", {}).get("key_path") or problem["loc"]
    return tuple(part for part in key_path if part not in ("[key]", MAPPING, WORD))  # pydantic's own marks, not keys


def _reason(key: str, problem: Mapping[str, Any], model: type[BaseModel]) -> str:
    kind, message = problem["type"], problem["msg"]
    if kind in OUR_KINDS:  # the text is that of a validator of this package
        return str(message.removeprefix("Value error, "))
    if kind == "extra_forbidden":
        nearest = nearest_key(model, _key_path(problem))
        advice = f"did you mean `{nearest}`?" if nearest else "check its spelling and indentation"
        return RENAMED_KEYS.get(key) or f"unknown key; {advice}"
    if kind == "missing":
        advice = f"write {expected}" if (expected := _EXPECTED.get(key)) else "add this key"
        return f"missing; {DEAD_LETTER_ADVICE if key == 'dead_letter' else advice}"
    return advice_for(key, kind, problem.get("ctx", {}), problem["input"])


MAX_BYTES = 1 << 18
"""The size of the largest file that is read, in bytes."""

_QUICK_LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader, where PyYAML was built with it: it takes a fifth of the time."""
_SAFE_LEVELS = 1_000
"""libyaml's loader ends the process at some 20,000 levels, where Python's own raises RecursionError."""

_MERGE = "tag:yaml.org,2002:merge"
_MERGED_LEVELS = 20
"""How far the line of a key is looked for in mappings that are merged into one another."""

# PyYAML quotes the content after these words.
_QUOTED = re.compile(r"\b(alias|anchor|tag|handle) .*", re.DOTALL)


def read_yaml(path: Path) -> tuple[yaml.Node | None, Any]:
    """Returns the nodes of a file, for `line_of`, and its content as Python values.

    Raises ConfigError, with the line if it is known, if the file can't be read, is not YAML, or has a key twice.
    """
    try:
        _check_size(path)
        text = path.read_text(encoding="utf-8")
        loader = _loader_of(text)
        node = yaml.compose(text, Loader=loader)
        _check_no_duplicate_keys(path, node)
        return node, yaml.load(text, Loader=loader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read: {error}", file=path) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = error.problem or error.context or "it does not parse"
        if problem.startswith("but ") and error.context:
            problem = f"{error.context}, {problem}"
        problem = _QUOTED.sub(r"\1", problem)
        raise ConfigError(
            f"{path}:{line}: not YAML: {problem}; correct this line or the one above", file=path
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}", file=path) from None
    except RecursionError:
        raise ConfigError(f"{path}: can't be read: it has too many levels; remove some", file=path) from None
    except ValueError:
        raise ConfigError(
            f"{path}: a value looks like a date or a number and is not one; put it in quotes", file=path
        ) from None


def _loader_of(text: str) -> type[yaml.SafeLoader]:
    """Returns the quick loader for a text that can't have many levels: each needs a bracket or one more column."""
    levels = text.count("[") + text.count("{") + max(map(len, text.splitlines()), default=0)
    return _QUICK_LOADER if levels < _SAFE_LEVELS else yaml.SafeLoader


def _check_size(path: Path) -> None:
    # Airflow parses the DAGs, and with them all pipeline files, every few seconds. A huge file, or a device without
    # end, must not hold up the DAGs of the others.
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{path}: can't be read: it is not a regular file; remove it from the folder", file=path)
    if status.st_size > MAX_BYTES:
        raise ConfigError(
            f"{path}: has {status.st_size:,} bytes, and a pipeline file has at most {MAX_BYTES:,}; if it is something "
            f"else, move it out of the folder",
            file=path,
        )


def line_of(node: yaml.Node | None, key_path: Iterable[Any]) -> int:
    """Returns the line, from 1, of the key at `key_path`; if there is none, of the nearest key around it."""
    line = node.start_mark.line + 1 if node else 1
    for part in key_path:
        if isinstance(node, yaml.MappingNode):
            entry = _entry(node, str(part))
            if entry is None:
                return line
            line, node = entry[0].start_mark.line + 1, entry[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
    return line


def _entry(mapping: yaml.MappingNode, name: str, depth: int = 0) -> tuple[yaml.Node, yaml.Node] | None:
    """Returns the key `name` of a mapping with its value, or that of a mapping merged into it with `<<`; None if there
    is none."""
    merged: list[yaml.MappingNode] = []
    for key, value in mapping.value:
        if key.tag == _MERGE:
            sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
            merged += [source for source in sources if isinstance(source, yaml.MappingNode)]
        elif name == key.value or name in _as_python(key):
            return key, value
    if depth < _MERGED_LEVELS:  # a mapping may be merged into itself
        for source in merged:
            if entry := _entry(source, name, depth + 1):
                return entry
    return None


def _as_python(key: yaml.Node) -> tuple[str, ...]:
    """Returns a key that is a number or a word of YAML as pydantic names it, such as `1` for `yes`."""
    if key.tag not in ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:int", "tag:yaml.org,2002:null"):
        return ()
    try:
        value = yaml.safe_load(str(key.value))
    except (yaml.YAMLError, ValueError):
        return ()
    return (str(value), str(int(value))) if isinstance(value, int) else (str(value),)


def _check_no_duplicate_keys(path: Path, node: yaml.Node | None) -> None:
    for mapping in _mappings(node):
        names: set[str] = set()
        for key, _ in mapping.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{path}:{line}: a key is a list or a mapping; write a word", file=path)
            if key.value in names:
                raise ConfigError(
                    f"{path}:{line}: {key.value}: this key appears twice; remove one of the two",
                    file=path,
                    key=key.value,
                )
            names.add(key.value)


def _mappings(root: yaml.Node | None) -> Iterator[yaml.MappingNode]:
    """Yields each mapping once, even if aliases repeat it or make it contain itself."""
    waiting, visited = [root], {id(None)}
    while waiting:
        node = waiting.pop()
        if id(node) in visited:
            continue
        visited.add(id(node))
        if isinstance(node, yaml.MappingNode):
            yield node
            waiting.extend(value for _, value in reversed(node.value))
        elif isinstance(node, yaml.SequenceNode):
            waiting.extend(reversed(node.value))
