"""The sentences of the report."""

from ackline.verify.evidence import Findings, TopicPartition
from tests.verify.fabricated import History


def test_of_many_offsets_with_one_violation_three_are_named_and_the_others_counted() -> None:
    history = History()
    history.outcomes = [r for r in history.outcomes if r["outcome"] != "acked"]
    found = [line for line in history.violations() if line.startswith("I4 orders[0]") and "neither" in line]
    assert len(found) == 4
    assert found[-1] == "I4 orders[0]: is neither settled nor pending, but below complete_to, at 4 more offsets"


def test_an_offset_that_is_found_twice_is_named_once_and_no_offset_adds_nothing() -> None:
    found = Findings()
    found.add_offsets("I4", "is wrong", TopicPartition("orders", 1), [7, 7])
    found.add_offsets("I4", "is wrong", TopicPartition("orders", 2), [])
    found.add("I11", "is wrong, too")
    assert found.sentences == ["I4 orders[1] offset 7: is wrong", "I11: is wrong, too"]
