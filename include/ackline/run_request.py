"""What a user asks of one run: fewer records than the file allows, only retries, only some partitions. Pure.

The plan stores the request with its settings, so that every process that works on the turn, and the next turns of the
same run, know it, and so that the tables show it. A plan that is open already keeps what it was planned for.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ackline.errors import ConfigError
from ackline.offsets import TopicPartition

SETTING = "run"
"""The key of the request in the settings of a stored plan."""
PARTITION_PATTERN = r"^[a-zA-Z0-9._-]{1,249}\[(0|[1-9][0-9]{0,9})\]$"
"""A partition as users write it, such as `orders[3]`."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What one run reads at most. Without values it reads what the pipeline file allows."""

    max_records: int | None = None
    """How many offsets a turn of the run reads at most, fresh ones and retries; None for the limit of the file."""
    only_retries: bool = False
    """Whether the run reads due retries alone, and no fresh offset."""
    partitions: frozenset[TopicPartition] | None = None
    """The partitions that the run reads; None for all. The others are committed again, and not read."""

    def includes(self, tp: TopicPartition) -> bool:
        """Returns whether the run may read a partition."""
        return self.partitions is None or tp in self.partitions

    def settings(self) -> dict[str, Any]:
        """Returns the request as a plan stores it; empty without values."""
        given: dict[str, Any] = {}
        if self.max_records is not None:
            given["max_records"] = self.max_records
        if self.only_retries:
            given["only_retries"] = True
        if self.partitions is not None:
            given["partitions"] = [str(tp) for tp in sorted(self.partitions)]
        return {SETTING: given} if given else {}

    @classmethod
    def of_plan(cls, settings: Mapping[str, Any]) -> "RunRequest":
        """Returns the request that is stored with a plan."""
        return parse_request(settings.get(SETTING) or {}, None)


EVERYTHING = RunRequest()
"""The request of a run for which the pipeline file alone decides."""


def parse_request(values: Mapping[str, Any], limit: int | None) -> RunRequest:
    """Returns the request with these values of `max_records`, `only_retries` and `partitions`; others are ignored.

    Raises ConfigError for a value of another type, for more records than `limit`, and for what is no partition.
    """
    number, only_retries = values.get("max_records"), values.get("only_retries", False)
    if number is not None and (type(number) is not int or number < 1 or (limit is not None and number > limit)):
        most = f" to {limit:,}, the `max_records_per_run` of the file" if limit is not None else ""
        raise ConfigError(f"max_records: not valid; write a whole number from 1{most}", key="max_records")
    if type(only_retries) is not bool:
        raise ConfigError("only_retries: not valid; write true or false", key="only_retries")
    names = values.get("partitions")
    if names is None:
        return RunRequest(number, only_retries)
    if not isinstance(names, list) or not names:
        raise ConfigError('partitions: not valid; write a list, e.g. ["orders[0]"]', key="partitions")
    return RunRequest(number, only_retries, frozenset(map(_partition, names)))


def _partition(name: object) -> TopicPartition:
    if not isinstance(name, str) or not re.fullmatch(PARTITION_PATTERN, name):
        raise ConfigError("partitions: one is not a partition; write it as orders[0]", key="partitions")
    topic, _, number = name.removesuffix("]").rpartition("[")
    return TopicPartition(topic, int(number))
