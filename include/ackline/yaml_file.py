"""A YAML file that people write: read strictly, with the line of each key for the errors about it.

No error repeats what the file holds: a line with a missing quote may be the one with the password.
"""

import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from ackline.errors import ConfigError

LARGEST = 1 << 18
"""Bytes of the largest file that is read."""

_QUOTED = re.compile(r"\b(alias|anchor|tag|handle) .*", re.DOTALL)


def read(path: Path) -> tuple[yaml.Node | None, Any]:
    """The nodes of a file, for `line_of`, and what it holds.

    Raises ConfigError, with the line where it is known, for what is not readable, not YAML, or repeats a key.
    """
    try:
        _check_size(path)
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        _check_keys(path, node)
        return node, yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read: {error}", file=path) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = _QUOTED.sub(r"\1", error.problem or error.context or "it does not parse")
        raise ConfigError(f"{path}:{line}: not YAML: {problem}", file=path) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}", file=path) from None
    except RecursionError:
        raise ConfigError(f"{path}: not YAML that can be read: it is nested too deep", file=path) from None
    except ValueError:
        raise ConfigError(
            f"{path}: a value looks like a date or a number and is none: put it in quotes", file=path
        ) from None


def _check_size(path: Path) -> None:
    """Whoever parses DAGs reads all files every few seconds: none may hold the others up."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path}: can't be read: it is not a file", file=path)
    if found.st_size > LARGEST:
        raise ConfigError(
            f"{path}: has {found.st_size:,} bytes, a pipeline file has at most {LARGEST:,}: is it something else?",
            file=path,
        )


def line_of(node: yaml.Node | None, place: Iterable[Any]) -> int:
    """The line (from 1) of the key at `place`, or of the nearest block around it."""
    line = node.start_mark.line + 1 if node else 1
    for part in place:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    line, node = key.start_mark.line + 1, value
                    break
            else:
                return line
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
    return line


def _check_keys(path: Path, node: yaml.Node | None) -> None:
    for mapping in _mappings(node):
        seen: set[str] = set()
        for key, _ in mapping.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{path}:{line}: a key is a word, not a list or a block", file=path)
            if key.value in seen:
                raise ConfigError(f"{path}:{line}: {key.value}: the key is there twice", file=path, key=key.value)
            seen.add(key.value)


def _mappings(root: yaml.Node | None) -> Iterator[yaml.MappingNode]:
    """Each mapping once, however often an alias repeats it or lets it hold itself."""
    waiting, known = [root], {id(None)}
    while waiting:
        node = waiting.pop()
        if id(node) in known:
            continue
        known.add(id(node))
        if isinstance(node, yaml.MappingNode):
            yield node
            waiting.extend(value for _, value in reversed(node.value))
        elif isinstance(node, yaml.SequenceNode):
            waiting.extend(reversed(node.value))
