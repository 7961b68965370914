"""What a user reads when a pipeline file is refused: file, line, key, what is wrong with it, and what to do.

pydantic checks the file. This module turns its errors into one `ConfigError` with a line for each problem.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from ackline import yaml_file
from ackline.blocks import MAPPING
from ackline.errors import ConfigError
from ackline.field_messages import advice_for, expected_at
from ackline.known_keys import nearest_key

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


def refusal(path: Path, node: yaml.Node | None, error: ValidationError, model: type[BaseModel]) -> ConfigError:
    """Returns the error for a pipeline file that is not valid; its `key` is that of the first problem.

    `node` is what `yaml_file.read` returned for the file, and `model` holds the keys that the file may have.
    """
    problems = error.errors(include_url=False)
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
