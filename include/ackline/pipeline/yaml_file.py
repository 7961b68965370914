"""Strict reading of YAML files that users write, with the line of each key for error messages.

No error quotes the content of a file: a line with a missing quote may be the one with the password.
"""

import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from ackline.errors import ConfigError

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


def read(path: Path) -> tuple[yaml.Node | None, Any]:
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
