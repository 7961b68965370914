"""Rules on records in flight: an attempt is ended once, and only if it was in flight."""

import pytest

from tests.unit.verify.fabricated import History, Row, outcome, plan, settlement


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


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        (["acked", "acked"], "I9 orders[0] offset 0: one attempt has two ends"),
        (["acked", "failed"], "I9 orders[0] offset 0: one attempt has two ends"),
        (["failed"], "I4 orders[0] offset 0: is neither settled nor pending"),
    ],
)
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
