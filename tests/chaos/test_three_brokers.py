"""Three brokers (fault 16): leaders die and move, partitions have none, a log is cut and grows again.

Nothing is lost that the cluster still has (I4), and where it has lost something the run stops and says so.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from ackline.errors import AcklineError, TopicChanged
from ackline.offsets import TopicPartition as At
from ackline.steps import replay
from ackline.testing.brokers import Brokers
from tests.e2e.lab import Lab, Spark, all_of, fails

UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
SAFE = {"min.insync.replicas": "2"}
Made = Callable[..., Lab]


@pytest.fixture
def on_three(brokers: Brokers, tmp_path: Path, spark: Spark) -> Made:
    """A factory of labs whose partitions lie on these nodes, the first of which leads."""

    def make(*replicas: tuple[int, ...], config: dict[str, str], **settings: Any) -> Lab:
        one = Lab(brokers, tmp_path, spark, create=False, **settings)  # type: ignore[arg-type]
        brokers.create_topic(one.topic, config, replicas)
        brokers.create_topic(one.dead, replicas=[(1,)])
        return one

    return make


def until_done(one: Lab, tries: int = 5) -> None:
    """Run again while a step fails as transient, as Airflow would."""
    for _ in range(tries - 1):
        try:
            one.run()
        except AcklineError:
            continue
        return
    one.run()


def acknowledged_by_the_leader(one: Lab, count: int) -> None:
    """Records that only the leader has when this returns."""
    producer = Producer({"bootstrap.servers": one.broker.bootstrap, "acks": "1"})
    for n in range(count):
        producer.produce(one.topic, json.dumps({"only": n}).encode(), partition=0)
    assert producer.flush(30) == 0


def test_a_leader_is_killed_while_its_records_are_read_and_nothing_is_lost_or_repeated(
    brokers: Brokers, on_three: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = on_three((2, 3, 1), config=SAFE, retry={"max_retries": 1, "initial_delay": "0s"})
    one.records(300, fails([7, 250], 1))
    real = replay._run_spark_job

    def struck(*arguments: Any) -> Any:
        monkeypatch.setattr(replay, "_run_spark_job", real)
        one.spark()  # started by now, so that it meets the dead leader
        brokers.nodes[2].kill()
        return real(*arguments)

    monkeypatch.setattr(replay, "_run_spark_job", struck)
    until_done(one)
    assert {row["turn"] for row in one.table("plans") if row["end_offset"] > row["start_offset"]} == {1}
    assert one.settled().leader_epoch == 0, "that under which it was planned; the new leader has the same log"
    until_done(one)
    assert (one.settled().leader_epoch or 0) > 0
    assert one.outcomes() == {"acked": 300, "failed": 2}
    assert one.committed() == 300
    one.judge(settled=True)


def test_s42_a_log_that_was_cut_and_grew_beyond_what_was_read_stops_the_run(brokers: Brokers, on_three: Made) -> None:
    """A replica that lags is elected; others come until the log is longer than it ever was. `reset` goes on."""
    one = on_three((2, 3), config=UNCLEAN)
    one.records(5)
    brokers.nodes[3].stop()
    brokers.await_in_sync(one.topic, {2})
    acknowledged_by_the_leader(one, 5)
    one.run()
    assert one.committed() == 10
    brokers.nodes[2].kill()
    brokers.nodes[3].start()
    brokers.await_leader(one.topic, 3)
    acknowledged_by_the_leader(one, 8)
    with pytest.raises(TopicChanged, match=r"only what is below 5 is left.*--to 5") as said:
        one.run()
    assert (said.value.topic, said.value.partition, said.value.offset) == (one.topic, 0, 5)
    assert one.offsets() == list(range(10))
    assert one.committed() == 10

    where = ["--topic", one.topic, "--partition", "0", "--to", "5"]
    done = one.command("reset", one.name, *where, "--now", one.now.isoformat())
    assert done.returncode == 0, done.stderr
    one.run()
    assert one.offsets() == list(range(5, 13))
    assert one.settlement().turn.epoch == 1
    assert one.committed() == 13


def test_a_log_cut_under_the_reader_makes_the_turn_void_and_is_read_again(
    brokers: Brokers, on_three: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It grows to its old end before the reader is through: nothing but the leader's epoch tells."""
    one = on_three((2, 3), config=UNCLEAN)
    one.records(4)
    brokers.nodes[3].stop()
    brokers.await_in_sync(one.topic, {2})
    acknowledged_by_the_leader(one, 3)
    real = replay._run_spark_job

    def struck(*arguments: Any) -> Any:
        monkeypatch.setattr(replay, "_run_spark_job", real)
        result = real(*arguments)
        brokers.nodes[2].kill()
        brokers.nodes[3].start()
        brokers.await_leader(one.topic, 3)
        acknowledged_by_the_leader(one, 3)
        return result

    monkeypatch.setattr(replay, "_run_spark_job", struck)
    one.run()
    kinds = [row["kind"] for row in one.table("settlements")]
    assert sorted(kinds) == ["genesis", "run", "void"]
    assert one.rows() == all_of("acked", range(7))
    assert (one.settled().leader_epoch or 0) > 0
    assert one.offsets() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    assert one.committed() == 7


def test_a_partition_without_leader_is_left_out_and_named_until_it_is_back(brokers: Brokers, on_three: Made) -> None:
    one = on_three((2,), (3,), config={})
    for partition in (0, 1):
        one.records(3, partition=partition)
    one.run()
    one.records(2, partition=0)
    brokers.nodes[2].kill()
    brokers.await_leader(one.topic, None)
    one.records(2, partition=1)
    ran = one.run()
    lost, there = (ran.plans[0].partitions[At(one.topic, n)] for n in (0, 1))
    assert (lost.why, lost.empty, there.why, there.fresh.end) == ("no leader", True, None, 5)
    assert (one.settled(0).state.complete_to, one.settled(0).leader_epoch) == (3, 0)
    brokers.nodes[2].start()
    brokers.await_leader(one.topic, 2)
    until_done(one)
    assert (one.settled(0).leader_epoch or 0) > 0
    assert [one.committed(n) for n in (0, 1)] == [5, 5]
    one.judge(settled=True)
