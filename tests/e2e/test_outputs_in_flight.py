"""Outputs of records in flight: their rows wait until the turn that acks their record, whatever is killed meanwhile."""

import json
from pathlib import Path
from typing import Any

import pytest

from ackline.local.broker import Broker
from tests.e2e.fixtures import MakeLab
from tests.e2e.test_in_flight import Answered
from tests.e2e.test_outputs import HANDLERS, OUTPUTS, STEPS, Killed, item, killed_at, rows_of, staged

ACKING = [
    "ackline.tables.store.LedgerStore.store_plan",
    "ackline.tables.store.LedgerStore.store_outcomes",
    "ackline.tables.store.LedgerStore.store_decisions",
    "ackline.steps.settle.settled_outputs",
    "ackline.tables.kept_rows._KeptFile.finish",
    "ackline.tables.store.LedgerStore.store_settlement",
    "ackline.steps.settle.publish_settled",
    "ackline.tables.publish._write",
    "ackline.tables.output_table.OutputTable.append",
    "ackline.outputs.turn.remove_staged",
    "ackline.kafka.group.Group.commit",
]
"""Functions that the run of an acking turn calls, between its writes."""


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


def test_s67_s68_s69_rows_wait_for_their_records_and_are_there_once(lab: MakeLab, broker: Broker) -> None:
    shop = Shop(lab, broker)
    lane = shop.lane
    lane.produce(
        shop.shop_order("o0", item("a", 2), item("b")),
        {**shop.shop_order("o1", item("a")), "wait": None},
        shop.shop_order("both", item("a")),
        shop.shop_order("both", item("b")),
        shop.shop_order("o4", item("c", fail=True)),
        shop.shop_order("o5", item("a"), early=[broker.bootstrap, shop.topic]),
        shop.shop_order("o6", item("d")),
    )
    assert shop.run()["outcomes"] == {"acked": 2, "failed": 1, "in_flight": 5}
    assert shop.rows("counts") == [(1, 1, 1, [(1, "acked")]), (5, 1, 1, [(5, "acked")])]
    assert len(staged(lane)) == 1
    lane.judge()
    shop.command("maintain")
    shop.answer(0)
    shop.answer(3)
    shop.answer(6, "fail no stock")
    second = shop.run(5)
    assert second["answers"] == {"acked": 2, "failed": 1}
    assert [row for row in shop.rows("order_totals") if row[0] in (0, 2, 3)] == [
        (0, 1, 2, [(0, "acked")]), (3, 1, 2, [(2, "in_flight"), (3, "acked")]),
    ]  # fmt: skip
    lane.judge()
    shop.answer(2)
    shop.run(1)  # makes the second attempt at 6
    shop.answer(6, attempt=2)
    shop.run(1)
    totals = shop.rows("order_totals")
    assert [row[3] for row in totals if row[0] in (2, 3)] == [[(2, "in_flight"), (3, "acked")]], "published once"
    assert [row[:2] for row in shop.rows("counts")] == [(0, 1), (1, 1), (2, 1), (3, 1), (5, 1), (6, 2)]
    assert (6, 2) in [row[:2] for row in totals]
    assert staged(lane) == []
    lane.judge(settled=True)


@pytest.mark.deep
def test_s68_a_run_killed_anywhere_in_the_acking_turn_leaves_each_row_once(lab: MakeLab, broker: Broker) -> None:
    shop = Shop(lab, broker, in_flight={"timeout": "none"})
    lane = shop.lane
    lane.produce(*[shop.shop_order(f"o{number}", item("a")) for number in range(len(ACKING) + 1)])
    shop.run()
    assert shop.rows("order_totals") == []
    for number, place in enumerate(ACKING):
        shop.answer(number)
        with pytest.MonkeyPatch.context() as patch:
            killed_at(place, patch)
            with pytest.raises(Killed):
                shop.run(1)
        assert (lane.committed() or 0) <= number, place
        lane.judge()
        shop.run(1)
        assert lane.committed() == number + 1, place
        for table in ("order_totals", "counts"):
            assert [row[0] for row in shop.rows(table)] == list(range(number + 1)), place
        kept = [path for path in (Path(lane.audit) / lane.name / ".staging").glob("*/*") if path.is_file()]
        assert len(kept) == 2, (place, kept)
        lane.judge()
    shop.answer(len(ACKING))
    shop.run(1)
    assert staged(lane) == []
    lane.judge(settled=True)


def test_a_skip_a_reset_and_a_cancelled_backfill_drop_the_rows_of_what_was_in_flight(
    lab: MakeLab, broker: Broker
) -> None:
    shop = Shop(lab, broker, in_flight={"timeout": "none"}, steps=None, outputs=[OUTPUTS[2]])
    lane = shop.lane
    lane.configure(outputs=[{**OUTPUTS[2]}, {"from": "source.items", "table": "items"}])
    lane.produce(*[shop.shop_order(f"o{number}", item("a")) for number in range(3)])
    shop.run()
    first = shop.tokens()
    shop.command("skip", lane.name, "--offsets", "0", "--reason", "test", "--yes")
    wait = [path for path in (Path(lane.audit) / lane.name / ".staging").glob("*/*") if path.is_file()]
    assert len(wait) == 2, "a file a table, without the row of the skipped record"
    shop.command("reset", lane.name, "--to", "floor", "--reason", "test", "--yes")
    assert staged(lane) == []
    shop.answer(1)  # of the attempt before the reset
    shop.file.unlink()
    shop.run(600)  # after the actions, whose time is the machine's
    assert shop.rows("counts") == []
    assert shop.tokens()[1, 1] != first[1, 1]
    shop.answer(1)
    shop.answer(2)
    shop.run(1)
    assert [row[0] for row in shop.rows("counts")] == [1, 2]
    assert [(row["_epoch"], row["_offset"]) for row in rows_of(lane, "items")] == [(1, 1), (1, 2)]
    shop.file.unlink()
    shop.command("backfill", lane.name, "--all", "--id", "b", "--yes", "--now", lane.now.isoformat())
    assert {row["_lane"] for row in rows_of(lane, "counts")} == {"live"}
    assert len(staged(lane)) == 1
    shop.answer(2)
    shop.command("backfill", lane.name, "--id", "b", "--yes", "--now", lane.now.isoformat())
    assert [(row["_lane"], row["_offset"]) for row in rows_of(lane, "counts")] == [
        ("live", 1), ("backfill-b", 2), ("live", 2),
    ]  # fmt: skip
    for path in (Path(lane.audit) / lane.name / ".staging").glob("backfill-b-*/*"):
        path.unlink()  # lost: nothing is in flight after the cancellation, so it needs no row that waits
    shop.command("backfill", lane.name, "--cancel", "b", "--yes", "--reason", "test")
    assert staged(lane) == []
    void = Path(lane.audit) / lane.name / ".staging" / "backfill-b-0-1"
    void.mkdir()
    (void / "0-left.parquet").write_bytes(b"of a void turn")
    shop.command("backfill", lane.name, "--cancel", "b", "--yes", "--reason", "test")
    assert staged(lane) == [], "no later turn of the lane would remove what a void turn has staged"
    assert len(rows_of(lane, "counts")) == 3
    lane.judge(settled=True)
    assert json.loads(shop.command("status", lane.name, "--json"))["partitions"][0]["pending"]["in_flight"] == 0
