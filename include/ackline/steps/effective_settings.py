"""The settings in force, said at the start of a run."""

from collections.abc import Iterator, Mapping
from typing import Any

from ackline.audit.store import LedgerStore
from ackline.scrub import scrub_setting
from ackline.steps.parts import Parts


def in_force(parts: Parts) -> str:
    """All settings of a pipeline on one line, defaults included, as `KEY=VALUE` with the file's keys.

    Of Kafka's properties, the file's and the connection's, only the names, and of the connection the brokers: their
    values may be secret. What looks like a secret anywhere else is masked.
    """
    said = dict(_flat(parts.pipeline.settings()))
    said["kafka.bootstrap_servers"] = str(parts.kafka.get("bootstrap.servers", ""))
    said["kafka.connection.properties"] = ",".join(sorted(str(name) for name in parts.kafka)) or "none"
    return " ".join(scrub_setting(key, value) for key, value in said.items())


def rows_are_off(store: LedgerStore) -> bool:
    """Whether the lane's newest turn was planned with `record_outcomes: false`."""
    newest = store.newest()
    return (
        newest is not None and newest.turn.n > 0 and not store.plan(newest.turn).settings.get("record_outcomes", True)
    )


def _flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{key}.")
        elif isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
            yield from _flat({str(number): one for number, one in enumerate(value)}, f"{above}{key}.")
        elif value is not None:
            yield f"{above}{key}", " ".join(_text(value).split())


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ",".join(_text(one) for one in value) + "]"
    return "{}" if isinstance(value, Mapping) else str(value)
