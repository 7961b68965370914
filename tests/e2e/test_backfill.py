"""Backfills on the real broker and Delta, judged lane by lane by the independent checker (S70 to S72)."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from deltalake import DeltaTable

from ackline.backfill.perform import backfill_pipeline
from ackline.backfill.run import find_backfill, plan_backfill
from ackline.forms.arguments import lane_of
from ackline.lane.adapters import open_adapters
from ackline.verify.check import check
from tests.chaos import victims
from tests.e2e import wire
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, fails
from tests.kafka.kafka_log import COMPACTED, compact


def backfill(lane: Lab, *arguments: str) -> Any:
    """Runs the command in this process at the lab's time, and returns its object. The account balances."""
    lane.journalled = False  # the journal does not name lanes
    done = lane.ackline("backfill", lane.name, *arguments, "--now", lane.now.isoformat(), "--yes", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    counted = sum(found["outcomes"].values()) + found["gaps"] + sum(found["pending"].values())
    assert found["asked"]["offsets"] == counted, found
    return found


def judge(lane: Lab, backfill_id: str, settled: bool = True) -> None:
    """Fails if the checker finds a violation in a backfill lane."""
    sources = replace(lane.sources(), lane=f"backfill-{backfill_id}", journal=None)
    report = check(sources, max_retries=lane.pipeline.retry.max_retries, settled=settled)
    assert not report.violations, "\n".join(report.violations)


def ended(lane: Lab, backfill_id: str) -> Counter[str]:
    """Returns how many effective terminal rows of a backfill lane have each outcome, range rows by their offsets."""
    folder = f"{lane.tables}/backfill-{backfill_id}"
    settlements = DeltaTable(f"{folder}/settlements").to_pyarrow_table(columns=["turn", "kind"]).to_pylist()
    effective = {row["turn"] for row in settlements if row["kind"] != "void"}
    rows = DeltaTable(f"{folder}/outcomes").to_pyarrow_table().to_pylist()
    found: Counter[str] = Counter()
    for row in rows:
        if row["turn"] in effective and row["outcome"] != "failed":
            found[row["outcome"]] += (row["end_offset"] or row["offset"] + 1) - row["offset"]
    return found


def test_s71_a_backfill_that_was_killed_after_its_genesis_is_resumed_by_its_id(lab: MakeLab) -> None:
    """The genesis is what only a backfill stores; tests/chaos/test_kills.py has the other writes."""
    lane = lab(retry={"max_retries": 0})
    lane.produce_records(12, {3: {"fail": -1}, 6: {"dead": True}})
    lane.run()
    victims.kill(lane, "backfill", "genesis", "after", [f"{lane.topic}:0:1-5", f"{lane.topic}:0:6-9"])
    refused = lane.ackline("backfill", lane.name, lane.topic, "--id", "b", "--yes", "--json")
    assert (refused.returncode, json.loads(refused.stderr.splitlines()[-1])["key"]) == (2, "RANGE")
    done = backfill(lane, "--id", "b")
    assert (done["settled"], done["outcomes"]) == (True, {"acked": 5, "dead": 2})
    judge(lane, "b")


def test_s72_dead_records_of_an_error_class_are_redriven_in_the_log_as_it_is(lab: MakeLab) -> None:
    lane = lab(retry={"max_retries": 0})
    lane.produce_records(20, {3: {"dead": True}, **fails([5, 8, 11], times=1)})
    lane.run()
    lane.expire(6)
    dry = lane.ackline_json("backfill", lane.name, "--outcome", "dead", "--error-class", "ValueError", "--dry-run")
    where = {"topic": lane.topic, "partition": 0}
    assert dry["asked"] == {
        "offsets": 3,
        "ranges": [{**where, "start": n, "end": n + 1} for n in (5, 8, 11)],
    }
    assert dry["gone"] == [{**where, "start": 5, "end": 6, "why": "retention"}]
    done = backfill(lane, "--outcome", "dead", "--error-class", "ValueError", "--id", "redrive")
    assert (done["settled"], done["outcomes"]) == (True, {"expired": 1, "dead": 2})
    assert sorted((call.offset, call.attempt) for call in lane.calls()[-2:]) == [(8, 1), (11, 1)]
    judge(lane, "redrive")


def test_s72_at_most_once_single_offsets_are_handed_out_once(lab: MakeLab) -> None:
    lane = lab(retry={"max_retries": 0}, guarantee="at_most_once")
    lane.produce_records(10)
    lane.run()
    done = backfill(lane, "--outcome", "acked", "--id", "again")
    assert Counter(lane.new_offsets()) == Counter(dict.fromkeys(range(10), 2))
    judge(lane, "again")
    assert (done["settled"], done["outcomes"]) == (True, {"acked": 10})
    assert lane.ackline_json("backfill", lane.name, "--list")["backfills"][0]["id"] == "again"


def write(lane: Lab, *records: tuple[str, bytes]) -> None:
    """Produces (key, value) records, each in a batch of its own."""
    for key, value in records:
        wire.produce(lane.broker.bootstrap, lane.topic, [wire.Write(value, key.encode())])


def compacted(lane: Lab, gone: Iterable[int]) -> None:
    """Waits until the broker has compacted these offsets away."""
    compact(lane.broker, lane.topic, gone, lambda: write(lane, ("roll", b"{}")))


def planned(lane: Lab, backfill_id: str) -> None:
    """Stores the next plan of a backfill, as a process does that dies after it."""
    with lane.adapters() as live:
        stored = find_backfill(live.store.other_lane(lane_of(backfill_id)))
    assert stored is not None
    pipeline = backfill_pipeline(lane.pipeline, lane_of(backfill_id), stored.arguments)
    opened = open_adapters(
        pipeline, run_id="dies", actor="test", now=lane.now, audit=lane.audit, lane=lane_of(backfill_id)
    )
    with opened as adapters:
        assert plan_backfill(adapters).plan is not None


def test_s72_compaction_between_plan_and_replay_takes_single_offsets_of_a_backfill_by_outcome(lab: MakeLab) -> None:
    """Offset 0 is gone before the plan, 2 after it. Both are `compacted`, and not gaps: they were there once."""
    lane = lab(topic_config=COMPACTED, retry={"max_retries": 0})
    dead = b'{"dead": true}'
    write(lane, ("a", dead), ("b", b"{}"), ("c", dead), ("d", dead))
    lane.run()
    backfill(lane, "--outcome", "dead", "--id", "b", "--max-records", "1")
    write(lane, ("c", b"{}"))
    planned(lane, "b")
    compacted(lane, [2])
    done = backfill(lane, "--id", "b")
    assert (done["settled"], done["outcomes"], done["gaps"]) == (True, {"compacted": 1, "dead": 2}, 0)
    assert ended(lane, "b") == done["outcomes"]
    judge(lane, "b")


XTS, EUR = {"currency": "XTS", "amount": 1}, {"currency": "EUR", "amount": 1}


def error_classes(lane: Lab, backfill_id: str) -> Counter[str | None]:
    """Returns how many rows of a backfill lane have each error class."""
    rows = DeltaTable(f"{lane.tables}/backfill-{backfill_id}/outcomes").to_pyarrow_table(columns=["error_class"])
    return Counter(rows.column("error_class").to_pylist())


def test_s71_of_a_backfill_the_records_that_match_where_are_handled_and_the_rest_is_unmatched(lab: MakeLab) -> None:
    """A retry gets the same answer as the first attempt, and a record that the expression can't take fails by name."""
    lane = lab(decode={"value": "json"}, retry={"max_retries": 1, "initial_delay": "1m", "period": "1m"})
    lane.produce(XTS, EUR, XTS | {"fail": 1}, None, XTS | {"amount": "many"}, b"{broken", {"amount": 3})
    lane.run()
    lane.advance_clock(60)
    lane.run()
    lane.new_calls()
    where = "value.amount < 3 AND value.currency = 'XTS'"
    dry = lane.ackline("backfill", lane.name, "--all", "--where", where, "--dry-run")
    assert f"Records that match: {where}" in dry.stdout + dry.stderr
    assert lane.ackline("backfill", lane.name, "--all", "--where", "value.amount <", "--yes").returncode == 2
    first = backfill(lane, "--all", "--where", where, "--id", "w")
    assert lane.new_calls() == [(0, 1), (2, 1)]
    assert (first["settled"], first["pending"]["retry"]) == (False, 3)
    other = lane.ackline("backfill", lane.name, "--all", "--where", "value.amount < 4", "--id", "w", "--yes", "--json")
    assert json.loads(other.stderr.splitlines()[-1])["key"] == "--where"
    lane.advance_clock(60)
    done = backfill(lane, "--id", "w")
    assert lane.new_calls() == [(2, 2)]
    assert (done["settled"], done["outcomes"]) == (True, {"acked": 2, "dead": 2, "skipped": 3})
    assert error_classes(lane, "w") == {
        None: 2, "Unmatched": 2, "Tombstone": 1, "ValueError": 1, "WhereError": 3, "Undecodable": 3
    }  # fmt: skip
    listed = lane.ackline_json("backfill", lane.name, "--list")["backfills"][0]["arguments"]
    assert listed == f'--all --where "{where}"'
    judge(lane, "w")


@pytest.mark.parametrize("settings", [
    {"handler": "tests.e2e.handlers:emit", "order": "partition"},
    {"handler": "tests.e2e.handlers:emit", "concurrency": 2},
    {"handler": "tests.e2e.handlers:emit", "handler_isolation": "process"},
    {"handler": "tests.e2e.handlers:emit_rows"},
])  # fmt: skip
def test_what_where_leaves_out_changes_no_row_whatever_the_handler_is(lab: MakeLab, settings: dict[str, Any]) -> None:
    outputs = [{"from": "source", "table": "payments"}]
    lane = lab(outputs=outputs, **settings)
    lane.produce(*[XTS, EUR] * 10)
    lane.run()
    done = backfill(lane, "--all", "--where", "value.currency = 'XTS'", "--id", "w")
    assert (done["settled"], done["outcomes"]) == (True, {"acked": 10, "skipped": 10})
    rows = DeltaTable(f"{lane.tables}/outputs/payments").to_pyarrow_table(columns=["_lane", "currency"]).to_pylist()
    assert Counter((row["_lane"], row["currency"]) for row in rows) == {
        ("live", "EUR"): 10, ("backfill-w", "XTS"): 10
    }  # fmt: skip
    judge(lane, "w")


def test_at_most_once_what_where_can_not_take_is_dropped_and_no_record_is_called_twice(lab: MakeLab) -> None:
    lane = lab(guarantee="at_most_once", retry={"max_retries": 0})
    lane.produce(XTS, EUR, XTS | {"amount": "many"})
    lane.run()
    lane.new_calls()
    done = backfill(lane, "--all", "--where", "value.amount = 1 AND value.currency = 'XTS'", "--id", "w")
    assert (done["settled"], done["outcomes"]) == (True, {"acked": 1, "dropped": 1, "skipped": 1})
    assert lane.new_calls() == [(0, 1)]
    judge(lane, "w")


def test_where_is_evaluated_in_the_tasks_of_spark(spark_lab: MakeLab) -> None:
    lane = spark_lab(partitions=2)
    for partition in (0, 1):
        lane.produce(*[XTS, EUR] * 10, partition=partition)
    lane.run()
    done = backfill(lane, "--all", "--where", "value.currency = 'XTS' AND partition = 1", "--id", "w")
    assert (done["settled"], done["outcomes"]) == (True, {"acked": 10, "skipped": 30})
    judge(lane, "w")


def test_s87_a_shadow_in_spark_shows_what_its_promotion_does_and_the_checker_agrees(spark_lab: MakeLab) -> None:
    mended, outputs = "tests.e2e.handlers:emit_mended", [{"from": "source", "table": "payments"}]
    lane = spark_lab(partitions=2, handler="tests.e2e.handlers:emit", outputs=outputs, backfill={"handlers": [mended]})
    for partition in (0, 1):
        lane.produce(*[XTS | {"amount": 3}] * 10, partition=partition)
    lane.run()

    def rows(table: str = "payments") -> Counter[tuple[str, int]]:
        read = DeltaTable(f"{lane.tables}/outputs/{table}").to_pyarrow_table().to_pylist()
        return Counter((row["_lane"], row["amount"]) for row in read)

    shadow = backfill(lane, f"{lane.topic}:1", f"{lane.topic}:0:0-5", "--shadow", "--handler", mended, "--id", "s")
    assert (shadow["settled"], shadow["outcomes"]) == (True, {"acked": 15})
    assert (rows(), rows("payments__s")) == ({("live", 3): 20}, {("backfill-s", 2): 15})
    found = lane.ackline_json("diff", lane.name, "live", "backfill-s", "--rows", "payments")
    assert (found["same"], found["changed"], found["columns"]) == (0, 15, {"amount": 15})
    done = backfill(lane, "--id", "s", "--promote")
    assert (done["settled"], done["outcomes"]) == (True, {"acked": 15})
    assert rows() == {("live", 3): 5, ("backfill-s-promoted", 2): 15}
    for backfill_id in ("s", "s-promoted"):
        judge(lane, backfill_id)
    lane.judge(settled=True)
