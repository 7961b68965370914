"""Rules on a pipeline that must be finished."""

import pytest

from tests.unit.verify.fabricated import Change, History, assert_found, violation


@pytest.mark.parametrize(("change", "sentences"), [
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


def test_what_is_behind_is_no_violation_until_all_must_be_settled() -> None:
    assert History(log_end=12).violations(settled=False) == []
