"""Where a pipeline starts (S30–S35, S54): by the ledger, then by a commit of ours, then by `start` of the file."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from ackline.errors import GroupBusy
from tests.e2e import wire
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import ROOT, Row, fails

FIRST_RECORD = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
BETWEEN_3_AND_4 = (FIRST_RECORD + timedelta(seconds=3, milliseconds=500)).isoformat()
GARBAGE = "\ufffd<script>" * 50


@pytest.mark.parametrize(
    ("start", "time", "commit", "first"),
    [
        ("earliest", None, (5, GARBAGE), 2),
        ("uncommitted_earliest", None, (0, ""), 0),
        ("uncommitted_timestamp", BETWEEN_3_AND_4, None, 4),
    ],
    # An id must not hold a time: each process of the tests has to collect the same names.
    ids=["earliest", "uncommitted_earliest", "uncommitted_time"],
)
def test_s30_s31_s34_the_start_is_decided_once_by_the_commit_or_the_file_and_then_the_ledger_wins(
    lab: MakeLab, start: str, time: str | None, commit: tuple[int, str] | None, first: int
) -> None:
    """`uncommitted_*` take any commit, the others none. Offset 0 is a commit, not "unset". tests/lane/test_genesis.py
    has each value of `start`."""
    lane = lab(start=start, **({"start_timestamp": time} if time else {}))
    timestamps = [int((FIRST_RECORD + timedelta(seconds=n)).timestamp() * 1000) for n in range(8)]
    wire.produce(lane.broker.bootstrap, lane.topic, [wire.Write(b"{}", timestamp=t) for t in timestamps])
    lane.expire(2)
    if commit is not None:
        lane.move_group(*commit)
    lane.run()
    assert lane.new_offsets() == list(range(max(first, 2), 8))
    assert [row for row in lane.rows() if row.end] == ([Row(first, 0, "expired", 2)] if first < 2 else [])
    committed = lane.group_commit()
    assert committed is not None
    assert (committed[0], json.loads(committed[1])["pipeline"]) == (8, lane.name)
    lane.configure(start="earliest" if "latest" in start else "latest", start_timestamp=None)
    lane.delete_group()
    lane.produce_records(2)
    [planned] = lane.plan().partitions.values()
    assert (planned.fresh.start, planned.fresh.end) == (8, 10)


def test_s32_topics_of_a_pattern_and_partitions_that_are_new_are_read_from_their_start(lab: MakeLab) -> None:
    """Fault 20. Also by a pipeline that starts at the end: all their records came after its first run (S54)."""
    lane = lab(start="latest", kafka={"pattern": "placeholder"})
    lane.configure(kafka={**lane.settings["kafka"], "pattern": rf"{lane.topic[:-2]}-.*"})
    lane.run()
    later = f"{lane.topic}-later"
    lane.topics.append(later)
    lane.broker.create_topic(later)
    lane.produce_records(3, topic=later)
    wire.add_partitions(lane.broker.bootstrap, lane.topic, 3)
    lane.produce_records(2, partition=1)
    lane.produce_records(1, partition=2)
    lane.run()
    assert lane.new_offsets(topic=later) == [0, 1, 2]
    assert [lane.new_offsets(partition) for partition in (0, 1, 2)] == [[], [0, 1], [0]]
    assert [lane.committed(partition) for partition in (0, 1, 2)] == [0, 2, 1]
    lane.judge(settled=True)


@pytest.mark.deep
def test_s33_three_workers_read_each_record_of_the_named_partitions_exactly_once(lab: MakeLab) -> None:
    """The handler returns from its first records once three processes have called it: each of them has a share."""
    lane = lab(partitions=12, handler="tests.e2e.handlers:waits_for_three_workers")
    kafka = {name: value for name, value in lane.settings["kafka"].items() if name != "topics"}
    lane.configure(
        kafka={**kafka, "partitions": {lane.topic: [partition for partition in range(12) if partition != 5]}}
    )
    for partition in range(12):
        lane.produce_records(3, partition=partition)
    three_workers = {"ACKLINE_SPARK_MASTER": "local[3]", "PYTHONPATH": str(ROOT)}
    done = lane.ackline_process("run", lane.name, "--json", env=three_workers)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    assert (printed["records"], printed["outcomes"]) == (33, {"acked": 33})
    calls = lane.calls()
    named = {(partition, offset) for partition in range(12) if partition != 5 for offset in range(3)}
    assert sorted((call.partition, call.offset) for call in calls) == sorted(named)
    assert len({call.pid for call in calls}) == 3
    assert (lane.committed(4), lane.committed(5), lane.committed(6)) == (3, None, 3)


@pytest.mark.parametrize("fails", [True, False], ids=["fails at its commit", "is empty"])
def test_s54_latest_is_decided_once_although_the_first_run_is_empty_or_fails(lab: MakeLab, fails: bool) -> None:
    """A live member of the group makes the first run fail: the group has no commit then, and the topic grows."""
    lane = lab(start="latest")
    lane.produce_records(3)
    if fails:
        with wire.member(lane.broker.bootstrap, lane.group, lane.topic), pytest.raises(GroupBusy):
            lane.run()
    else:
        assert lane.run().calls == 0
    assert lane.committed() == (None if fails else 3)
    lane.produce_records(2)
    lane.run()
    lane.run()
    assert lane.new_offsets() == [3, 4]
    assert lane.committed() == 5
    lane.judge(settled=True)


def test_s31_a_failed_record_of_a_group_that_another_owner_has_committed_holds_the_floor_and_is_retried(
    lab: MakeLab,
) -> None:
    """The commit at the failed record replaces the other owner's, although that has the same offset."""
    lane, first = lab(start="uncommitted_earliest"), 2
    lane.produce_records(5, fails([first], 1))
    lane.move_group(first, json.dumps({"ledger": "x", "pipeline": "another", "epoch": 0, "n": 7}))
    lane.run()
    assert (lane.new_offsets(), lane.pending()) == (list(range(first, 5)), [first])
    offset, metadata = lane.group_commit() or (None, "{}")
    owner = json.loads(metadata)
    assert (offset, owner["pipeline"], owner["n"]) == (first, lane.name, 1)
    lane.run()
    assert (lane.new_calls(), lane.committed(), lane.pending()) == ([(first, 2)], 5, [])
    lane.judge(settled=True)
