"""Rules on attempts: their numbers, their turns, their due times and their limit."""

import pytest

from tests.unit.verify.fabricated import Change, History, after_noon, assert_found, violation


@pytest.mark.parametrize(("change", "sentences"), [
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
])  # fmt: skip
def test_each_violation_is_named(change: Change, sentences: tuple[str, ...]) -> None:
    assert_found(change, sentences)


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
