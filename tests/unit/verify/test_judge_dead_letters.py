"""Rules on dead letters: a record is dead exactly if its dead letter is on the topic, and dead for a reason."""

from dataclasses import replace

import pytest

from ackline.verify.check import judge
from ackline.verify.evidence import DeadLetter
from tests.unit.verify.fabricated import Change, History, assert_found, outcome, violation


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
