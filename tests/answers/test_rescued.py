"""What is shown of records with a copy in the rescue topic: where it is, and what retention takes (S88, I20)."""

from datetime import timedelta

from ackline.answers.explain import PartitionExplanationObject, explain_partitions, held_back
from ackline.answers.overview import PipelineStatus, summary_of
from ackline.answers.status import status, status_by_topic
from ackline.answers.tried import attempts_of, try_offsets
from ackline.ledger.explain import OffsetEvidence, explain_offset
from ackline.ledger.states import State
from tests.steps.test_released import lane_with_release, released_lane
from tests.steps.test_rescue import lane_with_rescue, run_at
from tests.support.memory_lane import FAILS, OK, TP, MemoryLane


def rescued_lane() -> MemoryLane:
    """A lane with one record that has a copy, and whose original is gone."""
    lane = lane_with_rescue(FAILS, OK)
    run_at(lane, 0)
    run_at(lane, 18)
    lane.log().expire(2)
    return lane


def summary(lane: MemoryLane) -> PipelineStatus:
    return summary_of("lane", status(lane.adapters()), ())


def test_s88_status_counts_what_has_a_copy_and_does_not_call_it_losing() -> None:
    lane = rescued_lane()
    [found] = status(lane.adapters())
    assert (found.rescued, found.state, found.retention_eta) == (1, State.STUCK, None)
    assert status_by_topic([found])[0].rescued == 1
    assert found.dump()["rescued"] == 1
    assert "first_at_risk" not in found.dump()
    lane.produce(OK)
    [found] = status(lane.adapters())
    assert found.retention_eta == lane.world.now + timedelta(hours=24)


def test_s88_what_has_no_copy_is_losing() -> None:
    lane = lane_with_rescue(FAILS, OK)
    run_at(lane, 0)
    lane.log().expire(2)
    assert status(lane.adapters())[0].state is State.LOSING


def test_s88_explain_says_where_the_copy_is() -> None:
    lane = rescued_lane()
    where = "It is rescued to rescue[0]@0, and read from there once its topic does not hold it."
    [found] = explain_partitions(lane.adapters())
    assert where in found.sentence
    assert "expired" not in found.sentence
    assert PartitionExplanationObject.of(found).dump()["held_by"]["rescued_to"] == "rescue[0]@0"
    evidence = OffsetEvidence(TP, 0, "live", 0, lane.state(), (), None, None, 0)
    assert explain_offset(evidence, lane.world.now).sentence.endswith(where)


def test_s88_try_hands_the_copy_to_the_handler() -> None:
    lane = rescued_lane()
    lane.settings["handler"] = "tests.support.tried_handlers:price"
    [tried] = try_offsets(lane.adapters(), {TP: attempts_of(lane.adapters(), TP, [0])})
    assert tried.record is not None
    assert (tried.outcome, tried.error_class, tried.record.value) == ("failed", "ValueError", FAILS)
    assert (tried.record.topic, tried.record.offset, tried.record.attempt) == ("orders", 0, 2)


def test_s89_nothing_is_called_settled_while_a_released_record_is_pending() -> None:
    lane = released_lane()
    lane.produce(OK)
    run_at(lane, 18.5)
    [found] = status(lane.adapters())
    assert (found.lag, found.released, found.rescued, found.state) == (0, 1, 1, State.WAITING)
    assert (found.held_by, found.oldest_pending_offset, found.dump()["released"]) == (None, 0, 1)
    assert status_by_topic([found])[0].released == 1


def test_s89_explain_says_what_is_pending_apart() -> None:
    lane = released_lane()
    [found] = explain_partitions(lane.adapters())
    assert found.sentence == (
        "No record holds the floor of orders[0], which is 2: each record below it is settled, or pending apart. "
        "1 released record is pending apart and does not hold the floor; offset 0 failed once with ValueError and "
        "waits for attempt 2, due at 2026-03-02 07:00:00 UTC (in 60 minutes). It is rescued to rescue[0]@0."
    )
    assert [found.tp for found in held_back(lane.adapters(), status(lane.adapters())).explanations] == [TP]
    lane.produce(FAILS)
    run_at(lane, 18.5)
    [found] = explain_partitions(lane.adapters())
    assert found.held_by is not None
    assert found.held_by.offset == 2
    assert "The floor of orders[0] is 2, because offset 2 failed once" in found.sentence
    assert "1 released record is pending apart" in found.sentence
    evidence = OffsetEvidence(TP, 0, "live", 0, lane.state(), (), None, None, 0)
    assert explain_offset(evidence, lane.world.now).sentence.endswith("It is released: it does not hold the floor.")


def test_s89_a_released_record_whose_copy_is_lost_is_losing() -> None:
    lane = lane_with_release(FAILS, OK)
    run_at(lane, 0)
    run_at(lane, 18)
    lane.create("rescue")
    lane.world.faults.copies.append("refused")
    run_at(lane, 18.2)
    [found] = status(lane.adapters())
    assert (found.lag, found.released, found.rescued, found.state) == (0, 1, 0, State.LOSING)
    assert found.retention_eta == lane.world.now + timedelta(hours=5.8)
    assert "It has no copy now." in explain_partitions(lane.adapters())[0].sentence
    lane.log().expire(1)
    [found] = status(lane.adapters())
    assert (found.first_at_risk, found.state) == (0, State.LOSING)
    assert "retention has taken records that were not settled, from offset 0 on" in str(summary(lane).problem)


def test_s89_a_released_record_whose_dead_letter_is_not_acknowledged_is_stuck() -> None:
    lane = lane_with_release(FAILS, OK, retry={"max_retries": 0})
    lane.world.faults.letters.extend(["lost"] * 2)
    run_at(lane, 0)
    run_at(lane, 18)
    found = summary(lane)
    assert (found.state, found.lag, found.pending) == (State.STUCK, 0, 1)
    assert found.problem == "orders[0]: dead letters are not acknowledged"
