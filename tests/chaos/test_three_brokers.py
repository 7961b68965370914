"""Three brokers (fault 16): leaders die and move, partitions have no leader, a log is truncated and grows again.

No record is lost that the cluster still has (I4). If the cluster has lost records, the run stops and names them.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from ackline.errors import AcklineError, TopicChanged
from ackline.ledger.offsets import TopicPartition
from ackline.spark import job
from tests.chaos.victims import beside_next_call
from tests.e2e.lab import Lab, Spark, all_of, fails
from tests.support.brokers import Brokers

UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
SAFE = {"min.insync.replicas": "2"}
Made = Callable[..., Lab]


def lab_on(
    brokers: Brokers, folder: Path, spark: Spark, *replicas: tuple[int, ...], config: dict[str, str], **settings: Any
) -> Lab:
    """Returns a lab. Each partition is on the given nodes, and the first of them leads it."""
    lane = Lab(brokers, folder, spark, create=False, **settings)  # type: ignore[arg-type]
    brokers.create_topic(lane.topic, config, replicas)
    brokers.create_topic(lane.dead_letter_topic, replicas=[(1,)])
    return lane


@pytest.fixture
def on_three(brokers: Brokers, tmp_path: Path, in_process: Spark) -> Made:
    """A factory of labs whose jobs run in this process."""
    return partial(lab_on, brokers, tmp_path, in_process)


def until_done(lane: Lab, tries: int = 5) -> None:
    """Runs again while a step fails, as Airflow would."""
    for _ in range(tries - 1):
        try:
            lane.run()
        except AcklineError:
            continue
        return
    lane.run()


def acknowledged_by_the_leader(lane: Lab, count: int) -> None:
    """Produces records that only the leader may have when this returns."""
    producer = Producer({"bootstrap.servers": lane.broker.bootstrap, "acks": "1"})
    for n in range(count):
        producer.produce(lane.topic, json.dumps({"only": n}).encode(), partition=0)
    assert producer.flush(30) == 0


def test_a_leader_is_killed_while_its_records_are_read_and_nothing_is_lost_or_repeated(
    brokers: Brokers, tmp_path: Path, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = lab_on(brokers, tmp_path, spark, (2, 3, 1), config=SAFE, retry={"max_retries": 1, "initial_delay": "0s"})
    lane.produce_records(300, fails([7, 250], 1))
    beside_next_call(monkeypatch, job, "run_replay", before=brokers.nodes[2].kill)
    until_done(lane)
    assert {row["turn"] for row in lane.table("plans") if row["end_offset"] > row["start_offset"]} == {1}
    assert lane.settled().leader_epoch == 0, "the leader epoch of the plan; the new leader has the same log"
    until_done(lane)
    assert (lane.settled().leader_epoch or 0) > 0
    assert (lane.outcomes(), lane.committed()) == ({"acked": 300, "failed": 2}, 300)
    lane.judge(settled=True)


@pytest.mark.deep
def test_s42_a_log_that_was_cut_and_grew_beyond_what_was_read_stops_the_run(brokers: Brokers, on_three: Made) -> None:
    """A replica that lags is elected, and new records make the log longer than before. `reset` goes on from there."""
    lane = on_three((2, 3), config=UNCLEAN)
    lane.produce_records(5)
    brokers.nodes[3].stop()
    brokers.await_in_sync(lane.topic, {2})
    acknowledged_by_the_leader(lane, 5)
    lane.run()
    assert lane.committed() == 10
    brokers.nodes[2].kill()
    brokers.nodes[3].start()
    brokers.await_leader(lane.topic, 3)
    acknowledged_by_the_leader(lane, 8)
    with pytest.raises(TopicChanged, match=r"only what is below 5 is left.*--to 5") as refused:
        lane.run()
    assert (refused.value.topic, refused.value.partition, refused.value.offset) == (lane.topic, 0, 5)
    assert (lane.new_offsets(), lane.committed()) == (list(range(10)), 10)

    where = ["--topic", lane.topic, "--partition", "0", "--to", "5", "--reason", "truncated", "--yes"]
    done = lane.ackline_process("reset", lane.name, *where, "--now", lane.now.isoformat())
    assert done.returncode == 0, done.stderr
    lane.run()
    assert (lane.new_offsets(), lane.settlement().turn.epoch, lane.committed()) == (list(range(5, 13)), 1, 13)


@pytest.mark.deep
def test_a_log_cut_under_the_reader_makes_the_turn_void_and_is_read_again(
    brokers: Brokers, on_three: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log grows to its old end before the reader has finished, so only the leader epoch shows the truncation."""
    lane = on_three((2, 3), config=UNCLEAN)
    lane.produce_records(4)
    brokers.nodes[3].stop()
    brokers.await_in_sync(lane.topic, {2})
    acknowledged_by_the_leader(lane, 3)

    def elect_the_other() -> None:
        brokers.nodes[2].kill()
        brokers.nodes[3].start()
        brokers.await_leader(lane.topic, 3)
        acknowledged_by_the_leader(lane, 3)

    beside_next_call(monkeypatch, job, "run_replay", after=elect_the_other)
    lane.run()
    kinds = [row["kind"] for row in lane.table("settlements")]
    assert (sorted(kinds), lane.rows()) == (["genesis", "run", "void"], all_of("acked", range(7)))
    assert (lane.settled().leader_epoch or 0) > 0
    assert (lane.new_offsets(), lane.committed()) == ([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6], 7)


@pytest.mark.deep
def test_a_partition_without_leader_is_left_out_and_named_until_it_is_back(brokers: Brokers, on_three: Made) -> None:
    lane = on_three((2,), (3,), config={})
    for partition in (0, 1):
        lane.produce_records(3, partition=partition)
    lane.run()
    lane.produce_records(2, partition=0)
    brokers.nodes[2].kill()
    brokers.await_leader(lane.topic, None)
    lane.produce_records(2, partition=1)
    ran = lane.run()
    first, second = (ran.plans[0].partitions[TopicPartition(lane.topic, n)] for n in (0, 1))
    assert (first.why, first.empty, second.why, second.fresh.end) == ("no leader", True, None, 5)
    assert (lane.settled(0).state.complete_to, lane.settled(0).leader_epoch) == (3, 0)
    brokers.nodes[2].start()
    brokers.await_leader(lane.topic, 2)
    until_done(lane)
    assert (lane.settled(0).leader_epoch or 0) > 0
    assert [lane.committed(n) for n in (0, 1)] == [5, 5]
    lane.judge(settled=True)
