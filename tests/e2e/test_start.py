"""Where a pipeline starts (S30–S35, S54): the ledger wins, then a commit of ours, then what the file says."""

import json
import shutil

import pytest

from ackline.errors import FatalError
from tests.e2e import wire
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row

LATEST = ("latest", "uncommitted_latest")


@pytest.mark.parametrize(
    ("start", "held", "expected"),
    [
        ("earliest", None, 2),
        ("earliest", 5, 2),
        ("latest", None, 8),
        ("latest", 5, 8),
        ("uncommitted_earliest", None, 2),
        ("uncommitted_earliest", 5, 5),
        ("uncommitted_earliest", 0, 0),
        ("uncommitted_latest", None, 8),
        ("uncommitted_latest", 5, 5),
        ("uncommitted_latest", 2, 2),
        ("uncommitted_latest", 0, 0),
    ],
)
def test_s30_without_a_ledger_the_start_is_what_the_file_says(
    lab: MakeLab, start: str, held: int | None, expected: int
) -> None:
    """`uncommitted_*` take any commit, the others none; offset 0 is not "unset" (S31). Then the ledger wins, whatever
    the file and the group say."""
    one = lab(start=start)
    one.records(8)
    one.expire(2)
    if held is not None:
        one.commit(held, "somebody's")
    one.run()
    assert one.offsets() == list(range(max(expected, 2), 8))
    assert [row for row in one.rows() if row.end] == ([Row(expected, 0, "expired", 2)] if expected < 2 else [])
    assert one.committed() == 8
    one.define(start="earliest" if start in LATEST else "latest")
    one.forget_commit()
    one.records(2)
    one.run()
    assert one.offsets() == [8, 9]
    one.judge(settled=True)


@pytest.mark.parametrize("start", ["uncommitted_earliest", "uncommitted_latest", "timestamp", "uncommitted_timestamp"])
def test_s30_a_commit_with_this_pipeline_s_metadata_comes_before_the_start(lab: MakeLab, start: str) -> None:
    """Whatever the file says, and whichever ledger wrote it: that one is lost. Then the new ledger wins."""
    stamp = {} if "timestamp" not in start else {"start_timestamp": "2001-01-01T00:00:00+00:00"}
    one = lab(start=start, **stamp)
    one.records(4)
    one.commit(3, json.dumps({"ledger": "lost", "pipeline": one.name, "epoch": 2, "n": 41}))
    one.run()
    assert one.offsets() == [3]
    one.records(1)
    one.define(start="earliest", start_timestamp=None)
    one.forget_commit()
    one.run()
    assert one.offsets() == [4]
    assert one.committed() == 5


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_s30_without_its_ledger_a_pipeline_goes_on_from_its_own_commit(lab: MakeLab, start: str) -> None:
    """The audit folder was lost: the group still holds what this pipeline committed, and it may go on committing."""
    one = lab(start=start)
    one.run()
    one.records(4)
    one.run()
    assert one.offsets() == [0, 1, 2, 3]
    shutil.rmtree(one.audit)
    one.records(3)
    one.run()
    assert one.offsets() == [4, 5, 6]
    assert one.committed() == 7
    one.records(1)
    one.run()
    assert one.committed() == 8


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "not JSON {",
        "[1, 2]",
        '{"ledger": "x"}',
        json.dumps({"ledger": "x", "pipeline": "another", "epoch": 0, "n": 7}),
        json.dumps({"ledger": 1, "pipeline": None, "epoch": "0", "n": -7}),
        "\ufffd<script>" * 50,
    ],
)
def test_s31_metadata_of_others_is_never_trusted_as_ours(lab: MakeLab, metadata: str) -> None:
    one = lab(start="earliest")
    one.records(4)
    one.commit(3, metadata)
    one.run()
    assert one.offsets() == [0, 1, 2, 3]
    mark = json.loads((one.held() or (0, ""))[1])
    assert (mark["pipeline"], mark["epoch"]) == (one.name, 0)
    one.judge(settled=True)


def test_s32_a_missing_topic_is_said_and_read_from_its_start_once_it_is_there(lab: MakeLab) -> None:
    one = lab(create=False, dead_letter="none")
    ran = one.run()
    assert (ran.calls, ran.missing) == (0, (one.topic,))
    one.broker.create_topic(one.topic)
    one.records(3)
    assert one.run().missing == ()
    assert one.offsets() == [0, 1, 2]
    one.judge(settled=True)


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_s32_a_topic_created_after_the_first_run_is_read_from_its_start(lab: MakeLab, start: str) -> None:
    """Also by a pipeline that starts at the end: everything in the new topic came after its first run (S54)."""
    one = lab(start=start)
    later = f"{one.topic}-later"
    one.topics.append(later)
    one.define(kafka={**one.settings["kafka"], "topics": one.topics})
    one.run()
    one.broker.create_topic(later)
    one.records(3, topic=later)
    one.run()
    assert one.offsets(topic=later) == [0, 1, 2]
    one.judge(settled=True)


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_s32_a_pattern_picks_up_new_topics(lab: MakeLab, start: str) -> None:
    one = lab(start=start, kafka={"pattern": "placeholder"})
    one.define(kafka={**one.settings["kafka"], "pattern": rf"{one.topic[:-2]}-.*"})
    one.run()
    later = f"{one.topic}-later"
    one.topics.append(later)
    one.broker.create_topic(later)
    one.records(3, topic=later)
    one.run()
    assert one.offsets(topic=later) == [0, 1, 2]
    one.judge(settled=True)


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_s32_new_partitions_are_read_from_their_start(lab: MakeLab, start: str) -> None:
    """Fault 20."""
    one = lab(start=start)
    one.run()
    wire.add_partitions(one.broker.bootstrap, one.topic, 3)
    one.records(2, partition=1)
    one.records(1, partition=2)
    one.run()
    assert [(c.partition, c.offset) for c in sorted(one.calls(), key=str)] == [(1, 0), (1, 1), (2, 0)]
    assert [one.committed(p) for p in (0, 1, 2)] == [0, 2, 1]
    one.judge(settled=True)


def test_s33_explicit_partitions_read_only_those(lab: MakeLab) -> None:
    one = _explicit(lab)
    for partition in range(3):
        one.records(2, partition=partition)
    one.run()
    assert {c.partition for c in one.calls()} == {0, 2}
    assert [one.committed(p) for p in range(3)] == [2, None, 2]


def _explicit(lab: MakeLab) -> Lab:
    one = lab(partitions=3)
    kafka = {name: value for name, value in one.settings["kafka"].items() if name != "topics"}
    one.define(kafka={**kafka, "partitions": {one.topic: [0, 2]}})
    return one


def test_s33_each_of_eleven_partitions_is_read_exactly_once_by_three_workers(lab: MakeLab) -> None:
    one = lab(partitions=11)
    for partition in range(11):
        one.records(3, partition=partition)
    done = one.command("run", one.name, "--json", env={"ACKLINE_SPARK_MASTER": "local[3]"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["records"] == 33
    assert len({(c.partition, c.offset) for c in one.calls()}) == len(one.calls()) == 33
    assert 1 <= len({c.pid for c in one.calls()}) <= 3
    one.judge(settled=True)


def test_partitions_no_longer_subscribed_are_parked_committed_again_and_not_read(lab: MakeLab) -> None:
    one = lab(partitions=2, retry={"initial_delay": "1m"})
    one.records(2, {0: {"fail": 1}}, partition=0)
    one.records(2, partition=1)
    one.run()
    kafka = {name: value for name, value in one.settings["kafka"].items() if name != "topics"}
    one.define(kafka={**kafka, "partitions": {one.topic: [1]}})
    one.forget_commit()
    one.records(2, partition=0)
    one.wait(60)
    assert one.run().calls == 0
    assert [one.committed(p) for p in (0, 1)] == [0, 2]


def test_s35_a_commit_that_vanished_is_made_again_and_nothing_is_read_twice(lab: MakeLab) -> None:
    one = lab(partitions=2)
    one.records(4)
    one.run()
    one.forget_commit()
    assert one.committed() is None
    assert one.run().calls == 0
    assert one.committed() == 4
    one.records(1)
    one.run()
    idle = one.held(1)  # a partition that has never held a record is committed again by every run
    assert idle is not None
    assert (idle[0], json.loads(idle[1])["n"]) == (0, 3)
    one.judge(settled=True)


def test_s54_latest_reads_what_came_after_the_first_run_although_that_was_empty(lab: MakeLab) -> None:
    one = lab(start="latest")
    one.records(3)
    assert one.run().calls == 0
    one.records(2)
    one.run()
    assert one.offsets() == [3, 4]
    one.judge(settled=True)


def test_s54_latest_is_decided_once_although_the_first_run_failed(lab: MakeLab) -> None:
    """The first run stops after its genesis is stored, before anything is committed."""
    one = lab(start="latest")
    one.records(3)
    one.plan()
    one.records(2)
    one.run()
    one.run()
    assert one.offsets() == [3, 4]
    one.judge(settled=True)


def test_a_commit_beyond_the_log_is_refused_and_not_taken_for_caught_up(lab: MakeLab) -> None:
    one = lab()
    one.records(2)
    one.commit(50)
    with pytest.raises(FatalError, match="beyond the log end 2"):
        one.run()
    assert one.committed() == 50
    one.judged = True  # there is nothing yet to judge


def test_a_commit_below_the_log_start_is_a_lost_range_that_is_recorded(lab: MakeLab) -> None:
    one = lab()
    one.produce(*[{}] * 6)
    one.commit(1)
    one.expire(4)
    one.run()
    assert one.rows()[0] == (1, 0, "expired", 4)
    assert one.offsets() == [4, 5]
    one.judge(settled=True)
