"""Rules on the tables against the log: only what a consumer receives was read."""

import pytest

from tests.unit.verify.fabricated import Change, History, assert_found, outcome, violation


@pytest.mark.parametrize(("change", "sentences"), [
    violation(lambda h: h.records.remove(4),
              "I14 orders[0] offset 4: was handled, but no consumer receives a record there"),
    violation(lambda h: h.outcomes.append(outcome(2, 12, 1, "acked")),
              "I14 orders[0] offset 12: was handled, but the log ends at 10"),
    violation(lambda h: h.settlements[2].update(complete_to=11, new_floor=11),
              "I14 orders[0] offset 11: is complete_to, but the log ends at 10"),
])  # fmt: skip
def test_each_violation_is_named(change: Change, sentences: tuple[str, ...]) -> None:
    assert_found(change, sentences)


def test_compaction_may_remove_handled_records_but_an_aborted_record_is_found_i14() -> None:
    history = History(records=[0, 3, 5, 7, 8, 9], aborted=[])
    assert history.violations() == []
    history.aborted = [4]
    assert history.violations() == ["I14 orders[0] offset 4: was handled, but no consumer receives a record there"]
