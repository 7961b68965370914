"""How records end: dead letters, answers to records in flight, and the choice of a backfill."""

from dataclasses import dataclass, replace

import pytest

from ackline.verify.check import judge
from ackline.verify.evidence import DeadLetter, Evidence
from tests.verify.fabricated import (
    NOON,
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


def die_early(history: History) -> None:
    history.find(1, 4).update(outcome="failed")
    history.outcomes.append(outcome(2, 4, 0, "dead"))


@pytest.mark.parametrize(("change", "sentences"), [
    violation(lambda h: h.letters.clear(), "I6 orders[0] offset 3: is dead, but has no dead letter"),
    violation(lambda h: h.letters.append(replace(h.letters[0], offset=4)),
              "I6 orders[0] offset 4: has a dead letter, but is not dead"),
    violation(lambda h: setattr(h, "letters", [DeadLetter("live", 0, "orders", 0, 3, "other")]),
              "I6 orders[0] offset 3: its dead letter does not have the key and value of the record"),
    violation(die_early, "I6 orders[0] offset 4: is dead, but has retries left"),
    violation(lambda h: h.find(1, 4).update(outcome="dead", attempt=0),
              "I6 orders[0] offset 4: is dead, but never failed"),
])  # fmt: skip
def test_each_violation_is_named(change: Change, sentences: tuple[str, ...]) -> None:
    assert_found(change, sentences)


def test_repeated_dead_letters_and_calls_are_counted_and_are_no_violation() -> None:
    history = History()
    history.letters *= 3
    history.calls += [(5, 2)]
    report = history.judged()
    assert report.violations == []
    assert [report.totals[count] for count in ("letters", "letters_again", "calls_again")] == [1, 2, 1]


def test_a_dead_letter_that_is_sent_without_value_passes_i6() -> None:
    assert History(letters=[DeadLetter("live", 0, "orders", 0, 3, None)]).violations() == []


def test_a_pipeline_without_dead_letters_has_dead_records_and_no_letter_i6() -> None:
    evidence = replace(History().evidence(), letters=None)
    assert judge(evidence, max_retries=1, settled=True).violations == []


def test_a_record_whose_handler_raised_dead_may_have_retries_left_i6() -> None:
    history = History()
    history.letters.append(DeadLetter("live", 0, "orders", 0, 4, "digest-4"))
    die_early(history)
    history.find(1, 4).update(error_class="Dead")
    assert not any(line.startswith("I6") for line in history.violations())


@pytest.mark.parametrize("error_class", ["Undecodable", "WhereError"])
def test_an_attempt_that_failed_before_the_handler_needs_no_call_i2(error_class: str) -> None:
    history = History()
    history.find(1, 5).update(error_class=error_class)
    history.calls.remove((5, 1))
    assert history.violations() == []
    history.find(1, 5).update(error_class="ValueError")
    assert any(line.startswith("I2") for line in history.violations())


def in_flight(*answers: Row) -> History:
    """Return the history of one record that its handler hands on in turn 1, with the rows that end it in turn 2."""
    history = History(records=[0], log_end=1, committed=1, letters=[])
    history.outcomes = [outcome(1, 0, 1, "in_flight"), *answers]
    history.plans = [plan(1, 0, 1), plan(2, 1, 1)]
    pending = {"start_offset": 0, "end_offset": 1, "kind": "in_flight", "attempts": 1}
    history.settlements = [settlement(0, 0, 0, 0, kind="genesis"), settlement(1, 0, 0, 1, pending)]
    history.settlements.append(settlement(2, 0, 1, 1))
    history.calls = [(0, 1)]
    return history


def test_a_record_that_was_renewed_twice_and_acked_holds() -> None:
    renewed = [outcome(turn, 0, 1, "in_flight", answer="renew") for turn in (1, 2)]
    assert in_flight(*renewed, outcome(2, 0, 1, "acked", answer="ack")).violations() == []


@pytest.mark.parametrize(("answers", "sentence"), [
    (["acked", "acked"], "I9 orders[0] offset 0: one attempt has two ends"),
    (["acked", "failed"], "I9 orders[0] offset 0: one attempt has two ends"),
    (["failed"], "I4 orders[0] offset 0: is neither settled nor pending"),
])  # fmt: skip
def test_two_ends_of_one_attempt_and_a_failure_that_is_forgotten_are_named(answers: list[str], sentence: str) -> None:
    history = in_flight(*(outcome(2, 0, 1, word, answer="x") for word in answers))
    assert any(line.startswith(sentence) for line in history.violations()), history.violations()


def test_an_answer_to_an_attempt_that_was_not_in_flight_is_named() -> None:
    history = in_flight(outcome(2, 0, 1, "acked", answer="ack"))
    history.outcomes[0]["outcome"] = "failed"
    assert any("was answered, but was not in flight" in line for line in history.violations())
    before = in_flight(outcome(2, 0, 2, "acked", answer="ack"))
    assert any("was answered, but was not in flight" in line for line in before.violations())


def test_i10_an_answer_that_acks_a_record_with_a_skipped_tree_is_named() -> None:
    acked = in_flight(outcome(2, 0, 1, "acked", answer="ack"))
    acked.outcomes[0]["error_class"] = "Skip"
    sentence = "I10 orders[0] offset 0: was acked from outside, although its own tree was skipped"
    assert sentence in acked.violations()
    skipped = in_flight(outcome(2, 0, 1, "skipped", answer="ack"))
    skipped.outcomes[0]["error_class"] = "Skip"
    assert skipped.violations() == []


@dataclass
class BackfillHistory(History):
    """A history of the lane `backfill-1`. The group stands where live runs have left it."""

    def evidence(self) -> Evidence:
        letters = [replace(letter, lane="backfill-1") for letter in self.letters]
        return replace(super().evidence(), lane="backfill-1", letters=letters)


def bounds(start: int, end: int) -> Row:
    return {"start_offset": start, "end_offset": end}


def by_range() -> BackfillHistory:
    """Returns a correct history of the ranges [0, 6) and [7, 10), which two turns read."""
    history = BackfillHistory(committed=4)
    for offset in (7, 8, 9):
        history.find(1, offset).update(turn=2, handled_at=after_noon(120))
    history.plans = [plan(1, 0, 6), plan(2, 7, 10)]
    history.settlements = [
        genesis() | {"ranges": [bounds(0, 6), bounds(7, 10)]},
        settlement(1, 0, 3, 6, retry(3, 4, 1, after_noon(100)), retry(5, 6, 1, after_noon(100))),
        settlement(2, 3, 10, 10),
    ]
    return history


def by_outcome() -> BackfillHistory:
    """Returns a correct history of the single offsets 3 and 5, of which one is gone."""
    history = BackfillHistory(committed=4, turn=1, letters=[], calls=[(3, 1)])
    unread = [retry(3, 4, 0, NOON), retry(5, 6, 0, NOON)]
    history.outcomes = [outcome(1, 3, 1, "acked"), outcome(1, 5, 0, "expired")]
    history.plans = [plan(1, 6, 6, retries=[{**bounds(3, 4), "attempt": 1}, {**bounds(5, 6), "attempt": 1}])]
    history.settlements = [settlement(0, 3, 3, 6, *unread, kind="genesis", ranges=[]), settlement(1, 3, 6, 6)]
    return history


def test_s70_a_correct_backfill_has_no_violation_and_needs_no_commit() -> None:
    assert (by_range().violations(), by_outcome().violations()) == ([], [])


def test_s72_a_backfill_that_has_just_begun_has_no_violation_and_is_not_settled() -> None:
    history = by_outcome()
    history.outcomes, history.plans, history.settlements = [], [], history.settlements[:1]
    history.calls = []
    assert history.violations(settled=False) == []
    assert [line for line in history.violations() if "still pending" in line]


def two_epochs() -> BackfillHistory:
    """Returns a correct history of two epochs of [0, 6) and [7, 10): the first was cancelled, the second is whole."""
    history = by_range()
    for rows in (history.outcomes, history.plans, history.settlements):
        for row in rows:
            row["epoch"] = 1
    history.letters = [replace(letter, epoch=1) for letter in history.letters]
    history.outcomes += [
        outcome(1, start, 0, "skipped") | {"epoch": 0, "end_offset": end} for start, end in ((0, 6), (7, 10))
    ]
    history.plans.append(plan(1, 10, 10, kind="skip") | {"epoch": 0})
    history.settlements += [
        genesis() | {"epoch": 0, "ranges": [bounds(0, 6), bounds(7, 10)]},
        settlement(1, 0, 10, 10, kind="skip") | {"epoch": 0},
    ]
    return history


def test_i15_each_epoch_of_a_lane_is_judged_alone() -> None:
    assert two_epochs().violations() == []
    other_topic = two_epochs()
    other_topic.settlements[-1]["topic"] = other_topic.settlements[-2]["topic"] = "gone"
    other_topic.plans[-1]["topic"] = "gone"
    for row in other_topic.outcomes[-2:]:
        row["topic"] = "gone"
    assert other_topic.violations() == []


def test_i15_an_epoch_that_was_not_settled_when_the_next_one_began_is_named() -> None:
    history = two_epochs()
    history.settlements[-1].update(pending=[retry(3, 4, 1, after_noon(100))], new_floor=3)
    assert any("I15 orders[0] offset 3: is still pending in epoch 0" in line for line in history.violations())
    history = two_epochs()
    for rows, number in ((history.outcomes, 2), (history.plans, 1), (history.settlements, 1)):
        del rows[-number:]
    assert any("I15 orders[0] offset 0: is unread in epoch 0" in line for line in history.violations())


@pytest.mark.parametrize(("change", "sentences"), [
    violation(
        lambda h: h.outcomes.append(outcome(2, 6, 0, "expired")),
        "S70 orders[0] offset 6: has an outcome, but is no part of the lane",
        "S72 orders[0]: 9 offsets were chosen, but after turn 2 10 are settled, 0 are gaps, 0 are pending",
    ),
    violation(lambda h: h.settlements[2].update(gaps=1), "S72 orders[0]: 9 offsets were chosen"),
    violation(
        lambda h: h.settlements[0].update(ranges=[bounds(0, 10)]),
        "I4 orders[0] offset 6: turn 2 (run) moves complete_to past it",
        "S72 orders[0]: 10 offsets were chosen",
    ),
    violation(lambda h: h.settlements.pop(), "settled orders[0]: complete_to is 6, but what was chosen ends at 10"),
    violation(
        lambda h: h.outcomes.remove(h.find(2, 8)),
        "I4 orders[0] offset 8: is neither settled nor pending",
        "S72 orders[0]: 9 offsets were chosen",
    ),
])  # fmt: skip
def test_each_violation_of_a_backfill_by_range_is_named(change: Change, sentences: tuple[str, ...]) -> None:
    assert_found(change, sentences, by_range())


@pytest.mark.parametrize(("change", "sentences"), [
    violation(
        lambda h: h.plans[0]["retries"].pop(0),
        "I11 orders[0] offset 3: has a first attempt in a turn whose plan does not contain it",
    ),
    violation(
        lambda h: h.settlements[1].update(pending=[retry(3, 4, 0, NOON)], new_floor=3),
        "I4 orders[0] offset 3: is pending as unread after turn 1, but has an outcome",
        "S72 orders[0]: 2 offsets were chosen",
    ),
    violation(lambda h: h.outcomes.pop(), "S72 orders[0]: 2 offsets were chosen, but after turn 1 1 are settled"),
    violation(
        lambda h: h.find(1, 3).update(handled_at=after_noon(-60)),
        "I5 orders[0] offset 3: was retried before its due time",
    ),
])  # fmt: skip
def test_each_violation_of_a_backfill_by_outcome_is_named(change: Change, sentences: tuple[str, ...]) -> None:
    assert_found(change, sentences, by_outcome())


def rescued(*ranges: tuple[int, int]) -> list[Row]:
    return [{**bounds(*ends), "topic": "rescue", "topic_id": "id", "partition": 0, "offset": 9} for ends in ranges]


@pytest.mark.parametrize("word", ["expired", "compacted"])
def test_s88_a_record_that_is_settled_as_gone_although_it_has_a_copy_is_named(word: str) -> None:
    history = History()
    history.settlements[1]["rescued"] = rescued((3, 4), (5, 6))
    assert history.violations() == []
    history.find(2, 5, 2).update(attempt=0, outcome=word)
    sentence = "S88 orders[0] offset 5: was settled as gone in turn 2, but had a copy in the rescue topic"
    assert sentence in history.violations()
    history.settlements[1]["rescued"] = rescued((3, 4))
    assert not any(line.startswith("S88") for line in history.violations())


def test_s88_a_settled_record_that_keeps_a_copy_is_named() -> None:
    history = History()
    history.settlements[2]["rescued"] = rescued((5, 6))
    sentence = "S88 orders[0] offset 5: has a copy in the rescue topic after turn 2, but is not pending"
    assert sentence in history.violations()


def released_history(rescued_ranges: list[Row], released_ranges: list[Row]) -> History:
    """Turn 1 leaves 3 and 5 pending, and its floor is above 3."""
    history = History()
    history.settlements[1].update(new_floor=5, rescued=rescued_ranges, released=released_ranges)
    history.settlements[2].update(old_floor=5)
    return history


def test_s89_a_floor_may_pass_a_pending_record_whose_copy_and_release_are_stored_with_it() -> None:
    assert released_history(rescued((3, 4)), [bounds(3, 4)]).violations() == []


def test_s89_a_floor_that_passed_a_pending_record_that_is_not_released_is_named() -> None:
    found = released_history(rescued((3, 4)), []).violations()
    assert (
        "I4 orders[0] offset 5: is the floor of turn 1, but by its pending offsets and complete_to it is 3" in found
    ), "a copy alone releases nothing"
    assert "I1 orders[0] offset 3: the floor passed it before the turn that settled it" in found


def test_s89_a_record_that_is_released_without_a_copy_is_named() -> None:
    found = released_history([], [bounds(3, 4)]).violations()
    assert found == ["S89 orders[0] offset 3: was released in turn 1, which has stored no copy of it"]


def test_s89_a_record_that_is_released_and_not_pending_is_named() -> None:
    found = released_history(rescued((3, 4)), [bounds(3, 5)]).violations()
    assert "S89 orders[0] offset 4: is released after turn 1, but is not pending" in found


def test_s89_a_release_that_is_taken_back_is_named() -> None:
    history = released_history(rescued((3, 4)), [bounds(3, 4)])
    pending = [retry(3, 4, 1, after_noon(100)), retry(5, 6, 1, after_noon(100))]
    history.settlements.insert(2, settlement(2, 5, 3, 10, *pending, rescued=rescued((3, 4))))
    found = history.violations()
    assert "S89 orders[0] offset 3: was released, and holds the floor again after turn 2" in found
    assert "I3 orders[0] offset 3: turn 2 (run) lowers the floor from 5" in found


def test_s89_a_commit_may_pass_what_the_turn_that_it_names_has_released_and_nothing_else() -> None:
    history = released_history(rescued((3, 4)), [bounds(3, 4)])
    del history.settlements[2:], history.plans[1:]
    history.outcomes = [row for row in history.outcomes if row["turn"] == 1]
    history.turn, history.committed, history.calls = 1, 5, history.calls[:8]
    assert history.violations(settled=False) == []
    history.settlements[1].update(released=[])
    sentence = "I2 orders[0] offset 3: is below the committed offset, but has no terminal outcome"
    assert sentence in history.violations(settled=False)


def test_s89_a_floor_that_passed_a_record_before_the_turn_that_released_it_is_named() -> None:
    history = released_history(rescued((3, 4)), [])
    pending = [retry(3, 4, 1, after_noon(100)), retry(5, 6, 1, after_noon(100))]
    late = settlement(2, 5, 5, 10, *pending, rescued=rescued((3, 4)), released=[bounds(3, 4)])
    history.settlements.insert(2, late)
    assert "I1 orders[0] offset 3: the floor passed it before the turn that settled it" in history.violations()
