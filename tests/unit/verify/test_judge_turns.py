"""Rules on turns: plans, settlements, the window, and what a turn may read."""

import json

import pytest

from tests.unit.verify.fabricated import (
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


def leave_turns_out(history: History) -> None:
    history.plans.append(plan(5, 10, 10))
    history.settlements.append(settlement(5, 10, 10, 10))


def settle_half_a_lane(history: History) -> None:
    history.plans.append(plan(3, 0, 0, kind="genesis", partition=1))
    history.settlements.append(settlement(3, 0, 0, 0, kind="genesis", partition=1))


def limit_window(history: History) -> None:
    history.plans[0].update(settings=json.dumps({"guarantee": "at_least_once", "max_uncommitted": 9}))


def pass_over_what_retention_took(history: History) -> None:
    history.records, history.log_start = [8, 9], 8
    history.plans[0].update(start_offset=8)
    history.outcomes = [outcome(1, offset, 1, "acked") for offset in (8, 9)]
    history.settlements[1:] = [settlement(1, 0, 10, 10), settlement(2, 10, 10, 10)]


def skip_without_a_row(history: History) -> None:
    pass_over_what_retention_took(history)
    history.plans[0].update(kind="skip")
    history.settlements[1].update(kind="skip")


@pytest.mark.parametrize(("change", "sentences"), [
    violation(lambda h: h.settlements.append(h.settlements[2]),
              "I11 orders[0]: turn 2 of epoch 0 has 2 settlements"),
    violation(lambda h: h.plans.append(h.plans[0]), "I11 orders[0]: turn 1 of epoch 0 has 2 plans"),
    violation(lambda h: h.plans.pop(0), "I11: turn 1 of epoch 0 is settled, but has no plan"),
    violation(lambda h: h.plans.extend([plan(3, 10, 10), plan(4, 10, 10)]),
              "I11: turn 3 of epoch 0 has no settlement, but later turns exist"),
    violation(leave_turns_out, "I11: turn 3 of epoch 0 does not exist, but later turns do",
              "I11: turn 4 of epoch 0 does not exist, but later turns do"),
    violation(settle_half_a_lane, "I4 orders[0]: turn 3 of epoch 0 is settled without this partition"),
    violation(limit_window,
              "I8 orders[0] offset 10: is the end of the plan of turn 1, which reads 10 offsets although 0 records "
              "above the floor 0 were read and max_uncommitted is 9"),
    violation(pass_over_what_retention_took,
              "I4 orders[0] offset 0: turn 1 (run) moves complete_to past it, but neither reads it nor has a row"),
    violation(skip_without_a_row,
              "I4 orders[0] offset 0: turn 1 (skip) moves complete_to past it, but neither reads it nor has a row"),
    violation(lambda h: h.plans[0].update(end_offset=9),
              "I4 orders[0] offset 9: turn 1 (run) moves complete_to past it, but neither reads it nor has a row",
              "I11 orders[0] offset 9: has a first attempt in a turn whose plan does not contain it"),
])  # fmt: skip
def test_each_violation_is_named(change: Change, sentences: tuple[str, ...]) -> None:
    assert_found(change, sentences)


def test_the_window_is_of_at_least_once_only_i8() -> None:
    history = History()
    history.plans[0].update(settings=json.dumps({"guarantee": "no_guarantee", "max_uncommitted": 9}))
    assert history.violations() == []


@pytest.mark.parametrize(("records", "window", "violations"), [
    ([0, 8], 3, []),
    ([0, 7, 8], 3, ["I8 orders[0] offset 10: is the end of the plan of turn 2, which reads 1 offsets although 3 "
                    "records above the floor 0 were read and max_uncommitted is 3"]),
])  # fmt: skip
def test_a_gap_that_was_read_does_not_fill_the_window_i8(
    records: list[int], window: int, violations: list[str]
) -> None:
    """Record 0 waits for its retry. Turn 1 reads up to 9, and turn 2 reads offset 9."""
    settings = json.dumps({"guarantee": "at_least_once", "max_uncommitted": window})
    waits = retry(0, 1, 1, after_noon(3_600))
    history = History(records=[*records, 9], committed=None, letters=[], calls=[(o, 1) for o in [*records, 9]])
    history.plans = [plan(1, 0, 9), plan(2, 9, 10, settings=settings)]
    history.outcomes = [outcome(1, 0, 1, "failed", error_class="ValueError")]
    history.outcomes += [outcome(1, offset, 1, "acked") for offset in records[1:]] + [outcome(2, 9, 1, "acked")]
    history.settlements = [genesis(), settlement(1, 0, 0, 9, waits), settlement(2, 0, 0, 10, waits)]
    assert history.violations(settled=False) == violations
