"""Where a pipeline starts (S30–S35, S54): by the ledger, then by a commit of ours, then by `start` of the file."""

import json
import shutil
from datetime import UTC, datetime, timedelta

import pytest

from ackline.errors import GroupBusy
from tests.e2e import wire
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import ROOT, Row, fails

FIRST_RECORD = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
BETWEEN_3_AND_4 = (FIRST_RECORD + timedelta(seconds=3, milliseconds=500)).isoformat()
LATER = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
GARBAGE = "\ufffd<script>" * 50
OF_ANOTHER_PIPELINE = json.dumps({"ledger": "x", "pipeline": "another", "epoch": 0, "n": 7})
"""Commit metadata."""


@pytest.mark.parametrize(
    ("start", "time", "commit", "first"),
    [
        ("earliest", None, (5, GARBAGE), 2),
        ("latest", None, (5, OF_ANOTHER_PIPELINE), 8),
        ("uncommitted_earliest", None, (0, ""), 0),
        ("uncommitted_latest", None, (5, ""), 5),
        ("timestamp", BETWEEN_3_AND_4, (6, ""), 4),
        ("uncommitted_timestamp", BETWEEN_3_AND_4, None, 4),
        ("uncommitted_timestamp", LATER, None, 8),
    ],
    # An id must not hold a time: each process of the tests has to collect the same names.
    ids=["earliest", "latest", "uncommitted_earliest", "uncommitted_latest", "time", "uncommitted_time", "later"],
)
def test_s30_s31_s34_the_start_is_decided_once_by_the_commit_or_the_file_and_then_the_ledger_wins(
    lab: MakeLab, start: str, time: str | None, commit: tuple[int, str] | None, first: int
) -> None:
    """`uncommitted_*` take any commit, the others none. Offset 0 is a commit, not "unset"."""
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


def test_s30_without_its_ledger_a_pipeline_stops_until_its_commit_is_adopted(lab: MakeLab) -> None:
    """The audit folder is lost, or ACKLINE_AUDIT names another one: the group still holds this pipeline's commit."""
    lane = lab(start="earliest")
    lane.produce_records(4)
    lane.run()
    ledger = json.loads((lane.group_commit() or (0, "{}"))[1])["ledger"]
    shutil.rmtree(lane.audit)
    lane.produce_records(3)
    for command in ("run", "plan"):
        refused = lane.ackline(command, lane.name)
        assert refused.returncode == 1
        assert f"of ledger {ledger} of this pipeline" in refused.stderr
        assert f"ACKLINE_AUDIT is {lane.audit}" in refused.stderr
    assert lane.ackline("adopt-ledger", lane.name, "--reason", "lost", "--json").returncode == 2
    now = lane.now.isoformat()
    adopted = lane.ackline_json("adopt-ledger", lane.name, "--reason", "lost", "--yes", "--now", now)
    assert (adopted["ledgers"], [row["floor"] for row in adopted["begins"]]) == ([ledger], [4])
    lane.run()
    assert lane.new_offsets() == [0, 1, 2, 3, 4, 5, 6]
    assert lane.committed() == 7


def test_s36_an_older_copy_of_the_audit_folder_goes_on_with_what_is_pending_once_it_is_adopted(lab: MakeLab) -> None:
    """The folder was restored from a backup. The lost one has committed since, and stops if it comes back."""
    lane = lab(retry={"initial_delay": "1h", "period": "1h"})
    lane.produce_records(4, {1: {"fail": 1}})
    lane.run()
    backup, lost = lane.folder / "backup", lane.folder / "lost"
    shutil.copytree(lane.audit, backup)
    lane.advance_clock(3600)
    lane.produce_records(2)
    lane.run()
    assert lane.committed() == 6
    lane.new_calls()
    shutil.move(lane.audit, lost)
    shutil.move(backup, lane.audit)

    refused = lane.ackline("run", lane.name)
    assert (refused.returncode, "adopt-ledger" in refused.stderr) == (1, True)
    options = ("--reason", "restored from a backup", "--now", lane.now.isoformat())
    shown = lane.ackline_json("adopt-ledger", lane.name, *options, "--dry-run")
    adopted = lane.ackline_json("adopt-ledger", lane.name, *options, "--yes")
    assert adopted == shown | {"dry_run": False}
    [change] = adopted["partitions"]
    both = {name: change[name]["after"] for name in ("floor", "complete_to", "pending")}
    assert (adopted["older_copy"], adopted["skipped"], both) == (
        True,
        0,
        {"floor": 1, "complete_to": 4, "pending": 1},
    )
    assert lane.committed() == 1
    lane.run()
    assert lane.new_calls() == [(1, 2), (4, 1), (5, 1)]
    assert lane.committed() == 6
    lane.judge(settled=True)

    shutil.rmtree(lane.audit)
    shutil.move(lost, lane.audit)
    assert "adopt-ledger" in lane.ackline("run", lane.name).stderr
    lane.judged = True  # the tables are those of the lost ledger now


def test_s32_a_missing_topic_is_named_and_read_from_its_start_once_it_exists(lab: MakeLab) -> None:
    lane = lab(create=False, dead_letter="none")
    refused = lane.ackline("run", lane.name)
    assert (refused.returncode, f"{lane.topic}: no such topic" in refused.stderr) == (2, True)
    lane.configure(missing_topics="wait")
    result = lane.run()
    assert (result.calls, result.missing) == (0, (lane.topic,))
    lane.broker.create_topic(lane.topic)
    lane.produce_records(3)
    assert lane.run().missing == ()
    assert lane.new_offsets() == [0, 1, 2]
    lane.judge(settled=True)


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


def test_s35_a_commit_that_vanished_is_made_again_and_nothing_is_read_twice(lab: MakeLab) -> None:
    lane = lab(partitions=2)
    lane.produce_records(4)
    lane.run()
    lane.delete_group()
    assert lane.committed() is None
    assert (lane.run().calls, lane.committed()) == (0, 4)
    lane.produce_records(1)
    lane.run()
    idle = lane.group_commit(1)  # every run commits a partition again that has never held a record
    assert idle is not None
    assert (idle[0], json.loads(idle[1])["n"]) == (0, 3)
    lane.judge(settled=True)


@pytest.mark.parametrize("first_run", ["is empty", "fails at its commit", "is killed after its plan"])
def test_s54_latest_is_decided_once_although_the_first_run_is_empty_or_fails(lab: MakeLab, first_run: str) -> None:
    """A live member of the group makes the first run fail: the group has no commit then, and the topic grows."""
    lane = lab(start="latest")
    lane.produce_records(3)
    if first_run == "is empty":
        assert lane.run().calls == 0
    elif first_run == "is killed after its plan":
        lane.plan()
    else:
        with wire.member(lane.broker.bootstrap, lane.group, lane.topic), pytest.raises(GroupBusy):
            lane.run()
    assert lane.committed() == (3 if first_run == "is empty" else None)
    lane.produce_records(2)
    lane.run()
    lane.run()
    assert lane.new_offsets() == [3, 4]
    assert lane.committed() == 5
    lane.judge(settled=True)


@pytest.mark.parametrize(("start", "first"), [("uncommitted_earliest", 2), ("earliest", 0)])
def test_s31_a_failed_record_of_a_group_that_another_owner_has_committed_holds_the_floor_and_is_retried(
    lab: MakeLab, start: str, first: int
) -> None:
    """The commit at the failed record replaces the other owner's, although that is the same offset or a higher one."""
    lane = lab(start=start)
    lane.produce_records(5, fails([first], 1))
    lane.move_group(2, OF_ANOTHER_PIPELINE)
    lane.run()
    assert (lane.new_offsets(), lane.pending()) == (list(range(first, 5)), [first])
    offset, metadata = lane.group_commit() or (None, "{}")
    owner = json.loads(metadata)
    assert (offset, owner["pipeline"], owner["n"]) == (first, lane.name, 1)
    lane.run()
    assert (lane.new_calls(), lane.committed(), lane.pending()) == ([(first, 2)], 5, [])
    lane.judge(settled=True)
