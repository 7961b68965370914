"""The settings in force, which are logged at the start of a run, and the warnings about them.

A warning is about a setting that is allowed and may lose records, given how the topics delete theirs.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ackline.errors import AcklineError
from ackline.lane.adapters import Adapters
from ackline.pipeline import warnings
from ackline.scrub import scrub_setting
from ackline.tables.store import LedgerStore


def effective_settings(adapters: Adapters) -> str:
    """Returns all settings of a pipeline on one line, defaults included, as `KEY=VALUE` with the keys of the file.

    Of Kafka properties, from file and connection, only the names are shown, because their values may be secret; of the
    connection also the brokers. Any other value that looks like a secret is masked.
    """
    settings = dict(_flattened(adapters.pipeline.settings()))
    settings["kafka.bootstrap_servers"] = str(adapters.kafka.get("bootstrap.servers", ""))
    settings["kafka.connection.properties"] = ",".join(sorted(str(name) for name in adapters.kafka)) or "none"
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


def run_warnings(adapters: Adapters, topics: Iterable[str]) -> list[str]:
    """Returns one sentence for each warning, naming the setting; `topics` are those that are read.

    Never raises. If the broker refuses to describe topics (DescribeConfigs), leaves out the warnings that depend on
    topics.
    """
    try:
        return [*adapters.setting_warnings, *topic_warnings(adapters, topics)]
    except AcklineError:
        return list(adapters.setting_warnings)


def topic_warnings(adapters: Adapters, topics: Iterable[str]) -> list[str]:
    """Returns the warnings that depend on retention and compaction of the topics.

    Raises AcklineError if the broker does not describe the topics.
    """
    dead_letter_topic = adapters.pipeline.dead_letter_topic
    policies = adapters.cluster.policies([*topics, *([dead_letter_topic] if dead_letter_topic is not None else [])])
    return list(warnings.warnings_of_topics(adapters.pipeline, policies))
