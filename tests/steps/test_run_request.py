"""A run that is asked for less: fewer records, only retries, some partitions; and what its plan stores."""

import pytest

from ackline.errors import ConfigError
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.planning import NOT_REQUESTED, ONLY_RETRIES
from ackline.pipeline.arguments import SETTING, RunRequest
from ackline.steps import plan
from ackline.steps.run import replay_until_records
from tests.support.memory_adapters import no_session
from tests.support.memory_lane import FAILS_ONCE, OK, TP, TP1, MemoryLane

NOW = {"initial_delay": "0s"}


def asked(lane: MemoryLane, **request: object) -> None:
    lane.run(lane.adapters(request=RunRequest(**request)))  # type: ignore[arg-type]


def test_max_records_limits_a_run_and_never_exceeds_the_file() -> None:
    lane = MemoryLane(*[OK] * 10, max_records_per_run=6)
    asked(lane, max_records=2)
    assert len(lane.calls()) == 2
    asked(lane, max_records=100)
    assert len(lane.calls()) == 8
    lane.run()
    assert lane.floor() == 10


def test_only_retries_reads_what_is_due_and_no_new_record() -> None:
    lane = MemoryLane(FAILS_ONCE, OK, retry=NOW)
    lane.run()
    lane.produce(OK, OK)
    asked(lane, only_retries=True)
    assert lane.calls() == [(0, 1), (1, 1), (0, 2)]
    asked(lane, only_retries=True)
    stored = lane.adapters().store.plan(lane.newest().turn)
    assert stored.partitions[TP].why == ONLY_RETRIES
    lane.run()
    assert lane.floor() == 4


def test_only_retries_leaves_it_to_a_later_run_to_record_what_retention_took() -> None:
    lane = MemoryLane(*[OK] * 2)
    lane.run()
    lane.produce(OK, OK, OK)
    lane.log().expire(4)
    asked(lane, only_retries=True)
    assert lane.floor() == 2
    lane.run()
    assert lane.floor() == 5
    assert lane.ranges(Outcome.EXPIRED) == [(2, 4)]


def test_partitions_that_are_not_requested_are_not_read_and_move_no_floor() -> None:
    lane = MemoryLane(partitions=2)
    for tp in (TP, TP1):
        lane.produce(OK, tp=tp)
    asked(lane, partitions=frozenset({TP1}))
    assert (lane.calls(TP), lane.calls(TP1)) == ([], [(0, 1)])
    stored = lane.adapters().store.plan(lane.newest().turn)
    assert stored.partitions[TP].why == NOT_REQUESTED
    assert stored.settings[SETTING] == {"partitions": ["orders[1]"]}
    lane.run()
    assert lane.calls(TP) == [(0, 1)]


def test_a_partition_that_the_lane_does_not_have_is_refused_before_anything_is_planned() -> None:
    lane = MemoryLane(OK)
    lane.run()
    lane.produce(OK)
    before = lane.newest().turn
    with pytest.raises(ConfigError, match=r"partitions: orders\[7\] is no partition that lane reads"):
        asked(lane, partitions=frozenset({TopicPartition("orders", 7)}))
    assert lane.newest().turn == before


def test_a_plan_that_is_open_stays_as_it_is() -> None:
    lane = MemoryLane(OK, OK)
    lane.plan()
    asked(lane, only_retries=True)
    assert len(lane.calls()) == 2


def test_the_next_turn_of_a_run_in_airflow_keeps_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first turn reads a gap alone, so the driver plans the next one itself."""
    lane = MemoryLane(partitions=2)
    lane.log().add_gap(3)
    lane.produce(OK, OK)
    lane.produce(OK, tp=TP1)
    adapters = lane.adapters(request=RunRequest(max_records=3, partitions=frozenset({TP})))
    plan.plan(adapters)
    replay_until_records(lane.adapters(), no_session)
    lane.settle()
    assert (lane.calls(TP), lane.calls(TP1)) == ([(3, 1), (4, 1)], [])
