"""Turns: what each may read, turns that keep no rows, and a pipeline that must be finished."""

import json

import pytest

from ackline.verify.evidence import DeadLetter
from tests.verify.fabricated import (
    AT_MOST_ONCE,
    Change,
    History,
    Row,
    after_noon,
    assert_found,
    at_most_once,
    genesis,
    marker,
    outcome,
    plan,
    retry,
    settlement,
    violation,
    without_rows,
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
    violation(lambda h: setattr(h, "ledger", "another"),
              "settled orders[0]: the group has committed 10 with metadata '{\"ledger\": \"another\""),
    violation(lambda h: setattr(h, "committed", None),
              "settled orders[0]: the group has committed nothing; this ledger must have committed the log's end, 10"),
    violation(lambda h: setattr(h, "log_end", 12), "settled orders[0]: floor is 10, but the log ends at 12",
              "settled orders[0]: complete_to is 10, but the log ends at 12",
              "settled orders[0]: the group has committed 10 with metadata"),
    violation(lambda h: h.settlements.clear(),
              "settled orders[0]: no settlement of the newest epoch has this partition"),
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


def void(turn: int, **columns: object) -> Row:
    return settlement(turn, 0, 0, 0, kind="void", **{"reason": "the range is gone", **columns})


def waived_turn() -> History:
    """Turn 1 is waived and void; turn 2 reads the same offsets at most once."""
    history = at_most_once(*(outcome(2, offset, 1, "acked") for offset in (0, 1, 2, 3, 4, 5, 7, 8, 9)))
    history.turn, history.calls = 2, [(offset, 1) for offset in history.records]
    history.plans += [marker(1, "waiver"), plan(2, 0, 10, settings=AT_MOST_ONCE), marker(2, "start")]
    history.settlements = [genesis(), void(1), settlement(2, 0, 10, 10)]
    return history


def test_i7_a_waived_turn_is_void_and_its_offsets_are_handed_out_by_the_next_turn() -> None:
    assert waived_turn().violations() == []
    waived_and_open = waived_turn()
    waived_and_open.plans, waived_and_open.settlements = waived_and_open.plans[:2], waived_and_open.settlements[:1]
    waived_and_open.outcomes, waived_and_open.committed, waived_and_open.turn = [], 0, 0
    waived_and_open.calls = []
    assert waived_and_open.violations(settled=False) == []


@pytest.mark.parametrize(("change", "sentence"), [
    (lambda h: h.plans.pop(1), "I7: turn 1 of epoch 0 is void, but was not waived: its records may be handed out "
                               "twice"),
    (lambda h: h.plans.append(marker(2, "waiver")), "I7: turn 2 of epoch 0 was waived, but is settled as a run"),
    (lambda h: h.plans.append(marker(1, "start")), "I7: turn 1 of epoch 0 was waived, but a driver has started it"),
    (lambda h: h.settlements[1].update(reason=""), "I11: turn 1 of epoch 0 is void, and no reason is stored"),
])  # fmt: skip
def test_each_violation_of_a_waived_turn_is_named(change: Change, sentence: str) -> None:
    history = waived_turn()
    change(history)
    assert sentence in history.violations()


def test_i1_the_end_of_a_waived_turn_may_not_be_committed() -> None:
    history = waived_turn()
    history.plans, history.settlements = history.plans[:2], history.settlements[:2]
    history.outcomes, history.calls, history.turn = [], [], 1
    assert any(found.startswith("I1 orders[0] offset 10: is committed, above") for found in history.violations(False))


def test_what_is_behind_is_no_violation_until_all_must_be_settled() -> None:
    assert History(log_end=12).violations(settled=False) == []


def test_a_history_without_rows_passes_and_is_counted() -> None:
    report = without_rows().judged()
    assert (report.violations, report.totals["acked"], report.totals["dropped"]) == ([], 8, 1)


@pytest.mark.parametrize("acked", [7, 9])
def test_a_count_that_differs_from_the_records_is_found_i4(acked: int) -> None:
    assert without_rows(acked).violations() == [
        f"I4 orders[0]: turn 1 counts {acked + 1} outcomes of [0, 10), which holds 9 records"
    ]


def test_a_compacted_log_may_have_lost_records_since_they_were_counted_i4() -> None:
    more, fewer = without_rows(9), without_rows(7)
    more.aborted = fewer.aborted = []
    assert more.violations() == []
    assert fewer.violations() == ["I4 orders[0]: turn 1 counts 8 outcomes of [0, 10), which holds 9 records"]


def test_counts_that_are_not_stored_any_more_are_no_violation() -> None:
    assert without_rows(0, gaps=None).violations() == []


def test_a_range_that_no_turn_read_is_found_although_no_turn_kept_rows_i2() -> None:
    history = without_rows()
    history.plans = [plan(1, 0, 8, settings=history.plans[0]["settings"])]
    history.settlements[1] = settlement(1, 0, 10, 10, counts=[("acked", 7)], gaps=1)
    found = [line.split(":")[0] for line in history.violations() if line.startswith("I2")]
    assert found == ["I2 orders[0] offset 8", "I2 orders[0] offset 9"]


def test_a_turn_that_was_to_keep_no_rows_and_kept_some_is_judged_by_them_i4() -> None:
    history, settings = History(), without_rows().plans[0]["settings"]
    history.plans = [plan(1, 0, 10, settings=settings), plan(2, 10, 10, settings=settings)]
    assert history.violations() == []
    history.outcomes.remove(history.find(1, 4))
    assert any(line.startswith("I4 orders[0] offset 4") for line in history.violations())


BY_KEY = json.dumps({"guarantee": "at_least_once", "order": "key", "max_uncommitted": 100})


def ordered(order: str = BY_KEY) -> History:
    """Return the history of records of two keys: 0 and 2 are of one, 1 is of the other, and 3 has none.

    0 fails in turn 1 and is acked in turn 2, so 2 is held back in turn 1 and called in turn 2.
    """
    history = History(records=[0, 1, 2, 3], log_end=4, committed=4, letters=[])
    history.outcomes = [
        outcome(1, 0, 1, "failed", key_hash64=-1), outcome(1, 1, 1, "acked", key_hash64=8),
        outcome(1, 2, 0, "held_back", key_hash64=-1), outcome(1, 3, 1, "acked"),
        outcome(2, 0, 2, "acked", key_hash64=-1), outcome(2, 2, 1, "acked", key_hash64=-1),
    ]  # fmt: skip
    history.plans = [plan(1, 0, 4, settings=order), plan(2, 4, 4, settings=order)]
    held = retry(2, 3, 0, after_noon(60)) | {"kind": "held_back"}
    history.settlements = [genesis(), settlement(1, 0, 0, 4, retry(0, 1, 1, after_noon(100)), held)]
    history.settlements.append(settlement(2, 0, 4, 4))
    history.calls = [(0, 1), (1, 1), (3, 1), (0, 2), (2, 1)]
    return history


EARLY = "I19 orders[0] offset 2: has an attempt in a turn that began before each lower record of its key was settled"


def test_i19_what_was_held_back_and_is_called_in_the_turn_that_settles_the_record_before_it_holds() -> None:
    assert ordered().violations() == []
    assert ordered(json.dumps({"guarantee": "at_least_once", "order": "none"})).violations() == []


def test_i19_a_call_of_a_key_before_a_lower_record_of_it_is_settled_is_named() -> None:
    history = ordered()
    history.find(2, 0, 2).update(turn=3, handled_at=after_noon(180))
    history.plans.append(plan(3, 4, 4, settings=BY_KEY))
    history.settlements[2] = settlement(2, 0, 0, 4, retry(0, 1, 1, after_noon(100)))
    history.settlements.append(settlement(3, 0, 4, 4))
    history.turn = 3
    assert history.violations() == [EARLY]


@pytest.mark.parametrize("word", ["dead", "acked"])
def test_i19_a_dead_letter_or_an_answer_of_the_same_turn_comes_too_late(word: str) -> None:
    history = ordered()
    if word == "dead":
        history.find(2, 0, 2).update(outcome="failed")
        history.outcomes.append(outcome(2, 0, 0, "dead"))
        history.letters = [DeadLetter("live", 0, "orders", 0, 0, "digest")]
    else:
        history.find(2, 0, 2).update(outcome="in_flight")
        history.outcomes.append(outcome(2, 0, 2, "acked", answer="ack"))
    assert history.violations() == [EARLY]


def test_i19_an_order_by_partition_is_judged_without_keys() -> None:
    by_partition = json.dumps({"guarantee": "at_least_once", "order": "partition"})
    found = ordered(by_partition).violations()
    assert [sentence.split(":")[0] for sentence in found] == ["I19 orders[0] offset 1", "I19 orders[0] offset 3"]


def test_a_record_that_was_held_back_with_an_attempt_or_twice_in_a_turn_is_named() -> None:
    history = ordered()
    history.outcomes.append(outcome(1, 2, 0, "held_back", key_hash64=-1))
    assert "I9 orders[0] offset 2: the same attempt and outcome are stored twice" in history.violations()
    history.outcomes.pop()
    history.find(1, 2, 0).update(attempt=1)
    assert any("held_back), but an attempt number" in sentence for sentence in history.violations())


def test_i11_a_first_attempt_that_was_neither_planned_nor_held_back_before_is_named() -> None:
    history = ordered()
    history.outcomes = [row for row in history.outcomes if row["outcome"] != "held_back"]
    named = "I11 orders[0] offset 2: has a first attempt in a turn whose plan does not contain it"
    assert named in history.violations()
