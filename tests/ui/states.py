"""Lanes in the states that the page has to show, stored once for the pictures of them, without a broker and Airflow."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ackline.errors import AcklineError, GroupMoved, NewerCommit, TopicChanged
from ackline.handler import Durations, StepCounts
from ackline.ledger.commit_rule import CommitMetadata
from ackline.ledger.metrics import StepFigures
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.published import OutputsOfTurn, TableOfTurn
from ackline.tables.layout import noted_stop
from ackline.ui import app, pages, readings
from ackline.ui.filters import Listed, ListedFile
from ackline.ui.links import Addresses
from ackline.ui.readings import LaneReading
from tests.support.memory_lane import OK, TP, MemoryLane
from tests.ui.stored_lanes import StoredLane, StoredPartition, write_lane

ADDRESSES = Addresses("/ackline/", "")
LISTED = Listed(readable=53, tags=["eu", "shop", "t" * 100], address="/ackline/")
SETTLED_AGO = timedelta(minutes=5)
"""How long ago the newest turn of each lane was settled."""
_MS = 1_000_000
SHOP = """
name: shop
kafka: {bootstrap_servers: "127.0.0.1:9", group_id: shop, topics: [shop]}
handler: handlers.shop:split
steps:
  - {name: price, handler: "handlers.shop:price", input: source.items, group_by: key}
  - {name: total, handler: "handlers.shop:total", input: [price, source.header], group_by: key, join: true}
outputs:
  - {from: total, table: order_totals}
  - {from: price.rejected, topic: rejected}
dead_letter: {topic: shop.dead}
"""
STEPS = StepFigures(
    {
        "source": StepCounts(1200, 3600, 1190, 10, Durations(1200, 3_000 * _MS, 9 * _MS)),
        "price": StepCounts(3600, 3560, 3560, 40, Durations(3600, 7_600 * _MS, 412 * _MS)),
        "total": StepCounts(3560, 1150, 3560, 0, Durations(1190, 700 * _MS, 5 * _MS)),
    },
    Durations(1150, 11_900 * _MS, 1000 * _MS),
)


def at_price(offset: int) -> str:
    """The message of a record that failed in the step `price`."""
    return f"step price: column total: 'a lot' of order {offset} is no double"


def _moved(lane: MemoryLane) -> None:
    lane.move_group(TP, 1)


def _taken(lane: MemoryLane) -> None:
    lane.move_group(TP, 1, CommitMetadata("another", "lane", 0, 77).encode())


def _gone(lane: MemoryLane) -> None:
    lane.create("orders")


REFUSED: dict[str, tuple[Callable[[MemoryLane], None], type[AcklineError]]] = {
    "moved": (_moved, GroupMoved),
    "restored": (_taken, NewerCommit),
    "gone": (_gone, TopicChanged),
}
"""By lane: what happens to it, and the error of each run after that."""


def write_states(root: str, pipelines: Path) -> None:
    """Stores the lanes below an audit root, and the pipeline file of `shop`."""
    (pipelines / "shop.yaml").write_text(SHOP)

    def tps(name: str, number: int = 1) -> list[TopicPartition]:
        return [TopicPartition(name, n) for n in range(number)]

    now = datetime.now(UTC).replace(microsecond=0) - SETTLED_AGO
    many = {tp: StoredPartition(arrive=20, read=20 - tp.partition % 7 // 6, vary=7) for tp in tps("clicks", 300)}
    write_lane(root, "clicks", many, 2, whole=False, now=now)
    write_lane(root, "payments", {tp: StoredPartition() for tp in tps("payments", 2)}, 4, now=now)
    write_lane(root, "letters", {tp: StoredPartition(die_every=5) for tp in tps("letters", 2)}, 5, now=now)
    shop = {tp: StoredPartition(fail_every=37) for tp in tps("shop")}
    write_lane(root, "shop", shop, 3, now=now, steps=STEPS, error_class="BadOutput", message=at_price)
    calls = {TopicPartition("calls", 0): StoredPartition(in_flight=(10, 60))}
    calls[TopicPartition("calls", 1)] = StoredPartition(hold=7, fail_every=100)
    write_lane(root, "calls", calls, 4, now=now)
    near = {TopicPartition("near", 0): StoredPartition(read=60, retention=25, hold=141, fail_every=30)}
    near[TopicPartition("near", 1)] = StoredPartition(read=60, retention=20)
    write_lane(root, "near", near, 8, now=now)
    bursts = {tp: StoredPartition(arrive=30, read=100_000, die_every=17) for tp in tps("bursts")}
    write_lane(root, "bursts", bursts, 7, now=now, arrivals={3: 20_000})
    write_lane(root, "foreign", {tp: StoredPartition(foreign=40) for tp in tps("foreign")}, 2, now=now)
    outputs = OutputsOfTurn({}, tables={"order_totals": TableOfTurn(100, ())}).encode()
    write_lane(root, "unpublished", {tp: StoredPartition() for tp in tps("unpublished")}, 2, now=now, outputs=outputs)
    for name, (strike, error) in REFUSED.items():
        stored = write_lane(root, name, {tp: StoredPartition() for tp in tps(name)}, 2, now=now)
        stop(stored, strike, error)


def stop(stored: StoredLane, strike: Callable[[MemoryLane], None], error: type[AcklineError]) -> None:
    """Notes beside a stored lane the error with which a run of another lane in that state stops."""
    lane = MemoryLane(OK, OK).after_run()
    strike(lane)
    adapters = lane.adapters()
    with pytest.raises(error), noted_stop(stored.store, "scheduled__1"):
        lane.run(adapters)


def overview(number: int = 40) -> str:
    """Returns the view of all pipelines, with so many more of them, each in one of the stored states."""
    states = readings.read_lanes(["bursts", "calls", "clicks", "foreign", "letters", "near", "payments", "shop",
                                  "unpublished", *REFUSED])  # fmt: skip
    lanes = [reading for reading in states if isinstance(reading, LaneReading)]
    assert len(lanes) == len(states)
    calm = [lane for lane in lanes if lane.name in ("payments", "clicks", "calls", "shop")]
    files = [ListedFile(), ListedFile(("eu",)), ListedFile(("eu", "shop")), ListedFile(("t" * 100,))]
    more = [
        replace(calm[n % len(calm)], name=f"team-{n % 5}-topic-{n:02d}" + "-of-a-long-name" * (n % 10 // 9 * 4),
                file=files[n % 8 % len(files)])
        for n in range(number)
    ]  # fmt: skip
    return pages.index([*lanes, *more, ("broken", "the tables can't be read")], ADDRESSES, datetime.now(UTC), LISTED)


def _dags(name: str) -> set[str]:
    """Returns the DAGs of a pipeline, of a user who may read every one."""
    return {f"{kind}__{name}" for kind in ("replay", "operate", "backfill")}


def pipeline_view(name: str) -> str:
    """Returns the view of a pipeline."""
    return app.pipeline(readings.read_lane(name), _dags(name))


def partition_view(name: str, partition: int) -> str:
    """Returns the view of a partition of the topic of the same name."""
    return app.partition(readings.read_lane(name), _dags(name), name, partition)


def failures_view(name: str, kind: str, error_class: str, step: str = "") -> str:
    """Returns the list of the records of a group, or of those that failed in a step."""
    return app.failures(readings.read_lane(name), _dags(name), kind, error_class, step)


def record_view(name: str, partition: int, offset: int) -> str:
    """Returns the story of a record of the topic of the same name."""
    return app.record(readings.read_lane(name), _dags(name), name, partition, offset)


def turn_view(name: str, n: int) -> str:
    """Returns the view of a turn."""
    return app.turn(name, 0, n)


def run_view(name: str) -> str:
    """Returns the view of the run that has settled the newest turn."""
    reading = readings.read_lane(name)
    assert reading.newest is not None
    return app.run(reading, reading.newest.run_id)


VIEWS: dict[str, Callable[[], str]] = {
    "overview": overview,
    "300 partitions": lambda: pipeline_view("clicks"),
    "up to date": lambda: pipeline_view("payments"),
    "200 dead letters": lambda: pipeline_view("letters"),
    "steps": lambda: pipeline_view("shop"),
    "records in flight": lambda: pipeline_view("calls"),
    "retention close": lambda: pipeline_view("near"),
    "small turns beside a large one": lambda: pipeline_view("bursts"),
    "foreign commit": lambda: pipeline_view("foreign"),
    "output not published": lambda: pipeline_view("unpublished"),
    "group moved": lambda: pipeline_view("moved"),
    "partition up to date": lambda: partition_view("payments", 0),
    "partition that loses": lambda: partition_view("near", 0),
    "partition that retention comes near": lambda: partition_view("near", 1),
    "partition in flight": lambda: partition_view("calls", 0),
    "partition with a foreign commit": lambda: partition_view("foreign", 0),
    "failing records": lambda: failures_view("calls", "retry", "requests.HTTPError"),
    "dead records": lambda: failures_view("letters", "dead", "requests.HTTPError"),
    "records of a step": lambda: failures_view("shop", "failed", "", step="price"),
    "dead record": lambda: record_view("letters", 0, 13),
    "record in flight": lambda: record_view("calls", 0, 10),
    "turn": lambda: turn_view("letters", 2),
    "run": lambda: run_view("letters"),
}
"""The views of these states by name."""
