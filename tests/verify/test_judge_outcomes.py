"""Rows of `outcomes`, attempts, and the tables against the log."""

import pytest

from tests.verify.fabricated import (
    Change,
    History,
    after_noon,
    assert_found,
    genesis,
    outcome,
    plan,
    retry,
    settlement,
    violation,
)


def ack_a_range(history: History) -> None:
    history.find(1, 8).update(end_offset=10)
    history.outcomes.remove(history.find(1, 9))


def miscount(history: History) -> None:
    history.settlements[1].update(counts=[("acked", 7), ("skipped", 1), ("failed", 2)], gaps=0)


@pytest.mark.parametrize(("change", "sentences"), [
    violation(lambda h: h.find(1, 4).update(outcome="done"),
              "I4 orders[0] offset 4: has an unknown outcome", "I2 orders[0] offset 4: is below the committed"),
    violation(lambda h: h.find(1, 4).update(outcome=None),
              "I4 orders[0] offset 4: has an unknown outcome", "I2 orders[0] offset 4: is below the committed"),
    violation(lambda h: h.find(1, 4).update(attempt=0),
              "I4 orders[0] offset 4: has the outcome of an attempt (acked, failed, dropped or in_flight), but no "
              "attempt number"),
    violation(lambda h: h.find(2, 3, 0).update(attempt=2), "I4 orders[0] offset 3: has an outcome that no attempt can "
              "have (dead, expired, compacted or lost), but an attempt number"),
    violation(ack_a_range,
              "I4 orders[0] offset 8: has an end_offset that its outcome or its attempt number does not allow"),
    violation(lambda h: h.outcomes.append(outcome(2, 8, 0, "expired", end_offset=8)),
              "I4 orders[0] offset 8: has an end_offset that its outcome or its attempt number does not allow"),
    violation(lambda h: h.outcomes.append(h.find(1, 4)),
              "I9 orders[0] offset 4: the same attempt and outcome are stored twice",
              "I9 orders[0] offset 4: has more than one terminal outcome"),
    violation(lambda h: h.outcomes.append(outcome(2, 3, 0, "skipped")),
              "I9 orders[0] offset 3: has more than one terminal outcome"),
    violation(lambda h: h.outcomes.append(outcome(2, 0, 0, "expired", end_offset=3)),
              "I9 orders[0] offset 2: has more than one terminal outcome"),
    violation(lambda h: h.outcomes.append(outcome(2, 4, 2, "failed")),
              "I9 orders[0] offset 4: was attempted again after the attempt that settled it"),
    violation(lambda h: h.find(2, 3, 0).update(turn=1),
              "I9 orders[0] offset 3: was attempted in a later turn than the one that settled it"),
    violation(lambda h: h.settlements.pop(0),
              "I4 orders[0]: the tables do not have the start or the last state of epoch 0"),
    violation(lambda h: h.outcomes.append(outcome(1, 0, 1, "acked", partition=1)),
              "I4 orders[1]: the tables do not have the start or the last state of epoch 0"),
    violation(lambda h: h.outcomes.append(outcome(2, 10, 1, "acked")),
              "I4 orders[0] offset 10: has a terminal outcome, but epoch 0 has read only [0, 10)"),
    violation(lambda h: h.settlements[2].update(pending=[retry(4, 5, 1, after_noon(0))], new_floor=4),
              "I4 orders[0] offset 4: is both settled and pending"),
    violation(lambda h: h.settlements[2].update(kind="run", pending=[retry(3, 4, 1, after_noon(0))] * 2, new_floor=3),
              "I4 orders[0] offset 3: is pending more than once"),
    violation(lambda h: h.outcomes.remove(h.find(1, 4)),
              "I2 orders[0] offset 4: is below the committed offset, but has no terminal outcome",
              "I4 orders[0] offset 4: is neither settled nor pending, but below complete_to",
              "I4 orders[0] offset 4: has a handler call, but no outcome of that attempt counts"),
    violation(miscount, "I4 orders[0]: turn 1 counts {'acked': 7, 'skipped': 1, 'failed': 2}, but its rows give"),
    violation(lambda h: h.find(2, 3, 2).update(attempt=3), "I5 orders[0] offset 3: attempts are not 1, 2, 3",
              "I5 orders[0] offset 3: has more than 2 attempts"),
    violation(lambda h: h.find(2, 5, 2).update(attempt=1), "I5 orders[0] offset 5: attempts are not 1, 2, 3"),
    violation(lambda h: h.find(2, 5, 2).update(turn=1),
              "I5 orders[0] offset 5: has an attempt that is not in a later turn than the attempt before it"),
    violation(lambda h: h.find(2, 5, 2).update(handled_at=after_noon(99)),
              "I5 orders[0] offset 5: was retried before its due time"),
    violation(lambda h: h.settlements[1]["pending"].pop(),
              "I5 orders[0] offset 5: was retried, but no retry with its number of attempts was pending"),
    violation(lambda h: h.settlements[1]["pending"][1].update(kind="dead_letter"),
              "I5 orders[0] offset 5: was retried, but no retry with its number of attempts was pending"),
    violation(lambda h: h.settlements[1]["pending"][1].update(attempts=2),
              "I5 orders[0] offset 5: was retried, but no retry with its number of attempts was pending"),
    violation(lambda h: h.settlements[1].update(pending=[], new_floor=10),
              "I5 orders[0] offset 5: was retried, but nothing was pending after the turn before"),
    violation(lambda h: h.records.remove(4),
              "I14 orders[0] offset 4: was handled, but no consumer receives a record there"),
    violation(lambda h: h.outcomes.append(outcome(2, 12, 1, "acked")),
              "I14 orders[0] offset 12: was handled, but the log ends at 10"),
    violation(lambda h: h.settlements[2].update(complete_to=11, new_floor=11),
              "I14 orders[0] offset 11: is complete_to, but the log ends at 10"),
])  # fmt: skip
def test_each_violation_is_named(change: Change, sentences: tuple[str, ...]) -> None:
    assert_found(change, sentences)


def test_a_range_that_ends_before_it_starts_hides_no_unsettled_record_i2_i4() -> None:
    history = History()
    history.outcomes.remove(history.find(1, 4))
    history.outcomes.append(outcome(1, 8, 0, "lost", end_offset=3))
    found = history.violations()
    assert "I4 orders[0] offset 8: has an end_offset that its outcome or its attempt number does not allow" in found
    assert "I2 orders[0] offset 4: is below the committed offset, but has no terminal outcome" in found
    assert "I4 orders[0] offset 4: is neither settled nor pending, but below complete_to" in found


@pytest.mark.parametrize(("counted", "violations"), [
    (8, []),
    (1, ["I4 orders[0]: turn 1 counts {'acked': 2, 'expired': 1}, but its rows give {'acked': 2, 'expired': 8}"]),
])  # fmt: skip
def test_a_settlement_counts_each_offset_of_a_range(counted: int, violations: list[str]) -> None:
    history = History(records=[8, 9], log_start=8, turn=1, letters=[], calls=[(8, 1), (9, 1)], plans=[plan(1, 8, 10)])
    acked = [outcome(1, offset, 1, "acked") for offset in (8, 9)]
    history.outcomes = [outcome(1, 0, 0, "expired", end_offset=8), *acked]
    counts = [("acked", 2), ("expired", counted)]
    history.settlements = [genesis(), settlement(1, 0, 10, 10, counts=counts, gaps=0)]
    assert history.violations() == violations


def test_i15_what_a_reset_passes_over_is_settled_in_the_epoch_that_it_ends() -> None:
    history = History(epoch=1, turn=0)
    history.records += [10, 11]
    history.log_end = history.committed = 12
    history.plans.append(plan(3, 12, 12, kind="reset"))
    history.settlements.append(settlement(3, 10, 12, 12, kind="reset", counts=[("skipped", 2)]))
    history.outcomes.append(outcome(3, 10, 0, "skipped", end_offset=12))
    assert history.violations(settled=False) == []
    history.outcomes.pop()
    history.settlements[-1].update(new_floor=10, complete_to=10, counts=[])
    assert history.violations(settled=False) == [
        f"I15 orders[0] offset {offset}: has a terminal outcome in no epoch, but is below the floor"
        for offset in (10, 11)
    ]


def test_without_a_limit_any_number_of_attempts_passes_i5() -> None:
    history = History()
    assert any("I5" in line for line in history.judged(max_retries=0).violations)
    assert history.judged(max_retries=None).violations == []


def test_pending_retries_pass_until_the_history_must_be_settled() -> None:
    history = History(committed=3, turn=1, letters=[])
    history.outcomes, history.settlements = history.outcomes[:9], history.settlements[:2]
    history.plans, history.calls = history.plans[:1], history.calls[:8]
    assert history.violations(settled=False) == []
    assert [line for line in history.violations() if "still pending" in line] == [
        "settled orders[0] offset 3: is still pending", "settled orders[0] offset 5: is still pending",
    ]  # fmt: skip


def test_compaction_may_remove_handled_records_but_an_aborted_record_is_found_i14() -> None:
    history = History(records=[0, 3, 5, 7, 8, 9], aborted=[])
    assert history.violations() == []
    history.aborted = [4]
    assert history.violations() == ["I14 orders[0] offset 4: was handled, but no consumer receives a record there"]
