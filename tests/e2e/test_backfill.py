"""Backfills on the real broker, Spark and Delta, judged lane by lane by the independent checker (S70 to S72)."""

import json
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from deltalake import DeltaTable

from ackline.backfill.choose import choose_offsets
from ackline.backfill.plan import plan_backfill
from ackline.backfill.run import begin
from ackline.pipeline.arguments import BackfillArguments
from ackline.steps.replay import replay
from ackline.verify.check import Sources, check
from tests.chaos import victims
from tests.e2e import wire
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, fails


def backfill(lane: Lab, *arguments: str) -> Any:
    """Runs the command in this process at the lab's time, and returns its object. The account balances."""
    lane.spark()
    lane.journalled = False  # the journal does not name lanes
    done = lane.ackline("backfill", lane.name, *arguments, "--now", lane.now.isoformat(), "--yes", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    counted = sum(found["outcomes"].values()) + found["gaps"] + sum(found["pending"].values())
    assert found["asked"]["offsets"] == counted, found
    return found


def judge(lane: Lab, backfill_id: str, settled: bool = True) -> None:
    """Fails if the checker finds a violation in a backfill lane."""
    sources = Sources(
        lane.broker.bootstrap,
        lane.audit,
        lane.name,
        lane.group,
        lane.topics,
        dead_letter_topic=lane.dead_letter_topic,
        isolation=lane.pipeline.kafka.isolation,
        lane=f"backfill-{backfill_id}",
    )
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


@pytest.mark.deep
def test_s70_overlapping_backfills_and_live_runs_each_read_their_own(lab: MakeLab) -> None:
    lane = lab(partitions=2, retry={"initial_delay": "1m", "max_retries": 1})
    for partition in (0, 1):
        lane.produce_records(60, {7: {"fail": -1}, 31: {"fail": 1}, 40: {"dead": True}}, partition=partition)
    lane.run()
    before = lane.group_commit(), lane.group_commit(1), lane.settlement()
    chosen = {
        "a": [f"{lane.topic}:0:0-45", f"{lane.topic}:1:20-41"],
        "b": [f"{lane.topic}:0:5-10", f"{lane.topic}:0:30-60"],
        "c": [f"{lane.topic}:1"],
    }
    for backfill_id, ranges in chosen.items():
        assert not backfill(lane, *ranges, "--id", backfill_id)["settled"]
    assert (lane.group_commit(), lane.group_commit(1), lane.settlement()) == before
    lane.advance_clock(60)
    lane.run()
    done = {backfill_id: backfill(lane, "--id", backfill_id) for backfill_id in chosen}
    assert [(each["settled"], each["asked"]["offsets"]) for each in done.values()] == [
        (True, 66),
        (True, 35),
        (True, 60),
    ]
    assert done["a"]["outcomes"] == {"acked": 63, "dead": 3}
    for backfill_id in chosen:
        assert ended(lane, backfill_id) == done[backfill_id]["outcomes"]
        judge(lane, backfill_id)
    lane.judge(settled=True)


STEPS = [
    pytest.param(when, write, marks=() if (when, write) == ("after", "genesis") else pytest.mark.deep)
    for write in ("genesis", "plan", "outcomes", "letters", "decisions", "settlement")
    for when in ("before", "after")
]
"""The genesis is what only a backfill stores; tests/chaos/test_kills.py has the other writes."""

BY_SETTLE = ("letters", "decisions", "settlement")
"""The writes after the stored outcomes. The process that is killed there starts no Spark."""


def replayed(lane: Lab, asked: list[str]) -> None:
    """Begins the backfill `b`, and carries out the steps plan and replay of its first turn."""
    with lane.adapters(lane="backfill-b") as adapters:
        arguments = BackfillArguments(tuple(asked))
        begin(adapters, arguments, choose_offsets(adapters, arguments))
        assert plan_backfill(adapters, resend=True).plan is not None
        replay(adapters, lane.spark)


@pytest.mark.parametrize(("when", "write"), STEPS)
def test_s71_a_backfill_that_was_killed_at_a_write_is_resumed_by_its_id(lab: MakeLab, when: str, write: str) -> None:
    lane = lab(retry={"max_retries": 0})
    lane.produce_records(12, {3: {"fail": -1}, 6: {"dead": True}})
    lane.run()
    asked = [f"{lane.topic}:0:1-5", f"{lane.topic}:0:6-9"]
    if write in BY_SETTLE:
        replayed(lane, asked)
        asked = []
    victims.kill(lane, "backfill", write, when, asked)
    refused = lane.ackline("backfill", lane.name, lane.topic, "--id", "b", "--yes", "--json")
    begun = (when, write) != ("before", "genesis")
    if begun:
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


def test_s72_a_backfill_that_acks_what_was_dead_is_counted_by_the_next_dry_run(lab: MakeLab) -> None:
    lane = lab(retry={"max_retries": 1})
    lane.produce_records(6, fails([2, 4], times=2))
    lane.run()
    lane.run()
    assert lane.outcomes()["dead"] == 2
    done = backfill(lane, "--outcome", "dead", "--id", "first")
    assert done["outcomes"] == {"dead": 2}
    ranges = backfill(lane, f"{lane.topic}:0:0-2", "--id", "ranges")
    assert ranges["outcomes"] == {"acked": 2}
    assert lane.ackline_json("backfill", lane.name, "--all", "--dry-run")["acked_before"] == 2
    judge(lane, "first")
    judge(lane, "ranges")


def test_s72_at_most_once_single_offsets_are_handed_out_once(lab: MakeLab) -> None:
    lane = lab(retry={"max_retries": 0}, guarantee="at_most_once")
    lane.produce_records(10)
    lane.run()
    done = backfill(lane, "--outcome", "acked", "--id", "again")
    assert Counter(lane.new_offsets()) == Counter(dict.fromkeys(range(10), 2))
    judge(lane, "again")
    assert (done["settled"], done["outcomes"]) == (True, {"acked": 10})
    assert lane.ackline_json("backfill", lane.name, "--list")["backfills"][0]["id"] == "again"


def test_a_time_chooses_the_records_of_its_span(lab: MakeLab) -> None:
    lane = lab()
    start = lane.now - timedelta(hours=2)
    times = [start + timedelta(minutes=minute) for minute in range(6)]
    wire.produce(
        lane.broker.bootstrap,
        lane.topic,
        [
            wire.Write(json.dumps({"n": n}).encode(), timestamp=int(time.timestamp() * 1000))
            for n, time in enumerate(times)
        ],
        0,
    )
    done = backfill(lane, "--from", times[1].isoformat(), "--to", times[4].isoformat(), "--id", "span")
    assert done["asked"]["ranges"] == [{"topic": lane.topic, "partition": 0, "start": 1, "end": 4}]
    assert done["outcomes"] == {"acked": 3}
    assert lane.committed() is None
    judge(lane, "span")
