"""Ready-made operator actions: the configuration of a DAG run, and the command that does the same. Pure.

The page is read-only. Airflow's trigger form takes no values from an address, so the page offers the configuration as
text to paste, beside a link to the DAG. `Airflow 3.3`: https://github.com/apache/airflow/issues/54800.

Once a configuration is pasted, the form of Airflow 3.3 shows the fields alone that are in it. So each configuration has
`confirm`, which an operator sets to true. As it is, the run is a dry run.
"""

import json
import shlex
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ackline.offsets import TopicPartition
from ackline.ui.addresses import Addresses

BACKFILL, OPERATE = "backfill__", "operate__"
"""The prefixes of the DAGs that act on a pipeline. A link is shown only where Airflow has the DAG."""


@dataclass(frozen=True, slots=True)
class Act:
    """An operator action that is filled in. `dag_url` is None where Airflow has no such DAG, or the user can't read
    it."""

    title: str
    effect: str
    command: str
    dag_id: str
    conf: str
    dag_url: str | None


@dataclass(frozen=True, slots=True)
class ActMaker:
    """Makes the acts of one pipeline. `dag_ids` are the DAGs that the user may read."""

    name: str
    lane: str
    dag_ids: Collection[str]
    addresses: Addresses

    def of_pipeline(self) -> list[Act]:
        """Returns what an operator may do with the whole pipeline."""
        return [
            self._retry("Retry everything that is pending now", []),
            self._backfill(
                "Backfill the last two hours", ["--all", "--from", "2h ago"], {"all": True, "from": "2h ago"}
            ),
        ]

    def of_partition(self, tp: TopicPartition, floor: int, complete_to: int) -> list[Act]:
        """Returns what an operator may do with a partition."""
        return [
            self._retry(f"Retry what is pending in {tp} now", [tp]),
            self._skip(f"Skip what is pending below {complete_to}", tp, f"{floor}:{complete_to}"),
            self._backfill(*_range(tp, floor, complete_to)),
        ]

    def of_record(self, tp: TopicPartition, offset: int, pending: bool) -> list[Act]:
        """Returns what an operator may do with one record."""
        again = self._backfill(*_range(tp, offset, offset + 1))
        if not pending:
            return [again]
        return [
            self._retry("Retry this record now", [tp], offsets=str(offset)),
            self._skip("Skip this record", tp, str(offset)),
            again,
        ]

    def of_failures(self, kind: str, error_class: str) -> list[Act]:
        """Returns what an operator may do with all records of an error class."""
        name = error_class or "no error class"
        if kind == "dead":
            chosen = {"all": True, "outcome": "dead", "error_class": error_class}
            options = ["--all", "--outcome", "dead", "--error-class", error_class]
            return [self._backfill(f"Handle the dead records with {name} again", options, chosen)]
        return [self._retry(f"Retry what failed with {name} now", [], error_class=error_class)]

    def _retry(self, title: str, tps: list[TopicPartition], **more: str) -> Act:
        options, conf = _where(tps, more)
        effect = "Pending retries are due at once. The next run makes the attempts; nothing is skipped."
        return self._act(title, effect, OPERATE, "retry", options, {"act": "retry", **conf})

    def _skip(self, title: str, tp: TopicPartition, offsets: str) -> Act:
        options, conf = _where([tp], {"offsets": offsets})
        effect = "Pending records are settled as skipped, so the floor can pass them. They are never handled again."
        return self._act(
            title, effect, OPERATE, "skip", [*options, "--reason", "…"], {"act": "skip", "reason": "", **conf}
        )

    def _backfill(self, title: str, options: list[str], conf: dict[str, Any]) -> Act:
        effect = "A lane of its own reads these records again. It never touches the consumer group."
        return self._act(title, effect, BACKFILL, "backfill", options, conf)

    def _act(self, title: str, effect: str, prefix: str, verb: str, options: list[str], conf: dict[str, Any]) -> Act:
        dag_id = f"{prefix}{self.name}"
        lane = [] if self.lane == "live" or verb == "backfill" else ["--lane", self.lane]
        return Act(
            title,
            effect,
            shlex.join(["ackline", verb, self.name, *options, *lane]),
            dag_id,
            json.dumps({**conf, "confirm": False}, indent=2),
            self.addresses.dag(dag_id) if dag_id in self.dag_ids and not lane else None,  # it acts on the live lane
        )


def _range(tp: TopicPartition, start: int, end: int) -> tuple[str, list[str], dict[str, Any]]:
    chosen = f"{tp.topic}:{tp.partition}:{start}-{end}"
    return f"Backfill {tp} [{start}, {end})", [chosen], {"ranges": [chosen]}


def _where(tps: list[TopicPartition], more: dict[str, str]) -> tuple[list[str], dict[str, Any]]:
    """Returns the options of the command and the parameters of the DAG that choose partitions and records."""
    options: list[str] = []
    conf: dict[str, Any] = {}
    for tp in tps:
        options += ["--topic", tp.topic, "--partition", str(tp.partition)]
        conf |= {"topics": [tp.topic], "partitions": [tp.partition]}
    for name, value in more.items():
        options += [f"--{name.replace('_', '-')}", value]
        conf[name] = value
    return options, conf
