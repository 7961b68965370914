"""A shop whose orders are priced and summed into output tables, and lanes whose records wait for answers."""

import json
import secrets
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from ackline.local.broker import Broker
from tests.e2e import wire
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab

HANDLERS = "tests.spark.output_handlers"
STEPS = [
    {"name": "price", "handler": f"{HANDLERS}:price", "input": "source.items", "group_by": "key"},
    {"name": "total", "handler": f"{HANDLERS}:total", "input": "price", "group_by": "key", "join": True},
]
OUTPUTS: list[dict[str, Any]] = [
    {"from": "total", "table": "order_totals"},
    {"from": "price.rejected", "table": "rejected"},
    {"from": "source.counts", "table": "counts", "columns": {"order": "string", "items": "long"}},
]
KEY = "canary-of-the-token-keys"
AT_ONCE = {"initial_delay": "0s", "period": "0s", "max_retries": 1}


class Answered:
    """A lane whose handler hands records on, and its ack topic."""

    def __init__(self, make: MakeLab, broker: Broker, topic_config: dict[str, str] | None = None, **settings: Any):
        self.topic = f"acks-{secrets.token_hex(4)}"
        broker.create_topic(self.topic, 2, topic_config)
        base: dict[str, Any] = {
            "kafka": {"connection": "shop"}, "handler": "tests.e2e.handlers:hands_on", "ack_topic": self.topic,
            "in_flight": {"timeout": "10s"}, "retry": AT_ONCE,
        }  # fmt: skip
        self.lane: Lab = make(**{**base, **settings})
        self.broker = broker
        self.file = self.lane.folder / "tokens"

    @property
    def environment(self) -> dict[str, str]:
        extra = {"bootstrap.servers": self.broker.bootstrap, "ackline.token_keys": [KEY]}
        return {"AIRFLOW_CONN_SHOP": json.dumps({"conn_type": "kafka", "extra": extra})}

    def order(self, **more: Any) -> dict[str, Any]:
        return {"wait": str(self.file), **more}

    def tokens(self) -> dict[tuple[int, int], str]:
        lines = (line.split() for line in self.file.read_text().splitlines())
        return {(int(offset), int(attempt)): token for offset, attempt, token in lines}

    def answer(self, offset: int, value: str = "ack", attempt: int = 1, times: int = 1) -> None:
        """Answers as a worker with a Kafka client of its own does."""
        token = self.tokens()[offset, attempt].encode()
        wire.produce(self.broker.bootstrap, self.topic, [wire.Write(value.encode(), token)] * times, offset % 2)

    def command(self, *arguments: str) -> str:
        done = self.lane.ackline(*arguments, env=self.environment)
        assert done.returncode == 0, done.stderr
        assert KEY not in done.stdout + done.stderr
        return str(done.stdout)

    def run(self, seconds: float = 0) -> Any:
        """A run so many seconds later; its JSON."""
        self.lane.advance_clock(seconds)
        shown = self.command("run", self.lane.name, "--now", self.lane.now.isoformat(), "--json")
        return json.loads(shown.splitlines()[-1])

    def pending(self) -> dict[str, int]:
        (partition,) = json.loads(self.command("status", self.lane.name, "--json"))["partitions"]
        return dict(partition["pending"])


def shop(lab: MakeLab, **settings: Any) -> Lab:
    """A lab whose orders are priced and summed."""
    lane = lab(handler=f"{HANDLERS}:split", steps=STEPS, **{"outputs": OUTPUTS, **settings})
    lane.journalled = False
    return lane


def order(number: int, *items: dict[str, Any]) -> bytes:
    return json.dumps({"id": f"o{number}", "items": list(items)}).encode()


def item(product: str, pieces: int = 1, **more: Any) -> dict[str, Any]:
    return {"product": product, "pieces": pieces, **more}


def rows_of(lane: Lab, table: str) -> list[dict[str, Any]]:
    """The rows of an output table, sorted by offset."""
    folder = Path(lane.audit) / lane.name / "outputs" / table
    rows: list[dict[str, Any]] = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: (row["_offset"], json.dumps(row, default=str)))


def staged(lane: Lab) -> list[str]:
    return sorted(path.name for path in (Path(lane.audit) / lane.name / ".staging").iterdir() if path.is_dir())


class Killed(BaseException):
    """The end of a process at a line."""


def killed_at(place: str, patch: pytest.MonkeyPatch) -> None:
    """Has the next run end where it would call the function `place`."""

    def die(*_: object, **__: object) -> None:
        raise Killed(place)

    patch.setattr(place, die)


class Shop(Answered):
    """A lane whose orders are priced and summed, and wait for their answers."""

    def __init__(self, lab: MakeLab, broker: Broker, **settings: Any) -> None:
        steps = {"handler": f"{HANDLERS}:split_and_hand_on", "steps": STEPS, "outputs": OUTPUTS}
        super().__init__(lab, broker, **{**steps, **settings})
        self.lane.journalled = False

    def shop_order(self, name: str, *items: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"id": name, "items": list(items), "wait": str(self.file), **more}

    def rows(self, table: str) -> list[tuple[int, int, int, list[tuple[int, str]]]]:
        """Offset, attempt and turn of each row, and its anchors with their outcomes."""
        if not (Path(self.lane.audit) / self.lane.name / "outputs" / table).exists():
            return []
        return [
            (row["_offset"], row["_attempt"], row["_turn"], [(a["offset"], a["outcome"]) for a in row["_anchors"]])
            for row in rows_of(self.lane, table)
        ]
