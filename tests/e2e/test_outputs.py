"""Outputs of pipelines with steps: what is emitted is in tables and topics, of acked records only and once."""

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from ackline.errors import ConfigError, LedgerError, TooManyFailures
from ackline.ledger.published import OutputsOfTurn
from ackline.local.broker import Broker
from ackline.outputs.staged import store_manifest
from ackline.steps import plan as planning
from ackline.steps import replay, settle
from ackline.steps.replay import job_of
from tests.e2e import wire
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row
from tests.e2e.shop import HANDLERS, OUTPUTS, Killed, Shop, item, killed_at, order, rows_of, shop, staged


def test_s68_acked_records_have_their_rows_and_a_row_that_does_not_fit_fails_its_record(lab: MakeLab) -> None:
    lane = shop(lab, retry={"max_retries": 0})
    lane.produce(
        order(0, item("a", 2), item("b")),
        order(1, item("a"), item("c", fail=True)),
        order(2),
        order(3, item("x", bad="wrong")),
        order(4, item("y", bad="as well"), item("z", bad=7)),
    )
    lane.run()
    assert [row for row in lane.rows() if row.outcome == "acked"] == [Row(n, 1, "acked") for n in (0, 2, 3)]
    messages = {row["offset"]: row["error_message"] for row in lane.table("outcomes") if row["error_class"]}
    wrong = "its product is no string (it is of type int)"
    assert messages[4] == f"step price: a row does not fit the table rejected: {wrong}"
    assert rows_of(lane, "order_totals") == [of_record(lane, 0, order="o0", sum=7.5)]
    assert rows_of(lane, "rejected") == [of_record(lane, 3, order="o3", product="wrong", amount=1)]
    assert rows_of(lane, "counts") == [of_record(lane, n, order=f"o{n}", items=i) for n, i in ((0, 2), (2, 0), (3, 1))]
    assert staged(lane) == []
    lane.judge(settled=True)
    folder = f"{lane.tables}/outputs/order_totals"
    write_deltalake(folder, DeltaTable(folder).to_pyarrow_table().set_column(2, "_offset", [[1]]), mode="append")
    what = "has a row in output table order_totals of an attempt and turn that did not ack it"
    assert f"I16 {lane.topic}[0] offset 1: {what}" in lane.violations()


def of_record(lane: Lab, offset: int, attempt: int = 1, turn: int = 1, **emitted: Any) -> dict[str, Any]:
    anchor = {"topic": lane.topic, "partition": 0, "offset": offset, "attempt": attempt}
    of_row = {"lane": "live", "epoch": 0, "turn": turn, "anchors": [{**anchor, "outcome": "acked"}]}
    return {f"_{name}": value for name, value in (anchor | of_row).items()} | emitted


PLACES = [
    "ackline.steps.replay.store_manifest",
    "ackline.steps.replay.add_actions",
    "ackline.steps.settle.settle_turn",
    "ackline.steps.settle.publish_settled",
    "ackline.outputs.written._write_files",
    "ackline.tables.store.LedgerStore.store_settlement",
    "ackline.outputs.output_table.OutputTable.append",
    "ackline.outputs.publish.remove_staged",
    "ackline.kafka.group.Group.commit",
]
"""Functions that a run calls one after the other, between its writes."""


def test_s68_a_run_killed_between_any_two_writes_leaves_each_row_once_and_the_group_behind(lab: MakeLab) -> None:
    lane = shop(lab)
    for number, place in enumerate(PLACES):
        lane.produce(order(number, item("a", number + 1)))
        with pytest.MonkeyPatch.context() as patch:
            killed_at(place, patch)
            with pytest.raises(Killed):
                lane.run()
        assert (lane.committed() or 0) <= number
        lane.run()
        assert lane.committed() == number + 1, place
        for table in ("order_totals", "counts"):
            assert [row["_offset"] for row in rows_of(lane, table)] == list(range(number + 1)), place
        assert staged(lane) == [], place
    lane.judge(settled=True)


def test_s68_of_two_drivers_the_rows_of_the_one_whose_outcomes_count_are_published(lab: MakeLab) -> None:
    lane = shop(lab)
    lane.produce(order(0, item("a")))
    with lane.adapters("a") as a, lane.adapters("b") as b:
        assert not planning.plan(a).adopted
        plan = planning.plan(b).plan
        assert plan is not None
        stored = []
        for adapters in (a, b):
            job = job_of(adapters, plan)
            result = adapters.run_job(lane.spark, job, None)
            execution = store_manifest(adapters, plan, job, result)
            report = replay.task_report(adapters, plan, result)
            stored.append((adapters, execution, report, replay.add_actions(plan, result)))
        for adapters, execution, report, files in reversed(stored):
            assert adapters.store.store_outcomes(plan.turn, files, report, execution) is (adapters is b)
        settlement = settle.settle(a).stored
        assert settlement is not None
        assert OutputsOfTurn.decode(settlement.outputs).execution == stored[1][1] != stored[0][1]
    assert len(rows_of(lane, "order_totals")) == 1
    assert staged(lane) == []
    lane.judge(settled=True)


def test_a_backfill_publishes_in_its_own_lane_and_a_resume_publishes_what_a_kill_has_left(lab: MakeLab) -> None:
    lane = shop(lab)
    lane.produce(order(0, item("a")), order(1, item("b")))
    lane.run()
    with pytest.MonkeyPatch.context() as patch:
        killed_at("ackline.steps.settle.publish_settled", patch)
        with pytest.raises(Killed):
            lane.ackline("backfill", lane.name, f"{lane.topic}:0:1-2", "--id", "b", "--yes")
    assert {row["_lane"] for row in rows_of(lane, "order_totals")} == {"live"}
    assert lane.ackline_json("backfill", lane.name, "--id", "b", "--yes")["settled"]
    lanes = [(row["_lane"], row["_offset"]) for row in rows_of(lane, "order_totals")]
    assert lanes == [("live", 0), ("backfill-b", 1)]
    assert staged(lane) == []


def test_i6_no_dead_letter_is_sent_of_a_turn_whose_staged_rows_are_lost(lab: MakeLab) -> None:
    """An operator voids that turn, and the next one may ack its records."""
    lane = shop(lab, retry={"max_retries": 0})
    lane.produce(order(0, item("a")), order(1, item("c", fail=True)))
    with pytest.MonkeyPatch.context() as patch:
        killed_at("ackline.steps.settle.stored_report", patch)
        with pytest.raises(Killed):
            lane.run()
    folder = Path(lane.audit) / lane.name / ".staging" / "live-0-1"
    next(folder.glob("*.parquet")).unlink()
    with pytest.raises(LedgerError, match=r"staged rows below .* are gone or damaged"):
        lane.run()
    assert lane.letters() == []
    lane.ackline_json("void", lane.name, "--reason", "a disk has lost a file", "--yes")
    lane.advance_clock(60)
    lane.run()
    assert [row["_offset"] for row in rows_of(lane, "order_totals")] == [0]
    assert (len(lane.letters()), lane.committed()) == (1, 2)


def test_a_void_turn_publishes_nothing(lab: MakeLab) -> None:
    lane = shop(lab, breaker={"failure_ratio": 0, "min_records": 1})
    lane.produce(order(0, item("a")), order(1, item("a", fail=True)))
    with pytest.raises(TooManyFailures):
        lane.run()
    assert not (Path(lane.audit) / lane.name / "outputs").exists()
    lane.configure(breaker=None)
    lane.run()
    assert [row["_turn"] for row in rows_of(lane, "order_totals")] == [2]


def test_outputs_without_steps_go_to_a_table_and_to_a_topic(lab: MakeLab) -> None:
    lane = lab(handler=f"{HANDLERS}:split", outputs=[{"from": "source.counts", "table": "counts"}], partitions=2)
    lane.journalled = False
    topic = f"{lane.topic}-items"
    lane.configure(outputs=[*lane.settings["outputs"], {"from": "source.items", "topic": topic}])
    lane.produce(order(0, item("a"), item("b")))
    lane.produce(order(1), partition=1)
    with pytest.raises(ConfigError, match=f"the output topic {topic} of pipeline {lane.name} does not exist"):
        lane.run()
    assert lane.ackline("doctor", lane.name).returncode == 1
    lane.broker.create_topic(topic, 1)
    doctor = " ".join(lane.ackline("doctor", lane.name).stdout.split())
    assert f"outputs: table counts (columns inferred from its rows); topic {topic}" in doctor
    assert [step["step"] for step in lane.ackline_json("status", lane.name)["steps"]] == ["source"]
    lane.run()
    status = lane.ackline_json("status", lane.name)
    [source] = status["steps"]
    assert [source[name] for name in ("step", "executed", "emitted", "acked", "failed")] == ["source", 2, 4, 2, 0]
    assert 0 < source["execute_ms"]["mean"] <= status["complete_latency_ms"]["max"]
    assert "Steps, newest turn with records; complete latency" in lane.ackline("status", lane.name).stdout
    assert [(row["_partition"], row["items"]) for row in rows_of(lane, "counts")] == [(0, 2), (1, 0)]
    messages = wire.read(lane.broker.bootstrap, topic)
    assert [(m.key, json.loads(m.value or b"")["product"]) for m in messages] == [(b"a", "a"), (b"b", "b")]
    headers = dict(messages[0].headers)
    assert (headers["ackline.topic"], headers["ackline.offset"]) == (lane.topic.encode(), b"0")
    assert (headers["ackline.turn"], headers["ackline.attempt"]) == (b"1", b"1")


def test_a_field_of_one_task_alone_is_a_column_of_the_table_that_the_turn_creates(spark_lab: MakeLab) -> None:
    outputs = [{"from": f"source.{name}", "table": name} for name in ("items", "counts")]
    lane = spark_lab(handler=f"{HANDLERS}:split", outputs=outputs, partitions=2)
    lane.journalled = False
    lane.produce(order(0, item("a"), item("b", note=None)))
    lane.produce(order(1, item("c", gift={"to": "Ada"}, price=1.5)), partition=1)
    lane.run()
    rows = [{name: row[name] for name in row if not name.startswith("_")} for row in rows_of(lane, "items")]
    assert sorted(rows, key=lambda row: row["product"]) == [
        {"order": "o0", "product": "a", "pieces": 1, "gift": None, "price": None},
        {"order": "o0", "product": "b", "pieces": 1, "gift": None, "price": None},
        {"order": "o1", "product": "c", "pieces": 1, "gift": '{"to":"Ada"}', "price": 1.5},
    ]
    lane.produce(order(2, item("d", late="no column")))
    lane.configure(breaker=None)
    lane.run()
    assert [row["error_class"] for row in lane.table("outcomes") if row["error_class"]] == ["BadOutput"]


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
        ("live", 1), ("backfill-b", 2),
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
    assert len(rows_of(lane, "counts")) == 2
    lane.judge(settled=True)
    assert json.loads(shop.command("status", lane.name, "--json"))["partitions"][0]["pending"]["in_flight"] == 0
