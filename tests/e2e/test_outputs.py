"""Outputs of pipelines with steps: what is emitted is in tables and topics, of acked records only and once."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from ackline.errors import ConfigError, LedgerError, TooManyFailures
from ackline.outputs.turn import store_manifest
from ackline.steps import plan as planning
from ackline.steps import replay, settle
from ackline.steps.replay import job_of
from ackline.tables import publish as publish_outputs
from tests.e2e import wire
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row

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


class Killed(BaseException):
    """The end of a process at a line."""


def killed_at(place: str, patch: pytest.MonkeyPatch) -> None:
    """Has the next run end where it would call the function `place`."""

    def die(*_: object, **__: object) -> None:
        raise Killed(place)

    patch.setattr(place, die)


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
    assert messages[4] == "step price: a row does not fit the table rejected: its product is no string"
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
    """A row of an output table that is anchored to one record."""
    anchor = {"topic": lane.topic, "partition": 0, "offset": offset, "attempt": attempt}
    of_row = {"lane": "live", "epoch": 0, "turn": turn, "anchors": [{**anchor, "outcome": "acked"}]}
    return {f"_{name}": value for name, value in (anchor | of_row).items()} | emitted


def staged(lane: Lab) -> list[str]:
    """The staging folders that are left."""
    return sorted(path.name for path in (Path(lane.audit) / lane.name / ".staging").iterdir() if path.is_dir())


PLACES = [
    "ackline.steps.replay.store_manifest",
    "ackline.steps.replay.add_actions",
    "ackline.steps.settle.settle_turn",
    "ackline.steps.settle.publish_settled",
    "ackline.tables.publish._write",
    "ackline.tables.output_table.OutputTable.append",
    "ackline.outputs.turn.remove_staged",
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


def test_s68_a_run_killed_between_two_tables_publishes_the_rest_before_the_next_plan(lab: MakeLab) -> None:
    lane = shop(lab)
    lane.produce(order(0, item("a")))
    publish, calls = publish_outputs._publish_table, list[object]()

    def first_only(*arguments: Any) -> None:
        if calls:
            raise Killed
        calls.append(arguments)
        publish(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish_outputs, "_publish_table", first_only)
        with pytest.raises(Killed):
            lane.run()
    assert lane.committed() is None
    lane.judge()  # the newest turn may wait for its second table
    lane.produce(order(1, item("a")))
    planned = lane.plan()
    assert planned.turn.n == 2
    for table in ("order_totals", "counts"):
        assert [row["_offset"] for row in rows_of(lane, table)] == [0]


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
            outputs = store_manifest(adapters, plan, job, result)
            report = replay.task_report(adapters, plan, result, outputs)
            stored.append((adapters, report, replay.add_actions(plan, result)))
        for adapters, report, files in reversed(stored):
            assert adapters.store.store_outcomes(plan.turn, files, report) is (adapters is b)
        settlement = settle.settle(a).stored
        assert settlement is not None
        assert settlement.outputs == stored[1][1].outputs != stored[0][1].outputs
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
    assert lanes == [("live", 0), ("backfill-b", 1), ("live", 1)]
    assert staged(lane) == []


def test_a_table_that_can_not_be_used_stops_the_run_before_anything_is_stored(lab: MakeLab) -> None:
    lane = shop(lab)
    lane.produce(order(0, item("a")))
    folder = Path(lane.audit) / lane.name / "outputs" / "counts"
    folder.parent.mkdir(parents=True)
    write_deltalake(str(folder), pa.table({"order": ["x"]}))
    for command in ("plan", "run"):
        failed = lane.ackline(command, lane.name)
        assert failed.returncode == 2
        assert "has no column _topic" in " ".join(failed.stderr.split())
    with lane.adapters() as adapters:
        assert adapters.store.newest() is None


def test_a_settled_turn_whose_rows_are_lost_stops_the_lane_until_an_operator_gives_them_up(lab: MakeLab) -> None:
    lane = shop(lab)
    lane.produce(order(0, item("a")))
    with pytest.MonkeyPatch.context() as patch:
        killed_at("ackline.steps.settle.publish_settled", patch)
        with pytest.raises(Killed):
            lane.run()
    folder = Path(lane.audit) / lane.name / ".staging"
    shutil.rmtree(folder / "live-0-1")
    drop = ("void", lane.name, "--give-up", "counts", "--give-up", "order_totals", "--reason", "the disk is lost")
    for command in (["run"], ["reset", "--to", "floor", "--reason", "test", "--yes"]):
        stuck = lane.ackline(command[0], lane.name, *command[1:])
        advice = f"give them up with `ackline void {lane.name} --give-up TABLE --reason …`"
        assert (stuck.returncode, advice in " ".join(stuck.stderr.split())) == (1, True)
    assert "order_totals: at most 1 rows" in lane.ackline(*drop, "--dry-run").stdout
    assert lane.ackline_json(*drop, "--dry-run")["rows_at_most"] == {"counts": 1, "order_totals": 1}
    assert (lane.committed(), lane.ackline("run", lane.name).returncode) == (None, 1)
    assert lane.ackline(*drop, "--pause", "--yes").returncode == 2
    dropped = lane.ackline_json(*drop, "--yes")
    assert (dropped["rows_at_most"], dropped["not_committed"]) == ({"counts": 1, "order_totals": 1}, None)
    record = json.loads((folder / "live-0-1-dropped.json").read_text())
    assert (record["reason"], record["rows_at_most"]) == ("the disk is lost", {"counts": 1, "order_totals": 1})
    assert lane.committed() == 1
    again = lane.ackline(*drop, "--yes")
    assert (again.returncode, "nothing to give up" in again.stderr) == (2, True)
    lane.produce(order(1, item("a")))
    lane.run()
    assert [row["_offset"] for row in rows_of(lane, "order_totals")] == [1]


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
