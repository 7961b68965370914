"""The fleet of a soak: its pipelines, one of each kind first, with their files, topics and connection.

A soak of 50 pipelines has all three tiers, both weaker guarantees, steps with joins, output tables that get columns, an
ack topic, and a compacted topic. All of a fleet is below one folder: the pipeline files, the audit root, the tokens of
records in flight and the journals.
"""

import json
import secrets
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from ackline.local.broker import Broker
from ackline.pipeline.pipeline import Pipeline, load
from tests.e2e.shop import HANDLERS, OUTPUTS, STEPS

KINDS = ("record", "batch", "column", "shop", "table", "answered", "once", "none", "compacted")
SHARES = {"record": 20, "batch": 8, "column": 6, "shop": 4, "table": 4, "answered": 4, "once": 2, "none": 1,
          "compacted": 1}  # fmt: skip
"""How many of 50 pipelines are of a kind."""
PARTITIONS = 2
SECONDS = 30
"""How long a request to the broker may take."""
RETRY = {"initial_delay": "20s", "period": "40s", "max_delay": "5m", "max_retries": 3}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "5000",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "10000",
}
_HANDLERS = {
    "batch": "tests.soak.work:batch",
    "column": "tests.soak.work:column",
    "shop": f"{HANDLERS}:split",
    "table": "tests.soak.work:rows",
    "answered": "tests.e2e.handlers:hands_on",
    "once": "tests.soak.work:once",
}
_GUARANTEES = {"once": "at_most_once", "none": "no_guarantee"}


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    kind: str
    folder: Path

    @property
    def topic(self) -> str:
        return f"{self.name}-in"

    @property
    def dead_letter_topic(self) -> str | None:
        """Where its dead letters go; None under the two guarantees that have none."""
        return None if self.kind in _GUARANTEES else f"{self.name}-dead"

    @property
    def ack_topic(self) -> str:
        """Where answers to its records in flight come from."""
        return f"{self.name}-acks"

    @property
    def partitions(self) -> int:
        """How many partitions its topic has. Tokens are found by offset alone, so a topic of records in flight has
        one."""
        return 1 if self.kind == "answered" else PARTITIONS

    @property
    def group(self) -> str:
        return f"{self.name}-group"

    @property
    def tokens(self) -> Path:
        """The file to which its handler writes the tokens of records in flight."""
        return self.folder / "tokens" / self.name

    @property
    def file(self) -> Path:
        return self.folder / "pipelines" / f"{self.name}.yaml"

    def settings(self, bootstrap: str) -> dict[str, Any]:
        kafka: dict[str, Any] = {"group_id": self.group, "topics": [self.topic]}
        dead = self.dead_letter_topic
        settings: dict[str, Any] = {
            "name": self.name,
            "kafka": kafka | {"bootstrap_servers": bootstrap},
            "handler": _HANDLERS.get(self.kind, "tests.soak.work:handle"),
            "dead_letter": {"topic": dead} if dead else "none",
            "retry": RETRY,
        }
        if self.kind in _GUARANTEES:
            settings |= {"guarantee": _GUARANTEES[self.kind], "lost_after": "10m"}
        if self.kind == "shop":
            settings |= {"steps": STEPS, "outputs": OUTPUTS}
        if self.kind == "table":
            settings["outputs"] = [{"from": "source", "table": "orders"}]
        if self.kind == "answered":
            settings |= {"kafka": kafka | {"connection": "soak"}, "ack_topic": self.ack_topic,
                         "in_flight": {"timeout": "2m"}}  # fmt: skip
        return settings

    def write(self, bootstrap: str) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(yaml.safe_dump(self.settings(bootstrap)))

    def load(self) -> Pipeline:
        return load(self.file)


@dataclass(frozen=True, slots=True)
class Fleet:
    """All pipelines of a soak, and where they are."""

    folder: Path
    bootstrap: str
    members: tuple[Member, ...]
    key: str
    """The key of the tokens."""

    @property
    def audit(self) -> str:
        return str(self.folder / "audit")

    @property
    def connection(self) -> Mapping[str, Any]:
        return {"bootstrap.servers": self.bootstrap, "ackline.token_keys": [self.key]}

    def bounds(self, member: Member, partition: int) -> tuple[int, int]:
        """Returns the start and the end of a log. Raises KafkaException if the broker is away."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "soak", "log_level": 0}
        with closing(Consumer(settings)) as consumer:
            start, end = consumer.get_watermark_offsets(TopicPartition(member.topic, partition), timeout=SECONDS)
        return start, end

    def expire(self, member: Member, partition: int, before: int) -> None:
        """Deletes the records below an offset. Raises KafkaException if the broker is away."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for answer in admin.delete_records([TopicPartition(member.topic, partition, before)]).values():
            answer.result(SECONDS)

    def by_name(self) -> dict[str, Member]:
        return {member.name: member for member in self.members}


def build(broker: Broker, folder: Path, count: int) -> Fleet:
    """Creates the topics and files of `count` pipelines."""
    for name in ("tokens", "journals", "tmp"):
        (folder / name).mkdir(parents=True)
    members = tuple(Member(f"p{n:02}-{kind}", kind, folder) for n, kind in enumerate(kinds_of(count)))
    for member in members:
        broker.create_topic(member.topic, member.partitions, COMPACTED if member.kind == "compacted" else None)
        if member.dead_letter_topic:
            broker.create_topic(member.dead_letter_topic)
        if member.kind == "answered":
            broker.create_topic(member.ack_topic)
        member.write(broker.bootstrap)
    key = secrets.token_hex(16)
    (folder / "fleet.json").write_text(json.dumps({"bootstrap": broker.bootstrap, "key": key, "count": count}))
    return Fleet(folder, broker.bootstrap, members, key)


def reopen(folder: Path) -> Fleet:
    """Returns the fleet that another process has built in a folder."""
    saved = json.loads((folder / "fleet.json").read_text())
    members = tuple(Member(f"p{n:02}-{kind}", kind, folder) for n, kind in enumerate(kinds_of(saved["count"])))
    return Fleet(folder, saved["bootstrap"], members, saved["key"])


def kinds_of(count: int) -> list[str]:
    """Returns the kinds of `count` pipelines: one of each, then those of which SHARES has most left.

    What a fleet of more than 50 has beyond that is `record`."""
    chosen = list(KINDS[:count])
    left = {kind: share - 1 for kind, share in SHARES.items()}
    left["record"] += max(0, count - sum(SHARES.values()))
    while len(chosen) < count:
        kind = max(left, key=left.__getitem__)
        left[kind] -= 1
        chosen.append(kind)
    return chosen
