"""Rows of `outcomes`, attempts, and the tables against the log."""

from typing import Any

import pytest

from tests.verify.fabricated import (
    Change,
    History,
    Row,
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
    violation(lambda h: h.find(2, 3, 0).update(attempt=2), "I4 orders[0] offset 3: has an outcome of no attempt "
              "(dead, expired, compacted, lost or held_back), but an attempt number"),
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


NO_END = "has a terminal outcome in no epoch, but is below the floor"


def after_reset(
    target: int, *more: Row, new_floor: int | None = None, complete_to: int = 12, **columns: Any
) -> History:
    """Returns the history of turns 1 and 2, and a reset to `target` with the rows `more`; the log ends at 12."""
    history = History(epoch=1, turn=0)
    history.records += [10, 11]
    history.log_end, history.committed = 12, target
    history.plans.append(plan(3, target, target, kind="reset"))
    skipped = sum(row["end_offset"] - row["offset"] for row in more)
    counts = [("skipped", skipped)] if more else []
    floor = complete_to if new_floor is None else new_floor
    history.settlements.append(settlement(3, 10, floor, complete_to, kind="reset", counts=counts, **columns))
    history.outcomes += more
    return history


def skipped(start: int, end: int) -> Row:
    return outcome(3, start, 0, "skipped", end_offset=end)


def test_i15_what_a_reset_passes_over_is_settled_in_the_epoch_that_it_ends() -> None:
    assert after_reset(12, skipped(10, 12)).violations(settled=False) == []
    assert after_reset(12, complete_to=10).violations(settled=False) == [
        f"I15 orders[0] offset {offset}: {NO_END}" for offset in (10, 11)
    ]


def test_i15_what_is_pending_below_the_target_of_a_reset_is_settled_in_the_epoch_that_it_ends() -> None:
    """Offset 3 has failed twice, and is not dead."""
    history = after_reset(12, outcome(3, 3, 0, "skipped", end_offset=4), skipped(10, 12))
    history.outcomes.remove(history.find(2, 3, 0))
    history.letters = []
    history.settlements[2].update(pending=[retry(3, 4, 2, after_noon(200))], new_floor=3)
    history.settlements[3].update(old_floor=3)
    assert history.violations(settled=False) == []
    history.outcomes.remove(history.find(3, 3, 0))
    history.settlements[3].update(counts=[("skipped", 2)])
    assert f"I15 orders[0] offset 3: {NO_END}" in history.violations(settled=False)


def test_i15_what_a_reset_passes_over_is_named_although_the_lane_first_began_above_it() -> None:
    """The lane began at 5, was reset to 0, and is reset to 4 now."""
    history = after_reset(4, new_floor=0, complete_to=0)
    history.epoch, history.letters, history.calls = 2, [], []
    genesis_at_5 = genesis() | {"old_floor": 5, "new_floor": 5, "complete_to": 5}
    back = [
        row | {"epoch": 0, "turn": 1} for row in (plan(1, 0, 0, kind="reset"), settlement(1, 5, 5, 5, kind="reset"))
    ]
    history.plans = [back[0], history.plans[-1] | {"epoch": 1, "turn": 1}]
    history.settlements = [genesis_at_5, back[1], history.settlements[-1] | {"epoch": 1, "turn": 1, "old_floor": 0}]
    history.outcomes = []
    assert [line for line in history.violations(settled=False) if line.startswith("I15")] == [
        *(f"I15 orders[0] offset {offset}: {NO_END}" for offset in (0, 1, 2)),
        f"I15 orders[0]: {NO_END}, at 1 more offsets",
    ]


@pytest.mark.parametrize(
    ("known", "now"), [({"topic_id": "old"}, {"topic_id": "new"}), ({"leader_epoch": 4}, {"leader_epoch": 5})]
)
def test_i4_i15_epochs_of_a_log_that_a_reset_has_left_are_judged_without_it(known: Row, now: Row) -> None:
    """Offset 6 was a gap of the old log."""
    history = after_reset(9, complete_to=10, **now)
    for row in history.settlements[:-1]:
        row.update(known)
    history.records = sorted([*history.records, 6])
    assert history.violations(settled=False) == []
    history.settlements[-1].update(dict.fromkeys(now))
    assert history.violations(settled=False) == [
        f"I15 orders[0] offset 6: {NO_END}",
        "I4 orders[0] offset 6: is neither settled nor pending, but below complete_to",
    ]


@pytest.mark.parametrize("kind", ["skip of a followed group", "skip of an adoption"])
def test_i4_what_a_skip_passes_over_is_recorded_whatever_asks_for_it(kind: str) -> None:
    history = after_reset(12, skipped(10, 12))
    history.epoch, history.turn = 0, 3
    history.plans[-1].update(kind="skip", reason=kind)
    history.settlements[-1].update(kind="skip", reason=kind)
    assert history.violations() == []
    history.outcomes.pop()
    history.settlements[-1].update(counts=[])
    assert (
        "I4 orders[0] offset 10: turn 3 (skip) moves complete_to past it, but neither reads it nor has a row for it"
        in (history.violations())
    )


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
