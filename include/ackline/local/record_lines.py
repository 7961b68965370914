"""Records as lines of JSON: what `ackline dev produce --file` reads and `ackline dev consume` prints.

A line is an object with `value` and, if there are any, `key`, `headers` (a list of pairs, or an object) and
`partition`. Text stands for itself, null for no value or no key, any other JSON for its text. Bytes that are not UTF-8
are `{"base64": "…"}`. A line without the field `value` is the value of a record as it is.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ackline.errors import ConfigError

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class RecordLine:
    """A record to produce; `partition` of None lets the client choose it by the key."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None


def read_records(path: Path) -> Iterator[RecordLine]:
    """Yields the record of each line that is not blank. Raises ConfigError with the line of what is none."""
    try:
        with path.open(encoding="utf-8") as file:
            yield from parse_records(file, path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: can't be read: {reason}", file=path, key="--file") from None


def parse_records(lines: Iterable[str], path: Path) -> Iterator[RecordLine]:
    """Yields the record of each line that is not blank. Raises ConfigError with the line of what is none."""
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        try:
            yield _record(json.loads(text), text)
        except (ValueError, RecursionError) as error:
            reason = "not JSON" if isinstance(error, json.JSONDecodeError | RecursionError) else str(error)
            raise ConfigError(f"{path}:{number}: {reason}; write one JSON value on each line", file=path) from None


def _record(content: Any, text: str) -> RecordLine:
    if not isinstance(content, dict) or "value" not in content:
        return RecordLine(text.encode())
    partition = content.get("partition")
    if partition is not None and (type(partition) is not int or partition < 0):
        raise ValueError("partition is not a number")
    return RecordLine(_bytes(content["value"]), _bytes(content.get("key")), _headers(content.get("headers")), partition)


def _headers(content: Any) -> Headers:
    pairs = list(content.items()) if isinstance(content, dict) else content or []
    if not isinstance(pairs, list) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
        raise ValueError("headers are not pairs")
    if not all(isinstance(name, str) for name, _ in pairs):
        raise ValueError("the name of a header is not text")
    return tuple((name, _bytes(value)) for name, value in pairs)


def _bytes(content: Any) -> bytes | None:
    if content is None:
        return None
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, dict) and content.keys() == {"base64"} and isinstance(content["base64"], str):
        return base64.b64decode(content["base64"], validate=True)
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def record_json(
    partition: int, offset: int, timestamp: str | None, key: bytes | None, value: bytes | None, headers: Headers
) -> Mapping[str, Any]:
    """Returns a record of the log as a line for a program; `read_records` reads it again."""
    shown = {"partition": partition, "offset": offset, "timestamp": timestamp, "key": _text(key), "value": _text(value)}
    return {**shown, "headers": [[name, _text(header)] for name, header in headers]}


def _text(content: bytes | None) -> Any:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}
