"""The settings in force, which are logged at the start of a run."""

from collections.abc import Iterator, Mapping
from typing import Any

from ackline.audit.store import LedgerStore
from ackline.scrub import scrub_setting
from ackline.steps.parts import Parts


def effective_settings(parts: Parts) -> str:
    """Returns all settings of a pipeline on one line, defaults included, as `KEY=VALUE` with the keys of the file.

    Of Kafka properties, from file and connection, only the names are shown, because their values may be secret; of the
    connection also the brokers. Any other value that looks like a secret is masked.
    """
    settings = dict(_flattened(parts.pipeline.settings()))
    settings["kafka.bootstrap_servers"] = str(parts.kafka.get("bootstrap.servers", ""))
    settings["kafka.connection.properties"] = ",".join(sorted(str(name) for name in parts.kafka)) or "none"
    return " ".join(scrub_setting(key, value) for key, value in settings.items())


def outcome_rows_are_off(store: LedgerStore) -> bool:
    """Returns whether the lane's newest turn was planned with `record_outcomes: false`."""
    newest = store.newest()
    return (
        newest is not None and newest.turn.n > 0 and not store.plan(newest.turn).settings.get("record_outcomes", True)
    )


def _flattened(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flattened(value, f"{prefix}{key}.")
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            yield from _flattened({str(number): item for number, item in enumerate(value)}, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", " ".join(_text(value).split())


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ",".join(_text(item) for item in value) + "]"
    return "{}" if isinstance(value, Mapping) else str(value)
